"""The two watchers of the whole, and the judge of the watch."""

import asyncio
from collections.abc import Iterator

import pytest

from memory_operator.api import Kind
from memory_operator.drift import DriftCheck, ServerWatch, WatchMonitor, is_outdated
from memory_operator.relationships import Object, Relationship
from tests.unit.fakes import World

AGENT, GRANT = Kind.MEMORY_AGENT, Kind.ACCESS_GRANT


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The monotonic clock, to be set."""
    now = [1000.0]
    with monkeypatch.context() as patch:
        patch.setattr("memory_operator.drift.time.monotonic", lambda: now[0])
        yield now


def check_of(world: World, period: float = 300, namespaces: tuple[str, ...] = ()) -> DriftCheck:
    return DriftCheck(
        world.reconciler,
        world.kube,
        world.spicedb,
        WatchMonitor(),
        period=period,
        namespaces=namespaces,
    )


# The watch


def test_a_watch_that_brings_what_lists_show_owes_nothing(seconds: list[float]) -> None:
    monitor = WatchMonitor()
    monitor.delivered(AGENT, "10")
    monitor.listed(AGENT, "10")
    seconds[0] += 1000
    assert monitor.overdue_seconds() == 0


def test_a_watch_owes_from_the_first_list_that_shows_more(seconds: list[float]) -> None:
    monitor = WatchMonitor()
    monitor.listed(AGENT, "10")
    seconds[0] += 60
    monitor.listed(AGENT, "12")
    seconds[0] += 60
    assert monitor.overdue_seconds() == 120


def test_a_delivery_settles_the_debt_if_it_is_as_new(seconds: list[float]) -> None:
    monitor = WatchMonitor()
    monitor.listed(AGENT, "10")
    seconds[0] += 60
    monitor.delivered(AGENT, "9")
    assert monitor.overdue_seconds() == 60
    monitor.delivered(AGENT, "11")
    assert monitor.overdue_seconds() == 0


def test_each_kind_has_a_watch_of_its_own_and_the_worst_counts(seconds: list[float]) -> None:
    monitor = WatchMonitor()
    monitor.listed(AGENT, "10")
    seconds[0] += 30
    monitor.listed(GRANT, "10")
    monitor.delivered(GRANT, "99")
    seconds[0] += 30
    assert monitor.overdue_seconds() == 60


def test_versions_are_compared_as_numbers(seconds: list[float]) -> None:
    monitor = WatchMonitor()
    monitor.delivered(AGENT, "100")
    monitor.listed(AGENT, "99")
    seconds[0] += 60
    assert monitor.overdue_seconds() == 0


def test_versions_that_are_no_numbers_are_not_judged(seconds: list[float]) -> None:
    monitor = WatchMonitor()
    monitor.listed(AGENT, "abc")
    monitor.delivered(AGENT, "xyz")
    seconds[0] += 60
    assert monitor.overdue_seconds() == 0


def test_an_older_delivery_after_a_newer_one_takes_nothing_back(seconds: list[float]) -> None:
    monitor = WatchMonitor()
    monitor.delivered(AGENT, "20")
    monitor.delivered(AGENT, "10")
    monitor.listed(AGENT, "20")
    seconds[0] += 60
    assert monitor.overdue_seconds() == 0


# The server


@pytest.mark.parametrize(
    ("version", "outdated"),
    [
        ("v1.57.1", False),
        ("v1.57.2", False),
        ("v1.58.0", False),
        ("v2.0.0", False),
        ("1.57.1", False),
        ("v1.57.0", True),
        ("v1.56.2", True),
        ("v1.9.9", True),
        ("v0.99.99", True),
        ("1.57.0", True),
        ("v1.57.1-rc1", False),
        ("v1.100.0", False),
        ("(devel)", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_a_version_is_outdated_before_1_57_1(version: str, outdated: bool) -> None:
    assert is_outdated(version) == outdated


async def test_a_server_without_schema_gets_it_and_everything_is_compared(world: World) -> None:
    world.spicedb.schema = None
    await ServerWatch(world.reconciler, world.spicedb, "ours").look()
    assert world.spicedb.schema == "ours"
    assert world.reconciler.alarm.is_set()
    assert world.reconciler.server.reachable


async def test_a_server_that_has_it_all_raises_no_alarm(world: World) -> None:
    watch = ServerWatch(world.reconciler, world.spicedb, "the schema")
    await watch.look()
    await watch.look()
    assert not world.reconciler.alarm.is_set()


async def test_a_refused_schema_is_known_until_it_is_taken(world: World) -> None:
    key = world.agent("pm")
    world.spicedb.refuses_schema = "cannot delete relation"
    watch = ServerWatch(world.reconciler, world.spicedb, "ours")
    await watch.look()
    assert world.reconciler.server.schema_problem == "cannot delete relation"
    await world.settle()
    assert world.ready(key) == ("False", "SchemaRefused")
    assert world.spicedb.schema == "the schema"

    world.spicedb.refuses_schema = ""
    await watch.look()
    await world.settle()
    assert world.reconciler.server.schema_problem == ""
    assert world.ready(key) == ("True", "Reconciled")


async def test_a_short_absence_is_no_outage_and_a_longer_one_is_told_to_all(world: World) -> None:
    world.agent("pm")
    await world.settle()
    watch = ServerWatch(world.reconciler, world.spicedb, "the schema")
    await watch.look()
    await world.settle()
    world.spicedb.away = True

    for expected in (0, 0, 1, 1, 1):
        await watch.look()
        assert len(world.reconciler.queue) == expected
        assert not world.reconciler.server.reachable

    world.reconciler.alarm.clear()
    world.spicedb.away = False
    await watch.look()
    assert world.reconciler.server.reachable
    assert world.reconciler.alarm.is_set()


async def test_a_server_that_refuses_every_question_is_no_reason_to_die(world: World) -> None:
    world.spicedb.refuses_everything = "no such service"
    await ServerWatch(world.reconciler, world.spicedb, "ours").look()
    assert not world.reconciler.server.reachable


async def test_an_old_server_is_reported_until_it_is_upgraded(world: World) -> None:
    grant = world.grant("oncall", "dev")
    await world.settle()
    watch = ServerWatch(world.reconciler, world.spicedb, "the schema")
    for version, condition in (
        ("v1.50.0", ("True", "UnsafeVersion")),
        ("v1.57.1", ("", "")),
    ):
        world.spicedb.server_version = version
        await watch.look()
        await world.settle()
        assert world.kube.condition(grant, "SpiceDBOutdated") == condition


# The check


async def test_a_check_reads_every_page_and_settles_what_is_right(world: World) -> None:
    for n in range(120):
        world.agent(f"a{n}")
    await world.settle()
    world.restart()  # and not a word from the watch

    await check_of(world).check()

    assert len(world.reconciler.inventory) == 120
    assert not len(world.reconciler.queue)


async def test_with_namespaces_rows_of_others_are_left_alone(world: World) -> None:
    world.agent("pm")
    await world.settle()
    foreign = Relationship(Object("organization", "globex"), "member", Object("agent", "globex/pm"))
    world.spicedb.put(foreign)

    await check_of(world, namespaces=("acme",)).check()
    assert not len(world.reconciler.queue)

    await check_of(world).check()
    assert len(world.reconciler.queue) == 1


async def test_an_object_made_anew_during_the_lists_is_not_forgotten(world: World) -> None:
    key = world.agent("pm")
    await world.settle()
    world.kube.force_delete(key)
    pages = world.kube.pages

    async def lists_first(*arguments: object) -> object:
        async for page in pages(*arguments):  # type: ignore[arg-type]  # passed on as they came
            yield page
        if Kind.ACCESS_GRANT in arguments and world.kube.get(key) is None:
            world.agent("pm")
            world.deliver()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.kube, "pages", lists_first)
        await check_of(world).check()

    assert world.reconciler.inventory.get(key) is not None


async def test_the_check_repeats_by_period_and_at_once_on_alarm(world: World) -> None:
    check = check_of(world, period=3600)
    running = asyncio.create_task(check.run())
    await asyncio.wait_for(check.tried.wait(), 5)
    assert check.complete
    calls = world.fate.calls
    world.reconciler.alarm.set()
    async with asyncio.timeout(5):
        while world.fate.calls < 2 * calls:  # noqa: ASYNC110  # the fake has no event to wait for
            await asyncio.sleep(0)
    running.cancel()


async def test_a_check_that_fails_is_tried_again_and_reports_each_resource(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_operator.drift._RETRY", 0.01)
    key = world.agent("pm")
    world.deliver()
    world.spicedb.away = True
    check = check_of(world, period=3600)
    check.finished_at = 0
    running = asyncio.create_task(check.run())
    await asyncio.wait_for(check.tried.wait(), 5)
    assert not check.complete
    assert check.finished_at > 0  # it is no stuck check that a restart would cure
    await world.settle()
    assert world.ready(key) == ("False", "SpiceDBUnavailable")

    world.spicedb.away = False
    async with asyncio.timeout(5):
        while not check.complete:  # noqa: ASYNC110  # nothing else tells
            await asyncio.sleep(0.005)
    running.cancel()
