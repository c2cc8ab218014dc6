"""The Cluster: what `up` returns, whichever provider made it."""

import abc
import dataclasses
import os
import subprocess
from pathlib import Path
from typing import ClassVar

from tests.cluster import tools
from tests.cluster.host import ClusterError


@dataclasses.dataclass(frozen=True)
class Images:
    """The images' names, as a pod of the cluster writes them."""

    operator: str
    spicedb: str


@dataclasses.dataclass(frozen=True)
class Cluster(abc.ABC):
    """A running cluster: only a name and a kubeconfig, so any number of processes may hold one."""

    provider: ClassVar[str]

    name: str
    kubeconfig: Path
    has_node: bool

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> str:  # noqa: A002
        """Run kubectl as the cluster's administrator and return what it printed.

        With `check=False` a failure is no error, and its message is part of what is returned.
        """
        done = subprocess.run(
            [tools.path("kubectl"), *args],
            input=input,
            capture_output=True,
            text=True,
            check=False,
            # kubectl keeps what it discovers by address, and a new cluster may have an old one's
            env=os.environ
            | {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": f"{self.kubeconfig}.cache"},
        )
        if done.returncode == 0:
            return done.stdout
        if check:
            raise ClusterError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout + done.stderr

    @abc.abstractmethod
    def images(self) -> Images:
        """Build the images where their inputs changed, and see that the node has them."""

    @abc.abstractmethod
    def load(self, image: str) -> None:
        """Load an image that was built on this machine into the node."""

    @abc.abstractmethod
    def down(self) -> None:
        """Take the cluster down, with all that it left on this machine."""
