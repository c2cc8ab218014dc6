"""The chart's life: install, test, upgrade, uninstall, and what each leaves."""

import time
from pathlib import Path

import yaml
from kubernetes import client

from memory_operator.api import Kind
from memory_operator.names import GROUP
from tests.cluster import Cluster
from tests.support.installation import NAMESPACE, Installation
from tests.support.organization import Organization, may, new_organization, rows, wait_for
from tests.support.spicedb import write_certificates


def test_helm_test_makes_a_round_trip_through_spicedb(installation: Installation) -> None:
    assert "written and allowed: True; deleted and denied: True" in installation.test()


def test_all_pods_run_under_the_restricted_profile(installation: Installation) -> None:
    # The namespace enforces it, so a pod that runs has passed; these are the ones that must.
    pods = yaml.safe_load(installation.kubectl("get", "pods", "--output=yaml"))["items"]
    running = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in pods
        if pod["status"]["phase"] == "Running"
    }
    assert {"operator", "spicedb"} <= running


def test_the_operator_is_denied_nothing_and_logs_no_person(
    installation: Installation, organization: Organization
) -> None:
    organization.agent("a")
    organization.link("a", "slack/U0PERSON99", "email/person99@example.com")
    organization.wait_ready("IdentityLink")
    organization.delete("IdentityLink", "a")
    organization.wait_gone("IdentityLink", "a")
    log = installation.logs()
    assert f'"namespace":"{organization.name}"' in log
    assert "403" not in log
    assert "forbidden" not in log.lower()
    assert "PERSON99" not in log
    assert "person99" not in log


def test_an_upgrade_keeps_keys_access_and_resources(
    installation: Installation, organization: Organization
) -> None:
    organization.agent("a", groups=[{"name": "g"}])
    organization.wait_ready("MemoryAgent")
    secrets = _generated(installation)
    before = installation.kubectl(
        "get", "pods", "-l=app.kubernetes.io/component=spicedb", "-o=name"
    )

    installation.install(driftPeriodSeconds="6")

    assert _generated(installation) == secrets
    # An upgrade that changes nothing of SpiceDB must not empty the one that lives in memory.
    assert before == installation.kubectl(
        "get", "pods", "-l=app.kubernetes.io/component=spicedb", "-o=name"
    )
    with installation.spicedb() as access:
        assert f"organization:{organization.name}#member@agent:{organization.name}/a" in rows(
            access.client(), organization.name
        )
    organization.grant("after", "a")
    organization.wait_ready("AccessGrant")


def test_an_embedded_spicedb_that_is_emptied_is_filled_again(
    installation: Installation, organization: Organization
) -> None:
    organization.agent("a", role="pm")
    organization.grant("g", "a")
    organization.wait_ready("AccessGrant")
    org = organization.name
    installation.kubectl("delete", "pod", "-l=app.kubernetes.io/component=spicedb")
    installation.kubectl("rollout", "status", "deployment/memory-operator-spicedb", "--timeout=90s")

    with installation.spicedb() as access:
        zed = access.client()

        def filled() -> bool:
            try:
                return may(zed, f"pool:{org}/pm/private", "read", f"agent:{org}/a")
            except Exception:  # noqa: BLE001 - the schema may not be there yet
                return False

        wait_for(filled, 60, lambda: str(installation.logs()[-2000:]))


def test_uninstalling_keeps_crds_resources_and_external_relationships(
    cluster: Cluster, api: client.ApiClient, installation: Installation, tmp_path: Path
) -> None:
    """With an external SpiceDB over TLS: access outlives the operator, which takes over again."""
    assert installation.release
    installation.remove()
    authority = _install_external_spicedb(external := Installation(cluster), tmp_path)
    with new_organization(api) as organization:
        org = organization.name
        try:
            installation.install(*_EXTERNAL)
            organization.agent("a", role="pm")
            organization.grant("g", "a")
            organization.wait_ready("AccessGrant")
            question = (f"pool:{org}/pm/private", "read", f"agent:{org}/a")
            with external.reach("external-spicedb", "e2e-key", authority) as access:
                zed = access.client()
                assert may(zed, *question)

                installation.uninstall()

                for kind in Kind:
                    cluster.kubectl("get", "crd", f"{kind.plural}.{GROUP}")
                assert organization.get("AccessGrant", "g")
                assert may(zed, *question)
                # By hand, as docs/operations.md says: a deletion waits for an operator …
                organization.delete("AccessGrant", "g")
                time.sleep(2)
                assert organization.get("AccessGrant", "g")
                # … and a new one finishes what was left.
                installation.install(*_EXTERNAL)
                organization.wait_gone("AccessGrant", "g", seconds=60)
                assert not may(zed, *question)
                assert f"organization:{org}#member@agent:{org}/a" in rows(zed, org)
        finally:
            installation.remove()
            installation.install(driftPeriodSeconds="5")  # as the other tests expect it


_EXTERNAL = (
    "--set=spicedb.embedded.enabled=false",
    f"--set=spicedb.external.endpoint=external-spicedb.{NAMESPACE}.svc:50051",
    "--set=spicedb.external.tokenSecret.name=external-spicedb",
    "--set=spicedb.external.ca.secretName=external-spicedb",
)


def _install_external_spicedb(place: Installation, directory: Path) -> bytes:
    """A SpiceDB that no chart owns, with a key and a certificate of its own; give its authority."""
    files = [directory / name for name in ("ca.crt", "tls.crt", "tls.key")]
    write_certificates(files[0], files[1], files[2], name=f"external-spicedb.{NAMESPACE}.svc")
    place.create_namespace()
    place.kubectl(
        "create", "secret", "generic", "external-spicedb", "--from-literal=token=e2e-key",
        *(f"--from-file={file}" for file in files),
    )  # fmt: skip
    image = place.cluster.images().spicedb
    place.cluster.kubectl(
        "apply", "-n", NAMESPACE, "-f", "-", input=_EXTERNAL_SPICEDB.format(image=image)
    )
    place.kubectl("rollout", "status", "deployment/external-spicedb", "--timeout=90s")
    return files[0].read_bytes()


_EXTERNAL_SPICEDB = """
apiVersion: v1
kind: Service
metadata: {{name: external-spicedb}}
spec:
  selector: {{app: external-spicedb}}
  ports: [{{name: grpc, port: 50051}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: external-spicedb}}
spec:
  selector: {{matchLabels: {{app: external-spicedb}}}}
  template:
    metadata: {{labels: {{app: external-spicedb}}}}
    spec:
      securityContext:
        {{runAsNonRoot: true, runAsUser: 65532, fsGroup: 65532, seccompProfile: {{type: RuntimeDefault}}}}
      containers:
        - name: spicedb
          image: {image}
          args:
            - serve
            - --grpc-preshared-key=e2e-key
            - --grpc-tls-cert-path=/tls/tls.crt
            - --grpc-tls-key-path=/tls/tls.key
            - --telemetry-endpoint=
            - --skip-release-check=true
          securityContext:
            {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
          readinessProbe: {{tcpSocket: {{port: 50051}}, periodSeconds: 1}}
          volumeMounts: [{{name: tls, mountPath: /tls}}]
      volumes: [{{name: tls, secret: {{secretName: external-spicedb}}}}]
"""


def _generated(installation: Installation) -> list[bytes]:
    name = f"{installation.release}-spicedb"
    return [
        installation.secret(f"{name}-key", "preshared_key"),
        installation.secret(f"{name}-tls", "tls.crt"),
        installation.secret(f"{name}-tls", "ca.crt"),
    ]
