"""What the probes answer for each ailment, and what Prometheus reads."""

import re
import time
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request

from memory_operator.api import Kind
from memory_operator.drift import DriftCheck, WatchMonitor
from memory_operator.http import LOOP_PATIENCE, WATCH_PATIENCE, Health, application
from tests.unit.fakes import World

Client = TestClient[Request, Application]


class Operator:
    """As much of an operator as the pages look at."""

    def __init__(self) -> None:
        self.world = World()
        self.monitor = WatchMonitor()
        self.drift = DriftCheck(
            self.world.reconciler, self.world.kube, self.world.spicedb, self.monitor, period=300
        )
        self.drift.complete = True
        self.world.reconciler.server.reachable = True
        self.health = Health(self.world.reconciler, self.drift, self.monitor)


@pytest.fixture
def operator() -> Operator:
    return Operator()


@pytest.fixture
async def client(operator: Operator) -> AsyncIterator[Client]:
    app = application(operator.health, operator.world.reconciler)
    async with TestClient(TestServer(app)) as client:
        yield client


async def answer(client: Client, path: str) -> tuple[int, str]:
    response = await client.get(path)
    return response.status, await response.text()


def silent_watch(operator: Operator) -> None:
    operator.monitor.listed(Kind.MEMORY_AGENT, "10")
    version, since = operator.monitor._overdue[Kind.MEMORY_AGENT]
    operator.monitor._overdue[Kind.MEMORY_AGENT] = (version, since - WATCH_PATIENCE - 1)


def stuck_loop(operator: Operator) -> None:
    operator.world.agent("pm")
    operator.world.deliver()
    operator.world.reconciler.last_progress = time.monotonic() - LOOP_PATIENCE - 1


def stuck_check(operator: Operator) -> None:
    operator.drift.finished_at = time.monotonic() - 3 * 300 - LOOP_PATIENCE - 1


def spicedb_away(operator: Operator) -> None:
    operator.world.reconciler.server.reachable = False


def schema_refused(operator: Operator) -> None:
    operator.world.reconciler.server.schema_problem = "relation in use"


def not_compared(operator: Operator) -> None:
    operator.drift.complete = False


def outdated(operator: Operator) -> None:
    operator.world.reconciler.server.outdated_version = "v1.50.0"


def check_fails_while_away(operator: Operator) -> None:
    spicedb_away(operator)
    stuck_check(operator)


def rested(operator: Operator) -> None:
    operator.world.reconciler.last_progress = time.monotonic() - 10 * LOOP_PATIENCE


@pytest.mark.parametrize(
    ("ailment", "healthy", "ready", "words"),
    [
        pytest.param(lambda _: None, 200, 200, "ok", id="none"),
        pytest.param(silent_watch, 503, 503, "the watch does not deliver", id="silent watch"),
        pytest.param(stuck_loop, 503, 503, "loop makes no progress", id="stuck loop"),
        pytest.param(stuck_check, 503, 503, "drift check does not finish", id="stuck check"),
        pytest.param(rested, 200, 200, "ok", id="nothing to do for long"),
        pytest.param(spicedb_away, 200, 503, "SpiceDB does not answer", id="SpiceDB away"),
        pytest.param(check_fails_while_away, 200, 503, "does not answer", id="away for long"),
        pytest.param(schema_refused, 200, 503, "schema: relation in use", id="schema refused"),
        pytest.param(not_compared, 200, 503, "not all resources", id="just started"),
        pytest.param(outdated, 200, 200, "v1.50.0 is older", id="old SpiceDB"),
    ],
)
async def test_the_probes_tell(
    operator: Operator,
    client: Client,
    ailment: Callable[[Operator], None],
    healthy: int,
    ready: int,
    words: str,
) -> None:
    ailment(operator)
    status, text = await answer(client, "/healthz")
    assert status == healthy
    if healthy != 200:
        assert words in text
    status, text = await answer(client, "/readyz")
    assert status == ready
    assert words in text


async def test_all_that_is_wrong_is_told_line_by_line(operator: Operator, client: Client) -> None:
    spicedb_away(operator)
    schema_refused(operator)
    _, text = await answer(client, "/readyz")
    assert len(text.splitlines()) == 2


async def samples(client: Client) -> dict[str, float]:
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    text = await response.text()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_the_gauges_count_the_inventory(operator: Operator, client: Client) -> None:
    world = operator.world
    world.agent("dev")
    world.grant("soon", "dev", validTo=60)
    world.grant("later", "dev", validTo=600)
    world.grant("forever", "dev")
    world.grant("future", "dev", validFrom=600)
    world.grant("bad", "dev", resourceScope="everything")
    await world.settle()

    found = await samples(client)

    prefix = "memory_operator_"
    assert found[f'{prefix}resources{{kind="AccessGrant",state="ready"}}'] == 4
    assert found[f'{prefix}resources{{kind="AccessGrant",state="not_ready"}}'] == 1
    assert found[f'{prefix}resources{{kind="MemoryAgent",state="ready"}}'] == 1
    assert found[f'{prefix}resources{{kind="IdentityLink",state="ready"}}'] == 0
    assert found[f"{prefix}grants_active"] == 3
    assert found[f"{prefix}grant_next_expiry_timestamp_seconds"] == world.now.timestamp() + 60
    assert found[f"{prefix}queue_length"] == 0


async def test_metrics_name_no_resource_agent_or_person(operator: Operator, client: Client) -> None:
    world = operator.world
    world.agent("zebra", role="quagga", groups=[{"name": "okapi"}])
    world.link("zebra", "slack/U0ZEBRA")
    world.grant("gnu", "zebra", role="quagga", namespace="impala")
    await world.settle()
    await operator.drift.check()

    text = await (await client.get("/metrics")).text()

    assert not re.search("zebra|quagga|okapi|gnu|impala|slack", text, re.IGNORECASE)


async def test_another_path_is_not_found(client: Client) -> None:
    assert (await answer(client, "/"))[0] == 404
