"""A short case of `make soak`: many changes in a row, then everything is as it should be."""

from authzed.api.v1 import SyncClient

from benchmarks.soak import soak
from tests import cluster
from tests.support.operator import OperatorProcess
from tests.support.organization import Organization

_GROWTH = 24.0  # MiB; what the operator takes once for its first hundred grants, and some room


def test_hundreds_of_changes_end_right_and_leave_memory_alone(
    organization: Organization,
    control_plane: cluster.Cluster,
    operator: OperatorProcess,
    zed: SyncClient,
) -> None:
    report = soak(
        organization,
        control_plane.kubeconfig,
        operator,
        zed,
        changes=500,
        seconds=15,
        seed=7,
        population=60,
    )

    assert report.counts.total() == 500
    assert min(report.counts[each] for each in ("created", "edited", "deleted")) > 20
    assert not report.wrong_rows
    assert report.memory[-1] - report.memory[0] < _GROWTH, report.quarters()
