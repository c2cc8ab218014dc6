"""Prometheus metrics. Labels come from bounded sets only: no name of a resource, agent or person."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"memory_operator_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"memory_operator_{name}", text, labels, registry=REGISTRY)


RECONCILES = _counter("reconcile", "Resources reconciled", "kind", "result")
RECONCILE_DURATION = Histogram(
    "memory_operator_reconcile_duration_seconds",
    "Time to reconcile one batch of resources",
    registry=REGISTRY,
)
RESOURCES = _gauge("resources", "Custom resources known", "kind", "state")
QUEUE = _gauge("queue_length", "Resources that wait to be reconciled now")
SPICEDB_REQUESTS = _counter("spicedb_requests", "Calls to SpiceDB", "method", "code")
SPICEDB_DURATION = Histogram(
    "memory_operator_spicedb_request_duration_seconds",
    "Time of calls to SpiceDB",
    ["method"],
    registry=REGISTRY,
)
DRIFT_CHECKS = _counter("drift_checks", "Comparisons of all resources with SpiceDB", "result")
DRIFT_REPAIRS = _counter("drift_repairs", "Resources found different from SpiceDB", "kind")
ORPHANS = _gauge("orphan_relationships", "Relationships without a resource at the last drift check")
GRANTS_ACTIVE = _gauge("grants_active", "AccessGrants that are open")
NEXT_EXPIRY = _gauge("grant_next_expiry_timestamp_seconds", "When the next open AccessGrant ends")
WATCH_LAST_EVENT = _gauge(
    "watch_last_event_timestamp_seconds", "When the watch last delivered anything", "kind"
)
CLOCK = _gauge("clock_seconds", "The clock by which grants are shown as open or ended")
SCHEMA_REFUSED = _gauge("schema_refused", "1 while SpiceDB refuses the operator's schema")
SPICEDB_OUTDATED = _gauge("spicedb_outdated", "1 if SpiceDB is too old to end grants exactly")
EVENTS_DROPPED = _counter("events_dropped", "Kubernetes Events that were not posted")
BUILD_INFO = _gauge("build_info", "The running version", "version")
