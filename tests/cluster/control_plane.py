"""etcd, the API server and the controllers, as processes of this machine.

They run as they are (`local --control-plane`), or within the namespaces of a node.
"""

import dataclasses
from pathlib import Path

from tests.cluster import tools
from tests.cluster.pki import Authority, create_key_pair
from tests.cluster.process import Processes

SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"  # the first of that network is always the API server's
UNREACHABLE = "192.0.2.1"  # reserved for documentation

# Any name by which a pod or this machine may call the API server.
_API_SERVER_NAMES = (
    "DNS:localhost",
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local",
    "IP:127.0.0.1",
    f"IP:{API_SERVICE_ADDRESS}",
)


@dataclasses.dataclass(frozen=True)
class ControlPlane:
    """A control plane in a folder, and where its API server listens."""

    directory: Path
    processes: Processes
    address: str
    api_port: int
    etcd_port: int
    inside: tuple[str, ...] = ()  # the command that enters the node's namespaces

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.api_port}"

    @property
    def authority(self) -> Authority:
        return Authority(self.directory / "pki")

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def start(self) -> None:
        """Start etcd and the API server, which becomes ready some seconds later."""
        self._create_identities()
        self._start("etcd", *self.etcd_flags())
        self._start("kube-apiserver", *self.api_server_flags())

    def start_controllers(self) -> None:
        """Start the controllers, once the API server is ready."""
        self._start("kube-controller-manager", *self.controller_manager_flags())

    def component_kubeconfig(self, name: str, *, user: str, group: str = "") -> Path:
        """A kubeconfig for one component, with the rights that its user has."""
        file = self.directory / f"{name}.kubeconfig"
        return self.authority.kubeconfig(file, server=self.server, user=user, group=group)

    def etcd_flags(self) -> list[str]:
        client = f"http://127.0.0.1:{self.etcd_port}"
        return [
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            "--listen-peer-urls=http://127.0.0.1:0",  # there is no peer, but etcd insists
            "--unsafe-no-fsync",  # nothing here has to survive a power cut
            "--log-level=warn",
        ]

    def api_server_flags(self) -> list[str]:
        pki = self.authority.directory
        return [
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.api_port}",
            *self._address_flags(),
            f"--tls-cert-file={pki}/kube-apiserver.crt",
            f"--tls-private-key-file={pki}/kube-apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            # how the API server reaches the kubelet for `kubectl logs` and `exec`
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--service-account-key-file={pki}/service-account.pub",
            f"--service-account-signing-key-file={pki}/service-account.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
        ]

    def controller_manager_flags(self) -> list[str]:
        pki = self.authority.directory
        kubeconfig = self.component_kubeconfig(
            "kube-controller-manager", user="system:kube-controller-manager"
        )
        return [
            f"--kubeconfig={kubeconfig}",
            f"--root-ca-file={pki}/ca.crt",
            f"--service-account-private-key-file={pki}/service-account.key",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials",
            # the default limits hold each start back for seconds: every controller asks for a token
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--leader-elect=false",  # there is one: no need to wait for a lease
            "--secure-port=0",  # nobody asks it anything, and several may run on one machine
        ]

    def _address_flags(self) -> list[str]:
        if self.inside:
            return [f"--advertise-address={self.address}"]
        return [
            f"--bind-address={self.address}",
            # The address published in the `kubernetes` Service can't be a loopback one. No pod will
            # ever read it: it is not published, and can be any other.
            f"--advertise-address={UNREACHABLE}",
            "--endpoint-reconciler-type=none",
        ]

    def _create_identities(self) -> None:
        authority = self.authority
        authority.create()
        create_key_pair(
            authority.directory / "service-account.key", authority.directory / "service-account.pub"
        )
        authority.sign(
            "kube-apiserver",
            user="kube-apiserver",
            names=(*_API_SERVER_NAMES, f"IP:{self.address}"),
        )
        authority.sign("kubelet-client", user="kube-apiserver", group="system:masters")
        authority.kubeconfig(
            self.kubeconfig, server=self.server, user="administrator", group="system:masters"
        )

    def _start(self, name: str, *flags: str) -> None:
        self.processes.start(name, *self.inside, tools.path(name), *flags)
