"""The provider `local`: real Kubernetes processes on this machine, without Docker.

All that a cluster owns lies in a folder of its name; `cluster.json` is written last, so a folder without
it is what a killed `up` or `down` left, and is cleared away before anything else happens.
"""

import contextlib
import dataclasses
import json
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from tests.cluster import images, packages
from tests.cluster.cluster import Cluster, Images
from tests.cluster.control_plane import ControlPlane
from tests.cluster.host import ClusterError, is_root, locked, state_directory, wait_until
from tests.cluster.node import NAME as NODE_NAME
from tests.cluster.node import Node, dns_manifests
from tests.cluster.process import Processes


@dataclasses.dataclass(frozen=True)
class LocalCluster(Cluster):
    """A cluster of local processes."""

    provider: ClassVar[str] = "local"

    @property
    def directory(self) -> Path:
        return state_directory() / self.name

    def images(self) -> Images:
        operator, spicedb = images.operator(), images.spicedb()
        for image in (operator, spicedb):
            self.load(image.name)
        return Images(operator=operator.name, spicedb=spicedb.name)

    def load(self, image: str) -> None:
        if not self.has_node:
            raise ClusterError(f"{self.name} is only a control plane: it runs no images")
        node = _node(self.directory)
        if not node.has_image(image):
            node.load(images.built(image).archive)

    def down(self) -> None:
        down(self.name)

    def is_healthy(self) -> bool:
        """Whether every process runs, the API server is ready, and the node too."""
        if Processes(self.directory).dead() or not _api_is_ready(self):
            return False
        return not self.has_node or _node_is_ready(self)

    def describe(self) -> list[str]:
        """Lines for a person who asks what runs."""
        processes = Processes(self.directory)
        lines = [f"{name} has ended" for name in processes.dead()]
        if self.is_healthy():
            lines.append("ready")
        running = [(name, processes.pid(name)) for name in processes.names()]
        pids = ", ".join(f"{name} {pid}" for name, pid in running if pid)
        return [*lines, f"processes: {pids}"]


def up(name: str, *, control_plane: bool = False) -> LocalCluster:
    """Bring a cluster up, or return the one that is."""
    _check_machine(control_plane=control_plane)
    with _locked(name):
        cluster = find(name)
        if cluster is not None and cluster.has_node == control_plane:
            kind = "a node" if cluster.has_node else "only a control plane"
            raise ClusterError(f"{name} is up and has {kind}: take it down, or give another name")
        if cluster is not None and cluster.is_healthy():
            return cluster
        if (state_directory() / name).exists():
            print(f"{name}: clearing away what an earlier one left", flush=True)
            _remove(name)
        return _create_control_plane(name) if control_plane else _create_node(name)


def down(name: str) -> None:
    """Take a cluster down, whatever state it is in."""
    with _locked(name):
        _remove(name)


def find(name: str) -> LocalCluster | None:
    """The cluster of a name, if one came up and was not taken down."""
    try:
        written = json.loads((state_directory() / name / "cluster.json").read_text())
    except FileNotFoundError:
        return None
    kubeconfig = state_directory() / name / "kubeconfig"
    return LocalCluster(name, kubeconfig, has_node=written["has_node"])


def _create_control_plane(name: str) -> LocalCluster:
    directory = _new_directory(name)
    processes = Processes(directory)
    api_port, etcd_port = free_ports(2)
    plane = ControlPlane(directory, processes, "127.0.0.1", api_port, etcd_port)
    cluster = LocalCluster(name, plane.kubeconfig, has_node=False)
    _start_control_plane(plane, cluster)
    return _completed(cluster)


def _create_node(name: str) -> LocalCluster:
    pause = images.pause()
    directory = _new_directory(name)
    processes = Processes(directory)
    node = Node(directory, processes)
    network = node.create_namespaces()
    node.start_containerd(pause.name)
    plane = ControlPlane(directory, processes, network.node_address, 6443, 2379, node.inside())
    cluster = LocalCluster(name, plane.kubeconfig, has_node=True)
    _start_control_plane(plane, cluster)
    node.load(pause.archive)
    identity = f"system:node:{NODE_NAME}"
    kubelet = plane.component_kubeconfig("kubelet", user=identity, group="system:nodes")
    node.start_kubelet(network, kubelet, plane.authority)
    node.start_scheduler(plane.component_kubeconfig("scheduler", user="system:kube-scheduler"))
    node.start_proxy(plane.component_kubeconfig("proxy", user="system:kube-proxy"))
    cluster.kubectl("apply", "-f", "-", input=dns_manifests(network.node_address))
    node.start_dns(plane.component_kubeconfig("dns", user="system:coredns"))
    _wait(cluster, "the node", _node_is_ready, seconds=90)
    return _completed(cluster)


def _start_control_plane(plane: ControlPlane, cluster: LocalCluster) -> None:
    plane.start()
    _wait(cluster, "the API server", _api_is_ready, seconds=60)
    plane.start_controllers()
    _wait(cluster, "the controllers", _has_service_accounts, seconds=60)


def _completed(cluster: LocalCluster) -> LocalCluster:
    unfinished = cluster.directory / "cluster.json.unfinished"
    unfinished.write_text(json.dumps({"has_node": cluster.has_node}))
    unfinished.rename(cluster.directory / "cluster.json")
    return cluster


def _remove(name: str) -> None:
    directory = state_directory() / name
    if not directory.exists():
        return
    (directory / "cluster.json").unlink(missing_ok=True)
    _node(directory).remove()
    shutil.rmtree(directory)


def _new_directory(name: str) -> Path:
    directory = state_directory() / name
    directory.mkdir(parents=True, mode=0o700)
    (directory / "provider").write_text(LocalCluster.provider)
    return directory


def _node(directory: Path) -> Node:
    return Node(directory, Processes(directory))


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    lock = state_directory() / f".{name}.lock"
    with locked(lock, waiting_for=f"`up` or `down` of {name}"):
        yield


def _check_machine(*, control_plane: bool) -> None:
    if not Path("/proc/self/stat").exists():
        raise ClusterError("the local provider needs Linux: install Docker, and it will be kind")
    if control_plane:
        packages.ensure(packages.CONTROL_PLANE)
        return
    if not is_root():
        raise ClusterError(
            "a local node needs root; without it there is `--control-plane`,"
            " and where Docker works `--provider kind`"
        )
    packages.ensure(packages.NODE)


def _wait(
    cluster: LocalCluster, what: str, condition: Callable[[LocalCluster], bool], *, seconds: float
) -> None:
    """Wait for a condition, but no longer than all processes run."""
    processes = Processes(cluster.directory)

    def holds() -> bool:
        processes.check(*processes.names())
        return condition(cluster)

    wait_until(f"{what} of {cluster.name} is ready", holds, seconds=seconds)


def _api_is_ready(cluster: LocalCluster) -> bool:
    return cluster.kubectl("get", "--raw=/readyz", "--request-timeout=5s", check=False) == "ok"


def _has_service_accounts(cluster: LocalCluster) -> bool:
    """Whether the controllers have given the default namespace what its pods need."""
    needed = ("serviceaccount/default", "configmap/kube-root-ca.crt")
    found = cluster.kubectl("get", *needed, "--namespace=default", "--output=name", check=False)
    return len(found.split()) == len(needed)


def _node_is_ready(cluster: LocalCluster) -> bool:
    ready = '{.status.conditions[?(@.type=="Ready")].status}'
    return (
        cluster.kubectl("get", "node", NODE_NAME, f"--output=jsonpath={ready}", check=False)
        == "True"
    )


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, below those that the kernel gives to outgoing connections."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports
