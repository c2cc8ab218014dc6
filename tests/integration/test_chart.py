"""The chart: what helm renders from it, and what a real API server makes of that."""

import ast
import base64
import functools
import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cryptography import x509

from memory_operator import crds
from memory_operator.api import Kind
from memory_operator.names import API_VERSION, GROUP, MINIMUM_SPICEDB
from memory_operator.settings import Settings
from tests.cluster import Cluster, tools, up
from tests.support.operator import OperatorProcess
from tests.support.organization import wait_for
from tests.support.spicedb import SpiceDB

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "memory-operator"
RELEASE = "memory-operator"
NAMESPACE = "memory-system"

Json = dict[str, Any]

EXTERNAL: Json = {
    "embedded": {"enabled": False},
    "external": {"endpoint": "spicedb.example:50051", "tokenSecret": {"name": "spicedb"}},
}


def external(**values: Any) -> Json:
    return {"spicedb": {**EXTERNAL, "external": {**EXTERNAL["external"], **values}}}


POSTGRES: Json = {"datastoreEngine": "postgres", "datastoreUriSecret": {"name": "postgres"}}

SCENARIOS: Mapping[str, Json] = {
    "default": {},
    "external, system roots": external(),
    "external, CA in a Secret": external(ca={"secretName": "ca", "key": "bundle.pem"}),
    "external, CA in a ConfigMap": external(ca={"configMapName": "ca"}),
    "external, plaintext": external(insecure=True),
    "embedded on Postgres": {"spicedb": {"embedded": POSTGRES}},
    "embedded, plaintext": {"spicedb": {"embedded": {"tls": {"enabled": False}}}},
    "embedded, own secrets": {
        "spicedb": {"embedded": {"existingSecret": "key", "tls": {"existingSecret": "tls"}}}
    },
    "two namespaces": {"watchNamespaces": ["acme", "globex"]},
    "everything off": {
        "crds": {"enabled": False},
        "userRoles": {"create": False},
        "networkPolicy": {"enabled": False},
    },
    "everything on": {
        "fullnameOverride": "memory",
        "image": {"tag": "1.2.3", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "idPrefix": "east",
        "driftPeriodSeconds": 86400,
        "logLevel": "DEBUG",
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "podLabels": {"team": "memory"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "preference": {
                            "matchExpressions": [{"key": "infra", "operator": "Exists"}]
                        },
                    }
                ]
            }
        },
        "spicedb": {"embedded": POSTGRES},
        "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "networkPolicy": {
            "apiServerCidrs": ["10.0.0.1/32"],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "extraEgress": [{"ports": [{"port": 3128}]}],
        },
    },
}

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


def helm(*arguments: str | Path, values: Json | None = None, check: bool = True) -> str:
    """Run helm with values; without `check`, a failure's message is part of what is returned."""
    given = [] if values is None else ["--values=-"]
    done = subprocess.run(
        [tools.path("helm"), *arguments, *given],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if check and done.returncode:
        raise AssertionError(f"helm {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout if not done.returncode else done.stdout + done.stderr


def render(values: Json | None = None, *, release: str = RELEASE) -> list[Json]:
    """Give all objects of the chart, as `helm template` renders them anew."""
    text = helm("template", release, CHART, f"--namespace={NAMESPACE}", values=values)
    return [item for item in yaml.safe_load_all(text) if item]


@functools.cache
def rendered(scenario: str = "default") -> tuple[Json, ...]:
    """Give all objects of one of the scenarios, rendered once."""
    return tuple(render(SCENARIOS[scenario]))


def refusal(values: Json) -> str:
    """Give helm's message about values that it has to refuse."""
    message = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, values=values, check=False)
    assert "apiVersion" not in message, "rendered, though it should be refused"
    return message


def of_kind(objects: Sequence[Json], kind: str) -> dict[str, Json]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def pod_specs(objects: Sequence[Json]) -> dict[str, Json]:
    """Give every pod's specification, by the name of what makes the pod."""
    found = {}
    for item in objects:
        match item["kind"]:
            case "Pod":
                found[item["metadata"]["name"]] = item["spec"]
            case "Deployment" | "StatefulSet" | "DaemonSet" | "Job":
                found[item["metadata"]["name"]] = item["spec"]["template"]["spec"]
            case "CronJob":
                raise AssertionError("teach this test about CronJobs")
    return found


def containers(pod: Json) -> list[Json]:
    return [*pod.get("initContainers", []), *pod["containers"]]


# --- What is rendered -----------------------------------------------------------------------------


@every_scenario
def test_lint_finds_nothing(scenario: str) -> None:
    shown = helm("lint", CHART, "--strict", f"--namespace={NAMESPACE}", values=SCENARIOS[scenario])
    assert "0 chart(s) failed" in shown


@every_scenario
def test_objects_are_named_placed_and_labelled(scenario: str) -> None:
    objects = rendered(scenario)
    names = {
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in objects
    }
    assert len(names) == len(objects)
    own = {NAMESPACE, *SCENARIOS[scenario].get("watchNamespaces", ())}
    for kind, namespace, name in names:
        cluster_wide = kind.startswith("Cluster") or kind == "CustomResourceDefinition"
        assert namespace in ({None} if cluster_wide else own), f"{kind} {name}"
    for item in objects:
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


def test_longest_release_name_still_names_services() -> None:
    for item in render(release="r" * 53):
        if item["kind"] == "Service":
            assert len(item["metadata"]["name"]) <= 63


@every_scenario
def test_every_pod_is_restricted(scenario: str) -> None:
    pods = pod_specs(rendered(scenario))
    assert pods
    for name, pod in pods.items():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == 65532
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all({"secret", "configMap"} & volume.keys() for volume in pod.get("volumes", ()))
        # Only the operator speaks to the API server.
        assert pod["automountServiceAccountToken"] is (pod.get("serviceAccountName") is not None)
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, f"{name}/{container['name']}"
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            # A file mounted alone never changes, so a rotated key would never arrive.
            assert all("subPath" not in mount for mount in container.get("volumeMounts", ()))


def test_deployments_are_replaced_not_rolled() -> None:
    for deployment in of_kind(rendered(), "Deployment").values():
        assert deployment["spec"]["replicas"] == 1
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert "PodDisruptionBudget" not in {item["kind"] for item in rendered()}


def test_probes_ask_what_the_operator_serves() -> None:
    (operator,) = pod_specs(rendered())[RELEASE]["containers"]
    paths = {
        probe: operator[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {"name": "http", "containerPort": 8080} in operator["ports"]


@every_scenario
def test_environment_is_what_the_settings_read(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = SCENARIOS[scenario]
    for pod in pod_specs(rendered(scenario)).values():
        for container in pod["containers"]:
            if container["name"] not in ("operator", "check"):
                continue
            with monkeypatch.context() as patch:
                for entry in container["env"]:
                    patch.setenv(entry["name"], entry.get("value", NAMESPACE))
                settings = Settings()  # the rest comes from the environment
            ours = {
                entry["name"].removeprefix("MEMORY_OPERATOR_").lower()
                for entry in container["env"]
                if entry["name"].startswith("MEMORY_OPERATOR_")
            }
            assert ours <= Settings.model_fields.keys()
            assert settings.namespace == NAMESPACE
            assert settings.id_prefix == values.get("idPrefix", "")
            if container["name"] == "operator":
                assert settings.watch_namespaces == tuple(values.get("watchNamespaces", ()))
                assert settings.drift_period_seconds == values.get("driftPeriodSeconds", 300)
                assert settings.http_port == 8080
            # Every file that the settings name is mounted.
            directories = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            for file in filter(None, (settings.spicedb_token_file, settings.spicedb_ca_file)):
                (source,) = (
                    value
                    for key, value in volumes[directories[str(file.parent)]].items()
                    if key != "name"
                )
                assert file.name in [item["path"] for item in source["items"]]


@pytest.mark.parametrize(
    ("scenario", "insecure", "ca"),
    [
        ("default", False, {"secret": f"{RELEASE}-spicedb-tls", "key": "ca.crt"}),
        ("embedded, plaintext", True, None),
        ("embedded, own secrets", False, {"secret": "tls", "key": "ca.crt"}),
        ("external, system roots", False, None),
        ("external, CA in a Secret", False, {"secret": "ca", "key": "bundle.pem"}),
        ("external, CA in a ConfigMap", False, {"configMap": "ca", "key": "ca.crt"}),
        ("external, plaintext", True, None),
    ],
)
def test_connection_to_spicedb(scenario: str, *, insecure: bool, ca: dict[str, str] | None) -> None:
    pod = pod_specs(rendered(scenario))[RELEASE]
    environment = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert environment.get("MEMORY_OPERATOR_SPICEDB_INSECURE") == ("true" if insecure else None)
    assert ("MEMORY_OPERATOR_SPICEDB_CA_FILE" in environment) is (ca is not None)
    found = None
    for volume in pod["volumes"]:
        if volume["name"] == "spicedb-ca":
            kind = "secret" if "secret" in volume else "configMap"
            source = volume[kind]
            (item,) = source["items"]  # never the private key beside it
            found = {kind: source.get("secretName", source.get("name")), "key": item["key"]}
    assert found == ca


@every_scenario
def test_secrets_stay_in_secrets(scenario: str) -> None:
    objects = rendered(scenario)
    secrets = [
        value
        for secret in of_kind(objects, "Secret").values()
        for name, value in secret["data"].items()
        if name not in ("tls.crt", "ca.crt")
    ]
    elsewhere = json.dumps([item for item in objects if item["kind"] != "Secret"])
    for secret in secrets:
        assert secret not in elsewhere
        assert base64.b64decode(secret).decode() not in elsewhere
    for pod in pod_specs(objects).values():
        for container in containers(pod):
            for entry in container.get("env", ()):
                if re.search("KEY|URI|PASSWORD", entry["name"]):
                    assert entry.keys() == {"name", "valueFrom"}


def test_own_secrets_generate_none() -> None:
    assert not of_kind(rendered("embedded, own secrets"), "Secret")
    assert not of_kind(rendered("external, system roots"), "Secret")


def test_generated_certificate_names_the_service() -> None:
    data = of_kind(rendered(), "Secret")[f"{RELEASE}-spicedb-tls"]["data"]
    certificate, authority = (
        x509.load_pem_x509_certificate(base64.b64decode(data[name]))
        for name in ("tls.crt", "ca.crt")
    )
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (operator,) = pod_specs(rendered())[RELEASE]["containers"]
    (endpoint,) = (
        entry["value"] for entry in operator["env"] if entry["name"].endswith("SPICEDB_ENDPOINT")
    )
    host, _, port = endpoint.partition(":")
    assert host in names.get_values_for_type(x509.DNSName)
    service = of_kind(rendered(), "Service")[host.split(".")[0]]
    assert int(port) in [entry["port"] for entry in service["spec"]["ports"]]


def test_embedded_spicedb_is_new_enough_and_says_so() -> None:
    (spicedb,) = pod_specs(rendered())[f"{RELEASE}-spicedb"]["containers"]
    version = re.search(r":v(\d+)\.(\d+)\.(\d+)$", spicedb["image"])
    assert version
    assert tuple(map(int, version.groups())) >= MINIMUM_SPICEDB
    assert f"v{'.'.join(version.groups())}" == tools.SPICEDB_VERSION
    assert "--disable-version-response=false" in spicedb["args"]
    assert "--telemetry-endpoint=" in spicedb["args"]


def test_the_real_spicedb_knows_every_flag() -> None:
    pod = pod_specs(rendered("embedded on Postgres"))[f"{RELEASE}-spicedb"]
    for container in containers(pod):
        words = [argument for argument in container["args"] if not argument.startswith("--")]
        flags = {argument.partition("=")[0] for argument in container["args"]} - {*words}
        # Each flag can be set by a variable, too.
        flags |= {
            f"--{entry['name'].removeprefix('SPICEDB_').lower().replace('_', '-')}"
            for entry in container["env"]
        }
        command = [tools.path("spicedb"), *words, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert flags <= {*re.findall(r"--[a-z-]+", shown)}


def test_postgres_is_migrated_first() -> None:
    pod = pod_specs(rendered("embedded on Postgres"))[f"{RELEASE}-spicedb"]
    (migrate,) = pod["initContainers"]
    assert migrate["args"][:3] == ["datastore", "migrate", "head"]
    for container in containers(pod):
        assert "--datastore-engine=postgres" in container["args"]
        uri = {entry["name"]: entry.get("valueFrom") for entry in container["env"]}
        assert uri["SPICEDB_DATASTORE_CONN_URI"] == {
            "secretKeyRef": {"name": "postgres", "key": "uri"}
        }


def test_crds_are_the_generated_ones_and_are_kept() -> None:
    found = of_kind(rendered(), "CustomResourceDefinition")
    assert len(found) == len(Kind)
    for kind in Kind:
        manifest = crds.manifest(kind)
        crd = found[manifest["metadata"]["name"]]
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert crd["spec"] == manifest["spec"]
    assert not of_kind(rendered("everything off"), "CustomResourceDefinition")


def test_helm_test_uses_what_the_operator_uses() -> None:
    check = of_kind(rendered(), "Pod")[f"{RELEASE}-check"]
    (operator,) = pod_specs(rendered())[RELEASE]["containers"]
    (container,) = check["spec"]["containers"]
    assert check["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert container["args"] == ["check"]
    assert container["image"] == operator["image"]
    assert all(entry in operator["env"] for entry in container["env"])


def test_changed_settings_replace_the_pod() -> None:
    def template(values: Json) -> Json:
        found: Json = of_kind(render(values), "Deployment")[RELEASE]["spec"]["template"]
        return found

    stable = external()
    assert template(stable) == template(stable)
    assert template(stable) != template({**stable, "logLevel": "DEBUG"})
    # A new CA, which is read at start: without a cluster, each rendering makes one.
    annotation = "checksum/spicedb-ca"
    assert (
        template({})["metadata"]["annotations"][annotation]
        != (template({})["metadata"]["annotations"][annotation])
    )


def test_chart_images_and_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    listed = {
        item["image"] for item in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    }
    used = {
        container["image"]
        for pod in pod_specs(rendered()).values()
        for container in containers(pod)
    }
    assert listed == used
    documented = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    assert {item["name"] for item in documented} == {f"{kind.plural}.{GROUP}" for kind in Kind}


def test_notes_say_what_to_do_next_in_five_lines() -> None:
    for values in SCENARIOS.values():
        shown = helm(
            *("install", RELEASE, CHART, f"--namespace={NAMESPACE}"),
            *("--dry-run=client", "--output=json"),
            values=values,
        )
        notes = json.loads(shown)["info"]["notes"].strip().splitlines()
        assert [line[:2] for line in notes] == ["1.", "2.", "3.", "4.", "5."]


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"spicedb": {"external": EXTERNAL["external"]}}, "Two SpiceDBs"),
        ({"spicedb": {"embedded": {"enabled": False}}}, "No SpiceDB"),
        ({"spicedb": {"embedded": {"datastoreEngine": "postgres"}}}, "datastoreUriSecret.name"),
        ({"spicedb": {"embedded": {"datastoreEngine": "mysql"}}}, "datastoreEngine"),
        (external(tokenSecret={"name": ""}), "tokenSecret.name"),
        (external(endpoint="https://spicedb"), "host:port, without https://"),
        (external(endpoint="spicedb"), "host:port"),
        (external(ca={"secretName": "a", "configMapName": "b"}), "Two CA bundles"),
        (external(ca={"secretName": "a"}, insecure=True), "plaintext"),
        ({"watchNamespaces": [NAMESPACE]}, "the operator's own namespace"),
        ({"watchNamespaces": "acme"}, "watchNamespaces"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"idPrefix": "East"}, "idPrefix"),
        ({"driftPeriodSeconds": 0}, "driftPeriodSeconds"),
        ({"extraEnv": [{"name": "MEMORY_OPERATOR_HTTP_PORT", "value": "1"}]}, "extraEnv"),
        ({"replicas": 2}, "replicas"),
        ({"spicedb": {"embedded": {"replicas": 2}}}, "replicas"),
    ],
)
def test_wrong_values_are_refused_in_clear_words(values: Json, text: str) -> None:
    assert text in refusal(values)


def _schema() -> Json:
    schema: Json = json.loads((CHART / "values.schema.json").read_text())
    return schema


def _objects(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        yield path
        for name, child in value.items():
            yield from _objects(child, (*path, name))


def test_an_unknown_value_is_refused_everywhere() -> None:
    validator = jsonschema.Draft7Validator(_schema())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    validator.validate(defaults)
    free = {("podLabels",), ("nodeSelector",), ("metrics", "serviceMonitor", "labels")}
    for path in set(_objects(defaults)) - free:
        values = json.loads(json.dumps(defaults))
        place = values
        for name in path:
            place = place[name]
        place["unknown"] = {}
        assert not validator.is_valid(values), ".".join(path)


def test_every_value_of_the_schema_has_a_default_and_is_documented() -> None:
    schema = _schema()
    documented = (REPOSITORY / "docs" / "chart.md").read_text()

    def compare(value: Any, node: Json, path: str) -> None:
        if "$ref" in node:
            node = schema["definitions"][node["$ref"].rpartition("/")[2]]
        # Kubernetes' own types (affinity, resources) are described by Kubernetes.
        if not isinstance(value, dict) or not value or "requests" in value:
            assert f"`{path}`" in documented
            return
        properties = {name: child for name, child in node["properties"].items() if name != "global"}
        assert properties.keys() == value.keys(), path
        for name, child in properties.items():
            compare(value[name], child, f"{path}.{name}".lstrip("."))

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "")


# --- Rights ---------------------------------------------------------------------------------------


def rights(role: Json) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used_rights() -> set[tuple[str, str, str]]:
    """Read from the source which calls the operator makes to the API server."""
    package = REPOSITORY / "operator" / "memory_operator"
    used = set()
    call = re.compile(
        r"(?P<verb>[a-z]+)_(?:namespaced|cluster)_(?P<what>custom_object)(?P<status>_status)?"
    )
    source = (package / "kube.py").read_text()
    # What is posted by its path, since the client's class for it is too large to load.
    paths = re.findall(r'"POST",\s+f"/api/v1/namespaces/\{namespace\}/(\w+)"', source)
    assert source.count('"/api') == len(paths) == source.count("call_api(")
    used |= {("", resource, "create") for resource in paths}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and (found := call.fullmatch(node.attr)):
            part = "/status" if found["status"] else ""
            used |= {(GROUP, f"{kind.plural}{part}", found["verb"]) for kind in Kind}
    # Event handlers only list and watch; with other handlers kopf would patch, too.
    handlers = (package / "handlers.py").read_text()
    assert set(re.findall(r"kopf\.on\.(\w+)", handlers)) <= {"event", "login"}
    return used | {(GROUP, kind.plural, verb) for kind in Kind for verb in ("list", "watch")}


def test_the_operator_may_do_what_it_does_and_nothing_else() -> None:
    roles = of_kind(rendered(), "ClusterRole")
    assert rights(roles[RELEASE]) == used_rights()
    assert not of_kind(rendered(), "Role")


def test_with_a_list_of_namespaces_it_has_rights_only_there() -> None:
    objects = render({"watchNamespaces": ["acme", "globex"], "userRoles": {"create": False}})
    roles = [item for item in objects if item["kind"] == "Role"]
    assert [role["metadata"]["namespace"] for role in roles] == ["acme", "globex"]
    assert all(rights(role) == used_rights() for role in roles)
    assert not of_kind(objects, "ClusterRole")
    assert not of_kind(objects, "ClusterRoleBinding")


def test_links_and_grants_are_not_for_every_editor() -> None:
    roles = of_kind(rendered(), "ClusterRole")
    aggregated: dict[str, set[tuple[str, str]]] = {"view": set(), "edit": set(), "admin": set()}
    for role in roles.values():
        for name, found in aggregated.items():
            if f"rbac.authorization.k8s.io/aggregate-to-{name}" in role["metadata"]["labels"]:
                found |= {(resource, verb) for _, resource, verb in rights(role)}
    assert {verb for _, verb in aggregated["view"]} == {"get", "list", "watch"}
    assert {resource for resource, _ in aggregated["view"]} == {kind.plural for kind in Kind}
    assert {resource for resource, _ in aggregated["edit"]} == {"memoryagents"}
    assert not aggregated["admin"]
    writable = {
        resource
        for _, resource, verb in rights(roles[f"{RELEASE}-access-admin"])
        if verb == "create"
    }
    assert writable == {"identitylinks", "accessgrants"}


# --- Network --------------------------------------------------------------------------------------


def selected(selector: Json) -> set[str]:
    """Give the names of the pods, or of what makes them, that a selector selects by default."""
    labels = {
        item["metadata"]["name"]: (
            item["metadata"] if item["kind"] == "Pod" else item["spec"]["template"]["metadata"]
        )["labels"]
        for item in rendered()
        if item["kind"] in ("Pod", "Deployment")
    }
    return {
        name for name, found in labels.items() if selector["matchLabels"].items() <= found.items()
    }


def test_network_policies_let_through_what_is_needed_and_no_more() -> None:
    policies = of_kind(rendered(), "NetworkPolicy")
    operator, spicedb = policies[RELEASE], policies[f"{RELEASE}-spicedb"]
    assert selected(operator["spec"]["podSelector"]) == {RELEASE}
    assert selected(spicedb["spec"]["podSelector"]) == {f"{RELEASE}-spicedb"}
    for policy in policies.values():
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]

    assert "ingress" not in operator["spec"]  # the kubelet needs no rule
    dns, api_server, to_spicedb = operator["spec"]["egress"]
    assert {entry["port"] for entry in dns["ports"]} == {53}
    assert {entry["port"] for entry in api_server["ports"]} == {443, 6443}
    (peer,) = to_spicedb["to"]
    assert selected(peer["podSelector"]) == {f"{RELEASE}-spicedb"}

    assert "egress" not in spicedb["spec"]
    (from_clients,) = spicedb["spec"]["ingress"]
    (peer,) = from_clients["from"]
    assert peer.keys() == {"podSelector"}  # this namespace only
    assert selected(peer["podSelector"]) == {RELEASE, f"{RELEASE}-check"}
    assert from_clients["ports"] == [{"port": "grpc"}]


def test_network_policy_of_an_external_spicedb_opens_its_port() -> None:
    (policy,) = of_kind(rendered("external, system roots"), "NetworkPolicy").values()
    assert policy["spec"]["egress"][2] == {"ports": [{"port": 50051}]}


def test_metrics_are_for_those_who_are_named() -> None:
    objects = rendered("everything on")
    ports = [
        rule["ports"]
        for policy in of_kind(objects, "NetworkPolicy").values()
        for rule in policy["spec"]["ingress"]
        if "namespaceSelector" in rule["from"][0]
    ]
    assert ports == [[{"port": "http"}], [{"port": "metrics"}]]
    (monitor,) = of_kind(objects, "ServiceMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    for service in of_kind(objects, "Service").values():
        assert wanted <= service["metadata"]["labels"].items()
        assert "metrics" in [port["name"] for port in service["spec"]["ports"]]


# --- A real API server ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane of its own: releases own what they install, and share it with nobody."""
    cluster = up(control_plane=True, name="chart-tests")
    try:
        for namespace in ("acme", "globex"):
            cluster.kubectl("create", "namespace", namespace)
        cluster.kubectl("create", "namespace", NAMESPACE)
        enforce = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
        cluster.kubectl("label", "namespace", NAMESPACE, *enforce)
        cluster.kubectl(
            "wait", "--for=create", "serviceaccount/default", "-n", NAMESPACE, "--timeout=60s"
        )
        yield cluster
    finally:
        cluster.down()


@every_scenario
def test_the_api_server_accepts_every_object_without_a_warning(
    cluster: Cluster, scenario: str
) -> None:
    objects = [item for item in rendered(scenario) if item["kind"] != "ServiceMonitor"]
    shown = cluster.kubectl(
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "--warnings-as-errors",  # such as: would violate PodSecurity "restricted"
        "--filename=-",
        input=yaml.safe_dump_all(objects),
    )
    assert shown.count("(server dry run)") == len(objects)


def test_a_release_lives_and_goes(cluster: Cluster) -> None:
    """Upgrades keep what was generated, a new key replaces SpiceDB's pod, and CRDs outlive all."""

    def objects(kinds: str) -> list[Json]:
        listed = cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", "json")
        items: list[Json] = json.loads(listed)["items"]
        return items

    def pod_templates() -> dict[str, Json]:
        return {
            item["metadata"]["name"]: item["spec"]["template"] for item in objects("deployments")
        }

    with installed(cluster):
        secrets, templates = generated_secrets(cluster, NAMESPACE), pod_templates()
        assert secrets.keys() == {f"{RELEASE}-spicedb-key", f"{RELEASE}-spicedb-tls"}
        upgrade(cluster)
        assert generated_secrets(cluster, NAMESPACE) == secrets
        assert pod_templates() == templates

        # How SpiceDB's key is rotated.
        cluster.kubectl("delete", "secret", f"{RELEASE}-spicedb-key", "-n", NAMESPACE)
        upgrade(cluster)
        rotated = generated_secrets(cluster, NAMESPACE)
        assert rotated[f"{RELEASE}-spicedb-key"] != secrets[f"{RELEASE}-spicedb-key"]
        assert rotated[f"{RELEASE}-spicedb-tls"] == secrets[f"{RELEASE}-spicedb-tls"]
        replaced = {name for name, now in pod_templates().items() if now != templates[name]}
        assert replaced == {f"{RELEASE}-spicedb"}

        cluster.kubectl("apply", "-n", "acme", "--filename=-", input=_AGENT)
    assert not objects("deployments,services,networkpolicies")
    assert not generated_secrets(cluster, NAMESPACE)
    cluster.kubectl("get", "memoryagent", "pm", "-n", "acme")
    with installed(cluster):  # over the CRDs that were kept
        cluster.kubectl("delete", "memoryagent", "pm", "-n", "acme", "--timeout=20s")


@pytest.mark.parametrize("watched", [(), ("acme",)], ids=["all", "acme"])
def test_the_operator_works_with_the_rights_of_the_chart(
    cluster: Cluster, tmp_path: Path, watched: tuple[str, ...]
) -> None:
    with (
        installed(cluster, {"watchNamespaces": list(watched)}),
        SpiceDB(tmp_path) as spicedb,
        OperatorProcess(
            _kubeconfig_of_operator(cluster, tmp_path),
            spicedb,
            tmp_path,
            watch_namespaces=",".join(watched),
        ) as operator,
    ):
        for namespace in watched or ("acme", "globex"):
            _grant_comes_and_goes(partial(cluster.kubectl, "--namespace", namespace))
        assert not re.search("403|[Ff]orbidden", operator.log.read_text())
        account = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
        for verb, resource in [
            ("get", "secrets"),
            ("list", "pods"),
            ("create", f"memoryagents.{GROUP}"),
            ("delete", f"accessgrants.{GROUP}"),
        ]:
            assert not may(cluster, account, verb, resource)
        elsewhere = may(cluster, account, "list", f"memoryagents.{GROUP}", namespace="globex")
        assert elsewhere is not bool(watched)


def _grant_comes_and_goes(kubectl: Callable[..., str]) -> None:
    """See every write of the operator: finalizer, status, Event."""
    kubectl("apply", "--filename=-", input=_GRANT_TO_NOBODY)
    kubectl("wait", "--for=condition=Ready", "accessgrant/lonely", "--timeout=30s")
    events = partial(kubectl, "get", "events", "--output=name")
    wait_for(lambda: "lonely" in events(), 10, events)
    kubectl("delete", "accessgrant/lonely", "--timeout=30s")


def test_the_rights_of_people(cluster: Cluster) -> None:
    agents, links, grants = (f"{kind.plural}.{GROUP}" for kind in Kind)
    with installed(cluster):
        roles = {"viewer": "view", "editor": "edit", "boss": "admin"}
        roles["access"] = f"{RELEASE}-access-admin"
        for user, role in roles.items():
            binding = ("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
            cluster.kubectl(*binding, "-n", "acme")
        # Aggregation is a controller's work.
        wait_for(lambda: may(cluster, "boss", "create", agents), 30, lambda: "not aggregated")
        for user in ("viewer", "editor", "boss"):
            assert all(may(cluster, user, "list", resource) for resource in (agents, links, grants))
            assert may(cluster, user, "delete", agents) is (user != "viewer")
            assert not may(cluster, user, "create", links)
            assert not may(cluster, user, "patch", grants)
        assert may(cluster, "access", "create", links)
        assert may(cluster, "access", "patch", grants)
        assert not may(cluster, "access", "create", agents)
        assert not may(cluster, "access", "get", "secrets")


_AGENT = f"""\
apiVersion: {API_VERSION}
kind: MemoryAgent
metadata: {{name: pm}}
spec: {{role: product-manager}}
"""
# The operator posts an Event about it: there is no such agent.
_GRANT_TO_NOBODY = f"""\
apiVersion: {API_VERSION}
kind: AccessGrant
metadata: {{name: lonely}}
spec: {{grantorRole: product-manager, granteeAgent: nobody, resourceScope: private}}
"""


@contextmanager
def installed(cluster: Cluster, values: Json | None = None) -> Iterator[None]:
    """Install the chart, and uninstall it afterwards; no pod runs, as there is no node."""
    options = (f"--namespace={NAMESPACE}", f"--kubeconfig={cluster.kubeconfig}")
    helm("install", RELEASE, CHART, *options, values=values)
    try:
        yield
    finally:
        helm("uninstall", RELEASE, *options)


def upgrade(cluster: Cluster) -> None:
    """Upgrade the installed chart to itself."""
    options = (f"--namespace={NAMESPACE}", f"--kubeconfig={cluster.kubeconfig}")
    helm("upgrade", RELEASE, CHART, *options, values={})


def generated_secrets(cluster: Cluster, namespace: str) -> dict[str, dict[str, str]]:
    """Give the data of the Secrets that the chart has generated in a namespace."""
    selector = "app.kubernetes.io/managed-by=Helm,app.kubernetes.io/name=memory-operator"
    listed = cluster.kubectl("get", "secrets", "-n", namespace, "-l", selector, "-o", "json")
    return {item["metadata"]["name"]: item["data"] for item in json.loads(listed)["items"]}


def may(cluster: Cluster, user: str, verb: str, resource: str, namespace: str = "acme") -> bool:
    """Ask the real authorizer."""
    question = ("auth", "can-i", verb, resource, "-n", namespace, "--as", user)
    answer = cluster.kubectl(*question, check=False).splitlines()[0]
    assert answer.split()[0] in ("yes", "no"), answer
    return answer.startswith("yes")


def _kubeconfig_of_operator(cluster: Cluster, directory: Path) -> Path:
    """Make a kubeconfig with which a process is the operator's ServiceAccount."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", RELEASE, "-n", NAMESPACE).strip()
    for user in config["users"]:
        user["user"] = {"token": token}
    file = directory / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file
