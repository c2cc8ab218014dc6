"""The provider `current`: the cluster that KUBECONFIG points to, which is only used, never changed."""

import dataclasses
import os
import shutil
from typing import ClassVar

from tests.cluster import images, tools
from tests.cluster.cluster import Cluster, Images
from tests.cluster.host import ClusterError, run, state_directory

OPERATOR_IMAGE = "MEMORY_OPERATOR_IMAGE"


@dataclasses.dataclass(frozen=True)
class CurrentCluster(Cluster):
    """Somebody's cluster."""

    provider: ClassVar[str] = "current"

    def images(self) -> Images:
        operator = os.environ.get(OPERATOR_IMAGE)
        if not operator:
            raise ClusterError(
                "nothing can be loaded into the nodes of a cluster that was not made here: push the"
                f" operator's image where they can pull it, and set {OPERATOR_IMAGE} to its name"
            )
        return Images(operator=operator, spicedb=images.SPICEDB_OFFICIAL)

    def load(self, image: str) -> None:
        raise ClusterError(
            f"{image} can't be loaded into the nodes of a cluster that was not made here:"
            f" push it where they can pull it, and set {OPERATOR_IMAGE} to its name"
        )

    def down(self) -> None:
        down(self.name)

    def is_healthy(self) -> bool:
        """Whether the API server is ready."""
        ready = ("get", "--raw=/readyz", "--request-timeout=5s")
        return self.kubectl(*ready, check=False) == "ok"

    def describe(self) -> list[str]:
        """Lines for a person who asks what runs."""
        return ["ready" if self.is_healthy() else "does not answer"]


def up(name: str) -> CurrentCluster:
    """Take the context that kubectl uses now; later changes of it don't matter."""
    # Flattened, since KUBECONFIG may name several files, and these may name others.
    shown = run(tools.path("kubectl"), "config", "view", "--raw", "--flatten", "--minify")
    cluster = find(name)
    cluster.kubeconfig.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    (cluster.kubeconfig.parent / "provider").write_text(CurrentCluster.provider)
    cluster.kubeconfig.touch(mode=0o600)
    cluster.kubeconfig.write_text(shown)
    nodes = cluster.kubectl("get", "nodes", "--output=name")
    return dataclasses.replace(cluster, has_node=bool(nodes))


def down(name: str) -> None:
    """Forget the cluster, and leave it as it is."""
    shutil.rmtree(state_directory() / name, ignore_errors=True)


def find(name: str) -> CurrentCluster:
    """The cluster of a name."""
    return CurrentCluster(name, state_directory() / name / "kubeconfig", has_node=True)
