"""The loop: take keys, decide, make SpiceDB so, read it back, say so in the status.

One batch of resources at a time goes through four steps: the finalizer before anything is written,
the relationships of all of them in as few writes as SpiceDB takes, the read-back, then each status.
Nothing is remembered between runs but what can be lost: a crash at any point converges.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from memory_operator import conditions
from memory_operator.announce import Announcement, Announcer, transitions
from memory_operator.api import Metadata, Model, ObjectKey, Resource, Status, read
from memory_operator.audit import Trail
from memory_operator.conditions import Finding
from memory_operator.desired import ABSENT, Verdict, decide, filters_for
from memory_operator.errors import (
    ConflictError,
    KubernetesError,
    NotFoundError,
    SpiceDBError,
    SpiceDBRefusedError,
)
from memory_operator.identity import Ids
from memory_operator.inventory import Inventory
from memory_operator.kube import Kubernetes
from memory_operator.metrics import DRIFT_REPAIRS, QUEUE, RECONCILE_DURATION, RECONCILES
from memory_operator.names import FINALIZER
from memory_operator.relationships import Changes, Relationship, plan
from memory_operator.spicedb import MAX_UPDATES, SpiceDB
from memory_operator.status import Server, status_of
from memory_operator.workqueue import WorkQueue

BATCH = 100
WORKERS = 3
"""While one batch waits for the API server, another one is written to SpiceDB."""

_ROUNDS = 3
_LONGEST_BACKOFF = 15.0  # seconds: how long a resource may wait after SpiceDB is back
_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class _Work:
    """One resource on its way through a batch."""

    key: ObjectKey
    resource: Resource[Model] | None
    verdict: Verdict = ABSENT
    before: frozenset[Relationship] = frozenset()
    current: frozenset[Relationship] = frozenset()
    claimed: bool = False
    """Our finalizer was added in this batch: SpiceDB can't hold anything of it yet."""

    zed_token: str = ""
    problem: Finding | None = None
    retry: bool = False

    @property
    def metadata(self) -> Metadata | None:
        return self.resource.metadata if self.resource else None


@dataclass(slots=True)
class Reconciler:
    """Keeps SpiceDB and the status of every resource true."""

    spicedb: SpiceDB
    kube: Kubernetes
    announcer: Announcer
    ids: Ids
    own_namespace: str
    inventory: Inventory = field(default_factory=Inventory)
    queue: WorkQueue = field(default_factory=WorkQueue)
    server: Server = field(default_factory=Server)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    alarm: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something is wrong with SpiceDB as a whole: the next drift check comes at once."""

    last_progress: float = field(default_factory=time.monotonic)
    _settled: dict[ObjectKey, tuple[Any, ...]] = field(default_factory=dict)
    _failures: dict[ObjectKey, int] = field(default_factory=dict)
    _trail: Trail = field(default_factory=Trail)

    def observe(self, body: dict[str, Any], *, gone: bool = False) -> None:
        """Take in what the API server says of an object, and ask for what it touches.

        Our own writes come back here too and ask for nothing.
        """
        resource = read(body)
        key, old = resource.key, self.inventory.get(resource.key)
        if gone:
            if old is None or old.metadata.uid == resource.metadata.uid:
                self.forget(key)
            return
        if old and _is_older(resource.metadata, old.metadata):
            return
        dependents = self.inventory.put(resource)
        if _essence(resource) != _essence(old):
            self._ask(dependents)
        if not self.queue.is_busy(key):  # else it is looked at again when it is given back
            self._ask_unless_settled(key)

    def forget(self, key: ObjectKey) -> None:
        """An object is gone: whatever SpiceDB still holds of it goes too."""
        self._ask({key} | self.inventory.remove(key))

    def compare(self, key: ObjectKey, rows: AbstractSet[Relationship]) -> None:
        """Hold one resource against its rows in SpiceDB, as a drift check read them in bulk.

        One that is as it should be is done, without a further read or any write.
        """
        resource, now = self.inventory.get(key), self.clock()
        verdict = self._decide(key)
        # While it is worked on, the rows that were read say nothing any more.
        if (
            self.queue.is_busy(key)
            or plan(rows, verdict.desired)
            or (
                resource
                and (
                    resource.metadata.deleting
                    or self._unclaimed(resource, verdict)
                    or status_of(resource, verdict, self.server, now) != resource.status
                )
            )
        ):
            self._ask({key})
        else:
            self.queue.drop(key)
            if resource:
                self._settle(resource, verdict)

    def recheck_all(self) -> None:
        """Ask for every resource, as when SpiceDB has been away for a while."""
        self._ask(self.inventory)

    async def work(self) -> None:
        """Reconcile batch by batch until cancelled."""
        while True:
            keys = await self.queue.take(BATCH)
            self.last_progress = time.monotonic()  # after a long rest, too
            QUEUE.set(len(self.queue))
            with RECONCILE_DURATION.time():
                await self._reconcile(keys)
            self.last_progress = time.monotonic()

    async def _reconcile(self, keys: Sequence[ObjectKey]) -> None:
        works = [_Work(key, self.inventory.get(key)) for key in keys]
        try:
            for work in works:
                work.verdict = self._decide(work.key)
            await asyncio.gather(*(self._claim(work) for work in works))
            await self._converge([work for work in works if not work.retry])
            await asyncio.gather(*(self._finish(work) for work in works))
        except Exception:
            # A fault of ours must not lose keys: they are tried again, and the log says why.
            _LOGGER.exception("a batch of %d resources failed", len(works))
            for work in works:
                work.retry = True
        for work in works:
            self._release(work)

    def _decide(self, key: ObjectKey) -> Verdict:
        return decide(key, self.inventory, self.ids, self.own_namespace, self.clock())

    def _unclaimed(self, resource: Resource[Model], verdict: Verdict) -> bool:
        return bool(verdict.desired.required) and FINALIZER not in resource.metadata.finalizers

    async def _claim(self, work: _Work) -> None:
        """Add our finalizer before the first relationship is written, so that none is ever left."""
        if work.resource is None or not self._unclaimed(work.resource, work.verdict):
            return
        metadata = work.resource.metadata
        try:
            body = await self.kube.add_finalizer(
                work.key, metadata.finalizers, metadata.resource_version
            )
            work.resource, work.claimed = self._take_in(body), True
        except NotFoundError:
            self._vanish(work)
        except KubernetesError as error:
            self._note(work, error)

    async def _converge(self, works: list[_Work]) -> None:
        """Make SpiceDB hold what the verdicts say, and read it back."""
        try:
            await self._read([work for work in works if not work.claimed])
            for work in works:
                work.before = work.current
            for _ in range(_ROUNDS):
                dirty = [work for work in works if not work.problem and self._changes(work)]
                if not dirty:
                    break
                await self._write(dirty)
                await self._read(dirty)
            for work in works:
                if not work.problem and self._changes(work):
                    work.problem = conditions.contended()
        except SpiceDBError as error:
            # A refused read means that the server has lost its schema: the alarm brings it back.
            self.server.reachable = False
            self.alarm.set()
            for work in works:
                work.problem = work.problem or conditions.spicedb_unavailable(str(error))
        else:
            self.server.reachable = True
        for work in works:
            self._tell(work)

    def _tell(self, work: _Work) -> None:
        repaired = self._trail.change(
            work.key,
            work.resource,
            work.verdict.desired,
            before=work.before,
            after=work.current,
            zed_token=work.zed_token,
            failed=work.problem is not None,
        )
        if repaired:
            DRIFT_REPAIRS.labels(work.key.kind.value).inc()

    def _changes(self, work: _Work) -> Changes:
        changes = plan(work.current, work.verdict.desired)
        if self.server.schema_problem:
            # Under a schema that is not ours nothing is granted, but what is to go still goes.
            changes = changes.removals(work.current)
        # One resource needs few rows; only others can have added so many that they need more rounds.
        return changes if len(changes) <= MAX_UPDATES else changes.first(MAX_UPDATES)

    async def _read(self, works: Iterable[_Work]) -> None:
        async def one(work: _Work) -> None:
            filters = filters_for(work.key, self.ids)
            work.current = await self.spicedb.read(filters, work.zed_token)

        await asyncio.gather(*(one(work) for work in works))

    async def _write(self, works: Sequence[_Work]) -> None:
        """Write the changes of several resources, each whole, in one call if they fit.

        SpiceDB refuses a request as a whole: a refused batch is halved until the bad one is alone.
        """
        changes = Changes.union(self._changes(work) for work in works)
        if len(changes) <= MAX_UPDATES:
            try:
                token = await self.spicedb.write(changes)
            except SpiceDBRefusedError as error:
                if len(works) == 1:
                    works[0].problem = conditions.spicedb_refused(str(error))
                    return
            else:
                for work in works:
                    work.current = self._changes(work).applied_to(work.current)
                    work.zed_token = token
                return
        half = len(works) // 2
        await self._write(works[:half])
        await self._write(works[half:])

    async def _finish(self, work: _Work) -> None:
        """Write the status, or let go of an object whose relationships are gone."""
        resource = work.resource
        if resource is None or work.retry:
            work.retry = work.retry or work.problem is not None
            return
        try:
            if resource.metadata.deleting and not work.problem:
                await self._let_go(work, resource)
            else:
                await self._report(work, resource)
        except NotFoundError:
            self._vanish(work)
        except KubernetesError as error:
            self._note(work, error)
        work.retry = work.retry or work.problem is not None

    async def _let_go(self, work: _Work, resource: Resource[Model]) -> None:
        metadata = resource.metadata
        if FINALIZER in metadata.finalizers:
            await self.kube.remove_finalizer(
                work.key, metadata.finalizers, metadata.resource_version
            )

    async def _report(self, work: _Work, resource: Resource[Model]) -> None:
        status = status_of(
            resource, work.verdict, self.server, self.clock(), work.problem, work.zed_token
        )
        if status == resource.status:
            return
        if not work.zed_token:  # else an edit did it, and has its line
            self._trail.time(resource, status)
        before = resource.status.model_dump(by_alias=True, exclude_none=True, mode="json")
        after = status.model_dump(by_alias=True, exclude_none=True, mode="json")
        gone = dict.fromkeys(before.keys() - after.keys())
        body = await self.kube.patch_status(
            work.key, after | gone, resource.metadata.resource_version
        )
        work.resource = self._take_in(body)
        self._announce(resource, status)  # not before: a patch that is tried again turns nothing

    def _announce(self, resource: Resource[Model], status: Status) -> None:
        for event in transitions(resource.status.conditions, status.conditions):
            self.announcer.announce(Announcement(resource.key, resource.metadata.uid, *event))

    def _take_in(self, body: dict[str, Any]) -> Resource[Model]:
        """Keep the answer to a write of ours, so that the watch brings no news by it."""
        resource = read(body)
        known = self.inventory.get(resource.key)
        if (
            known  # else it was forgotten since, and is not brought back
            and known.metadata.uid == resource.metadata.uid
            and not _is_older(resource.metadata, known.metadata)
        ):
            self.inventory.put(resource)
        return resource

    def _vanish(self, work: _Work) -> None:
        """The object is gone before the watch said so."""
        known = self.inventory.get(work.key)
        if known and work.metadata and known.metadata.uid == work.metadata.uid:
            self.forget(work.key)
        work.resource, work.verdict = None, ABSENT

    def _note(self, work: _Work, error: KubernetesError) -> None:
        work.retry = True
        if not isinstance(error, ConflictError):
            _LOGGER.warning("%s is tried again: %s", work.key, error)

    def _release(self, work: _Work) -> None:
        """Give the key back, with the time at which it is wanted again."""
        key, wake_at = work.key, work.verdict.wake_at
        again_at: float | None
        RECONCILES.labels(key.kind.value, "retry" if work.retry else "ok").inc()
        if work.retry:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(0.5 * 2**failures, _LONGEST_BACKOFF) * random.uniform(0.8, 1.2)  # noqa: S311
            again_at = self.clock().timestamp() + delay
        else:
            self._failures.pop(key, None)
            again_at = wake_at.timestamp() if wake_at and work.resource else None
        if work.resource:
            self._settled[key] = _fingerprint(work.resource)
        else:
            self._settled.pop(key, None)
            self._trail.forget(key)
        self.queue.done(key, again_at)
        self._ask_unless_settled(key)

    def _settle(self, resource: Resource[Model], verdict: Verdict) -> None:
        self._settled[resource.key] = _fingerprint(resource)
        if verdict.wake_at:
            self.queue.add(resource.key, verdict.wake_at.timestamp())

    def _ask_unless_settled(self, key: ObjectKey) -> None:
        resource = self.inventory.get(key)
        if self._settled.get(key) != (_fingerprint(resource) if resource else None):
            self._ask({key})

    def _ask(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self.queue.add(key)


def _essence(resource: Resource[Model] | None) -> tuple[Any, ...]:
    """What other resources can depend on."""
    if resource is None:
        return ()
    metadata = resource.metadata
    return (metadata.uid, metadata.generation, metadata.deleting, resource.spec)


def _fingerprint(resource: Resource[Model]) -> tuple[Any, ...]:
    """What a reconciled resource looks like; as long as it stays so there is nothing to do."""
    claimed = FINALIZER in resource.metadata.finalizers
    return (*_essence(resource), claimed, resource.status)


def _is_older(new: Metadata, known: Metadata) -> bool:
    """Whether a state is one that has been overtaken, as when a watch lags behind our own writes.

    Versions of one resource can be compared as numbers (Kubernetes 1.35, KEP-5504); where they are
    no numbers, nothing is passed over.
    """
    if new.uid != known.uid:
        return False
    if not (new.resource_version.isdecimal() and known.resource_version.isdecimal()):
        return False
    return int(new.resource_version) < int(known.resource_version)
