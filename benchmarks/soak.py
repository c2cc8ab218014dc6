"""An hour's worth of changes to grants, and what becomes of the operator's memory meanwhile.

By default the hour is compressed to ten minutes: 12,000 changes, 20 a second. `--seconds 3600` takes
the whole hour. Drift checks are compressed with it: there are twelve, as with the default period.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from authzed.api.v1 import SyncClient
from kubernetes import config

from benchmarks.client import Grants, Json, connect, is_ready, spec
from benchmarks.processes import rss_mib
from benchmarks.world import world
from memory_operator.api import Kind
from tests.support.expectation import expected_rows
from tests.support.operator import OperatorProcess
from tests.support.organization import Organization, rows

NAMESPACE = "acme"
POPULATION = 500
"""About so many grants exist at a time once the beginning is over."""

_AGENTS = 5
_FLAT = 1.05  # the last quarter's median may be so many times the second quarter's
_CONCURRENCY = 8
_SAMPLES = 400
_DRIFT_CHECKS = 12  # an hour's, at the default period
_PATIENCE = 60.0  # seconds after the last change until all must be done


@dataclass
class Report:
    """What was done, and the operator's resident memory meanwhile, in MiB."""

    counts: Counter[str] = field(default_factory=Counter)
    """Changes by their kind."""

    memory: list[float] = field(default_factory=list)
    """At even intervals, from before the first change until the last one is done."""

    seconds: float = 0
    settling: float = 0
    """Seconds from the last change until every grant was Ready or gone."""

    wrong_rows: set[str] = field(default_factory=set)
    """Relationships that SpiceDB holds at the end and should not, or the other way round."""

    def quarters(self) -> list[float]:
        """Give the median of the memory in each quarter of the time."""
        size = len(self.memory) / 4
        bounds = [round(size * number) for number in range(5)]
        return [statistics.median(self.memory[first:last]) for first, last in pairwise(bounds)]

    @property
    def is_flat(self) -> bool:
        """Whether memory has stopped growing; the first quarter is for warming up."""
        _, second, _, last = self.quarters()
        return last <= _FLAT * second


def soak(
    organization: Organization,
    kubeconfig: Path,
    operator: OperatorProcess,
    spicedb: SyncClient,
    *,
    changes: int,
    seconds: float,
    seed: int,
    population: int = POPULATION,
) -> Report:
    """Make so many random changes in so many seconds, wait until all is done, and look at it."""
    for number in range(_AGENTS):
        organization.agent(f"agent-{number}")
    organization.wait_ready(Kind.MEMORY_AGENT.value)
    report = Report()

    async def run() -> list[Json]:
        async with connect(kubeconfig, organization.name) as grants:
            sampler = asyncio.create_task(_sample(operator.pid, seconds / _SAMPLES, report))
            start = time.monotonic()
            await _change(grants, _Story(seed, population, report), changes, seconds)
            report.seconds = time.monotonic() - start
            grants_left = await _settled(grants)
            report.settling = time.monotonic() - start - report.seconds
            sampler.cancel()
        return grants_left

    agents = organization.list(Kind.MEMORY_AGENT.value)
    bodies = [{**agent, "kind": Kind.MEMORY_AGENT.value} for agent in agents]
    bodies += [{**grant, "kind": Kind.ACCESS_GRANT.value} for grant in asyncio.run(run())]
    report.wrong_rows = rows(spicedb, organization.name) ^ expected_rows(bodies)
    return report


class _Story:
    """Which change comes next: the same for the same seed, but for which grant is busy when."""

    def __init__(self, seed: int, population: int, report: Report) -> None:
        self._random = random.Random(seed)
        self._population = population
        self._report = report
        self._names: list[str] = []
        self._created = 0

    async def change(self, grants: Grants) -> None:
        """Create, edit or delete one grant that nobody else is changing."""
        chance = self._random.random()
        growing = len(self._names) < self._population
        if not self._names or chance < (0.4 if growing else 0.1):
            await self._create(grants)
            return
        place = self._random.randrange(len(self._names))
        self._names[place], self._names[-1] = self._names[-1], self._names[place]
        name = self._names.pop()
        if chance > (0.95 if growing else 0.85):
            self._report.counts["deleted"] += 1
            await grants.delete(name)
        else:
            self._report.counts["edited"] += 1
            await grants.edit(name, self._edit())
            self._names.append(name)

    async def _create(self, grants: Grants) -> None:
        self._report.counts["created"] += 1
        self._created += 1
        name = f"grant-{self._created}"
        await grants.create(name, spec(self._created, _AGENTS))
        self._names.append(name)

    def _edit(self) -> Json:
        number = self._random.randrange(1000)
        return self._random.choice(
            [
                {"granteeAgent": f"agent-{number % _AGENTS}"},
                {"grantorRole": f"role-{number % 20}"},
                {"resourceScope": ("private", "team", "global")[number % 3]},
                {"validTo": f"2099-01-01T00:{number % 60:02}:00Z"},
                {"reason": f"because of {number}"},
            ]
        )


async def _change(grants: Grants, story: _Story, changes: int, seconds: float) -> None:
    start = time.monotonic()
    numbers = iter(range(changes))

    async def some() -> None:
        for number in numbers:
            due = start + seconds * number / changes
            await asyncio.sleep(max(0, due - time.monotonic()))
            await story.change(grants)

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONCURRENCY):
            group.create_task(some())


async def _sample(pid: int, interval: float, report: Report) -> None:
    while True:
        report.memory.append(rss_mib(pid))
        await asyncio.sleep(interval)


async def _settled(grants: Grants) -> list[Json]:
    deadline = time.monotonic() + _PATIENCE
    while True:
        items: list[Json] = (await grants.list())["items"]
        waiting = [
            item["metadata"]["name"]
            for item in items
            if "deletionTimestamp" in item["metadata"] or not is_ready(item)
        ]
        if not waiting:
            return items
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(waiting)} grants are not done, as {waiting[:3]}")
        await asyncio.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--changes", type=int, default=12_000)
    parser.add_argument("--seconds", type=float, default=600, help="spread over so much time")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with world("soak") as servers:
        operator = OperatorProcess(
            servers.kubeconfig,
            servers.spicedb,
            servers.directory,
            drift_period_seconds=str(max(1, options.seconds / _DRIFT_CHECKS)),
        )
        servers.plane.kubectl("create", "namespace", NAMESPACE)
        with operator, config.new_client_from_config(str(servers.kubeconfig)) as api:
            report = soak(
                Organization(api, NAMESPACE),
                servers.kubeconfig,
                operator,
                servers.spicedb.client(),
                changes=options.changes,
                seconds=options.seconds,
                seed=options.seed,
            )
            reconciled = operator.metric("reconcile_total", kind=Kind.ACCESS_GRANT.value)
            checks = operator.metric("drift_checks_total", result="ok")
    print(_table(report, reconciled, checks))
    return 0 if report.is_flat and not report.wrong_rows else 1


def _table(report: Report, reconciled: float, checks: float) -> str:
    changes = ", ".join(f"{count:,} {what}" for what, count in sorted(report.counts.items()))
    quarters = ", ".join(f"{median:.1f}" for median in report.quarters())
    return f"""
| | |
|---|---:|
| changes | {changes} |
| in | {report.seconds:.0f} s |
| reconciled | {reconciled:,.0f} |
| drift checks | {checks:.0f} |
| last change to all done | {report.settling:.1f} s |
| relationships that are wrong at the end | {len(report.wrong_rows)} |
| RSS before | {report.memory[0]:.1f} MiB |
| RSS after | {report.memory[-1]:.1f} MiB |
| greatest RSS | {max(report.memory):.1f} MiB |
| median RSS of each quarter | {quarters} MiB |
| verdict | {"flat" if report.is_flat else "it grows"} |
"""


if __name__ == "__main__":
    sys.exit(main())
