"""Real servers for the integration tests: one control plane and one SpiceDB, one operator process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from authzed.api.v1 import SyncClient
from kubernetes import client, config

from tests import cluster
from tests.support.operator import OperatorProcess
from tests.support.organization import Organization, new_organization
from tests.support.spicedb import SpiceDB


@pytest.fixture(scope="session")
def control_plane() -> Iterator[cluster.Cluster]:
    """An API server with our CRDs; no node, so no operator of its own."""
    plane = cluster.up("local", control_plane=True, name="integration")
    try:
        plane.kubectl("apply", "-f", "crds")
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield plane
    finally:
        plane.down()


@pytest.fixture(scope="session")
def api(control_plane: cluster.Cluster) -> Iterator[client.ApiClient]:
    """The API server as its administrator."""
    with config.new_client_from_config(str(control_plane.kubeconfig)) as administrator:
        yield administrator


@pytest.fixture(scope="session")
def spicedb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpiceDB]:
    """A SpiceDB that all tests of the running operator share; tests that hurt it make their own."""
    with SpiceDB(tmp_path_factory.mktemp("spicedb")) as server:
        yield server


@pytest.fixture(scope="session")
def operator(
    control_plane: cluster.Cluster, spicedb: SpiceDB, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The operator that runs during all tests that do not hurt it."""
    directory: Path = tmp_path_factory.mktemp("operator")
    with OperatorProcess(control_plane.kubeconfig, spicedb, directory) as process:
        yield process


@pytest.fixture
def organization(api: client.ApiClient, operator: OperatorProcess) -> Iterator[Organization]:
    """A fresh organisation under the running operator."""
    assert operator.pid
    with new_organization(api) as fresh:
        yield fresh


@pytest.fixture
def zed(spicedb: SpiceDB) -> SyncClient:
    """A client of the shared SpiceDB."""
    return spicedb.client()
