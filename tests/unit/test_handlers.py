"""The edge to kopf: what is registered, and what reaches the loop."""

from typing import Any, cast

import kopf
import pytest

from memory_operator import handlers
from memory_operator.api import Kind, ObjectKey
from memory_operator.drift import WatchMonitor
from memory_operator.names import FINALIZER
from tests.unit.fakes import World


def event(type_: str | None, body: dict[str, Any]) -> kopf.RawEvent:
    return cast("kopf.RawEvent", {"type": type_, "object": body})


def test_one_handler_for_each_kind_and_no_change_handler() -> None:
    registry = handlers.registry()
    watching = registry._watching.get_all_handlers()
    assert sorted(str(handler.selector and handler.selector.any_name) for handler in watching) == [
        kind.plural for kind in sorted(Kind)
    ]
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()


def test_kopf_posts_nothing_scans_nothing_and_leaves_our_finalizer_alone() -> None:
    settings = handlers.settings()
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.persistence.finalizer != FINALIZER


@pytest.mark.parametrize("type_", [None, "ADDED", "MODIFIED"])
async def test_what_the_watch_brings_reaches_loop_and_monitor(type_: str | None) -> None:
    world, monitor = World(), WatchMonitor()
    memo = handlers.Memo(reconciler=world.reconciler, monitor=monitor)
    key = world.agent("pm")
    body = world.kube.get(key) or {}

    await handlers.seen(event(type_, body), memo)

    assert world.reconciler.inventory.get(key) is not None
    assert len(world.reconciler.queue) == 1
    monitor.listed(Kind.MEMORY_AGENT, body["metadata"]["resourceVersion"])
    assert monitor.overdue_seconds() == 0


async def test_a_deletion_is_forgotten_and_its_rows_are_asked_for() -> None:
    world = World()
    memo = handlers.Memo(reconciler=world.reconciler, monitor=WatchMonitor())
    world.agent("pm")
    await world.settle()
    body = world.kube.get(ObjectKey(Kind.MEMORY_AGENT, "acme", "pm")) or {}

    await handlers.seen(event("DELETED", body), memo)

    assert not len(world.reconciler.inventory)
    assert len(world.reconciler.queue) == 1
