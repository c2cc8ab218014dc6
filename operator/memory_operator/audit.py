"""The audit trail: one JSON line for every change of access, on a logger of its own.

Who changed the resource is in the API server's audit log, found by uid and generation. Ids of people
never stand here: a person is shown as a digest keyed with the resource's uid, so that the lines of
one IdentityLink can be compared with each other and with nothing else.
"""

import json
import logging
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from hashlib import blake2b
from secrets import token_hex
from typing import Literal

from memory_operator.api import Metadata, Model, ObjectKey, Resource, Status
from memory_operator.conditions import ACTIVE, READY
from memory_operator.names import FINALIZER
from memory_operator.relationships import Desired, Object, Relationship, plan

LOGGER = logging.getLogger("memory_operator.audit")

Action = Literal["granted", "changed", "revoked", "repaired", "opened", "ended"]
"""`opened` and `ended` are what time did: they are noted when the operator sees them."""


class Trail:
    """Tells every change of access at least once, and in one process not needlessly twice.

    A change after which the process was killed stands in SpiceDB and not in the status: its line is
    written after the restart, with the same rows before and after.
    """

    def __init__(self) -> None:
        self._noted: dict[ObjectKey, tuple[str, int, frozenset[str]]] = {}

    def change(
        self,
        key: ObjectKey,
        resource: Resource[Model] | None,
        desired: Desired,
        *,
        before: AbstractSet[Relationship],
        after: AbstractSet[Relationship],
        zed_token: str,
        failed: bool,
    ) -> bool:
        """Write the line of a change, if there is one to tell; say whether it repaired drift.

        Args:
            key: the resource that was reconciled.
            resource: as it was, or None if it is gone.
            desired: what SpiceDB should hold.
            before: its rows before the write.
            after: its rows as they were read back.
            zed_token: of the write; empty if nothing was written.
            failed: whether what was read or written may be incomplete.
        """
        if not zed_token and not self._left_untold(resource, desired, after, failed=failed):
            return False
        action: Action = "changed"
        if not desired.required:
            action = "revoked"
        elif resource and was_ready(resource):
            action = "repaired"
        elif not before or not zed_token:
            action = "granted"
        if resource:
            self._is_first(resource, "revoked" if action == "revoked" else "granted")
        metadata = resource.metadata if resource else None
        record(action, key, metadata, before=before, after=after, zed_token=zed_token)
        return action == "repaired"

    def time(self, resource: Resource[Model], status: Status) -> None:
        """Write the line of what time did, before the status says it: rather twice than not."""
        before, after = resource.status.condition(ACTIVE), status.condition(ACTIVE)
        if before is None or after is None or before.reason == after.reason:
            return
        if after.reason == "Active" and self._is_first(resource, "opened"):
            record("opened", resource.key, resource.metadata)
        if after.reason == "Expired" and self._is_first(resource, "ended"):
            record("ended", resource.key, resource.metadata)

    def forget(self, key: ObjectKey) -> None:
        """The resource is gone, and its line written."""
        self._noted.pop(key, None)

    def _left_untold(
        self,
        resource: Resource[Model] | None,
        desired: Desired,
        rows: AbstractSet[Relationship],
        *,
        failed: bool,
    ) -> bool:
        if resource is None:
            return False
        if was_ready(resource) and not resource.metadata.deleting:
            # It had its line before it was Ready, and needs no other one after an outage.
            self._is_first(resource, "granted")
            return False
        if failed or plan(rows, desired):
            return False
        if resource.metadata.deleting:
            claimed = FINALIZER in resource.metadata.finalizers
            return claimed and self._is_first(resource, "revoked")
        return bool(desired.required) and self._is_first(resource, "granted")

    def _is_first(self, resource: Resource[Model], action: str) -> bool:
        """Say whether no such line was written for this state of the resource, and note it."""
        uid, generation = resource.metadata.uid, resource.metadata.generation
        noted = self._noted.get(resource.key)
        seen = noted[2] if noted and noted[:2] == (uid, generation) else frozenset()
        self._noted[resource.key] = (uid, generation, seen | {action})
        return action not in seen


def was_ready(resource: Resource[Model]) -> bool:
    """Say whether SpiceDB once held what this very spec says: a difference is drift, not an edit."""
    ready = resource.status.condition(READY)
    return bool(
        ready
        and ready.status == "True"
        and ready.observed_generation == resource.metadata.generation
    )


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
