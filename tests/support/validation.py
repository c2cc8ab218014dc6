"""Reading zed's validation files, strictly: what this doesn't know, it refuses.

The format is that of `zed validate` and of the Playground. Its parts that this project doesn't use
(an inline `schema`, `validation`) are errors here, not silently passed over.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from authzed.api.v1 import (
    CheckPermissionResponse,
    ContextualizedCaveat,
    ObjectReference,
    Relationship,
    SubjectReference,
)
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

_ANSWERS = {
    "assertTrue": CheckPermissionResponse.PERMISSIONSHIP_HAS_PERMISSION,
    "assertFalse": CheckPermissionResponse.PERMISSIONSHIP_NO_PERMISSION,
    "assertCaveated": CheckPermissionResponse.PERMISSIONSHIP_CONDITIONAL_PERMISSION,
}

_RELATIONSHIP = re.compile(
    r"(?P<type>[a-z_]+):(?P<id>[\w/|=+-]+)#(?P<relation>[a-z_]+)"
    r"@(?P<subject_type>[a-z_]+):(?P<subject_id>[\w/|=+-]+)"
    r"(\[(?P<caveat>[a-z_]+)(:(?P<context>\{.+\}))?\])?"
    r"(\[expiration:(?P<expiration>[^\]]+)\])?",
    re.ASCII,
)


@dataclass(frozen=True)
class Assertion:
    """One line of `assertions`: `type:id#permission@type:id with {context}`."""

    kind: str
    text: str
    check: Relationship
    context: Struct

    @property
    def permissionship(self) -> "CheckPermissionResponse.Permissionship.ValueType":
        """The answer that the check must get."""
        return _ANSWERS[self.kind]


@dataclass(frozen=True)
class ValidationFile:
    """A small world, and what must be true in it."""

    schema: str
    relationships: list[Relationship]
    assertions: list[Assertion]


def load(path: Path) -> ValidationFile:
    """Read a validation file."""
    content = yaml.safe_load(path.read_text())
    _only(content, {"schemaFile", "relationships", "assertions"})
    _only(content["assertions"], _ANSWERS)
    return ValidationFile(
        schema=(path.parent / content["schemaFile"]).read_text(),
        relationships=[*_relationships(content["relationships"])],
        assertions=[
            _assertion(kind, text)
            for kind, texts in content["assertions"].items()
            for text in texts
        ],
    )


def parse_relationship(text: str) -> Relationship:
    """Read `type:id#relation@type:id[caveat:{…}][expiration:…]`."""
    found = _RELATIONSHIP.fullmatch(text)
    if not found:
        raise ValueError(f"not a relationship: {text}")
    caveat = expiration = None
    if found["caveat"]:
        context = _struct(found["context"]) if found["context"] else None
        caveat = ContextualizedCaveat(caveat_name=found["caveat"], context=context)
    if found["expiration"]:
        expiration = Timestamp()
        expiration.FromJsonString(found["expiration"])
    return Relationship(
        resource=ObjectReference(object_type=found["type"], object_id=found["id"]),
        relation=found["relation"],
        subject=SubjectReference(
            object=ObjectReference(object_type=found["subject_type"], object_id=found["subject_id"])
        ),
        optional_caveat=caveat,
        optional_expires_at=expiration,
    )


def _relationships(block: str) -> Iterator[Relationship]:
    for line in map(str.strip, block.splitlines()):
        if line and not line.startswith("//"):
            yield parse_relationship(line)


def _assertion(kind: str, text: str) -> Assertion:
    check, _, context = text.partition(" with ")
    relationship = parse_relationship(check)
    if relationship.HasField("optional_caveat") or relationship.HasField("optional_expires_at"):
        raise ValueError(f"an assertion has its context behind `with`: {text}")
    return Assertion(kind, text, relationship, _struct(context) if context else Struct())


def _struct(text: str) -> Struct:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"a context is an object: {text}")
    struct = Struct()
    struct.update(value)
    return struct


def _only(mapping: dict[str, Any], known: Iterable[str]) -> None:
    unknown = mapping.keys() - set(known)
    if unknown:
        raise ValueError(f"not known: {', '.join(sorted(unknown))}")
