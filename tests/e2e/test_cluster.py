"""The cluster itself, on which all other e2e tests rely."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import cluster as clusters
from tests.cluster import Cluster, providers
from tests.cluster.host import state_directory, wait_until
from tests.cluster.process import Processes

NAMESPACE = "cluster-tests"
POD = "server"  # not the Service's name: a pod knows its own without asking cluster DNS
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

# Run within a pod: reaches the API server as any client in a pod does, and itself through its Service.
ASK_API_SERVER = """
import ssl, urllib.request
mounted = "/var/run/secrets/kubernetes.io/serviceaccount/"
verified = ssl.create_default_context(cafile=mounted + "ca.crt")
print(urllib.request.urlopen("https://kubernetes.default.svc/readyz", context=verified).read().decode())
"""
ASK_SERVICE = """
import urllib.request
for name in "web", "web.cluster-tests", "web.cluster-tests.svc.cluster.local":
    print(urllib.request.urlopen(f"http://{name}/", timeout=5).status)
"""


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Iterator[str]:
    """A pod under the strictest rules that a namespace can have, behind a Service."""
    image = cluster.images().operator
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(_manifests(image)))
    cluster.kubectl(
        "wait", f"pod/{POD}", "--for=condition=Ready", "--timeout=120s", "-n", NAMESPACE
    )
    yield POD
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_a_second_up_returns_the_same_cluster_at_once(
    cluster: Cluster, pytestconfig: pytest.Config
) -> None:
    started = time.monotonic()
    assert clusters.up(pytestconfig.option.provider) == cluster
    assert time.monotonic() - started < 20  # a second or two on a machine that does nothing else


def test_status_names_the_cluster_and_its_kubeconfig(cluster: Cluster) -> None:
    shown = clusters.status()
    assert f"{cluster.name} ({cluster.provider})" in shown
    assert str(cluster.kubeconfig) in shown
    assert "ready" in shown


def test_logs_are_shown(cluster: Cluster, pod: str) -> None:
    wait_until(
        "the first line of the log",
        lambda: "Serving HTTP" in cluster.kubectl("logs", pod, "-n", NAMESPACE),
        seconds=20,
    )


def test_a_service_has_a_name_in_pods_even_for_the_pod_behind_it(
    cluster: Cluster, pod: str
) -> None:
    # kube-proxy learns a moment later than the API server that the pod is ready.
    answered = ["200", "200", "200"]
    wait_until(
        "answers by name",
        lambda: _python(cluster, pod, ASK_SERVICE, check=False).split() == answered,
        seconds=20,
    )


def test_a_pod_reaches_the_api_server_and_can_verify_it(cluster: Cluster, pod: str) -> None:
    assert _python(cluster, pod, ASK_API_SERVER).strip() == "ok"


def test_the_image_runs_the_project_as_nobody(cluster: Cluster, pod: str) -> None:
    assert "release-finalizers" in cluster.kubectl(
        "exec", pod, "-n", NAMESPACE, "--", "memory-operator", "--help"
    )
    assert _python(cluster, pod, "import os; print(os.getuid())").strip() == "65532"


@pytest.mark.optional
def test_a_killed_up_can_be_repeated_and_down_leaves_nothing(pytestconfig: pytest.Config) -> None:
    if providers.chosen(pytestconfig.option.provider) != "local":
        pytest.skip("only the local provider starts processes of its own")
    name = "lifecycle"
    directory = state_directory() / name
    command = [sys.executable, "-m", "tests.cluster", "up", "--provider=local", f"--name={name}"]
    with subprocess.Popen(command) as killed:
        wait_until("start of etcd", (directory / "pid/etcd").exists, seconds=60)
        killed.kill()
    before = set(Processes(directory).names())
    assert "kubelet" not in before
    try:
        assert clusters.up("local", name=name).kubectl("get", "nodes", "-o", "name")
        processes = Processes(directory)
        pids = [processes.pid(each) for each in processes.names()]
        assert all(pids)
    finally:
        assert clusters.down(name)
    assert not directory.exists()
    assert not [pid for pid in pids if _mentions(pid, directory)]
    assert str(directory) not in Path("/proc/mounts").read_text()
    assert not list(Path("/sys/fs/cgroup").rglob(f"memory-operator-{name}"))


def _mentions(pid: int | None, directory: Path) -> bool:
    try:
        return os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _python(cluster: Cluster, pod: str, script: str, *, check: bool = True) -> str:
    command = ["exec", "-i", pod, "-n", NAMESPACE, "--", "python3", "-"]
    return cluster.kubectl(*command, input=script, check=check)


def _manifests(image: str) -> list[dict[str, object]]:
    container = {
        "name": "web",
        "image": image,
        "command": ["python3", "-m", "http.server", "8000"],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
        "resources": {"limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": RESTRICTED},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD, "namespace": NAMESPACE, "labels": {"app": "web"}},
            "spec": {
                "containers": [container],
                "securityContext": {
                    "runAsNonRoot": True,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "terminationGracePeriodSeconds": 1,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    ]
