"""Watching whether somebody has access, closely enough to see when it ends."""

import asyncio
import datetime as dt
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from authzed.api.v1 import (
    AsyncClient,
    CheckPermissionRequest,
    CheckPermissionResponse,
    Consistency,
)
from google.protobuf.struct_pb2 import Struct

from tests.support.validation import parse_relationship

Check = Callable[[dt.datetime, Consistency], Awaitable[bool]]

CONSISTENCIES = {
    "fully_consistent": Consistency(fully_consistent=True),
    "minimize_latency": Consistency(minimize_latency=True),
}


@dataclass
class Access:
    """The answers to a series of polls, in the order of their `now`."""

    polls: list[tuple[dt.datetime, bool]] = field(default_factory=list)

    def changes(self) -> list[tuple[dt.datetime, dt.datetime]]:
        """Each time the answer changed: the last poll before and the first one after."""
        return [
            (before, after)
            for (before, was), (after, is_) in itertools.pairwise(self.polls)
            if was != is_
        ]

    def last_allowed(self) -> dt.datetime | None:
        """The `now` of the last poll that was allowed."""
        return max((now for now, allowed in self.polls if allowed), default=None)

    def mistakes(
        self, valid_from: dt.datetime, valid_to: dt.datetime | None
    ) -> list[tuple[dt.datetime, bool]]:
        """The polls that were not answered by `valid_from <= now < valid_to`."""
        return [
            (now, allowed)
            for now, allowed in self.polls
            if allowed != (valid_from <= now and (valid_to is None or now < valid_to))
        ]

    def longest_pause(self) -> dt.timedelta:
        """The longest time between two polls: how closely this has looked."""
        return max(after - before for (before, _), (after, _) in itertools.pairwise(self.polls))


async def watch_access(
    check: Check, *, until: dt.datetime, interval: float = 0.02
) -> dict[str, Access]:
    """Poll a check at each consistency until an instant.

    Every poll supplies the `now` at which it is asked. A poll that comes late stays exact: it is
    judged by its own `now`, and the ticks that it missed are left out.

    Returns:
        What was seen, by the consistency's name.
    """
    seen = {name: Access() for name in CONSISTENCIES}
    loop = asyncio.get_running_loop()
    tick = loop.time()
    while (now := dt.datetime.now(dt.UTC)) < until:
        answers = await asyncio.gather(*(check(now, c) for c in CONSISTENCIES.values()))
        for access, allowed in zip(seen.values(), answers, strict=True):
            access.polls.append((now, allowed))
        tick = max(tick + interval, loop.time())
        await asyncio.sleep(tick - loop.time())
    return seen


def check_permission(client: AsyncClient, question: str) -> Check:
    """A check that asks SpiceDB a question such as `pool:acme/pm/private#read@agent:acme/x`."""
    asked = parse_relationship(question)

    async def check(now: dt.datetime, consistency: Consistency) -> bool:
        context = Struct()
        context["now"] = now.isoformat()
        answer = await client.CheckPermission(
            CheckPermissionRequest(
                consistency=consistency,
                resource=asked.resource,
                permission=asked.relation,
                subject=asked.subject,
                context=context,
            ),
            timeout=5,
        )
        allowed = CheckPermissionResponse.PERMISSIONSHIP_HAS_PERMISSION
        return bool(answer.permissionship == allowed)

    return check
