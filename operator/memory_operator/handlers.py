"""Edge: kopf. It delivers what the watch sees; all that follows is the reconcile loop's.

Event handlers only, no change handlers: kopf then writes nothing to our objects (no annotations, no
finalizer of its own), and a state is reconciled for what it is and not for how it came about.
"""

from typing import Any

import kopf

from memory_operator.api import Kind
from memory_operator.drift import WatchMonitor
from memory_operator.metrics import WATCH_LAST_EVENT
from memory_operator.names import GROUP, VERSION
from memory_operator.reconcile import Reconciler


class Memo(kopf.Memo):
    """What handlers share, typed."""

    reconciler: Reconciler
    monitor: WatchMonitor


class _NoStates(kopf.DiffBaseStorage):
    """Keeps no states to compare with: only change handlers ask for them.

    kopf would extract one from a deep copy of every object that the watch brings.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Extract nothing."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Give nothing."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


def registry() -> kopf.OperatorRegistry:
    """Register the one handler for each kind, and how to log in."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(login)
    for kind in Kind:
        kopf.on.event(GROUP, VERSION, kind.plural, registry=handlers)(seen)
    return handlers


async def login(**options: Any) -> kopf.ConnectionInfo | None:
    """Log in as the pod's ServiceAccount, or as the kubeconfig says outside of a pod."""
    # kopf's default would load the whole synchronous client for this.
    return kopf.login_with_service_account(**options) or kopf.login_with_kubeconfig(**options)


async def seen(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    """Pass on what the watch brought."""
    body: dict[str, Any] = dict(event["object"])
    kind = Kind(body["kind"])
    WATCH_LAST_EVENT.labels(kind.value).set_to_current_time()
    memo.monitor.delivered(kind, body["metadata"]["resourceVersion"])
    memo.reconciler.observe(body, gone=event["type"] == "DELETED")


def settings() -> kopf.OperatorSettings:
    """Configure kopf for a watch and nothing else.

    Its finalizer keeps another name than ours: kopf takes its own away from every object that no
    handler of its own needs it for.
    """
    options = kopf.OperatorSettings()
    options.posting.enabled = False
    options.persistence.diffbase_storage = _NoStates()
    options.scanning.disabled = True  # needs no right to list CRDs and namespaces
    options.watching.chunk_size = 500
    options.networking.request_timeout = 30
    options.process.ultimate_exiting_timeout = 20
    return options
