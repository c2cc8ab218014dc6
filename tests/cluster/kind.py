"""The provider `kind`: a node in Docker, for machines where Docker works."""

import dataclasses
import shutil
from pathlib import Path
from typing import ClassVar

import yaml

from tests.cluster import images, tools
from tests.cluster.cluster import Cluster, Images
from tests.cluster.host import (
    REPOSITORY,
    cache_directory,
    run,
    run_slowly,
    state_directory,
    succeeds,
)

# The node image that this version of kind was released with; others may not fit it.
NODE_IMAGE = (
    "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
)


@dataclasses.dataclass(frozen=True)
class KindCluster(Cluster):
    """A cluster in Docker."""

    provider: ClassVar[str] = "kind"

    def images(self) -> Images:
        operator = images.operator_name()
        if not succeeds("docker", "image", "inspect", operator):
            run_slowly(
                *docker_build(operator),
                what=f"building {operator}",
                minutes=2,
                log=cache_directory() / "image-build.log",
            )
        self.load(operator)
        return Images(operator=operator, spicedb=images.SPICEDB_OFFICIAL)  # the node pulls this one

    def load(self, image: str) -> None:
        run(tools.path("kind"), "load", "docker-image", image, "--name", self.name)

    def down(self) -> None:
        down(self.name)

    def is_healthy(self) -> bool:
        """Whether the API server is ready."""
        ready = ("get", "--raw=/readyz", "--request-timeout=5s")
        return self.kubectl(*ready, check=False) == "ok"

    def describe(self) -> list[str]:
        """Lines for a person who asks what runs."""
        return ["ready" if self.is_healthy() else "does not answer"]


def works() -> bool:
    """Whether Docker is there and its daemon answers."""
    return succeeds("docker", "info")


def up(name: str) -> KindCluster:
    """Bring a cluster up, or return the one that is."""
    cluster = find(name)
    if name in clusters(run(tools.path("kind"), "get", "clusters")) and cluster.is_healthy():
        return cluster
    down(name)  # what a killed `up` left, if anything
    directory = cluster.kubeconfig.parent
    directory.mkdir(parents=True, mode=0o700)
    (directory / "provider").write_text(KindCluster.provider)
    configuration = directory / "kind.yaml"
    configuration.write_text(kind_configuration())
    run_slowly(
        *create(name, configuration, cluster.kubeconfig),
        what=f"creating the kind cluster {name}",
        minutes=2,
        log=directory / "kind.log",
    )
    return cluster


def down(name: str) -> None:
    """Take a cluster down, whatever state it is in."""
    cluster = find(name)
    run(tools.path("kind"), "delete", "cluster", "--name", name, "--kubeconfig", cluster.kubeconfig)
    shutil.rmtree(cluster.kubeconfig.parent, ignore_errors=True)


def find(name: str) -> KindCluster:
    """The cluster of a name, up or not."""
    return KindCluster(name, state_directory() / name / "kubeconfig", has_node=True)


def clusters(shown: str) -> list[str]:
    """The names that `kind get clusters` shows; it says on standard error when there are none."""
    return shown.split()


def create(name: str, configuration: Path, kubeconfig: Path) -> tuple[str | Path, ...]:
    """The command that creates a cluster and waits for its node."""
    return (
        *(tools.path("kind"), "create", "cluster", "--name", name, "--config", configuration),
        *("--kubeconfig", kubeconfig, "--wait", "180s"),
    )


def docker_build(name: str) -> tuple[str | Path, ...]:
    """The command that builds the operator's image."""
    return ("docker", "build", "--tag", name, REPOSITORY)


def kind_configuration() -> str:
    return yaml.safe_dump(
        {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "nodes": [{"role": "control-plane", "image": NODE_IMAGE}],
        }
    )
