"""An API server and a SpiceDB in memory, faithful in what the reconcile loop relies on.

The fakes keep the servers' rules and refuse what the servers refuse, so that a story that passes here
is not told to a friendlier world. They fail on demand: away, without a schema, losing an answer or a
row; and `Fate` kills the operator between any two calls.
"""

import asyncio
import copy
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from memory_operator.announce import Announcement, Announcer
from memory_operator.api import Kind, ObjectKey, format_instant
from memory_operator.errors import (
    ConflictError,
    KubernetesError,
    NotFoundError,
    SpiceDBRefusedError,
    SpiceDBUnavailableError,
)
from memory_operator.identity import Ids
from memory_operator.kube import Kubernetes
from memory_operator.names import API_VERSION, FINALIZER
from memory_operator.reconcile import BATCH, Reconciler
from memory_operator.relationships import Changes, Filter, Relationship
from memory_operator.spicedb import MAX_UPDATES, SpiceDB
from memory_operator.workqueue import WorkQueue

Json = dict[str, Any]
START = datetime(2027, 1, 31, 18, tzinfo=UTC)
OPERATOR_NAMESPACE = "memory-system"
_OBJECT_ID = re.compile(r"[a-zA-Z0-9/_|\-=+]{1,1024}")


class KilledError(BaseException):
    """The operator's process is dead: no `except Exception` gets in the way."""


@dataclass
class Fate:
    """Counts the calls to the servers, and kills the operator before one of them."""

    kill_before: int | None = None
    calls: int = 0

    def step(self) -> None:
        """Live through one call, or die; who is dead stays dead."""
        if self.kill_before is not None and self.calls >= self.kill_before:
            raise KilledError
        self.calls += 1


class FakeSpiceDB(SpiceDB):
    """Rows in a dictionary, by what makes them unique."""

    def __init__(self, clock: Callable[[], datetime], fate: Fate) -> None:
        self._clock = clock
        self._fate = fate
        self._rows: dict[object, Relationship] = {}
        self._revision = 0
        self.schema: str | None = "the schema"
        self.server_version = "v1.57.1"
        self.refuses_schema = ""
        self.refuses_everything = ""
        self.away = False
        self.answers_lost = 0
        """So many writes take effect but their answer never arrives."""

        self.refuses: Callable[[Relationship], bool] = lambda _: False
        self.thief: Callable[[FakeSpiceDB], None] | None = None
        """Another writer, who comes after each of our writes."""

        self.writes: list[Changes] = []
        self.reads = 0

    def rows(self) -> frozenset[Relationship]:
        """What it holds now; expired rows are thrown away."""
        now = self._clock()
        self._rows = {
            row: item
            for row, item in self._rows.items()
            if item.expires_at is None or now < item.expires_at
        }
        return frozenset(self._rows.values())

    def lines(self) -> set[str]:
        """Its rows in zed's notation."""
        return {str(row) for row in self.rows()}

    def put(self, *rows: Relationship) -> None:
        """Write by hand, past the operator."""
        self._rows |= {row.row: row for row in rows}

    def remove(self, *rows: Relationship) -> None:
        """Delete by hand, past the operator."""
        for row in rows:
            self._rows.pop(row.row, None)

    def wipe(self) -> None:
        """Lose everything, the schema too, as a restart with the memory datastore does."""
        self._rows.clear()
        self.schema = None

    async def write(self, changes: Changes) -> str:
        await self._enter()
        updates = [*changes.touch, *changes.delete]
        if not updates:
            raise SpiceDBRefusedError("updates: value must contain at least 1 item")
        if len(updates) > MAX_UPDATES:
            raise SpiceDBRefusedError(f"update count of {len(updates)} is greater than maximum")
        if len({row.row for row in updates}) < len(updates):
            raise SpiceDBRefusedError("found more than one update for a relationship")
        for row in updates:
            self._check(row)
        self.writes.append(changes)
        self.remove(*changes.delete)
        self.put(*changes.touch)
        self._revision += 1
        if self.thief:
            self.thief(self)
        if self.answers_lost:
            self.answers_lost -= 1
            raise SpiceDBUnavailableError("SpiceDB does not answer (DEADLINE_EXCEEDED)")
        return f"token-{self._revision}"

    async def read(self, filters: Iterable[Filter], at_least: str = "") -> frozenset[Relationship]:
        filters = tuple(filters)
        await self._enter()
        self.reads += 1
        if at_least:
            assert int(at_least.removeprefix("token-")) <= self._revision
        return frozenset(
            row for row in self.rows() if any(matches(filter_, row) for filter_ in filters)
        )

    async def scan(self, filter_: Filter) -> AsyncIterator[Relationship]:
        await self._enter()
        for row in self.rows():
            if matches(filter_, row):
                yield row

    async def has_schema(self, text: str) -> bool:
        await self._enter(needs_schema=False)
        return self.schema == text

    async def write_schema(self, text: str) -> None:
        await self._enter(needs_schema=False)
        if self.refuses_schema:
            raise SpiceDBRefusedError(self.refuses_schema)
        self.schema = text

    async def version(self) -> str:
        await self._enter(needs_schema=False)
        return self.server_version

    async def _enter(self, *, needs_schema: bool = True) -> None:
        await asyncio.sleep(0)
        self._fate.step()
        if self.away:
            raise SpiceDBUnavailableError("SpiceDB does not answer (UNAVAILABLE)")
        if self.refuses_everything:
            raise SpiceDBRefusedError(self.refuses_everything)
        if needs_schema and self.schema is None:
            raise SpiceDBRefusedError("object definition `agent` not found")

    def _check(self, row: Relationship) -> None:
        for object_ in (row.resource, row.subject):
            if not _OBJECT_ID.fullmatch(object_.id):
                raise SpiceDBRefusedError(f"invalid object id {object_.id}")
        if self.refuses(row):
            raise SpiceDBRefusedError(f"relationship {row} is refused")


def matches(filter_: Filter, row: Relationship) -> bool:
    """Say whether a filter finds a row."""
    return (
        row.resource.type == filter_.resource_type
        and filter_.relation in (None, row.relation)
        and filter_.resource_id in (None, row.resource.id)
        and row.resource.id.startswith(filter_.resource_id_prefix or "")
        and filter_.subject in (None, row.subject)
    )


class FakeKubernetes(Kubernetes):
    """Objects with versions, generations, finalizers and a status of their own; and their watch."""

    def __init__(self, clock: Callable[[], datetime], fate: Fate) -> None:
        self._clock = clock
        self._fate = fate
        self._objects: dict[ObjectKey, Json] = {}
        self._numbers = itertools.count(1000)
        self.watch: list[tuple[str, Json]] = []
        """What the watch has yet to bring."""

        self.patches: list[tuple[str, ObjectKey]] = []
        self.events: list[tuple[ObjectKey, str, str, str]] = []
        self.away = False
        self.before_patch: Callable[[ObjectKey], None] | None = None
        """Somebody who is quicker, once."""

        self.failures: list[Exception] = []
        """What the next patches are answered."""

    # What people do.

    def create(self, kind: Kind, namespace: str, name: str, /, **spec: Any) -> ObjectKey:
        """Create an object, or apply it anew."""
        key = ObjectKey(kind, namespace, name)
        if key in self._objects:
            self.edit(key, **spec)
            return key
        number = next(self._numbers)
        metadata = {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{number}",
            "generation": 1,
            "creationTimestamp": format_instant(self._clock()),
            "managedFields": [{"manager": "kubectl", "time": "t", "fieldsV1": {"f:spec": {}}}],
        }
        body = {"apiVersion": API_VERSION, "kind": kind.value, "metadata": metadata, "spec": spec}
        self._store(key, body, "ADDED")
        return key

    def edit(self, key: ObjectKey, /, **spec: Any) -> None:
        """Replace fields of the spec; None takes one away."""
        body = self._copy(key)
        merged = _merge(body["spec"], spec)
        if merged != body["spec"]:
            body["spec"] = merged
            body["metadata"]["generation"] += 1
            self._store(key, body, "MODIFIED")

    def annotate(self, key: ObjectKey, **annotations: str) -> None:
        """Change what is none of our business."""
        body = self._copy(key)
        body["metadata"]["annotations"] = annotations
        self._store(key, body, "MODIFIED")

    def tamper(self, key: ObjectKey, **fields: Any) -> None:
        """Replace whole parts of an object, whatever its schema says."""
        self._store(key, self._copy(key) | fields, "MODIFIED")

    def delete(self, key: ObjectKey) -> None:
        """Ask for the deletion; with a finalizer the object stays for now."""
        body = self._copy(key)
        if not body["metadata"].get("finalizers"):
            self._vanish(key)
        elif "deletionTimestamp" not in body["metadata"]:
            body["metadata"]["deletionTimestamp"] = format_instant(self._clock())
            body["metadata"]["generation"] += 1
            self._store(key, body, "MODIFIED")

    def force_delete(self, key: ObjectKey) -> None:
        """Take the finalizers away by hand and delete."""
        self._vanish(key)

    def get(self, key: ObjectKey) -> Json | None:
        """Give an object as it is now."""
        return copy.deepcopy(self._objects.get(key))

    def listing(self) -> list[Json]:
        """Give all objects as they are now."""
        return copy.deepcopy(list(self._objects.values()))

    def condition(self, key: ObjectKey, type_: str = "Ready") -> tuple[str, str]:
        """Give status and reason of a condition of the present generation, or empty strings."""
        body = self._objects[key]
        for condition in body.get("status", {}).get("conditions", ()):
            current = condition["observedGeneration"] == body["metadata"]["generation"]
            if condition["type"] == type_ and current:
                return condition["status"], condition["reason"]
        return "", ""

    # What the operator does.

    async def pages(
        self, kind: Kind, namespaces: Sequence[str] = ()
    ) -> AsyncIterator[list[dict[str, Any]]]:
        await self._enter()
        items = [
            copy.deepcopy(body)
            for key, body in self._objects.items()
            if key.kind is kind and (not namespaces or key.namespace in namespaces)
        ]
        for start in range(0, len(items), 50):
            yield items[start : start + 50]

    async def add_finalizer(
        self, key: ObjectKey, finalizers: Sequence[str], version: str
    ) -> dict[str, Any]:
        return await self._set_finalizers("finalizer", key, [*finalizers, FINALIZER], version)

    async def remove_finalizer(
        self, key: ObjectKey, finalizers: Sequence[str], version: str
    ) -> dict[str, Any]:
        rest = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        return await self._set_finalizers("release", key, rest, version)

    async def patch_status(
        self, key: ObjectKey, status: dict[str, Any], version: str
    ) -> dict[str, Any]:
        body = await self._begin_patch("status", key, version)
        body["status"] = _merge(body.get("status", {}), status)
        return self._store(key, body, "MODIFIED")

    async def post_event(
        self, key: ObjectKey, uid: str, type_: str, reason: str, message: str
    ) -> None:
        await self._enter()
        assert uid
        assert message
        self.events.append((key, type_, reason, message))

    async def _set_finalizers(
        self, verb: str, key: ObjectKey, finalizers: list[str], version: str
    ) -> Json:
        body = await self._begin_patch(verb, key, version)
        deleting = "deletionTimestamp" in body["metadata"]
        if deleting and set(finalizers) - set(body["metadata"].get("finalizers", ())):
            raise KubernetesError("the API server answered 422 Unprocessable Entity")
        body["metadata"]["finalizers"] = finalizers
        if deleting and not finalizers:
            self._vanish(key)
            return body
        return self._store(key, body, "MODIFIED")

    async def _begin_patch(self, verb: str, key: ObjectKey, version: str) -> Json:
        await self._enter()
        if self.before_patch:
            quicker, self.before_patch = self.before_patch, None
            quicker(key)
        if self.failures:
            raise self.failures.pop(0)
        if key not in self._objects:
            raise NotFoundError("the API server answered 404 Not Found")
        body = self._copy(key)
        if body["metadata"]["resourceVersion"] != version:
            raise ConflictError("the API server answered 409 Conflict")
        self.patches.append((verb, key))
        return body

    async def _enter(self) -> None:
        await asyncio.sleep(0)
        self._fate.step()
        if self.away:
            raise KubernetesError("the API server does not answer (ClientConnectorError)")

    def _copy(self, key: ObjectKey) -> Json:
        return copy.deepcopy(self._objects[key])

    def _store(self, key: ObjectKey, body: Json, event: str) -> Json:
        if body == self._objects.get(key):
            return body  # nothing changed: no new version, and the watch says nothing
        body["metadata"]["resourceVersion"] = str(next(self._numbers))
        self._objects[key] = body
        self.watch.append((event, copy.deepcopy(body)))
        return copy.deepcopy(body)

    def _vanish(self, key: ObjectKey) -> None:
        body = self._objects.pop(key)
        body["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.watch.append(("DELETED", body))


def _merge(target: Any, patch: Any) -> Any:
    """Merge as RFC 7386 says."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


class Diary(Announcer):
    """Keeps Events instead of posting them."""

    def __init__(self) -> None:
        self.entries: list[Announcement] = []

    def announce(self, announcement: Announcement) -> None:
        self.entries.append(announcement)

    def reasons(self, key: ObjectKey | None = None) -> list[str]:
        """Give the reasons announced, of one object or of all."""
        return [entry.reason for entry in self.entries if key in (None, entry.key)]


@dataclass
class World:
    """Both servers, one clock, and an operator that can die and be born again."""

    now: datetime = START
    fate: Fate = field(default_factory=Fate)
    ids: Ids = field(default_factory=Ids)

    def __post_init__(self) -> None:
        self.spicedb = FakeSpiceDB(self.clock, self.fate)
        self.kube = FakeKubernetes(self.clock, self.fate)
        self.diary = Diary()
        self.reconciler = self._new_reconciler()

    def clock(self) -> datetime:
        """Tell the time of this world."""
        return self.now

    def agent(
        self, name: str, role: str = "engineer", namespace: str = "acme", **spec: Any
    ) -> ObjectKey:
        """Apply a MemoryAgent."""
        return self.kube.create(Kind.MEMORY_AGENT, namespace, name, role=role, **spec)

    def link(self, agent: str, person: str, *aliases: str, namespace: str = "acme") -> ObjectKey:
        """Apply an IdentityLink; people as ``provider/id``."""
        spec = {
            "agent": agent,
            "person": _person(person),
            "aliases": [_person(alias) for alias in aliases],
        }
        return self.kube.create(Kind.IDENTITY_LINK, namespace, agent, **spec)

    def grant(
        self, name: str, grantee: str, role: str = "pm", namespace: str = "acme", **spec: Any
    ) -> ObjectKey:
        """Apply an AccessGrant; instants as seconds from now."""
        for field_ in ("validFrom", "validTo"):
            if isinstance(spec.get(field_), int):
                spec[field_] = self.instant(spec[field_])
        whole = {"grantorRole": role, "granteeAgent": grantee, "resourceScope": "private"} | spec
        return self.kube.create(Kind.ACCESS_GRANT, namespace, name, **whole)

    def instant(self, seconds: float) -> str:
        """Write an instant, so many seconds from now."""
        return format_instant(self.now + timedelta(seconds=seconds))

    async def settle(self, rounds: int = 100) -> None:
        """Let the watch deliver and the operator work until nothing is left to do now."""
        for _ in range(rounds):
            self.deliver()
            if not len(self.reconciler.queue):
                return
            await self.reconciler._reconcile(await self.reconciler.queue.take(BATCH))
        raise AssertionError("the operator does not come to rest")

    async def settle_later(self, seconds: float = 30) -> None:
        """Let time pass, second by second, and settle at each."""
        for _ in range(int(seconds)):
            self.now += timedelta(seconds=1)
            await self.settle()

    def deliver(self) -> None:
        """Let the watch bring what it owes."""
        while self.kube.watch:
            event, body = self.kube.watch.pop(0)
            self.reconciler.observe(body, gone=event == "DELETED")

    def restart(self) -> None:
        """Start a new operator that knows nothing; its watch lists what is there."""
        self.fate.kill_before = None
        self.reconciler = self._new_reconciler()
        self.kube.watch[:] = [("ADDED", body) for body in self.kube.listing()]

    def forget_calls(self) -> None:
        """Begin to count anew."""
        self.spicedb.writes.clear()
        self.spicedb.reads = 0
        self.kube.patches.clear()
        self.diary.entries.clear()

    def ready(self, key: ObjectKey) -> tuple[str, str]:
        """Give status and reason of an object's Ready condition."""
        return self.kube.condition(key)

    def _new_reconciler(self) -> Reconciler:
        return Reconciler(
            self.spicedb,
            self.kube,
            self.diary,
            self.ids,
            OPERATOR_NAMESPACE,
            queue=WorkQueue(lambda: self.clock().timestamp()),
            clock=self.clock,
        )


def _person(text: str) -> dict[str, str]:
    provider, _, id_ = text.partition("/")
    return {"provider": provider, "id": id_}
