"""The servers of a benchmark: a control plane without a node and a SpiceDB, ours alone."""

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import cluster
from tests.cluster.host import state_directory
from tests.cluster.process import Processes
from tests.support.spicedb import SpiceDB


@dataclasses.dataclass(frozen=True)
class World:
    """Running servers, and a folder for logs."""

    plane: cluster.Cluster
    spicedb: SpiceDB
    directory: Path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.plane.kubeconfig

    def pid(self, name: str) -> int:
        """The process id of a server of the control plane."""
        pid = Processes(state_directory() / self.plane.name).pid(name)
        assert pid, f"{name} does not run"
        return pid


@contextmanager
def world(name: str = "bench") -> Iterator[World]:
    """Bring the servers up, and take them down again."""
    with tempfile.TemporaryDirectory(prefix="memory-operator-bench-") as directory:
        plane = cluster.up("local", control_plane=True, name=name)
        try:
            plane.kubectl("apply", "-f", "crds")
            plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
            with SpiceDB(Path(directory) / "spicedb") as spicedb:
                yield World(plane, spicedb, Path(directory))
        finally:
            plane.down()
