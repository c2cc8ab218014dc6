"""Kubernetes Events, on transitions only: what turned, never what stayed as it was.

Events are a courtesy to people who look at one object. They are posted beside the work, a few at a
time, and dropped (and counted) when too many wait: access never waits for them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import NamedTuple

from memory_operator.api import Condition, ObjectKey
from memory_operator.conditions import ACTIVE, READY
from memory_operator.errors import KubernetesError
from memory_operator.kube import Kubernetes
from memory_operator.metrics import EVENTS_DROPPED

_WAITING = 1000
_LOGGER = logging.getLogger(__name__)


class Announcement(NamedTuple):
    """One Event about one object."""

    key: ObjectKey
    uid: str
    type: str
    reason: str
    message: str


def transitions(
    before: Iterable[Condition], after: Iterable[Condition]
) -> list[tuple[str, str, str]]:
    """Give type, reason and message of an Event for each condition that turned.

    A resource that is simply fine from its first moment gets none.
    """
    known = {condition.type: condition for condition in before}
    events = []
    for condition in after:
        old = known.get(condition.type)
        if old and (old.status, old.reason) == (condition.status, condition.reason):
            continue
        good = condition.status == "True" or condition.type == ACTIVE
        if old is None and good and condition.type in (READY, ACTIVE):
            continue
        if condition.type in (READY, ACTIVE) or condition.status == "False":
            reason = condition.reason
            if condition.type not in (READY, ACTIVE):
                reason = condition.type.removesuffix("Found") + condition.reason
            events.append(("Normal" if good else "Warning", reason, condition.message))
    return events


class Announcer:
    """Posts Events in the background."""

    def __init__(self, kube: Kubernetes) -> None:
        self._kube = kube
        self._waiting: asyncio.Queue[Announcement] = asyncio.Queue(_WAITING)

    def announce(self, announcement: Announcement) -> None:
        """Ask for an Event; it is dropped if too many wait."""
        try:
            self._waiting.put_nowait(announcement)
        except asyncio.QueueFull:
            EVENTS_DROPPED.inc()

    async def run(self) -> None:
        """Post Events until cancelled."""
        while True:
            await self._post(await self._waiting.get())

    async def drain(self, seconds: float) -> None:
        """Post what still waits, for at most so long: the last words of an operator that stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._waiting.empty():
                    await self._post(self._waiting.get_nowait())

    async def _post(self, announcement: Announcement) -> None:
        try:
            await self._kube.post_event(*announcement)
        except KubernetesError as error:
            # A namespace that is being deleted takes no Events, for instance.
            EVENTS_DROPPED.inc()
            _LOGGER.debug("Event about %s not posted: %s", announcement.key, error)
