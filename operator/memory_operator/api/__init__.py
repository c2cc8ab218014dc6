"""The three custom resources, as values.

`read` turns an object as the API server gives it into a `Resource`; a spec that can't be read leaves
`spec` empty and says why in `problem`, so that one bad object is reported and never stops the others.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from memory_operator.api.access_grant import AccessGrantSpec, AccessGrantStatus, window
from memory_operator.api.common import (
    Condition,
    Kind,
    Metadata,
    Model,
    ObjectKey,
    Status,
    format_instant,
    parse_instant,
)
from memory_operator.api.identity_link import IdentityLinkSpec, IdentityLinkStatus, Person
from memory_operator.api.memory_agent import GroupMembership, MemoryAgentSpec, MemoryAgentStatus

__all__ = [
    "MODELS",
    "AccessGrantSpec",
    "AccessGrantStatus",
    "Condition",
    "GroupMembership",
    "IdentityLinkSpec",
    "IdentityLinkStatus",
    "Kind",
    "MemoryAgentSpec",
    "MemoryAgentStatus",
    "Metadata",
    "Model",
    "ObjectKey",
    "Person",
    "Resource",
    "Status",
    "format_instant",
    "parse_instant",
    "read",
    "window",
]

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

MODELS: dict[Kind, tuple[type[Model], type[Status]]] = {
    Kind.MEMORY_AGENT: (MemoryAgentSpec, MemoryAgentStatus),
    Kind.IDENTITY_LINK: (IdentityLinkSpec, IdentityLinkStatus),
    Kind.ACCESS_GRANT: (AccessGrantSpec, AccessGrantStatus),
}
"""The spec and the status of each kind."""

SpecT_co = TypeVar("SpecT_co", bound=Model, covariant=True)


@dataclass(frozen=True, slots=True)
class Resource(Generic[SpecT_co]):
    """One custom resource as it was last seen; small enough to keep ten thousand of them."""

    key: ObjectKey
    metadata: Metadata
    spec: SpecT_co | None
    status: Status
    problem: str = ""
    """Why `spec` could not be read; empty if it could."""


def read(body: Mapping[str, Any]) -> Resource[Model]:
    """Read an object of one of the three kinds.

    Raises:
        KeyError, ValueError: the object has no metadata as every API server gives it, or its kind is
            none of ours. Neither can come from a watch of our resources.
    """
    metadata = body["metadata"]
    key = ObjectKey(Kind(body["kind"]), metadata["namespace"], metadata["name"])
    spec_model, status_model = MODELS[key.kind]
    spec, problem = None, ""
    try:
        spec = spec_model.model_validate(body.get("spec") or {})
    except ValidationError as error:
        problem = _explain(error)
    if problem_of_apply := _nulled_instants(body):
        spec, problem = None, problem_of_apply
    try:
        status = status_model.model_validate(body.get("status") or {})
    except ValidationError:
        status = status_model()  # written by somebody else: ours will replace it
    return Resource(key, Metadata.read(metadata), spec, status, problem)


def _nulled_instants(body: Mapping[str, Any]) -> str:
    """Say which instants were null in what was given to ``kubectl apply``, if any were.

    The API server refuses a null, but a client-side apply leaves it out of what it creates: an empty
    value in a template would become a grant without an end. The annotation still has it.
    """
    if body["kind"] != Kind.ACCESS_GRANT:
        return ""
    applied = body["metadata"].get("annotations", {}).get(_LAST_APPLIED, "")
    if ":null" not in applied:
        return ""
    spec = body.get("spec") or {}
    try:
        given = json.loads(applied)["spec"]
        nulled = [f for f in ("validFrom", "validTo") if f not in spec and given.get(f, "") is None]
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""  # not what kubectl writes
    return "; ".join(
        f"spec.{field}: null was applied: give it an instant, or leave it out" for field in nulled
    )


def _explain(error: ValidationError) -> str:
    # Places and rules only: the input itself may name a person.
    return "; ".join(
        f"spec.{'.'.join(str(place) for place in item['loc'])}: {item['msg']}".replace(
            "spec.:", "spec:"
        )
        for item in error.errors(include_input=False, include_url=False, include_context=False)
    )
