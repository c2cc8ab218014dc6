"""Whatever breaks, and whenever: in the end SpiceDB holds what the custom resources say.

Every case has a SpiceDB, an organisation and an operator of its own, on a control plane that only this
module uses. Each ends with a comparison of the whole: the rows that the resources stand for are in
SpiceDB, no others of the operator's relations are, and every resource is Ready.

What is random depends on the round's number only: `--chaos N` runs N rounds.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from authzed.api.v1 import (
    ReadSchemaRequest,
    RelationshipUpdate,
    SyncClient,
    WriteRelationshipsRequest,
    WriteSchemaRequest,
)
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from memory_operator.names import FINALIZER, GROUP, VERSION
from tests import cluster
from tests.cluster.host import state_directory
from tests.cluster.process import Processes
from tests.support.expectation import ended_rows, expected_rows
from tests.support.operator import OperatorProcess
from tests.support.organization import (
    Organization,
    instant,
    is_ready,
    may,
    new_organization,
    rows,
    touch,
    wait_for,
)
from tests.support.proxy import Proxy
from tests.support.spicedb import SpiceDB
from tests.support.validation import parse_relationship

Json = dict[str, Any]
_NUMBERS = itertools.count()
KINDS = ("MemoryAgent", "IdentityLink", "AccessGrant")
SCHEMA = (Path(__file__).parents[2] / "schema" / "schema.zed").read_text()
FOREIGN_SCHEMA = f"{SCHEMA}\ndefinition foreign {{\n  relation whom: agent\n}}\n"
NAME = "faults"
YEAR = 365 * 86_400

SOON = 60.0
"""Seconds in which anything is to be mended on a machine that does other things as well."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each case once a round."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.option.chaos), scope="module")


@dataclass
class World:
    """An organisation with all that serves it."""

    organization: Organization
    spicedb: SpiceDB
    operator: OperatorProcess
    prefix: str = ""

    @property
    def name(self) -> str:
        return self.organization.name

    @property
    def zed(self) -> SyncClient:
        return self.spicedb.client()

    def bodies(self) -> list[Json]:
        return [{**item, "kind": kind} for kind in KINDS for item in self.organization.list(kind)]

    def rows(self) -> set[str]:
        """The rows of the relations that the operator owns, whoever has written them."""
        return {row for row in rows(self.zed) if not _is_others(row)}

    def settle(self, seconds: float = SOON) -> set[str]:
        """Wait until all is as it should be; give the rows that SpiceDB holds."""
        held: set[str] = set()
        problem = ""

        def settled() -> bool:
            nonlocal held, problem
            bodies = self.bodies()
            waiting = [_named(body) for body in bodies if not is_ready(body)]
            waiting += [_named(body) for body in bodies if "deletionTimestamp" in body["metadata"]]
            try:
                held = self.rows()
            except grpc.RpcError as error:  # away, or without a schema yet
                problem = str(error)
                return False
            wanted = expected_rows(bodies, prefix=self.prefix)
            surplus = held - wanted - ended_rows(bodies, prefix=self.prefix)
            missing = wanted - held
            problem = f"{waiting[:5]=} {sorted(missing)[:5]=} {sorted(surplus)[:5]=}"
            return not (waiting or missing or surplus)

        wait_for(settled, seconds, lambda: f"{problem}\n{_tail(self.operator)}")
        return held

    def see_drift_checks(self, count: int) -> None:
        """Wait until so many more drift checks have gone through."""

        def done() -> float:
            return self.operator.metric("drift_checks_total", result="ok")

        before = done()
        wait_for(lambda: done() >= before + count, 30, lambda: _tail(self.operator))

    def populate(self, grants: int = 10) -> set[str]:
        """Make an organisation of some size and wait until it is in SpiceDB."""
        self.organization.agent("bot", groups=[{"name": "eng", "access": "write"}])
        self.organization.agent("pm", role="pm")
        self.organization.link("pm", "slack/U1", "email/a.b@example.com")
        _all(lambda n: self.organization.grant(f"g{n}", "bot", role=f"r{n % 3}"), range(grants))
        return self.settle()


def _is_others(row: str) -> bool:
    """Whether a row is of recall's making: an open pool, or a person among a group's readers."""
    return "#open_to@" in row or (row.startswith("group:") and "@person:" in row)


def _named(body: Json) -> str:
    conditions = body.get("status", {}).get("conditions", [])
    return f"{body['kind']}/{body['metadata']['name']} {[c['reason'] for c in conditions]}"


def _tail(operator: OperatorProcess) -> str:
    return operator.log.read_text()[-1500:]


def _all(work: Callable[[Any], Any], items: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, items))


@pytest.fixture(scope="module")
def plane() -> Iterator[cluster.Cluster]:
    control_plane = cluster.up("local", control_plane=True, name=NAME)
    try:
        control_plane.kubectl("apply", "-f", "crds")
        control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all")
        yield control_plane
    finally:
        control_plane.down()


@pytest.fixture(scope="module")
def administrator(plane: cluster.Cluster) -> Iterator[client.ApiClient]:
    with config.new_client_from_config(str(plane.kubeconfig)) as api:
        yield api


MakeWorld = Callable[..., World]


@contextmanager
def _worlds(
    plane: cluster.Cluster, administrator: client.ApiClient, directory: Path
) -> Iterator[MakeWorld]:
    """Make worlds, and take them down in the end."""
    with ExitStack() as stack:

        def make(
            *,
            spicedb: SpiceDB | None = None,
            kubeconfig: Path = plane.kubeconfig,
            tls: bool = False,
            start: bool = True,
            **settings: str,
        ) -> World:
            # Not taken down: the control plane goes as a whole.
            organization = Organization(administrator, f"org-{next(_NUMBERS)}")
            organization.core.create_namespace({"metadata": {"name": organization.name}})
            place = directory / organization.name
            if spicedb is None:
                spicedb = stack.enter_context(SpiceDB(place / "spicedb", tls=tls))
            settings = {"watch_namespaces": organization.name} | settings
            operator = OperatorProcess(kubeconfig, spicedb, place, **settings)
            stack.callback(operator.kill)
            if start:
                operator.start()
            return World(organization, spicedb, operator, settings.get("id_prefix", ""))

        yield make


@pytest.fixture
def make_world(
    plane: cluster.Cluster, administrator: client.ApiClient, tmp_path: Path
) -> Iterator[MakeWorld]:
    with _worlds(plane, administrator, tmp_path) as make:
        yield make


@pytest.fixture(scope="module", autouse=True)
def frozen_watch(
    seed: int,
    plane: cluster.Cluster,
    administrator: client.ApiClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator["Future[float]"]:
    """The one case that waits for more than a minute; it does so beside all others."""
    directory = tmp_path_factory.mktemp(f"frozen{seed}")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_freeze_the_watch, plane, administrator, directory)


def _freeze_the_watch(
    plane: cluster.Cluster, administrator: client.ApiClient, directory: Path
) -> float:
    """Give the seconds after which a grant was written that the watch did not bring."""
    settings = yaml.safe_load(plane.kubeconfig.read_text())
    server = settings["clusters"][0]["cluster"]["server"]
    with (
        Proxy(server.removeprefix("https://")) as proxy,
        _worlds(plane, administrator, directory) as make,
    ):
        settings["clusters"][0]["cluster"]["server"] = f"https://{proxy.endpoint}"
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(settings))
        world = make(kubeconfig=kubeconfig, drift_period_seconds="86400")
        world.populate()
        proxy.freeze()
        started = time.monotonic()
        world.organization.grant("late", "bot")
        world.settle(150)
        assert world.operator.get("healthz")[0] == 200
        return time.monotonic() - started


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """The dice of this case in this round."""
    return random.Random(f"{request.node.originalname} {seed}")


def test_the_operator_is_killed_at_random_moments(
    make_world: MakeWorld, rng: random.Random
) -> None:
    """While 200 grants are made, edited and deleted. Every life begins in the midst of it."""
    world = make_world(start=False)
    organization = world.organization
    for agent in ("one", "two"):
        organization.agent(agent)

    def live(number: int) -> None:
        """What one grant goes through, slowly enough to outlast several operators."""
        dice = random.Random(f"{number} {seed}")
        name = f"g{number}"
        organization.grant(name, "one", role="r0", validTo=instant(YEAR))
        for _ in range(dice.randrange(3)):
            time.sleep(dice.uniform(0, 1))
            change: Json = dice.choice(
                [
                    {"grantorRole": f"r{dice.randrange(9)}"},
                    {"granteeAgent": dice.choice(["one", "two", "nobody"])},
                    {"resourceScope": dice.choice(["private", "team", "global"])},
                    {"validTo": instant(YEAR + dice.randrange(YEAR))},
                ]
            )
            organization.patch("AccessGrant", name, **change)
        if dice.random() < 0.3:
            time.sleep(dice.uniform(0, 1))
            organization.delete("AccessGrant", name)

    seed = rng.random()
    with ThreadPoolExecutor(12) as pool:
        lives = [pool.submit(live, number) for number in range(200)]
        for _ in range(4):
            world.operator.start()
            time.sleep(rng.uniform(0, 1.5))
            world.operator.kill()
        for each in lives:
            each.result()
    world.operator.start()

    world.settle()
    # What is left is right, and stays so: the next life has nothing to do.
    world.operator.kill()
    world.operator.start()
    world.settle()
    assert world.operator.metric("spicedb_requests_total", method="WriteRelationships") == 0


def test_spicedb_is_away_while_everything_changes(make_world: MakeWorld) -> None:
    """Its memory is gone when it comes back: the schema and all rows are written again."""
    world = make_world()
    organization = world.organization
    world.populate()
    world.spicedb.kill()

    organization.grant("new", "bot")
    organization.agent("newcomer")
    organization.patch("AccessGrant", "g1", grantorRole="other")
    organization.delete("AccessGrant", "g2")
    organization.delete("IdentityLink", "pm")

    for kind, name in (("AccessGrant", "new"), ("MemoryAgent", "newcomer"), ("AccessGrant", "g1")):
        organization.wait_condition(kind, name, "False", "SpiceDBUnavailable", seconds=SOON)
    # The two that are to go say why they don't, and wait.
    for kind, name in (("AccessGrant", "g2"), ("IdentityLink", "pm")):
        organization.wait_condition(kind, name, "False", "SpiceDBUnavailable", seconds=SOON)
        assert (organization.get(kind, name) or {})["metadata"]["finalizers"] == [FINALIZER]
    status, text = world.operator.get("readyz")
    assert status == 503
    assert "SpiceDB does not answer" in text
    assert world.operator.get("healthz")[0] == 200
    # After half a minute those say so as well to which nothing has happened.
    organization.wait_condition("AccessGrant", "g0", "False", "SpiceDBUnavailable", seconds=90)

    def told() -> list[tuple[str, str]]:
        events = organization.core.list_namespaced_event(organization.name).items
        return [
            (event.involved_object.kind, event.involved_object.name)
            for event in events
            if event.reason == "SpiceDBUnavailable"
        ]

    # Events are posted beside the work, a little later than the status.
    expected = {("AccessGrant", name) for name in ("new", "g0", "g1", "g2")}
    wait_for(lambda: expected <= set(told()), SOON, lambda: str(told()))
    seen = told()
    assert len(seen) == len(set(seen)), seen

    world.spicedb.start()

    held = world.settle()
    assert len(held) == 4 + 2 * 10
    world.operator.wait_ready()
    assert may(world.zed, f"pool:{world.name}/other/private", "read", f"agent:{world.name}/bot")


def test_spicedb_is_killed_and_started_again_under_load(
    make_world: MakeWorld, rng: random.Random
) -> None:
    """A restart with an empty memory is noticed long before the next drift check."""
    world = make_world()
    world.populate()

    with ThreadPoolExecutor(4) as pool:
        made = [
            pool.submit(world.organization.grant, f"more{number}", "bot", role=f"r{number % 5}")
            for number in range(100)
        ]
        for _ in range(3):
            time.sleep(rng.uniform(0, 1))
            world.spicedb.kill()
            world.spicedb.start()
        for each in made:
            each.result()

    assert len(world.settle()) == 6 + 2 * 110
    world.operator.wait_ready()


def test_spicedb_is_slow_and_then_silent(make_world: MakeWorld) -> None:
    world = make_world(start=False)
    with Proxy(world.spicedb.endpoint) as proxy:
        world.operator.environment["MEMORY_OPERATOR_SPICEDB_ENDPOINT"] = proxy.endpoint
        proxy.delay = 0.3
        world.operator.start()
        world.populate(50)

        proxy.delay = 0.0
        proxy.freeze()  # a connection that nobody closes and nobody answers
        world.organization.grant("late", "bot")
        world.organization.wait_condition(
            "AccessGrant", "late", "False", "SpiceDBUnavailable", seconds=SOON
        )
        world.settle()


def test_the_key_is_changed_twice(make_world: MakeWorld) -> None:
    """The mounted Secret lags behind; the operator takes the new one without a restart."""
    world = make_world()
    world.populate()
    for number in range(2):
        world.spicedb.rotate_key()
        name = f"new{number}"
        world.organization.grant(name, "bot")
        problem = "SpiceDB refuses the operator's key: check the token Secret"

        def reported(name: str = name, problem: str = problem) -> bool:
            return problem in json.dumps(world.organization.get("AccessGrant", name))

        wait_for(reported, SOON, lambda: _tail(world.operator))
        assert world.organization.condition("AccessGrant", name) == ("False", "SpiceDBUnavailable")
        assert world.spicedb.key not in _tail(world.operator)

        world.spicedb.publish_key()

        world.settle()


def test_spicedb_serves_tls(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(tls=True)
    world.populate()
    world.operator.stop()
    with SpiceDB(tmp_path / "other", tls=True) as other:
        # The certificate of another authority: nothing is said to a server that isn't ours.
        world.operator.environment["MEMORY_OPERATOR_SPICEDB_CA_FILE"] = str(other.ca_file)
        world.operator.start(ready=False)
        world.organization.grant("new", "bot")
        world.organization.wait_condition(
            "AccessGrant", "new", "False", "SpiceDBUnavailable", seconds=SOON
        )
        assert world.operator.get("readyz")[0] == 503
    world.operator.stop()
    world.operator.environment["MEMORY_OPERATOR_SPICEDB_CA_FILE"] = str(world.spicedb.ca_file)
    world.operator.start()
    world.settle()


def test_rows_are_taken_away_and_added_by_hand(make_world: MakeWorld, rng: random.Random) -> None:
    world = make_world(drift_period_seconds="2")
    org = world.name
    held = world.populate()
    others = {
        f"memory_fragment:{org}/m1#pool@pool:{org}/r1/private",
        f"memory_fragment:{org}/m1#shared_by@agent:{org}/bot",
        f"memory_fragment:{org}/m1#involves@person:{org}/slack/U1",
        f"pool:{org}/r1/team#open_to@organization:{org}",
        f"group:{org}/eng#reader@person:{org}/slack/U9",
        f"group:{org}/eng#writer@person:{org}/slack/U1",
    }
    touch(world.zed, others)
    known = min(row for row in held if "#holder" in row)
    (grant, _, rest) = known.partition("#holder@")
    holder = rest.partition("[")[0]
    forged = {
        f"organization:{org}#member@agent:{org}/stranger",
        f"organization:{org}-b#member@agent:{org}/bot",
        f"group:{org}/secret#reader@agent:{org}/bot",
        f"agent:{org}/bot#owner@person:{org}/slack/U7",
        f"agent:{org}/pm#owner@person:{org}/slack/U7",
        f"person:{org}/slack/U7#agent@agent:{org}/pm",
        f"person:{org}/slack/U7#agent@agent:{org}/stranger",
        f'access_grant:{org}/none#holder@agent:{org}/bot[not_before:{{"valid_from":"2001-01-01T00:00:00Z"}}]',
        f"pool:{org}/r9/global#grant@access_grant:{org}/none",
        f"pool:{org}/r9/global#grant@{grant}",
        f'{grant}#holder@agent:{org}/pm[not_before:{{"valid_from":"2001-01-01T00:00:00Z"}}]',
        # The same row as ours but open since long ago.
        f'{grant}#holder@{holder}[not_before:{{"valid_from":"2001-01-01T00:00:00Z"}}]',
    }
    for _ in range(3):
        taken = set(rng.sample(sorted(held), rng.randint(1, len(held))))
        added = set(rng.sample(sorted(forged), rng.randint(1, len(forged))))
        _remove(world.zed, taken)
        touch(world.zed, added)
        assert world.rows() != held

        assert world.settle(20) == held

    assert _all_rows(world.zed) - held == others
    # Repaired means done: two more checks write nothing.
    writes = world.operator.metric("spicedb_requests_total", method="WriteRelationships")
    world.see_drift_checks(2)
    assert world.operator.metric("spicedb_requests_total", method="WriteRelationships") == writes
    assert world.operator.metric("drift_repairs_total") > 0


def test_a_restart_with_300_unchanged_grants_writes_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.organization.grant("over", "bot", validFrom=instant(-9), validTo=instant(-5))
    world.populate(300)
    world.organization.wait_condition("AccessGrant", "over", "False", "Expired", "Active")
    world.operator.stop()
    before = {_named(body): body["metadata"]["resourceVersion"] for body in world.bodies()}
    logged = _logged_writes(world)

    world.operator.start()
    world.settle()
    # A later change is noticed all the same: the watch has been through the 300 by then.
    world.organization.agent("newcomer")
    world.organization.wait_ready("MemoryAgent")

    after = {_named(body): body["metadata"]["resourceVersion"] for body in world.bodies()}
    assert {name: after[name] for name in before} == before
    assert world.operator.metric("spicedb_requests_total", method="WriteRelationships") == 1
    assert _logged_writes(world) == logged + 1


def test_the_schema_is_replaced_by_somebody_else(make_world: MakeWorld) -> None:
    world = make_world()
    world.populate()
    world.zed.WriteSchema(WriteSchemaRequest(schema=FOREIGN_SCHEMA))

    def is_ours() -> bool:
        return "foreign" not in world.zed.ReadSchema(ReadSchemaRequest()).schema_text

    wait_for(is_ours, SOON, lambda: _tail(world.operator))
    world.settle()


def test_the_schema_is_refused(make_world: MakeWorld) -> None:
    """A relation that ours lacks holds a live row: SpiceDB won't let go of it, nor do we force it."""
    world = make_world(start=False)
    organization, zed = world.organization, world.zed
    foreign = "foreign:1#whom@agent:somebody"
    organization.agent("bot")
    zed.WriteSchema(WriteSchemaRequest(schema=FOREIGN_SCHEMA))
    touch(zed, [foreign])
    world.operator.start(ready=False)

    organization.wait_condition("MemoryAgent", "bot", "False", "SchemaRefused", seconds=SOON)
    organization.grant("new", "bot")
    organization.wait_condition("AccessGrant", "new", "False", "SchemaRefused", seconds=SOON)
    assert world.rows() == set()
    status, text = world.operator.get("readyz")
    assert status == 503
    assert "SpiceDB refuses the schema" in text
    assert world.operator.metric("schema_refused") == 1

    _remove(zed, {foreign})
    world.settle()
    world.operator.wait_ready()
    assert world.operator.metric("schema_refused") == 0

    # Refused later on: nothing new is granted, and what is to go still goes.
    zed.WriteSchema(WriteSchemaRequest(schema=FOREIGN_SCHEMA))
    touch(zed, [foreign])
    organization.wait_condition("MemoryAgent", "bot", "False", "SchemaRefused", seconds=SOON)
    organization.delete("AccessGrant", "new")
    organization.wait_gone("AccessGrant", "new")
    assert not [row for row in world.rows() if "access_grant" in row]
    organization.agent("later")
    organization.wait_condition("MemoryAgent", "later", "False", "SchemaRefused", seconds=SOON)
    assert len(world.rows()) == 1
    _remove(zed, {foreign})
    assert len(world.settle()) == 2


def test_finalizers_are_removed_by_hand_while_the_operator_is_down(make_world: MakeWorld) -> None:
    """The rows of what is gone are found by the first drift check."""
    world = make_world()
    organization = world.organization
    world.populate()
    world.operator.stop()
    for kind, name in (("AccessGrant", "g1"), ("IdentityLink", "pm"), ("MemoryAgent", "bot")):
        organization.delete(kind, name)
        organization.objects.patch_namespaced_custom_object(
            GROUP, VERSION, world.name, f"{kind.lower()}s", name, {"metadata": {"finalizers": []}}
        )
        organization.wait_gone(kind, name)
    # Made anew for another role before anybody noticed: the rows of the first one go, too.
    organization.grant("g1", "bot", role="other")

    world.operator.start()

    held = world.settle()
    assert not [row for row in held if "slack" in row or ("#member@" in row and "/bot" in row)]


def test_finalizers_are_released_for_an_operator_that_is_gone_for_good(
    plane: cluster.Cluster, make_world: MakeWorld
) -> None:
    world = make_world()
    organization = world.organization
    world.populate()
    world.operator.stop()
    for item in world.bodies():
        organization.delete(item["kind"], item["metadata"]["name"])

    def release(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "memory_operator", "release-finalizers", *options],
            env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    text = release()
    assert f"IdentityLink {world.name}/pm\n" in text
    assert "would be released. Do so with --yes, once no operator runs any more." in text
    assert len(world.bodies()) == 13
    assert "13 would be released" in release("--namespace", world.name)
    assert "0 released" in release("--namespace", "default", "--yes")
    assert len(world.bodies()) == 13

    text = release("--namespace", world.name, "--yes")

    assert "13 released. What they granted is still in SpiceDB: remove it there." in text
    wait_for(lambda: not world.bodies(), 10, lambda: str(world.bodies()))
    assert len(world.rows()) == 26


def test_two_clusters_share_one_spicedb_by_their_prefixes(make_world: MakeWorld) -> None:
    east = make_world(id_prefix="east", drift_period_seconds="2")
    west = make_world(id_prefix="west", drift_period_seconds="2", spicedb=east.spicedb)
    # What other clusters hold of namespaces of the same names.
    foreign = {
        f"organization:{prefix}{world.name}#member@agent:{prefix}{world.name}/bot"
        for world in (east, west)
        for prefix in ("", "north/", "eastern/", "east-2/")
    } | {
        f"pool:west/{east.name}/pm/private#grant@access_grant:west/{east.name}/g",
        f"agent:east/{west.name}/pm#owner@person:east/{west.name}/slack/U1",
    }
    touch(east.zed, foreign)
    for world in (east, west):
        world.organization.agent("bot")
        world.organization.link("bot", "slack/U1")
        world.organization.grant("g", "bot")
    own = {
        row for world in (east, west) for row in expected_rows(world.bodies(), prefix=world.prefix)
    }
    assert len(own) == 10

    def as_it_should_be() -> bool:
        return rows(east.zed) == own | foreign

    wait_for(as_it_should_be, SOON, lambda: str(rows(east.zed) ^ (own | foreign)))
    for world in (east, west):
        world.see_drift_checks(2)
    assert as_it_should_be()
    west.organization.delete("AccessGrant", "g")
    west.organization.wait_gone("AccessGrant", "g")
    gone = {row for row in own if "access_grant:west" in row}
    assert rows(east.zed) == (own | foreign) - gone


def test_an_operator_of_some_namespaces_leaves_the_others_alone(
    make_world: MakeWorld, administrator: client.ApiClient
) -> None:
    with new_organization(administrator) as other:
        world = make_world(drift_period_seconds="2")
        other.agent("bot")
        other.grant("g", "bot")
        foreign = {
            f"organization:{other.name}#member@agent:{other.name}/somebody",
            f"pool:{other.name}/pm/private#grant@access_grant:{other.name}/none",
        }
        touch(world.zed, foreign)
        world.organization.agent("bot")
        world.see_drift_checks(3)

        assert rows(world.zed) == foreign | expected_rows(world.bodies())
        for kind in KINDS:
            for item in other.list(kind):
                assert "finalizers" not in item["metadata"]
                assert "status" not in item


def test_a_watch_that_has_fallen_silent_is_renewed(frozen_watch: "Future[float]") -> None:
    """As behind a firewall that forgets connections. kopf gives a silent watch 70 s."""
    seconds = frozen_watch.result()

    print(f"written after {seconds:.0f} s")
    assert seconds < 130


def test_the_api_server_is_killed_under_load(
    plane: cluster.Cluster, make_world: MakeWorld, rng: random.Random
) -> None:
    world = make_world()
    world.populate()
    processes = Processes(state_directory() / NAME)

    organization = world.organization

    def live(number: int) -> None:
        _persistently(lambda: organization.grant(f"more{number}", "bot", role="r1"))
        _persistently(lambda: organization.patch("AccessGrant", f"more{number}", grantorRole="r2"))
        if number % 3 == 0:
            _persistently(lambda: organization.delete("AccessGrant", f"more{number}"))

    with ThreadPoolExecutor(8) as pool:
        lives = [pool.submit(live, number) for number in range(100)]
        for _ in range(2):
            time.sleep(rng.uniform(0.2, 1))
            _restart(processes, "kube-apiserver")
            wait_for(lambda: plane.kubectl("get", "--raw=/readyz", check=False) == "ok", SOON, str)
        for each in lives:
            each.result()

    assert len(world.settle(120)) >= 26 + 2 * 66
    assert world.operator.get("healthz")[0] == 200


def _persistently(work: Callable[[], Any]) -> None:
    """Try again as a person would; what was done before the answer was lost is done."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            work()
        except client.ApiException as error:
            if error.status in (404, 409):
                return
        except HTTPError:  # nobody answers
            pass
        else:
            return
        assert time.monotonic() < deadline, "the API server does not come back"
        time.sleep(0.3)


def _restart(processes: Processes, name: str) -> None:
    pid = processes.pid(name)
    assert pid
    command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    os.kill(pid, 9)
    wait_for(lambda: processes.pid(name) is None, 20, lambda: f"{name} lives on")
    processes.start(name, *command)


def _remove(zed: SyncClient, relationships: set[str]) -> None:
    zed.WriteRelationships(
        WriteRelationshipsRequest(
            updates=[
                RelationshipUpdate(
                    operation=RelationshipUpdate.OPERATION_DELETE,
                    relationship=parse_relationship(row),
                )
                for row in relationships
            ]
        )
    )


def _all_rows(zed: SyncClient) -> set[str]:
    """All rows, memories included."""
    return rows(zed) | rows(zed, types=("memory_fragment",))


def _logged_writes(world: World) -> int:
    return world.spicedb.log.read_text().count('"grpc.method":"WriteRelationships"')
