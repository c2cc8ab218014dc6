"""The audit trail: one JSON line for every change of access, on a logger of its own.

Who changed the resource is in the API server's audit log, found by uid and generation. Ids of people
never stand here: a person is shown as a digest keyed with the resource's uid, so that the lines of
one IdentityLink can be compared with each other and with nothing else.
"""

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Literal

from memory_operator.api import Metadata, ObjectKey
from memory_operator.relationships import Object, Relationship

LOGGER = logging.getLogger("memory_operator.audit")

Action = Literal["granted", "changed", "revoked", "repaired", "opened", "ended"]
"""`opened` and `ended` are what time did: they are noted when the operator sees them."""


def record(
    action: Action,
    key: ObjectKey,
    metadata: Metadata | None,
    *,
    before: Iterable[Relationship] = (),
    after: Iterable[Relationship] = (),
    zed_token: str = "",
) -> None:
    """Write one line. `metadata` is None where no resource was there any more."""
    uid = metadata.uid if metadata else ""
    line = {
        "audit": action,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "kind": key.kind.value,
        "namespace": key.namespace,
        "name": key.name,
        "uid": uid,
        "generation": metadata.generation if metadata else 0,
        "fieldManager": metadata.manager if metadata else "",
        "before": _rows(before, uid),
        "after": _rows(after, uid),
        "zedToken": zed_token,
    }
    LOGGER.info(json.dumps(line, separators=(",", ":")))


def _rows(relationships: Iterable[Relationship], uid: str) -> list[str]:
    return sorted(str(_without_people(relationship, uid)) for relationship in relationships)


def _without_people(relationship: Relationship, uid: str) -> Relationship:
    return Relationship(
        _digest(relationship.resource, uid),
        relationship.relation,
        _digest(relationship.subject, uid),
        relationship.caveat,
        relationship.expires_at,
    )


def _digest(object_: Object, uid: str) -> Object:
    if object_.type != "person":
        return object_
    digest = blake2b(object_.id.encode(), key=uid.encode()[:64], digest_size=6).hexdigest()
    return Object("person", f"#{digest}")
