"""Models to CustomResourceDefinitions: structural, bounded, nothing preserved that isn't known.

`crds/` and the chart's template are generated from here by ``make crds`` and checked by
``make check``.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from memory_operator.api import MODELS, Kind
from memory_operator.names import CATEGORY, GROUP, VERSION

_SHORT_NAMES = {
    Kind.MEMORY_AGENT: "magent",
    Kind.IDENTITY_LINK: "ilink",
    Kind.ACCESS_GRANT: "agrant",
}

_DESCRIPTIONS = {
    Kind.MEMORY_AGENT: "An agent of the organisation that this namespace is: its role and groups.",
    Kind.IDENTITY_LINK: "This agent acts for this person.",
    Kind.ACCESS_GRANT: "This agent may read what a role keeps in a scope, until validTo.",
}


def _column(name: str, path: str, *, wide: bool = False, type_: str = "string") -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": type_, "jsonPath": path}
    return column | {"priority": 1} if wide else column


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


_COLUMNS = {
    Kind.MEMORY_AGENT: [
        _column("Role", ".spec.role"),
        _column("Owner", ".status.owner", wide=True),
    ],
    Kind.IDENTITY_LINK: [
        _column("Provider", ".spec.person.provider"),
        _column("Person", ".spec.person.id", wide=True),
    ],
    Kind.ACCESS_GRANT: [
        _column("Grantee", ".spec.granteeAgent"),
        _column("Role", ".spec.grantorRole"),
        _column("Scope", ".spec.resourceScope"),
        _column("Window", _condition("Active", "reason")),
        # Not a date column: kubectl shows those as an age, and a future one as <invalid>.
        _column("Valid To", ".spec.validTo"),
    ],
}

_ROOT_RULES = {
    Kind.IDENTITY_LINK: [
        {
            "rule": "self.metadata.name == self.spec.agent",
            "message": "an IdentityLink bears the name of its agent: "
            "metadata.name must equal spec.agent",
        }
    ],
}


def manifest(kind: Kind) -> dict[str, Any]:
    """Build the CustomResourceDefinition of one kind."""
    spec, status = (structural(model.model_json_schema()) for model in MODELS[kind])
    schema: dict[str, Any] = {
        "type": "object",
        "description": _DESCRIPTIONS[kind],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    if kind in _ROOT_RULES:
        schema["x-kubernetes-validations"] = _ROOT_RULES[kind]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.value,
                "listKind": f"{kind.value}List",
                "plural": kind.plural,
                "singular": kind.value.lower(),
                "shortNames": [_SHORT_NAMES[kind]],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        *_COLUMNS[kind],
                        _column("Ready", _condition("Ready", "status")),
                        _column("Reason", _condition("Ready", "reason"), wide=True),
                        _column("Age", ".metadata.creationTimestamp", type_="date"),
                    ],
                }
            ],
        },
    }


def files() -> dict[str, str]:
    """Give every generated file: path from the repository's root to content."""
    texts = {kind: yaml.safe_dump(manifest(kind), sort_keys=False, width=100) for kind in Kind}
    generated = {f"crds/{kind.plural}.yaml": _HEADER + text for kind, text in texts.items()}
    chart = "\n---\n".join(
        text.replace("metadata:\n", _CHART_METADATA, 1).rstrip() for text in texts.values()
    )
    path = "charts/memory-operator/templates/crds.yaml"
    generated[path] = f"{{{{- if .Values.crds.enabled }}}}\n{chart}\n{{{{- end }}}}\n"
    return generated


_HEADER = "# Generated from the models by `make crds`: change those instead.\n"
_CHART_METADATA = (
    "metadata:\n"
    "  annotations:\n"
    "    helm.sh/resource-policy: keep\n"
    "  labels:\n"
    '    {{- include "memory-operator.labels" . | nindent 4 }}\n'
)


def structural(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Turn pydantic's JSON schema into a structural one, as Kubernetes wants it.

    References are put in place, titles dropped, and an optional field is one that may be absent. (The
    API server takes a null for absent; where that would turn an empty value into a permission, the
    model says so and has a rule against it.)
    """
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    if "anyOf" in node:
        (choice,) = [option for option in node["anyOf"] if option != {"type": "null"}]
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _convert({**choice, **rest}, definitions)
    converted: dict[str, Any] = {}
    for key, value in node.items():
        match key:
            case "title" | "$defs":
                continue
            case "default" if value is None or value == []:
                continue
            case "properties":
                converted[key] = {
                    name: _convert(child, definitions) for name, child in value.items()
                }
            case "items":
                converted[key] = _convert(value, definitions)
            case "description":
                converted[key] = " ".join(value.split())
            case _:
                converted[key] = value
    return converted
