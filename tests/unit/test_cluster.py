"""What the test cluster decides without touching anything: choices, configurations, names, errors."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.cluster import (
    ClusterError,
    current,
    images,
    kind,
    local,
    node,
    packages,
    providers,
    tools,
)
from tests.cluster.control_plane import ControlPlane
from tests.cluster.host import (
    REPOSITORY,
    cache_directory,
    locked,
    run,
    run_slowly,
    state_directory,
    wait_until,
)
from tests.cluster.pki import Authority
from tests.cluster.process import Processes, parse_stat, running_pid


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache and state of these tests lie elsewhere."""
    monkeypatch.setenv("MEMORY_OPERATOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MEMORY_OPERATOR_STATE", str(tmp_path / "state"))


# -- the choice of a provider


@pytest.mark.parametrize(
    ("asked", "docker_works", "expected"),
    [
        ("auto", True, "kind"),
        ("auto", False, "local"),
        ("kind", False, "kind"),
        ("local", True, "local"),
        ("current", True, "current"),
    ],
)
def test_docker_decides_only_where_nobody_did(
    asked: str, docker_works: bool, expected: str
) -> None:
    assert providers.chosen(asked, lambda: docker_works) == expected


def test_an_unknown_provider_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ClusterError, match=r"minikube.*auto, kind, local, current"):
        providers.chosen("minikube")


@pytest.mark.parametrize("name", ["", "Upper", "../x", "-x", "x-", "a" * 41, "a_b"])
def test_a_name_that_could_not_be_a_folder_and_a_cluster_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="no name for a cluster"):
        providers.full_name(name, control_plane=False)


def test_a_control_plane_has_a_default_name_of_its_own() -> None:
    assert providers.full_name(None, control_plane=False) == "memory-operator"
    assert providers.full_name(None, control_plane=True) == "memory-operator-control-plane"


def test_nothing_to_take_down_is_no_error() -> None:
    assert not providers.down("nothing")
    assert providers.status() == "no cluster is up"


def test_status_tells_of_a_cluster_that_never_came_up() -> None:
    (state_directory() / "half").mkdir(parents=True)
    (state_directory() / "half/provider").write_text("local")
    assert providers.status().startswith("half (local): not complete")


def test_only_kind_needs_kind() -> None:
    assert providers.tools_for("local") == ["kube", "spicedb", "helm"]
    assert providers.tools_for("kind") == ["kube", "spicedb", "helm", "kind"]


# -- folders


def test_root_and_others_have_their_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMORY_OPERATOR_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_directory() == Path("/var/lib/memory-operator")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert state_directory() == Path.home() / ".local/state/memory-operator"


def test_the_cache_follows_the_desktop_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMORY_OPERATOR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_directory() == Path("/elsewhere/memory-operator")


# -- tools


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go version go1.19 linux/arm64", (1, 19)),
        ("go version devel go1.28-3f2a linux/amd64", (1, 28)),
        ("nonsense", (0, 0)),
    ],
)
def test_go_says_its_version(shown: str, expected: tuple[int, int]) -> None:
    assert tools.go_version(shown) == expected


def test_without_go_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"Go 1\.21 or newer.*no `go` on the PATH.*install"):
        tools.path("kube-apiserver")


def test_an_old_go_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _program(tmp_path / "go", "echo go version go1.19.8 linux/amd64")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ClusterError, match=r"Go 1\.21 or newer.*go1\.19\.8"):
        tools.path("kube-apiserver")


def test_a_build_that_fails_shows_the_end_of_its_log_and_leaves_no_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _program(tmp_path / "go", 'test "$1" = version && echo go1.26 || { echo no network; exit 1; }')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ClusterError, match="no network"):
        tools.path("kube-apiserver")
    assert not list(cache_directory().glob("kube-*/"))


def test_a_build_gives_every_part_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _program(
        tmp_path / "go",
        'test "$1" = version && echo go1.26 && exit\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'touch "$2kube" "$2pause"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert tools.path("etcd").resolve() == tools.path("kubelet").resolve()
    assert tools.path("pause").parent == tools.path("etcd").parent
    assert not list(cache_directory().glob(".*.unfinished"))


def test_an_unknown_tool_is_an_error() -> None:
    with pytest.raises(ClusterError, match="'minikube'; there are coredns, etcd"):
        tools.path("minikube")


@pytest.mark.parametrize(
    ("shown", "version", "same"),
    [
        ("v4.3.1+g1234567", "v4.3.1", True),
        ("spicedb v1.57.1", "v1.57.1", True),
        ("Client Version: v1.37.20", "v1.37.2", False),
        ("kind v0.33.0-alpha go1.26", "v0.33.0", False),
    ],
)
def test_a_program_on_the_path_counts_only_in_the_exact_version(
    shown: str, version: str, same: bool
) -> None:
    assert tools.says_version(shown, version) is same


def test_the_build_of_kubernetes_is_named_by_its_inputs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = tmp_path / "kube"
    (module / "pause").mkdir(parents=True)
    for name in ("go.mod", "go.sum", "main.go", "pause/main.go"):
        (module / name).write_text("one")
    monkeypatch.setattr(tools, "KUBE_MODULE", module)
    before = tools._kube().directory
    assert before == tools._kube().directory
    (module / "go.sum").write_text("two")
    assert tools._kube().directory != before
    assert before.name.startswith(f"kube-{tools.KUBERNETES_VERSION}-")


def test_every_kubernetes_part_of_the_module_has_the_version_that_is_claimed() -> None:
    requirements = (tools.KUBE_MODULE / "go.mod").read_text()
    assert f"k8s.io/kubernetes {tools.KUBERNETES_VERSION}\n" in requirements


# -- packages


def test_what_is_missing_is_named_where_it_cannot_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages, "_is_installed", lambda _: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="apt-get install --no-install-recommends openssl"):
        packages.ensure(packages.CONTROL_PLANE)


# -- processes


def test_a_stat_line_is_read_whatever_the_program_is_called() -> None:
    fields = " ".join(["S", *map(str, range(4, 22)), "4711", "0"])
    assert parse_stat(f"12 (a) b (c) {fields}") == (12, 4711)
    assert parse_stat(f"12 (sh) Z{fields[1:]}") is None
    assert parse_stat("12 (sh) S 1 2") is None
    assert parse_stat("") is None


def test_a_process_is_known_by_its_start_time_not_only_by_its_pid(tmp_path: Path) -> None:
    pid_file = tmp_path / "self"
    stat = Path("/proc/self/stat").read_text()
    pid_file.write_text(stat)
    assert running_pid(pid_file) == os.getpid()
    name, _, rest = stat.rpartition(") ")
    fields = rest.split()
    fields[19] = str(int(fields[19]) + 1)
    pid_file.write_text(f"{name}) {' '.join(fields)}")
    assert running_pid(pid_file) is None
    assert running_pid(tmp_path / "no such file") is None


def test_processes_are_found_again_and_ended(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("sleeper", "sleep", "600")
    processes.start("short", "sh", "-c", "echo a last word; exit 1")
    again = Processes(tmp_path)
    assert again.names() == ["short", "sleeper"]
    pid = again.pid("sleeper")
    assert pid
    assert Path(f"/proc/{pid}/comm").read_text() in ("sleep\n", "sh\n")
    wait_until("end of the short one", lambda: again.dead() == ["short"], seconds=10)
    with pytest.raises(ClusterError, match=r"(?s)short has ended:.*a last word"):
        again.check("sleeper", "short")
    again.kill()
    assert again.dead() == ["short", "sleeper"]


# -- commands


def test_a_command_that_fails_is_shown_with_its_error() -> None:
    with pytest.raises(ClusterError, match=r"sh -c echo no >&2; exit 3\nfailed with 3: no"):
        run("sh", "-c", "echo no >&2; exit 3")


def test_a_slow_command_shows_its_progress(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.host.PROGRESS_SECONDS", 0.05)
    run_slowly("sleep", "0.3", what="waiting", minutes=1, log=tmp_path / "log")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "waiting: about 1 min, once"
    assert set(shown[1:]) == {"waiting: 0:00 of about 1 min"}


def test_a_second_holder_of_a_lock_waits_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lock"
    holder = subprocess.Popen(
        ["flock", file, "sh", "-c", "echo locked; exec sleep 0.3"], stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout
        holder.stdout.readline()
        with locked(file, waiting_for="the other"):
            assert "waiting for the other" in capsys.readouterr().out


# -- certificates and the control plane


def test_certificates_are_signed_for_users_and_servers(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    authority.create()
    authority.sign("server", user="api", names=("DNS:kubernetes.default.svc", "IP:10.96.0.1"))
    file = authority.kubeconfig(
        tmp_path / "kubeconfig", server="https://x:1", user="me", group="system:masters"
    )
    server = run(
        *("openssl", "verify", "-CAfile", authority.certificate, "-purpose", "sslserver"),
        *("-verify_hostname", "kubernetes.default.svc", tmp_path / "pki/server.crt"),
    )
    assert server.strip().endswith("OK")
    subject = run("openssl", "x509", "-noout", "-subject", "-in", tmp_path / "pki/kubeconfig.crt")
    assert "O = system:masters, CN = me" in subject
    written = yaml.safe_load(file.read_text())
    assert written["clusters"][0]["cluster"].keys() == {"server", "certificate-authority-data"}
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_control_plane_alone_listens_on_this_machine_only(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path, Processes(tmp_path), "127.0.0.1", 20001, 20002)
    flags = plane.api_server_flags()
    assert "--bind-address=127.0.0.1" in flags
    assert "--endpoint-reconciler-type=none" in flags
    assert "--etcd-servers=http://127.0.0.1:20002" in flags
    assert plane.server == "https://127.0.0.1:20001"


def test_a_node_publishes_the_address_that_its_pods_reach(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path, Processes(tmp_path), "10.243.0.2", 6443, 2379, ("nsenter",))
    flags = plane.api_server_flags()
    assert "--advertise-address=10.243.0.2" in flags
    assert not [flag for flag in flags if "bind-address" in flag or "reconciler" in flag]


def test_ports_are_free_and_different() -> None:
    ports = local.free_ports(5)
    assert len(set(ports)) == 5
    assert all(20_000 <= port < 32_000 for port in ports)


# -- the node


def test_the_configurations_are_well_formed(tmp_path: Path) -> None:
    network = json.loads(node.network_configuration())
    assert [plugin["type"] for plugin in network["plugins"]] == ["ptp", "portmap"]
    containerd = tomllib.loads(node.containerd_configuration(tmp_path, "localhost/pause:1"))
    assert containerd["root"] == f"{tmp_path}/containerd"
    cri = containerd["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == "localhost/pause:1"
    kubelet = yaml.safe_load(node.kubelet_configuration(tmp_path, cgroup_root="/mine"))
    assert kubelet["cgroupRoot"] == "/mine"
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    service, endpoints, *_ = yaml.safe_load_all(node.dns_manifests("10.243.0.2"))
    assert service["spec"]["clusterIP"] == kubelet["clusterDNS"][0]
    assert endpoints["endpoints"] == [{"addresses": ["10.243.0.2"]}]


def test_the_first_process_of_a_node_is_prepared_by_a_script_that_a_shell_can_read() -> None:
    script = node.first_process_script()
    run("sh", "-n", "-c", script)
    assert "kernel/panic=10 " in script


def test_two_nodes_have_different_cables() -> None:
    first, second = node.Network(0), node.Network(255)
    assert (first.link, first.host_address, first.node_address) == (
        "memory0",
        "10.243.0.1",
        "10.243.0.2",
    )
    assert second.node_address == "10.243.255.2"


def test_a_node_needs_root_and_says_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="--control-plane"):
        local.up("node")


def test_a_control_plane_loads_no_images(tmp_path: Path) -> None:
    plane = local.LocalCluster("plane", tmp_path / "kubeconfig", has_node=False)
    with pytest.raises(ClusterError, match="only a control plane"):
        plane.load("localhost/x:1")


# -- images


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("Dockerfile", "operator/a.py", "operator/__pycache__/a.pyc", "schema/schema.zed"):
        file = tmp_path / "repository" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("one")
    return tmp_path / "repository"


@pytest.mark.parametrize(
    ("changed", "another"),
    [
        ("Dockerfile", True),
        ("operator/a.py", True),
        ("schema/new.zed", True),
        ("operator/__pycache__/a.pyc", False),
        ("docs/x.md", False),
    ],
)
def test_the_image_is_named_by_what_goes_into_it(
    repository: Path, changed: str, another: bool
) -> None:
    before = images.operator_name(repository)
    file = repository / changed
    file.parent.mkdir(exist_ok=True)
    file.write_text("two")
    assert (images.operator_name(repository) != before) is another


def test_the_build_may_see_what_names_the_image_and_nothing_else() -> None:
    ignore = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert allowed == set(images._OPERATOR_INPUTS) - {"Dockerfile", ".dockerignore"}


def test_the_build_reaches_the_index_as_this_machine_does() -> None:
    shown = images.pip_configuration(
        {"PIP_INDEX_URL": "https://mirror/simple", "PIP_FIND_LINKS": "/opt/wheels"},
        "[global]\ncert = /etc/ssl/mine.crt\ntimeout = 60\n",
    )
    assert "index-url = https://mirror/simple" in shown
    assert "timeout = 60" in shown
    assert "cert = /run/host-ca-certificates.crt" in shown
    assert "find-links" not in shown


# -- kind, and the current cluster


def test_kind_gets_one_node_of_a_pinned_image() -> None:
    written = yaml.safe_load(kind.kind_configuration())
    assert (written["kind"], written["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    (only,) = written["nodes"]
    assert only["role"] == "control-plane"
    name, _, digest = only["image"].partition("@sha256:")
    assert name.startswith("kindest/node:v1.37.")
    assert len(digest) == 64


def test_the_commands_for_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    _program(tmp_path / "kind", f'echo "kind $*" >>{calls}; test "$1" = version && echo v0.33.0; :')
    _program(tmp_path / "docker", f'echo "docker $*" >>{calls}; test "$1" != image')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tools._on_path.cache_clear()
    cluster = kind.up("mine")
    found = cluster.images()
    cluster.down()
    tools._on_path.cache_clear()
    kubeconfig = cluster.kubeconfig
    files = f"--config {kubeconfig.parent}/kind.yaml --kubeconfig {kubeconfig}"
    assert calls.read_text().splitlines() == [
        "kind version",
        "kind get clusters",
        f"kind delete cluster --name mine --kubeconfig {kubeconfig}",
        f"kind create cluster --name mine {files} --wait 180s",
        f"docker image inspect {found.operator}",
        f"docker build --tag {found.operator} {REPOSITORY}",
        f"kind load docker-image {found.operator} --name mine",
        f"kind delete cluster --name mine --kubeconfig {kubeconfig}",
    ]
    assert found.spicedb == "authzed/spicedb:v1.57.1"
    assert not kubeconfig.parent.exists()


def test_the_current_cluster_needs_images_that_it_can_pull(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = current.CurrentCluster("current", tmp_path / "kubeconfig", has_node=True)
    with pytest.raises(ClusterError, match="set MEMORY_OPERATOR_IMAGE"):
        cluster.load("localhost/memory-operator:1")
    with pytest.raises(ClusterError, match="set MEMORY_OPERATOR_IMAGE"):
        cluster.images()
    monkeypatch.setenv("MEMORY_OPERATOR_IMAGE", "registry.example/memory-operator:1")
    assert cluster.images().operator == "registry.example/memory-operator:1"


def _program(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
