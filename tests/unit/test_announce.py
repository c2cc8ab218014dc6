"""Events: on transitions only, and never in anybody's way."""

import asyncio
from datetime import UTC, datetime

import pytest

from memory_operator import conditions
from memory_operator.announce import Announcement, Announcer, transitions
from memory_operator.api import Kind, ObjectKey
from memory_operator.conditions import Finding, merge
from memory_operator.metrics import EVENTS_DROPPED
from tests.unit.fakes import World

NOW = datetime(2027, 1, 31, 18, tzinfo=UTC)
KEY = ObjectKey(Kind.ACCESS_GRANT, "acme", "oncall")
AGENT = ObjectKey(Kind.MEMORY_AGENT, "acme", "dev")

READY = conditions.ready()
AWAY = conditions.spicedb_unavailable("away")
PENDING, ACTIVE, EXPIRED = (
    conditions.pending(NOW),
    conditions.active(None),
    conditions.expired(NOW),
)
FOUND, LOST = (conditions.agent_found("GranteeFound", AGENT, found=f) for f in (True, False))
SHARED = conditions.conflict("shared", ["two"])


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        pytest.param([], [READY], [], id="fine from the first moment"),
        pytest.param([], [READY, ACTIVE, FOUND], [], id="all of it fine"),
        pytest.param([], [READY, PENDING], [], id="will open later"),
        pytest.param([], [READY, LOST], [("Warning", "GranteeNotFound")], id="nobody there yet"),
        pytest.param([], [AWAY], [("Warning", "SpiceDBUnavailable")], id="not at once"),
        pytest.param([READY], [READY], [], id="as before"),
        pytest.param([AWAY], [AWAY], [], id="still away"),
        pytest.param([READY], [AWAY], [("Warning", "SpiceDBUnavailable")], id="away"),
        pytest.param([AWAY], [READY], [("Normal", "Reconciled")], id="back"),
        pytest.param(
            [AWAY], [conditions.contended()], [("Warning", "Contended")], id="another trouble"
        ),
        pytest.param(
            [AWAY],
            [conditions.spicedb_unavailable("other words")],
            [],
            id="the same in other words",
        ),
        pytest.param([PENDING], [ACTIVE], [("Normal", "Active")], id="opens"),
        pytest.param([ACTIVE], [EXPIRED], [("Normal", "Expired")], id="ends"),
        pytest.param([PENDING], [EXPIRED], [("Normal", "Expired")], id="over while we slept"),
        pytest.param([EXPIRED], [ACTIVE], [("Normal", "Active")], id="extended"),
        pytest.param([LOST], [FOUND], [], id="the grantee has come"),
        pytest.param([FOUND], [LOST], [("Warning", "GranteeNotFound")], id="the grantee has gone"),
        pytest.param([READY], SHARED, [("Warning", "Conflict")], id="a conflict is told once"),
        pytest.param([*SHARED], [READY], [("Normal", "Reconciled")], id="a conflict is over"),
        pytest.param(
            [READY], [READY, conditions.spicedb_outdated("v1.0.0")], [], id="a remark is no event"
        ),
    ],
)
def test_only_what_turned_is_told(
    before: list[Finding], after: list[Finding], events: list[tuple[str, str]]
) -> None:
    old = merge((), before, generation=1, now=NOW)
    new = merge(old, after, generation=1, now=NOW)
    assert [event[:2] for event in transitions(old, new)] == events
    assert all(event[2] for event in transitions(old, new))


def announcement(reason: str = "Expired") -> Announcement:
    return Announcement(KEY, "u-1", "Normal", reason, "ended")


async def test_events_are_posted_in_the_background_in_order() -> None:
    world = World()
    announcer = Announcer(world.kube)
    running = asyncio.create_task(announcer.run())
    for reason in ("Active", "Expired"):
        announcer.announce(announcement(reason))
    while len(world.kube.events) < 2:  # noqa: ASYNC110  # the fake has no event to wait for
        await asyncio.sleep(0)
    running.cancel()
    assert [event[2] for event in world.kube.events] == ["Active", "Expired"]


async def test_an_event_that_cannot_be_posted_is_dropped_and_counted() -> None:
    world = World()
    world.kube.away = True
    announcer = Announcer(world.kube)
    before = EVENTS_DROPPED._value.get()
    announcer.announce(announcement())
    await announcer.drain(1)
    assert EVENTS_DROPPED._value.get() == before + 1


async def test_too_many_events_are_dropped_and_never_waited_for() -> None:
    announcer = Announcer(World().kube)
    before = EVENTS_DROPPED._value.get()
    for _ in range(1005):
        announcer.announce(announcement())
    assert EVENTS_DROPPED._value.get() == before + 5


async def test_the_last_words_are_posted_in_the_time_there_is() -> None:
    world = World()
    announcer = Announcer(world.kube)
    for _ in range(3):
        announcer.announce(announcement())
    await announcer.drain(1)
    assert len(world.kube.events) == 3
    announcer.announce(announcement())
    await announcer.drain(0)  # no time at all: given up without an error
