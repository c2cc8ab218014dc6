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
from secrets import token_hex
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
    # Without a resource, people can be compared within this line only.
    key_of_digests = (uid or token_hex()).encode()[:64]
    line = {
        "audit": action,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "kind": key.kind.value,
        "namespace": key.namespace,
        "name": key.name,
        "uid": uid,
        "generation": metadata.generation if metadata else 0,
        "fieldManager": metadata.manager if metadata else "",
        "before": _rows(before, key_of_digests),
        "after": _rows(after, key_of_digests),
        "zedToken": zed_token,
    }
    LOGGER.info(json.dumps(line, separators=(",", ":")))


def _rows(relationships: Iterable[Relationship], key: bytes) -> list[str]:
    return sorted(str(_without_people(relationship, key)) for relationship in relationships)


def _without_people(relationship: Relationship, key: bytes) -> Relationship:
    return Relationship(
        _digest(relationship.resource, key),
        relationship.relation,
        _digest(relationship.subject, key),
        relationship.caveat,
        relationship.expires_at,
    )


def _digest(object_: Object, key: bytes) -> Object:
    if object_.type != "person":
        return object_
    digest = blake2b(object_.id.encode(), key=key, digest_size=6).hexdigest()
    return Object("person", f"#{digest}")
