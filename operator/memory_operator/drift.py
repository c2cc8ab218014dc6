"""Two watchers of the whole: the drift check and the server watch.

The drift check compares every resource with SpiceDB; the server watch looks after SpiceDB itself:
is it there, does it hold our schema, is it new enough. Both only look and ask; the reconcile loop
reads again and does what is to be done, so nothing is ever written because of a picture that was old
when it was complete.
"""

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import Sequence

from memory_operator.api import Kind, ObjectKey
from memory_operator.desired import OWNED_RELATIONS, unit_of
from memory_operator.errors import Error, SpiceDBError, SpiceDBRefusedError
from memory_operator.identity import encode
from memory_operator.kube import Kubernetes
from memory_operator.metrics import DRIFT_CHECKS, ORPHANS, SCHEMA_REFUSED, SPICEDB_OUTDATED
from memory_operator.names import MINIMUM_SPICEDB
from memory_operator.reconcile import Reconciler
from memory_operator.relationships import Filter, Relationship
from memory_operator.spicedb import SpiceDB

HEARTBEAT = 10.0  # seconds between two looks at the server
_MISSES = 3
"""So many looks in vain before every resource says that SpiceDB is away: a restart is no outage."""

_RETRY = 5.0  # seconds after a drift check that failed
_LOGGER = logging.getLogger(__name__)


class WatchMonitor:
    """Tells whether the watch still delivers, by what the drift check's lists show beside it."""

    def __init__(self) -> None:
        self._delivered: dict[Kind, int] = {}
        self._overdue: dict[Kind, tuple[int, float]] = {}

    def delivered(self, kind: Kind, version: str) -> None:
        """The watch brought an object at this resource version."""
        if version.isdecimal():
            newest = self._delivered[kind] = max(int(version), self._delivered.get(kind, 0))
            if kind in self._overdue and newest >= self._overdue[kind][0]:
                del self._overdue[kind]

    def listed(self, kind: Kind, version: str) -> None:
        """A list showed an object at this resource version; the watch has to bring it too."""
        if not version.isdecimal() or int(version) <= self._delivered.get(kind, 0):
            return
        since = self._overdue[kind][1] if kind in self._overdue else time.monotonic()
        self._overdue[kind] = (int(version), since)

    def overdue_seconds(self) -> float:
        """For how long the watch has owed something that a list has shown; 0 if it owes nothing."""
        now = time.monotonic()
        return max((now - since for _, since in self._overdue.values()), default=0.0)


class DriftCheck:
    """Compares all resources with all of their rows, once at the start and then periodically."""

    def __init__(
        self,
        reconciler: Reconciler,
        kube: Kubernetes,
        spicedb: SpiceDB,
        monitor: WatchMonitor,
        *,
        period: float,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._reconciler = reconciler
        self._kube = kube
        self._spicedb = spicedb
        self._monitor = monitor
        self._namespaces = namespaces
        self.period = period
        self.finished_at = time.monotonic()
        self.complete = False
        """Whether a check has gone through since the start."""

        self.tried = asyncio.Event()
        """Set once the first check has gone through or failed."""

    async def run(self) -> None:
        """Check until cancelled: each period, and at once when the alarm is set."""
        alarm = self._reconciler.alarm
        while True:
            alarm.clear()
            try:
                await self.check()
            except Error as error:
                DRIFT_CHECKS.labels("failed").inc()
                _LOGGER.warning("the drift check is tried again in %.0f s: %s", _RETRY, error)
                if not self.complete:
                    # What can't be compared in bulk is at least reported, resource by resource.
                    self._reconciler.recheck_all()
                self.finished_at = time.monotonic()  # in vain, but not stuck
                self.tried.set()
                await asyncio.sleep(_RETRY)
                continue
            DRIFT_CHECKS.labels("ok").inc()
            self.complete = True
            self.tried.set()
            try:
                await asyncio.wait_for(alarm.wait(), self.period)
            except TimeoutError:
                continue

    async def check(self) -> None:
        """List every resource, read every row of ours, compare the two.

        Raises:
            Error: the API server or SpiceDB did not answer.
        """
        await self._list()
        rows = await self._rows()
        inventory = self._reconciler.inventory
        orphans = [key for key in rows if inventory.get(key) is None]
        ORPHANS.set(sum(len(rows[key]) for key in orphans))
        for key in (*inventory, *orphans):
            self._reconciler.compare(key, rows.get(key, set()))
        self.finished_at = time.monotonic()

    async def _list(self) -> None:
        """Bring the inventory up to date even where the watch has missed something."""
        known = {key: self._uid(key) for key in self._reconciler.inventory}
        for kind in Kind:
            async for page in self._kube.pages(kind, self._namespaces):
                for body in page:
                    metadata = body["metadata"]
                    known.pop(ObjectKey(kind, metadata["namespace"], metadata["name"]), None)
                    self._monitor.listed(kind, metadata["resourceVersion"])
                    self._reconciler.observe(body)
        for key, uid in known.items():
            # Known before the lists began and in none of them: gone, unless it was made anew since.
            if self._uid(key) == uid:
                self._reconciler.forget(key)

    def _uid(self, key: ObjectKey) -> str:
        resource = self._reconciler.inventory.get(key)
        return resource.metadata.uid if resource else ""

    async def _rows(self) -> dict[ObjectKey, set[Relationship]]:
        ids = self._reconciler.ids
        prefix = f"{encode(ids.prefix)}/" if ids.prefix else None
        rows: dict[ObjectKey, set[Relationship]] = defaultdict(set)
        for type_, relation in OWNED_RELATIONS:
            async for row in self._spicedb.scan(Filter(type_, relation, resource_id_prefix=prefix)):
                key = unit_of(row, ids)
                # With a list of namespaces, the others belong to somebody else.
                if key and (not self._namespaces or key.namespace in self._namespaces):
                    rows[key].add(row)
        return rows


class ServerWatch:
    """Keeps an eye on SpiceDB: reachable, of a safe version, holding our schema."""

    def __init__(self, reconciler: Reconciler, spicedb: SpiceDB, schema: str) -> None:
        self._reconciler = reconciler
        self._spicedb = spicedb
        self._schema = schema
        self._misses = 0
        self._reported_version: str | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(HEARTBEAT)

    async def look(self) -> None:
        """Look once; raise the alarm where everything has to be compared."""
        server = self._reconciler.server
        try:
            await self._check_version()
            written = await self._ensure_schema()
        except SpiceDBError as error:
            server.reachable = False
            self._misses += 1
            if self._misses == _MISSES:
                _LOGGER.warning("SpiceDB has been away for %d looks: %s", _MISSES, error)
                self._reconciler.recheck_all()
            return
        server.reachable = True
        if written or self._misses:
            # It was away or empty: whatever it holds now has to be looked at.
            self._reconciler.alarm.set()
        self._misses = 0

    async def _ensure_schema(self) -> bool:
        server, written = self._reconciler.server, False
        problem = ""
        if not await self._spicedb.has_schema(self._schema):
            try:
                await self._spicedb.write_schema(self._schema)
                written = True
                _LOGGER.info("the schema was written to SpiceDB")
            except SpiceDBRefusedError as error:
                problem = str(error)
        if problem != server.schema_problem:
            server.schema_problem = problem
            self._reconciler.recheck_all()
            if problem:
                _LOGGER.error("SpiceDB refuses the schema, nothing new is granted: %s", problem)
        SCHEMA_REFUSED.set(bool(problem))
        return written

    async def _check_version(self) -> None:
        version = await self._spicedb.version()
        if version == self._reported_version:
            return
        self._reported_version = version
        outdated = is_outdated(version)
        self._reconciler.server.outdated_version = version if outdated else ""
        SPICEDB_OUTDATED.set(outdated)
        if outdated:
            _LOGGER.error(
                "SpiceDB %s is older than 1.57.1 and can let ended grants through", version
            )
        elif not version:
            _LOGGER.warning(
                "SpiceDB does not tell its version: make sure that it is 1.57.1 or newer"
            )
        self._reconciler.recheck_all()


def is_outdated(version: str) -> bool:
    """Say whether a version as the server reports it is known to be too old."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return match is not None and tuple(int(part) for part in match.groups()) < MINIMUM_SPICEDB
