"""Edge: /healthz and /readyz for the kubelet, /metrics for Prometheus.

Not healthy means that a restart may help: the watch or a loop is stuck. Not ready means that it
would not: SpiceDB is away or refuses the schema. Both answers say what is wrong.
"""

import time
from datetime import UTC, datetime

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from memory_operator import metrics
from memory_operator.api import Kind
from memory_operator.conditions import ACTIVE, READY
from memory_operator.drift import DriftCheck, WatchMonitor
from memory_operator.reconcile import Reconciler

WATCH_PATIENCE = 120.0
"""Seconds that the watch may owe an object; kopf renews a silent watch after 70."""

LOOP_PATIENCE = 180.0
"""Seconds without a finished batch while resources wait; a batch's own deadlines add up to less."""


class Health:
    """What the probes answer."""

    def __init__(self, reconciler: Reconciler, drift: DriftCheck, monitor: WatchMonitor) -> None:
        self._reconciler = reconciler
        self._drift = drift
        self._monitor = monitor

    def ailments(self) -> list[str]:
        """Say what a restart may cure."""
        now = time.monotonic()
        found = []
        if self._monitor.overdue_seconds() > WATCH_PATIENCE:
            found.append("the watch does not deliver what lists show")
        if len(self._reconciler.queue) and now - self._reconciler.last_progress > LOOP_PATIENCE:
            found.append("the reconcile loop makes no progress")
        if (
            self._reconciler.server.reachable
            and now - self._drift.finished_at > 3 * self._drift.period + LOOP_PATIENCE
        ):
            found.append("the drift check does not finish")
        return found

    def obstacles(self) -> list[str]:
        """Say what keeps the operator from its work."""
        server = self._reconciler.server
        found = self.ailments()
        if not self._drift.complete:
            found.append("not all resources have been compared with SpiceDB yet")
        if not server.reachable:
            found.append("SpiceDB does not answer")
        if server.schema_problem:
            found.append(f"SpiceDB refuses the schema: {server.schema_problem}")
        return found

    def remarks(self) -> list[str]:
        """Say what should be mended though work goes on."""
        version = self._reconciler.server.outdated_version
        return [f"SpiceDB {version} is older than 1.57.1: upgrade it"] if version else []


def application(health: Health, reconciler: Reconciler) -> web.Application:
    """Build the three pages."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(health.ailments(), [])

    async def readyz(_: web.Request) -> web.Response:
        return _answer(health.obstacles(), health.remarks())

    async def metrics_page(_: web.Request) -> web.Response:
        _count(reconciler)
        body = generate_latest(metrics.REGISTRY)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics_page),
        ]
    )
    return app


def _answer(wrong: list[str], remarks: list[str]) -> web.Response:
    text = "\n".join([*wrong, *remarks]) or "ok"
    return web.Response(status=503 if wrong else 200, text=text + "\n")


def _count(reconciler: Reconciler) -> None:
    """Set the gauges that are counted when asked for, over the whole inventory."""
    resources = dict.fromkeys(
        ((kind, state) for kind in Kind for state in ("ready", "not_ready")), 0
    )
    active, ends = 0, []
    for key in reconciler.inventory:
        resource = reconciler.inventory.get(key)
        if resource is None:
            continue
        ready = resource.status.condition(READY)
        resources[key.kind, "ready" if ready and ready.status == "True" else "not_ready"] += 1
        window = resource.status.condition(ACTIVE)
        if window and window.status == "True":
            active += 1
            ends.append(getattr(resource.spec, "valid_to", None))
    for (kind, state), count in resources.items():
        metrics.RESOURCES.labels(kind.value, state).set(count)
    metrics.GRANTS_ACTIVE.set(active)
    metrics.NEXT_EXPIRY.set(min((end.timestamp() for end in ends if end), default=0))
    metrics.QUEUE.set(len(reconciler.queue))
    metrics.CLOCK.set(datetime.now(UTC).timestamp())
