"""A real node: containerd, the kubelet, kube-proxy and cluster DNS, shut into namespaces of their own.

The node has its own mounts, network and pids, as a node of kind has, but no image: it sees this
machine's files. So it changes nothing outside (no iptables rule, no mount, no sysctl of the network),
takes no port, and when its first process ends, the kernel ends all others and clears the rest away.
"""

import contextlib
import dataclasses
import json
from pathlib import Path

import yaml

from tests.cluster import tools
from tests.cluster.host import ClusterError, run, succeeds, wait_until
from tests.cluster.packages import cni_directory
from tests.cluster.pki import Authority
from tests.cluster.process import Processes, kill

NAME = "node1"
POD_NETWORK = "10.244.0.0/24"
DNS_ADDRESS = "10.96.0.10"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

INTERFACES = Path("/sys/class/net")

# Folders where the node's programs write whatever they are told: each is replaced by one of ours. On
# the machine they stay empty, and stay: to remove one would unmount it in every other node.
_OWN_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log")

# What the kubelet would set for the whole machine, and leave set: within the node it reads these, as
# it wants them, and the machine keeps its own.
_MACHINE_SYSCTLS = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}

# The node's first process. $1 is the cluster's folder, $2 the program to become.
_INIT = """
set -eu
mount --make-rshared /  # seen from within only; volumes are propagated to containers from here
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
for folder in {folders}; do
  mkdir -p "$1/node$folder"
  mount --bind "$1/node$folder" "$folder"
done
for sysctl in {sysctls}; do
  name=${{sysctl%=*}} copy=/run/sysctls/${{sysctl%=*}}
  mkdir -p "$(dirname "$copy")"
  echo "${{sysctl#*=}}" >"$copy"
  mount --bind "$copy" "/proc/sys/$name"
done
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
touch "$1/namespaces"
exec "$2"
"""


@dataclasses.dataclass(frozen=True)
class Network:
    """The cable between this machine and the node: a veth pair with two addresses."""

    number: int

    @property
    def link(self) -> str:
        return f"memory{self.number}"

    @property
    def host_address(self) -> str:
        return f"10.243.{self.number}.1"

    @property
    def node_address(self) -> str:
        return f"10.243.{self.number}.2"


@dataclasses.dataclass(frozen=True)
class Node:
    """The node of one cluster. It can be described again in any process from the cluster's folder."""

    directory: Path
    processes: Processes

    # -- namespaces

    def create_namespaces(self) -> Network:
        """Start the first process, and connect the node with this machine."""
        for folder in _OWN_FOLDERS:
            Path(folder).mkdir(parents=True, exist_ok=True)
        self.processes.start(
            "namespaces",
            *("unshare", "--mount", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"),
            *("sh", "-c", first_process_script(), "node", self.directory, tools.path("pause")),
        )
        wait_until("the node's namespaces", self._has_namespaces, seconds=20)
        network = self._connect()
        link = network.link
        run("ip", "address", "add", f"{network.host_address}/30", "dev", link)
        run("ip", "link", "set", link, "up")
        run(*self.inside(), "ip", "address", "add", f"{network.node_address}/30", "dev", "eth0")
        run(*self.inside(), "ip", "link", "set", "eth0", "up")
        run(*self.inside(), "ip", "route", "add", "default", "via", network.host_address)
        return network

    def inside(self) -> tuple[str, ...]:
        """The command that runs another one within the node."""
        return ("nsenter", f"--target={self._first_process()}", "--mount", "--net", "--pid", "--")

    def remove(self) -> None:
        """End the node's first process, and with it all others; then clear away what outlives them."""
        if (unshare := self.processes.pid("namespaces")) is not None:
            kill(unshare)
        self.processes.kill()
        if (index := self.directory / "interface-index").exists():
            ours = index.read_text()  # the name may be another node's in a moment, the index never
            wait_until("end of the node's network", lambda: ours not in _interfaces(), seconds=20)
        for hierarchy in _cgroup_hierarchies():
            _remove_cgroup(hierarchy / self._cgroup)

    def _connect(self) -> Network:
        """Lay the first free cable; that of a name can be laid once, so two nodes never share one."""
        end_of_node = ("type", "veth", "peer", "name", "eth0", "netns", str(self._first_process()))
        for network in map(Network, range(256)):
            interface = INTERFACES / network.link
            if not interface.exists() and succeeds("ip", "link", "add", network.link, *end_of_node):
                index = (interface / "ifindex").read_text()
                (self.directory / "interface-index").write_text(index)
                return network
        raise ClusterError("no network is left for another node: take one down")

    def _has_namespaces(self) -> bool:
        self.processes.check("namespaces")
        return (self.directory / "namespaces").exists()

    def _first_process(self) -> int:
        unshare = self.processes.pid("namespaces")
        if unshare is None:
            raise ClusterError(f"the node does not run: {self.processes.last_lines('namespaces')}")
        return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text())

    @property
    def _cgroup(self) -> str:
        return f"memory-operator-{self.directory.name}"

    # -- programs

    def start_containerd(self, pause_image: str) -> None:
        networks = self.directory / "networks"
        networks.mkdir(exist_ok=True)
        (networks / "10-ptp.conflist").write_text(network_configuration())
        configuration = self.directory / "containerd.toml"
        configuration.write_text(containerd_configuration(self.directory, pause_image))
        self._start("containerd", "containerd", "--config", configuration)
        wait_until("start of containerd", self._containerd_answers, seconds=30)

    def load(self, archive: Path) -> None:
        """Load an image from its archive."""
        run(*self._ctr(), "images", "import", archive)

    def has_image(self, image: str) -> bool:
        return bool(run(*self._ctr(), "images", "list", "--quiet", f"name=={image}").strip())

    def start_kubelet(self, network: Network, kubeconfig: Path, authority: Authority) -> None:
        authority.sign("kubelet", user=f"system:node:{NAME}", names=(f"IP:{network.node_address}",))
        for hierarchy in _cgroup_hierarchies():
            (hierarchy / self._cgroup).mkdir(exist_ok=True)
        configuration = self.directory / "kubelet.yaml"
        configuration.write_text(
            kubelet_configuration(authority.directory, cgroup_root=f"/{self._cgroup}")
        )
        self._start(
            "kubelet",
            tools.path("kubelet"),
            f"--config={configuration}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={NAME}",
            f"--node-ip={network.node_address}",
        )

    def start_scheduler(self, kubeconfig: Path) -> None:
        self._start(
            "kube-scheduler",
            tools.path("kube-scheduler"),
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",  # there is one: no need to wait for a lease
        )

    def start_proxy(self, kubeconfig: Path) -> None:
        self._start(
            "kube-proxy",
            tools.path("kube-proxy"),
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={NAME}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_NETWORK}",
            # conntrack's limits belong to the machine, not to the node's network
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )

    def start_dns(self, kubeconfig: Path) -> None:
        corefile = self.directory / "Corefile"
        corefile.write_text(
            f".:53 {{\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n"
            f"    kubeconfig {kubeconfig}\n  }}\n}}\n"
        )
        self._start("coredns", tools.path("coredns"), "-conf", corefile)

    def _start(self, name: str, *command: str | Path) -> None:
        self.processes.start(name, *self.inside(), *command)

    def _ctr(self) -> tuple[str, ...]:
        return (*self.inside(), "ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io")

    def _containerd_answers(self) -> bool:
        self.processes.check("containerd")
        return succeeds(*self._ctr(), "version")


def first_process_script() -> str:
    """What prepares the namespaces, before it becomes the node's first process."""
    return _INIT.format(
        folders=" ".join(_OWN_FOLDERS),
        sysctls=" ".join(f"{name}={value}" for name, value in _MACHINE_SYSCTLS.items()),
    )


def _interfaces() -> set[str]:
    """The indexes of this machine's network interfaces."""
    with contextlib.suppress(FileNotFoundError):  # one of them went while we looked
        return {file.read_text() for file in INTERFACES.glob("*/ifindex")}
    return _interfaces()


def network_configuration() -> str:
    """Pods by the ptp plugin: what they send is routed, so that kube-proxy's rules see all of it.

    A bridge would need the machine's br_netfilter module for that.
    """
    ptp = {
        "type": "ptp",
        "ipMasq": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": POD_NETWORK}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "ptp", "plugins": [ptp, ports]})


def containerd_configuration(directory: Path, pause_image: str) -> str:
    return f"""\
version = 2
root = "{directory}/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"  # /opt/containerd otherwise, on the machine
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image}"
  restrict_oom_score_adj = true  # a lower score can't be set without CAP_SYS_RESOURCE
  disable_apparmor = true  # a profile would be loaded into the machine's kernel, and stay
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_directory()}"
    conf_dir = "{directory}/networks"
"""


def kubelet_configuration(pki: Path, *, cgroup_root: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/kubelet.crt",
            "tlsPrivateKeyFile": f"{pki}/kubelet.key",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDomain": "cluster.local",
            "clusterDNS": [DNS_ADDRESS],
            "resolvConf": "",  # the machine's resolver may be one that only the machine reaches
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup_root,
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            # a full disk or swap is this machine's business, and no reason to evict a test's pods
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "failSwapOn": False,
            # what a container (or a user without all rights) can't set is passed over, not fatal
            "featureGates": {"KubeletInUserNamespace": True},
        }
    )


def dns_manifests(node_address: str) -> str:
    """The Service of cluster DNS, which runs beside the kubelet instead of in a pod; and its rights."""
    meta = {"name": "kube-dns", "namespace": "kube-system"}
    ports = [
        {"name": name, "port": 53, "protocol": protocol}
        for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {"clusterIP": DNS_ADDRESS, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": meta | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [node_address]}],
        "ports": ports,
    }
    verbs = ["list", "watch"]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["namespaces", "pods", "services"], "verbs": verbs},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:coredns",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}
        ],
    }
    return yaml.safe_dump_all([service, endpoints, role, binding])


def _cgroup_hierarchies() -> list[Path]:
    """The roots of the cgroup trees: one with cgroup v2, one for each controller with v1."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [found for found in root.iterdir() if found.is_dir() and not found.is_symlink()]


def _remove_cgroup(directory: Path) -> None:
    if not directory.exists():
        return
    for child in directory.iterdir():
        if child.is_dir():
            _remove_cgroup(child)
    wait_until(
        f"end of the processes in {directory}", lambda: _remove_if_empty(directory), seconds=20
    )


def _remove_if_empty(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
