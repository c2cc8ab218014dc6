"""Measure the operator against a bare kopf operator and against bare SpiceDB, in one run.

Each round does all of it, one after the other, so that whatever else the machine does meets all alike.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.client import connect
from benchmarks.processes import Requests, cpu_seconds, peak_rss_mib
from benchmarks.world import World, world
from memory_operator.api import Kind
from memory_operator.desired import OWNED_RELATIONS
from memory_operator.names import API_VERSION
from memory_operator.relationships import Changes, Filter, Relationship
from memory_operator.spicedb import MAX_UPDATES, SpiceDB
from tests.support.operator import OperatorProcess

NAMESPACE = "acme"
OPERATOR, BASELINE = "memory-operator", "bare kopf operator"
SERVER, SPICEDB = "API server alone", "SpiceDB alone"
CREATION, DELETION, RESTART = "creation", "deletion", "restart with nothing changed"

_SETTLE = 3.0  # seconds in which an operator that has just started could still write something
_WHOLE_FROM = 100  # figures from here on are shown without a fraction

Figures = dict[str, float]
"""Measured values by their name in the table."""

Result = tuple[str, str, Figures]
"""What was done, who did it, and what was measured."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--grants", type=int, default=1000)
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="instead: create the grants once with the operator under cProfile",
    )
    options = parser.parse_args()
    print(_machine(), flush=True)
    with world() as servers:
        _prepare(servers)
        if options.profile:
            _profile(servers, options.grants, options.profile)
        else:
            _print_tables(list(_rounds(servers, options.grants, options.rounds)))


def _prepare(servers: World) -> None:
    servers.plane.kubectl("create", "namespace", NAMESPACE)
    agent = {
        "apiVersion": API_VERSION,
        "kind": Kind.MEMORY_AGENT.value,
        "metadata": {"name": "agent-0", "namespace": NAMESPACE},
        "spec": {"role": "engineer"},
    }
    servers.plane.kubectl("apply", "-f", "-", input=json.dumps(agent))


def _profile(servers: World, count: int, file: Path) -> None:
    operator = _operator(servers)
    operator.interpreter += ["-m", "cProfile", "-o", str(file)]
    with operator:
        _load(servers, "--create", str(count))


def _rounds(servers: World, count: int, rounds: int) -> Iterator[Result]:
    for number in range(rounds):
        for measure in (_with_operator, _with_baseline, _with_nobody):
            for what, who, figures in measure(servers, count):
                rate = figures["objects/s"]
                print(f"round {number + 1}: {what}, {who}: {rate:.0f} objects/s", flush=True)
                yield what, who, figures


def _with_operator(servers: World, count: int) -> Iterator[Result]:
    with _operator(servers) as operator:
        calls = operator.metric("spicedb_requests_total")
        usage = _Usage(servers, operator.pid)
        figures = usage.during(_load(servers, "--create", str(count)), count)
        calls = operator.metric("spicedb_requests_total") - calls
        yield CREATION, OPERATOR, figures | {"SpiceDB calls/object": calls / count}
        rows = asyncio.run(_rows(servers))
        operator.stop()
        yield RESTART, OPERATOR, _restart(servers, operator, count)
        usage = _Usage(servers, operator.pid)
        yield DELETION, OPERATOR, usage.during(_load(servers, "--delete"), count)
    yield CREATION, SPICEDB, asyncio.run(_write_straight(servers, rows, count))


def _with_baseline(servers: World, count: int) -> Iterator[Result]:
    with _baseline(servers) as pid:
        usage = _Usage(servers, pid)
        yield CREATION, BASELINE, usage.during(_load(servers, "--create", str(count)), count)
        usage = _Usage(servers, pid)
        yield DELETION, BASELINE, usage.during(_load(servers, "--delete"), count)


def _with_nobody(servers: World, count: int) -> Iterator[Result]:
    """Create and delete with nobody watching but the load itself: what the API server can do."""
    usage = _Usage(servers)
    load = _load(servers, "--create", str(count), "--alone")
    yield CREATION, SERVER, usage.during(load, count)
    usage = _Usage(servers)
    yield DELETION, SERVER, usage.during(_load(servers, "--delete"), count)


def _operator(servers: World) -> OperatorProcess:
    return OperatorProcess(servers.kubeconfig, servers.spicedb, servers.directory)


def _restart(servers: World, operator: OperatorProcess, count: int) -> Figures:
    """Start the operator where nothing has changed since it stopped."""
    before = asyncio.run(_versions(servers))
    requests = Requests.so_far(servers.plane)
    start = time.monotonic()
    operator.start()
    seconds = time.monotonic() - start
    cpu = cpu_seconds(operator.pid)
    time.sleep(_SETTLE)
    made = Requests.so_far(servers.plane).since(requests)
    after = asyncio.run(_versions(servers))
    return {
        "objects/s": count / seconds,
        "seconds": seconds,
        "CPU s": cpu,
        "peak RSS MiB": peak_rss_mib(operator.pid),
        "SpiceDB writes": operator.metric("spicedb_requests_total", method="WriteRelationships"),
        "SpiceDB calls": operator.metric("spicedb_requests_total"),
        "PATCH requests": made["PATCH"],
        "changed resourceVersions": len(before.items() ^ after.items()) / 2,
    }


class _Usage:
    """What the servers and an operator use, from now until the end of a load."""

    def __init__(self, servers: World, operator: int | None = None) -> None:
        self._servers = servers
        self._operator = operator
        self._pids = {
            "API server": servers.pid("kube-apiserver"),
            "etcd": servers.pid("etcd"),
            "SpiceDB": servers.spicedb.pid,
        }
        if operator:
            self._pids[""] = operator
        self._requests = Requests.so_far(servers.plane)
        self._cpu = {name: cpu_seconds(pid) for name, pid in self._pids.items()}

    def during(self, load: dict[str, float], count: int) -> Figures:
        """Give the figures of a load that has just ended."""
        figures = {
            "objects/s": count / load["done"],
            "seconds": load["done"],
            "seconds of requests": load["requests"],
        }
        for name, pid in self._pids.items():
            figures[f"{name} CPU s".strip()] = cpu_seconds(pid) - self._cpu[name]
        figures["load CPU s"] = load["cpu"]
        if self._operator:
            figures["peak RSS MiB"] = peak_rss_mib(self._operator)
        made = Requests.so_far(self._servers.plane).since(self._requests)
        figures["PATCH requests/object"] = made["PATCH"] / count
        figures["Events/object"] = made["EVENT"] / count
        return figures


def _load(servers: World, *arguments: str) -> dict[str, float]:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", servers.kubeconfig, NAMESPACE, *arguments],
        check=True,
        stdout=subprocess.PIPE,
    )
    after = os.times()
    result: dict[str, float] = json.loads(done.stdout)
    result["cpu"] = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return result


@contextmanager
def _baseline(servers: World) -> Iterator[int]:
    with (servers.directory / "baseline.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.baseline", "18099"],
            env=os.environ | {"KUBECONFIG": str(servers.kubeconfig)},
            stdout=log,
            stderr=log,
        )
    try:
        while not _answers("http://127.0.0.1:18099/healthz"):
            assert process.poll() is None, "the baseline ended at once"
            time.sleep(0.1)
        time.sleep(1)  # its watch starts beside its health endpoint
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


async def _versions(servers: World) -> dict[str, str]:
    async with connect(servers.kubeconfig, NAMESPACE) as grants:
        items = (await grants.list())["items"]
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


async def _rows(servers: World) -> list[Relationship]:
    """Read all that the operator wrote for the grants."""
    spicedb = SpiceDB(servers.spicedb.endpoint, servers.spicedb.token_file, insecure=True)
    rows = [
        row
        for type_, relation in OWNED_RELATIONS
        if type_ in ("access_grant", "pool")
        async for row in spicedb.scan(Filter(type_, relation))
    ]
    await spicedb.close()
    return rows


async def _write_straight(servers: World, rows: list[Relationship], count: int) -> Figures:
    """Write the same relationships in full batches, one after the other."""
    spicedb = SpiceDB(servers.spicedb.endpoint, servers.spicedb.token_file, insecure=True)
    await spicedb.version()  # the connection is made before the clock starts
    batches = [
        frozenset(rows[first : first + MAX_UPDATES]) for first in range(0, len(rows), MAX_UPDATES)
    ]
    cpu, start = time.process_time(), time.monotonic()
    for batch in batches:
        await spicedb.write(Changes(touch=batch))
    seconds = time.monotonic() - start
    cpu = time.process_time() - cpu
    for batch in batches:
        await spicedb.write(Changes(delete=batch))
    await spicedb.close()
    return {
        "objects/s": count / seconds,
        "seconds": seconds,
        "CPU s": cpu,
        "SpiceDB calls/object": len(batches) / count,
    }


def _print_tables(results: list[Result]) -> None:
    figures: dict[str, dict[str, list[Figures]]] = {}
    for what, who, measured in results:
        figures.setdefault(what, {}).setdefault(who, []).append(measured)
    print("\nEach cell is the median of all rounds, with the least and the greatest value.")
    for what, columns in figures.items():
        print(f"\n### {what.capitalize()}\n")
        print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
        names = dict.fromkeys(name for rounds in columns.values() for name in rounds[0])
        for name in names:
            cells = [
                _cell([measured[name] for measured in rounds if name in measured])
                for rounds in columns.values()
            ]
            print(f"| {name} | {' | '.join(cells)} |")
    print("\n### Ratios of the rates of each round\n\n| | |\n|---|---:|")
    for what, who, to in (
        (CREATION, OPERATOR, BASELINE),
        (CREATION, OPERATOR, SPICEDB),
        (CREATION, OPERATOR, SERVER),
        (DELETION, OPERATOR, BASELINE),
    ):
        pairs = zip(figures[what][who], figures[what][to], strict=True)
        ratios = [a["objects/s"] / b["objects/s"] for a, b in pairs]
        print(f"| {what}, {who} : {to} | {_cell(ratios)} |")


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    middle, low, high = (
        _number(value) for value in (statistics.median(values), min(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def _number(value: float) -> str:
    whole = value >= _WHOLE_FROM or value == round(value)
    return f"{value:,.0f}" if whole else f"{value:.3g}"


def _machine() -> str:
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("kopf", "kubernetes", "grpcio", "aiohttp")
    )
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {kib / 2**20:.0f} GiB, "
        f"Linux {os.uname().release}, Python {sys.version.split()[0]}, {packages}; "
        f"load average before: {os.getloadavg()[0]:.2f}"
    )


if __name__ == "__main__":
    main()
