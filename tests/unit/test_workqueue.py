"""The queue: each key once, at its earliest time, never twice at work."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memory_operator.api import Kind, ObjectKey
from memory_operator.workqueue import WorkQueue


def key(name: str) -> ObjectKey:
    return ObjectKey(Kind.ACCESS_GRANT, "acme", name)


A, B, C = key("a"), key("b"), key("c")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def taken(queue: WorkQueue, limit: int = 10) -> list[ObjectKey]:
    """Take what is due now, without waiting."""
    return queue._pop_due(limit)[0]


async def take(queue: WorkQueue, limit: int = 10) -> list[ObjectKey]:
    return await asyncio.wait_for(queue.take(limit), 5)


async def test_a_key_that_is_asked_for_twice_is_handed_out_once() -> None:
    queue = WorkQueue()
    for each in (A, B, A, A):
        queue.add(each)
    assert await take(queue) == [A, B]
    assert not len(queue)


async def test_the_earliest_time_wins_in_either_order() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add(A, clock.now + 10)
    queue.add(A, clock.now + 5)
    queue.add(B, clock.now + 5)
    queue.add(B, clock.now + 10)
    assert not len(queue)
    clock.now += 5
    assert await take(queue) == [A, B]
    clock.now += 10
    assert not taken(queue)


async def test_no_more_than_the_limit_are_handed_out() -> None:
    queue = WorkQueue()
    for each in (A, B, C):
        queue.add(each)
    assert await take(queue, 2) == [A, B]
    assert await take(queue, 2) == [C]


async def test_a_busy_key_is_not_handed_out_twice_and_comes_back_when_asked_meanwhile() -> None:
    queue = WorkQueue()
    queue.add(A)
    await take(queue)
    assert queue.is_busy(A)
    queue.add(A)
    queue.add(B)
    assert await take(queue) == [B]

    queue.done(A)

    assert not queue.is_busy(A)
    assert await take(queue) == [A]


async def test_a_key_given_back_with_a_time_returns_then() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add(A)
    await take(queue)
    queue.done(A, clock.now + 3)
    assert not taken(queue)
    clock.now += 3
    assert await take(queue) == [A]


async def test_a_request_made_meanwhile_beats_the_time_given_back() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add(A)
    await take(queue)
    queue.add(A)
    queue.done(A, clock.now + 3600)
    assert await take(queue) == [A]


async def test_a_dropped_key_is_not_handed_out_until_asked_for_again() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add(A)
    queue.add(B, clock.now + 1)
    queue.drop(A)
    queue.drop(B)
    queue.drop(C)
    clock.now += 2
    assert not len(queue)
    assert not taken(queue)
    queue.add(A, clock.now)
    assert await take(queue) == [A]


async def test_a_waiting_worker_wakes_for_a_new_key() -> None:
    queue = WorkQueue()
    waiting = asyncio.create_task(queue.take(10))
    await asyncio.sleep(0)
    queue.add(A)
    assert await asyncio.wait_for(waiting, 1) == [A]


async def test_a_waiting_worker_wakes_when_a_busy_key_is_given_back() -> None:
    queue = WorkQueue()
    queue.add(A)
    await take(queue)
    queue.add(A)
    waiting = asyncio.create_task(queue.take(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done(A)
    assert await asyncio.wait_for(waiting, 1) == [A]


async def test_two_waiting_workers_share_what_comes() -> None:
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.take(1)) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add(A)
    queue.add(B)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 1) == [[A], [B]]


async def test_a_worker_wakes_by_itself_at_the_time_asked_for() -> None:
    loop = asyncio.get_running_loop()
    queue = WorkQueue(loop.time)
    start = loop.time()
    queue.add(A, start + 0.05)
    assert await take(queue) == [A]
    assert 0.05 <= loop.time() - start < 1


async def test_a_clock_that_is_set_forward_makes_keys_due() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add(A, clock.now + 3600)
    clock.now += 7200
    assert len(queue) == 1
    assert await take(queue) == [A]


async def test_a_clock_that_is_set_back_delays_and_loses_nothing() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add(A, clock.now)
    clock.now -= 3600
    assert not taken(queue)
    queue.add(B)
    assert await take(queue) == [B]
    clock.now += 3600
    assert await take(queue) == [A]


async def test_wake_ups_that_are_moved_all_the_time_do_not_pile_up() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    for _ in range(10_000):
        queue.drop(A)
        queue.add(A, clock.now + 1e6)
        queue.add(B, clock.now + 1e6)
    assert len(queue._heap) < 200
    clock.now += 1e6
    assert set(await take(queue)) == {A, B}
    assert not taken(queue)


class Model(RuleBasedStateMachine):
    """The queue beside the plainest thing that does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = WorkQueue(self.clock)
        self.due: dict[ObjectKey, float] = {}
        self.busy: set[ObjectKey] = set()

    keys = st.sampled_from([A, B, C, key("d")])
    delays = st.sampled_from([-1.0, 0.0, 1.0, 2.0, 60.0])

    @rule(key=keys, delay=delays)
    def add(self, key: ObjectKey, delay: float) -> None:
        at = self.clock.now + delay
        self.queue.add(key, at)
        self.due[key] = min(at, self.due.get(key, at))

    @rule(key=keys)
    def drop(self, key: ObjectKey) -> None:
        self.queue.drop(key)
        self.due.pop(key, None)

    @rule(seconds=st.sampled_from([-5.0, 0.5, 1.0, 70.0]))
    def tick(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        ready = {k for k, at in self.due.items() if at <= self.clock.now} - self.busy
        given = taken(self.queue, limit)
        self.queue._busy.update(given)
        assert len(given) == min(limit, len(ready))
        assert set(given) <= ready
        assert [self.due[k] for k in given] == sorted(self.due[k] for k in ready)[: len(given)]
        self.busy.update(given)
        for each in given:
            del self.due[each]

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), delay=st.none() | delays)
    def done(self, data: st.DataObject, delay: float | None) -> None:
        each = data.draw(st.sampled_from(sorted(self.busy)))
        at = None if delay is None else self.clock.now + delay
        self.queue.done(each, at)
        self.busy.discard(each)
        if at is not None:
            self.due[each] = min(at, self.due.get(each, at))

    @invariant()
    def counts_what_is_due(self) -> None:
        assert len(self.queue) == sum(at <= self.clock.now for at in self.due.values())
        assert all(self.queue.is_busy(each) for each in self.busy)


Model.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestQueueAgainstItsModel = Model.TestCase
