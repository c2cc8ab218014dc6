"""The CustomResourceDefinitions: structural, bounded, and fresh."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from memory_operator import crds
from memory_operator.api import Kind
from memory_operator.crds import files, manifest

ROOT = Path(__file__).parents[2]
Node = dict[str, Any]


def schema(kind: Kind) -> Node:
    (version,) = manifest(kind)["spec"]["versions"]
    found: Node = version["schema"]["openAPIV3Schema"]
    return found


def nodes(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Walk over every schema below one, with its place."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")


ALL = [
    pytest.param(path, node, id=f"{kind}{path}")
    for kind in Kind
    for part in ("spec", "status")
    for path, node in nodes(schema(kind)["properties"][part], f".{part}")
]


@pytest.mark.parametrize(("path", "node"), ALL)
def test_every_node_is_structural_and_bounded(path: str, node: Node) -> None:
    match node.get("type"):
        case "object":
            assert node["properties"], path
        case "array":
            assert node["maxItems"] <= 64
            assert "items" in node
        case "string":
            assert "enum" in node or node["maxLength"] <= 1100
        case "integer":
            assert node["format"] == "int64"
        case "boolean":
            pass
        case other:
            pytest.fail(f"{path} has the type {other}")
    allowed = {
        "type", "properties", "required", "items", "description", "default", "enum", "pattern",
        "minLength", "maxLength", "maxItems", "minimum", "format",
        "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    }  # fmt: skip
    # Where a null is kept and not pruned, it is so that a rule can see and refuse it.
    assert node.keys() <= allowed | {"nullable"}
    assert not node.get("nullable") or node["x-kubernetes-validations"]


@pytest.mark.parametrize("kind", Kind)
def test_every_field_of_the_spec_is_described(kind: Kind) -> None:
    for path, node in nodes(schema(kind)["properties"]["spec"], ".spec"):
        assert node.get("description") or path.endswith("[]"), path


@pytest.mark.parametrize("kind", Kind)
def test_every_list_is_a_map_by_keys_that_its_items_require(kind: Kind) -> None:
    for path, node in nodes(schema(kind)):
        if node.get("type") == "array":
            assert node["x-kubernetes-list-type"] == "map", path
            keys = node["x-kubernetes-list-map-keys"]
            assert set(keys) <= set(node["items"]["required"]), path


@pytest.mark.parametrize("kind", Kind)
def test_every_rule_says_what_is_wrong(kind: Kind) -> None:
    for path, node in nodes(schema(kind)):
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["rule"], path
            assert rule["message"], path


@pytest.mark.parametrize(
    ("kind", "short", "columns"),
    [
        (Kind.MEMORY_AGENT, "magent", ["Role", "Owner", "Ready", "Reason", "Age"]),
        (Kind.IDENTITY_LINK, "ilink", ["Provider", "Person", "Ready", "Reason", "Age"]),
        (
            Kind.ACCESS_GRANT,
            "agrant",
            ["Grantee", "Role", "Scope", "Window", "Valid To", "Ready", "Reason", "Age"],
        ),
    ],
)
def test_kubectl_shows(kind: Kind, short: str, columns: list[str]) -> None:
    spec = manifest(kind)["spec"]
    (version,) = spec["versions"]
    assert spec["scope"] == "Namespaced"
    assert spec["names"]["shortNames"] == [short]
    assert spec["names"]["categories"] == ["memory"]
    assert version["subresources"] == {"status": {}}
    assert [column["name"] for column in version["additionalPrinterColumns"]] == columns


def test_the_organisation_is_no_field_of_any_kind() -> None:
    for kind in Kind:
        fields = {path for path, _ in nodes(schema(kind)["properties"]["spec"])}
        assert not {path for path in fields if "org" in path.lower() or "namespace" in path.lower()}


@pytest.mark.parametrize("path", files())
def test_what_is_committed_is_what_is_generated(path: str) -> None:
    assert (ROOT / path).read_text() == files()[path], "run `make crds`"


@pytest.mark.parametrize("kind", Kind)
def test_a_definition_is_small_enough_for_client_side_apply(kind: Kind) -> None:
    text = files()[f"crds/{kind.plural}.yaml"]
    assert len(text) < 200_000
    assert yaml.safe_load(text) == manifest(kind)


def test_the_charts_copy_is_kept_on_uninstall_and_can_be_left_out() -> None:
    text = files()["charts/memory-operator/templates/crds.yaml"]
    assert text.startswith("{{- if .Values.crds.enabled }}")
    assert text.endswith("{{- end }}\n")
    assert text.count("helm.sh/resource-policy: keep") == len(Kind)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"title": "X", "type": "string"}, {"type": "string"}, id="titles go"),
        pytest.param(
            {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}], "default": None},
            {"type": "string", "maxLength": 3},
            id="optional means absent, not null",
        ),
        pytest.param(
            {
                "$ref": "#/$defs/A",
                "description": "one\n  text",
                "$defs": {"A": {"type": "integer"}},
            },
            {"type": "integer", "description": "one text"},
            id="references are put in place",
        ),
        pytest.param(
            {"type": "array", "items": {"title": "T", "type": "string"}, "default": []},
            {"type": "array", "items": {"type": "string"}},
            id="items too",
        ),
        pytest.param(
            {"type": "string", "default": "read"},
            {"type": "string", "default": "read"},
            id="defaults stay",
        ),
    ],
)
def test_a_json_schema_becomes_structural(given: Node, expected: Node) -> None:
    assert crds.structural(given) == expected
