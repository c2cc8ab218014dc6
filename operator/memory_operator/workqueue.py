"""Keys of resources that wait to be reconciled: each at most once, at the earliest time asked for.

Level-triggered: a key says that something about a resource may have changed, never what. While a key
is worked on, it is not handed out again; asked for meanwhile, it comes back right after. Times are
those of the wall clock, since most waits end at a grant's `validFrom` or `validTo`.
"""

import asyncio
import heapq
import time
from collections.abc import Callable

from memory_operator.api import ObjectKey

_LONGEST_SLEEP = 30.0  # seconds; a clock that is set while we sleep is noticed after this time

_SMALL = 100
"""A heap may hold so many withdrawn requests without being tidied up: a grant that is looked at every
few minutes would otherwise leave one each time, to stay until its end in a year."""


class WorkQueue:
    """Keys with due times (seconds since the epoch)."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._due: dict[ObjectKey, tuple[float, int]] = {}
        """The request that counts for each key: its time and its number in the heap."""
        self._heap: list[tuple[float, int, ObjectKey]] = []
        self._sequence = 0
        self._busy: set[ObjectKey] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """How many keys are due now."""
        now = self._clock()
        return sum(due <= now for due, _ in self._due.values())

    def add(self, key: ObjectKey, at: float = 0) -> None:
        """Ask for a key at a time; an earlier request stands."""
        if key in self._due and self._due[key][0] <= at:
            return
        self._sequence += 1
        self._due[key] = (at, self._sequence)
        heapq.heappush(self._heap, (at, self._sequence, key))
        self._changed.set()
        if len(self._heap) > 2 * len(self._due) + _SMALL:
            self._heap = [(*due, key) for key, due in self._due.items()]
            heapq.heapify(self._heap)

    def is_busy(self, key: ObjectKey) -> bool:
        """Say whether the key is handed out."""
        return key in self._busy

    def drop(self, key: ObjectKey) -> None:
        """Withdraw all requests for a key."""
        self._due.pop(key, None)

    async def take(self, limit: int) -> list[ObjectKey]:
        """Wait until keys are due; hand out up to `limit` of them, oldest first."""
        while True:
            taken, wait = self._pop_due(limit)
            if taken:
                self._busy.update(taken)
                return taken
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), wait)
            except TimeoutError:
                continue

    def done(self, key: ObjectKey, again_at: float | None = None) -> None:
        """Give a key back, and ask for it again at a time if need be."""
        self._busy.discard(key)
        if again_at is not None:
            self.add(key, again_at)
        if key in self._due:
            self._changed.set()

    def _pop_due(self, limit: int) -> tuple[list[ObjectKey], float]:
        now = self._clock()
        taken: list[ObjectKey] = []
        postponed = []
        wait = _LONGEST_SLEEP
        while self._heap and len(taken) < limit:
            due, sequence, key = self._heap[0]
            if self._due.get(key) != (due, sequence):
                heapq.heappop(self._heap)  # withdrawn, or replaced by an earlier request
            elif due > now:
                wait = min(wait, due - now)
                break
            else:
                heapq.heappop(self._heap)
                if key in self._busy:
                    postponed.append((due, sequence, key))
                else:
                    del self._due[key]
                    taken.append(key)
        for entry in postponed:
            heapq.heappush(self._heap, entry)
        return taken, wait
