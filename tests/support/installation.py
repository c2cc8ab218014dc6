"""The chart on a cluster with a node: installed, upgraded, looked into, and taken away."""

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import yaml
from authzed.api.v1 import AsyncClient, SyncClient

from memory_operator.api import Kind
from memory_operator.names import GROUP
from tests.cluster import Cluster, tools
from tests.cluster.host import ClusterError

CHART = Path("charts/memory-operator")
NAMESPACE = "memory-system"
RELEASE = "memory-operator"


@dataclass(frozen=True)
class SpiceDBAccess:
    """How a process of this machine speaks to a SpiceDB in the cluster."""

    endpoint: str
    credentials: grpc.ChannelCredentials
    options: tuple[tuple[str, str], ...]

    def client(self) -> SyncClient:
        """A synchronous client."""
        return SyncClient(self.endpoint, self.credentials, self.options)

    def async_client(self) -> AsyncClient:
        """An asynchronous client; make it inside the event loop."""
        return AsyncClient(self.endpoint, self.credentials, self.options)


@dataclass(frozen=True)
class Installation:
    """One release of the chart."""

    cluster: Cluster
    namespace: str = NAMESPACE
    release: str = RELEASE

    def install(self, *arguments: str, **values: str) -> str:
        """Install or upgrade the release with this machine's images, and wait until it is ready.

        `values` are further `--set` values; a double underscore stands for a dot.
        """
        self.create_namespace()
        images = self.cluster.images()
        flags = [f"--set={name.replace('__', '.')}={value}" for name, value in values.items()]
        flags += _image("image", images.operator)
        flags += _image("spicedb.embedded.image", images.spicedb)
        return self.helm(
            "upgrade",
            "--install",
            self.release,
            str(CHART),
            "--wait",
            "--timeout=4m",
            *flags,
            *arguments,
        )

    def uninstall(self) -> None:
        """Uninstall the release; what the chart keeps stays."""
        self.helm("uninstall", self.release, "--ignore-not-found", "--wait", "--timeout=2m")

    def remove(self) -> None:
        """Uninstall the release and remove what the chart keeps: the CRDs and the namespace."""
        self.uninstall()
        # Without an operator nobody else would take the finalizers away.
        for kind in Kind:
            text = self.cluster.kubectl("get", f"{kind.plural}.{GROUP}", "-A", "-o", "json")
            for item in json.loads(text)["items"]:
                self.cluster.kubectl(
                    "patch",
                    f"{kind.plural}.{GROUP}/{item['metadata']['name']}",
                    f"--namespace={item['metadata']['namespace']}",
                    "--type=merge",
                    '--patch={"metadata":{"finalizers":[]}}',
                )
            self.cluster.kubectl("delete", "crd", f"{kind.plural}.{GROUP}")
        self.cluster.kubectl("delete", "namespace", self.namespace, "--timeout=60s")

    def test(self) -> str:
        """Run `helm test` and give what it printed, the pod's log included."""
        return self.helm("test", self.release, "--logs", "--timeout=2m")

    def helm(self, *arguments: str) -> str:
        """Run helm on the cluster; give what it printed."""
        done = subprocess.run(
            [tools.path("helm"), *arguments, f"--namespace={self.namespace}"],
            env=os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"helm {arguments[0]}: {done.stderr.strip()}{self._describe()}")
        return done.stdout

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the release's namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments)

    def logs(self) -> str:
        """Give the operator's log."""
        return self.kubectl("logs", f"deployment/{self.release}", "--tail=-1")

    def secret(self, name: str, key: str) -> bytes:
        """Read a value of a Secret."""
        text = self.kubectl("get", "secret", name, "--output=yaml")
        return base64.b64decode(yaml.safe_load(text)["data"][key])

    @contextmanager
    def spicedb(self) -> Iterator[SpiceDBAccess]:
        """Reach the embedded SpiceDB through a port-forward, with its own key and certificate."""
        service = f"{self.release}-spicedb"
        key = self.secret(f"{service}-key", "preshared_key").decode()
        authority = self.secret(f"{service}-tls", "ca.crt")
        with self.reach(service, key, authority) as access:
            yield access

    @contextmanager
    def reach(self, service: str, key: str, authority: bytes) -> Iterator[SpiceDBAccess]:
        """Reach a SpiceDB of this namespace through a port-forward."""
        with self.forward(f"service/{service}", 50051) as port:
            credentials = grpc.composite_channel_credentials(
                grpc.ssl_channel_credentials(authority), grpc.access_token_call_credentials(key)
            )
            name = f"{service}.{self.namespace}.svc"
            yield SpiceDBAccess(
                f"127.0.0.1:{port}", credentials, (("grpc.ssl_target_name_override", name),)
            )

    @contextmanager
    def forward(self, target: str, port: int) -> Iterator[int]:
        """Forward a free port of this machine to a port of a Service or pod; give that port."""
        command = [
            str(tools.path("kubectl")),
            "port-forward",
            target,
            f":{port}",
            "-n",
            self.namespace,
        ]
        with subprocess.Popen(
            command,
            env=os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout
                line = process.stdout.readline()
                match = re.search(r"127\.0\.0\.1:(\d+)", line)
                if not match:
                    raise ClusterError(f"no port-forward to {target}: {line}")
                yield int(match[1])
            finally:
                process.terminate()

    def create_namespace(self) -> None:
        """Create the release's namespace."""
        # Under the strictest profile: a pod that needs more is not started at all.
        manifest = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": self.namespace,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
            },
        }
        self.cluster.kubectl("apply", "--filename=-", input=yaml.safe_dump(manifest))

    def _describe(self) -> str:
        pods = self.cluster.kubectl("get", "pods", "-A", "-o", "wide", check=False)
        events = self.kubectl("get", "events", "--sort-by=.lastTimestamp")
        return f"\n{pods}\n{events}"


def _image(value: str, image: str) -> list[str]:
    repository, _, tag = image.rpartition(":")
    # As strings: helm would make a number of a tag that has only digits.
    return [f"--set-string={value}.repository={repository}", f"--set-string={value}.tag={tag}"]
