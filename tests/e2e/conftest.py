"""A cluster with a node and the chart installed on it, for all e2e tests."""

from collections.abc import Iterator

import pytest
from kubernetes import client, config

from tests import cluster as clusters
from tests.cluster import providers
from tests.support.installation import Installation
from tests.support.organization import Organization, new_organization


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[clusters.Cluster]:
    """A cluster that can run pods. It is taken down at the end, unless it was up before."""
    name = pytestconfig.option.cluster or providers.DEFAULT_NAME
    was_up = name in providers.known()
    place = clusters.up(pytestconfig.option.provider, name=name)
    try:
        yield place
    finally:
        if not was_up:
            place.down()


@pytest.fixture(scope="session")
def installation(cluster: clusters.Cluster) -> Iterator[Installation]:
    """The chart with its defaults: embedded SpiceDB on memory, behind TLS."""
    release = Installation(cluster)
    release.install(driftPeriodSeconds="5")
    try:
        yield release
    finally:
        release.remove()


@pytest.fixture(scope="session")
def api(cluster: clusters.Cluster) -> Iterator[client.ApiClient]:
    """The API server as its administrator."""
    with config.new_client_from_config(str(cluster.kubeconfig)) as administrator:
        yield administrator


@pytest.fixture
def organization(api: client.ApiClient, installation: Installation) -> Iterator[Organization]:
    """A fresh organisation under the installed operator."""
    assert installation.release
    with new_organization(api) as fresh:
        yield fresh
