"""Stories: what people and fate do to both servers, and where the operator leaves them."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

from memory_operator.api import Kind, ObjectKey
from memory_operator.desired import decide, unit_of
from memory_operator.drift import DriftCheck, ServerWatch, WatchMonitor
from memory_operator.errors import ConflictError, KubernetesError
from memory_operator.identity import Ids
from memory_operator.names import FINALIZER
from memory_operator.reconcile import WORKERS, Reconciler
from memory_operator.relationships import Object, Relationship, plan
from tests.unit.fakes import OPERATOR_NAMESPACE, START, FakeSpiceDB, KilledError, World

READY = ("True", "Reconciled")
NOBODY = Object("agent", "acme/nobody")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """Give the audit lines so far."""
    caplog.set_level("INFO", "memory_operator.audit")

    def lines() -> list[dict[str, Any]]:
        return [
            json.loads(record.getMessage())
            for record in caplog.records
            if record.name == "memory_operator.audit"
        ]

    return lines


def drift_check(world: World) -> DriftCheck:
    return DriftCheck(
        world.reconciler, world.kube, world.spicedb, WatchMonitor(), period=300, namespaces=()
    )


def window(start: datetime, end: datetime) -> str:
    expiration = end + timedelta(minutes=10)
    return (
        f'[grant_window:{{"valid_from":"{start:%Y-%m-%dT%H:%M:%SZ}",'
        f'"valid_to":"{end:%Y-%m-%dT%H:%M:%SZ}"}}]'
        f"[expiration:{expiration:%Y-%m-%dT%H:%M:%SZ}]"
    )


def not_before(start: datetime) -> str:
    return f'[not_before:{{"valid_from":"{start:%Y-%m-%dT%H:%M:%SZ}"}}]'


def populate(world: World) -> None:
    """A small organisation with one of everything that can be Ready."""
    world.agent("pm", role="pm", groups=[{"name": "eng", "access": "write"}, {"name": "all"}])
    world.agent("dev")
    world.link("pm", "slack/U1", "email/pm@acme.example")
    world.grant("oncall", "dev", validTo=3600)
    world.grant("forever", "dev", role="sre")
    world.grant("later", "nobody", validFrom=600, validTo=1200)
    world.agent("pm", role="pm", namespace="globex")


def assert_true(world: World) -> None:
    """Every row is right, every resource says so, and nothing is left of anything else."""
    inventory = world.reconciler.inventory
    rows: dict[ObjectKey | None, set[Relationship]] = {}
    for row in world.spicedb.rows():
        rows.setdefault(unit_of(row, world.ids), set()).add(row)
    living = {
        ObjectKey(Kind(body["kind"]), body["metadata"]["namespace"], body["metadata"]["name"])
        for body in world.kube.listing()
    }
    assert set(inventory) == living
    assert rows.keys() - {None} <= living
    for key in living:
        verdict = decide(key, inventory, world.ids, OPERATOR_NAMESPACE, world.now)
        assert not plan(rows.get(key, set()), verdict.desired), key
        expected = "False" if verdict.refusal else "True"
        assert world.ready(key)[0] == expected, world.kube.get(key)


# Creating, editing, deleting


async def test_an_agent_becomes_a_member_of_its_organisation_and_groups(world: World) -> None:
    pm = world.agent("pm", role="pm", groups=[{"name": "eng", "access": "write"}, {"name": "all"}])

    await world.settle()

    assert world.spicedb.lines() == {
        "organization:acme#member@agent:acme/pm",
        "group:acme/eng#writer@agent:acme/pm",
        "group:acme/all#reader@agent:acme/pm",
    }
    assert world.ready(pm) == READY
    body = world.kube.get(pm)
    assert body
    assert body["status"]["subject"] == "agent:acme/pm"
    assert body["status"]["zedToken"] == "token-1"
    assert body["status"]["observedGeneration"] == 1
    assert body["metadata"]["finalizers"] == [FINALIZER]


async def test_the_finalizer_stands_before_the_first_relationship(world: World) -> None:
    key = world.agent("pm")
    world.fate.kill_before = 1

    with pytest.raises(KilledError):
        await world.settle()

    assert world.kube.patches == [("finalizer", key)]
    assert not world.spicedb.rows()


async def test_a_link_ties_a_person_and_aliases_to_the_agent(world: World) -> None:
    agent = world.agent("pm")
    link = world.link("pm", "slack/U1", "email/a@b")
    await world.settle()

    assert world.spicedb.lines() - {"organization:acme#member@agent:acme/pm"} == {
        "agent:acme/pm#owner@person:acme/slack/U1",
        "person:acme/slack/U1#agent@agent:acme/pm",
        "person:acme/email/a=40b#agent@agent:acme/pm",
    }
    assert world.ready(link) == READY
    body = world.kube.get(agent)
    assert body
    assert body["status"]["owner"] == "slack/U1"


async def test_a_link_edited_to_another_person_leaves_nothing_of_the_first(world: World) -> None:
    world.agent("pm")
    link = world.link("pm", "slack/U1", "email/a@b")
    await world.settle()

    world.kube.edit(link, person={"provider": "slack", "id": "U2"}, aliases=[])
    await world.settle()

    assert world.spicedb.lines() - {"organization:acme#member@agent:acme/pm"} == {
        "agent:acme/pm#owner@person:acme/slack/U2",
        "person:acme/slack/U2#agent@agent:acme/pm",
    }
    assert_true(world)


async def test_a_deleted_link_leaves_the_agent_without_owner(world: World) -> None:
    agent = world.agent("pm")
    link = world.link("pm", "slack/U1")
    await world.settle()

    world.kube.delete(link)
    await world.settle()

    assert world.spicedb.lines() == {"organization:acme#member@agent:acme/pm"}
    body = world.kube.get(agent)
    assert body
    assert "owner" not in body["status"]
    assert_true(world)


async def test_an_edited_grant_moves_in_one_write(world: World) -> None:
    grant = world.grant("oncall", "dev", role="pm", validTo=60)
    await world.settle()
    world.forget_calls()

    world.kube.edit(grant, grantorRole="sre", granteeAgent="ops")
    await world.settle()

    end = START + timedelta(seconds=60)
    assert world.spicedb.lines() == {
        "pool:acme/sre/private#grant@access_grant:acme/oncall",
        f"access_grant:acme/oncall#holder_until@agent:acme/ops{window(START, end)}",
    }
    (write,) = world.spicedb.writes
    assert (len(write.touch), len(write.delete)) == (2, 2)
    assert world.ready(grant) == READY


async def test_an_edited_end_replaces_the_row_without_deleting_it(world: World) -> None:
    grant = world.grant("oncall", "dev", validTo=60)
    await world.settle()
    world.forget_calls()

    world.kube.edit(grant, validTo=world.instant(30))
    await world.settle()

    (write,) = world.spicedb.writes
    assert (len(write.touch), len(write.delete)) == (1, 0)
    assert_true(world)


async def test_one_of_two_grants_for_the_same_pair_can_go_alone(world: World) -> None:
    short, long = world.grant("short", "dev", validTo=60), world.grant("long", "dev", validTo=3600)
    await world.settle()

    world.kube.delete(short)
    await world.settle()

    assert world.spicedb.lines() == {
        "pool:acme/pm/private#grant@access_grant:acme/long",
        "access_grant:acme/long#holder_until@agent:acme/dev"
        + window(START, START + timedelta(hours=1)),
    }
    assert world.kube.get(short) is None
    assert world.ready(long) == READY


async def test_organisations_with_the_same_names_have_no_row_in_common(world: World) -> None:
    world.agent("pm", namespace="acme")
    other = world.agent("pm", namespace="globex")
    await world.settle()

    world.kube.delete(other)
    await world.settle()

    assert world.spicedb.lines() == {"organization:acme#member@agent:acme/pm"}


async def test_a_grant_for_an_unknown_agent_is_written_and_says_so(world: World) -> None:
    grant = world.grant("oncall", "newcomer", validTo=60)
    await world.settle()
    assert world.kube.condition(grant, "GranteeFound") == ("False", "NotFound")
    assert world.ready(grant) == READY
    assert len(world.spicedb.rows()) == 2

    world.agent("newcomer")
    await world.settle()

    assert world.kube.condition(grant, "GranteeFound") == ("True", "Found")
    assert len(world.spicedb.rows()) == 3


async def test_the_last_agent_of_a_role_takes_no_grant_along(world: World) -> None:
    agent = world.agent("pm", role="pm")
    grant = world.grant("oncall", "dev", role="pm")
    await world.settle()

    world.kube.delete(agent)
    await world.settle()

    assert world.spicedb.lines() == {
        "pool:acme/pm/private#grant@access_grant:acme/oncall",
        f"access_grant:acme/oncall#holder@agent:acme/dev{not_before(START)}",
    }
    assert world.ready(grant) == READY


async def test_two_agents_with_one_account_are_both_out_until_one_gives_way(world: World) -> None:
    first = world.agent("one", serviceAccountName="shared")
    await world.settle()
    assert world.ready(first) == READY

    second = world.agent("two", serviceAccountName="shared")
    await world.settle()
    for key in (first, second):
        assert world.ready(key) == ("False", "Conflict")
        assert world.kube.condition(key, "Conflict") == ("True", "SharedServiceAccount")
    assert not world.spicedb.rows()

    world.kube.edit(second, serviceAccountName="own")
    await world.settle()
    for key in (first, second):
        assert world.ready(key) == READY
        assert world.kube.condition(key, "Conflict") == ("", "")
    assert len(world.spicedb.rows()) == 2


async def test_a_rival_that_is_deleted_leaves_the_account_to_the_other(world: World) -> None:
    first = world.agent("one", serviceAccountName="shared")
    second = world.agent("two", serviceAccountName="shared")
    await world.settle()

    world.kube.delete(second)
    await world.settle()

    assert world.kube.get(second) is None
    assert world.ready(first) == READY
    assert_true(world)


async def test_a_resource_in_the_operators_namespace_grants_nothing(world: World) -> None:
    key = world.agent("pm", namespace=OPERATOR_NAMESPACE)

    await world.settle()

    assert world.ready(key) == ("False", "ReservedNamespace")
    assert not world.spicedb.rows()
    body = world.kube.get(key)
    assert body
    assert "finalizers" not in body["metadata"]


async def test_a_link_that_does_not_bear_its_agents_name_grants_nothing(world: World) -> None:
    agent = world.agent("pm")
    key = world.link("pm", "slack/U1")
    world.kube.edit(key, agent="somebody")

    await world.settle()

    assert world.ready(key) == ("False", "InvalidName")
    assert world.spicedb.lines() == {"organization:acme#member@agent:acme/pm"}
    body = world.kube.get(agent)
    assert body
    assert "owner" not in body["status"]


async def test_a_spec_that_becomes_unreadable_takes_its_access_away(world: World) -> None:
    grant = world.grant("oncall", "dev")
    await world.settle()

    world.kube.edit(grant, resourceScope="everything")
    await world.settle()

    assert world.ready(grant) == ("False", "InvalidSpec")
    assert not world.spicedb.rows()


async def test_a_namespace_full_of_grants_can_be_deleted(world: World) -> None:
    keys = [world.grant(f"g{n}", "dev", validTo=60 + n) for n in range(50)]
    keys.append(world.agent("dev"))
    await world.settle()

    for key in keys:
        world.kube.delete(key)
    await world.settle()

    assert not world.kube.listing()
    assert not world.spicedb.rows()
    assert not len(world.reconciler.inventory)


async def test_another_finalizer_is_kept_and_delays_nothing_of_ours(world: World) -> None:
    key = world.agent("pm")
    world.kube.tamper(
        key,
        metadata=(world.kube.get(key) or {})["metadata"]
        | {"finalizers": ["example.com/theirs"], "resourceVersion": ""},
    )
    await world.settle()
    world.kube.delete(key)
    await world.settle()

    body = world.kube.get(key)
    assert body
    assert body["metadata"]["finalizers"] == ["example.com/theirs"]
    assert not world.spicedb.rows()


async def test_an_object_made_anew_under_its_old_name_starts_afresh(world: World) -> None:
    old = world.grant("oncall", "dev", role="pm", validTo=60)
    await world.settle()

    world.kube.force_delete(old)
    new = world.grant("oncall", "ops", role="sre")
    await world.settle()

    assert world.spicedb.lines() == {
        "pool:acme/sre/private#grant@access_grant:acme/oncall",
        f"access_grant:acme/oncall#holder@agent:acme/ops{not_before(START)}",
    }
    assert world.ready(new) == READY


async def test_restored_yaml_with_a_status_and_annotations_is_taken_at_its_word_alone(
    world: World,
) -> None:
    key = world.agent("pm")
    await world.settle()
    body = world.kube.get(key)
    assert body
    world.kube.force_delete(key)
    await world.settle()

    key = world.agent("pm")
    world.kube.annotate(key, **{"kubectl.kubernetes.io/last-applied-configuration": "{}"})
    world.kube.tamper(key, status=body["status"])
    await world.settle()

    assert world.spicedb.lines() == {"organization:acme#member@agent:acme/pm"}
    assert_true(world)


async def test_a_status_written_by_somebody_else_is_replaced(world: World) -> None:
    key = world.agent("pm")
    await world.settle()

    world.kube.tamper(key, status={"conditions": [{"type": "Ready", "status": "perhaps"}]})
    await world.settle()

    assert world.ready(key) == READY


# Time


async def test_a_grant_opens_and_ends_by_the_clock_and_without_a_write(
    world: World, audit: Callable[[], list[dict[str, Any]]]
) -> None:
    grant = world.grant("shift", "dev", validFrom=10, validTo=20)
    await world.settle()
    assert world.kube.condition(grant, "Active") == ("False", "Pending")
    world.forget_calls()

    seen = []
    for _ in range(25):
        world.now += timedelta(seconds=1)
        await world.settle()
        seen.append(world.kube.condition(grant, "Active")[1])

    assert seen == ["Pending"] * 9 + ["Active"] * 10 + ["Expired"] * 6
    assert not world.spicedb.writes
    assert [line["audit"] for line in audit()] == ["granted", "opened", "ended"]
    assert world.diary.reasons(grant) == ["Active", "Expired"]
    assert world.ready(grant) == READY


async def test_the_rows_of_an_ended_grant_are_right_while_there_and_when_gone(world: World) -> None:
    grant = world.grant("shift", "dev", validTo=1)
    await world.settle()
    world.now += timedelta(seconds=2)
    await world.settle()
    assert len(world.spicedb.rows()) == 2
    world.forget_calls()

    await drift_check(world).check()
    world.now += timedelta(minutes=11)
    await drift_check(world).check()
    await world.settle()

    assert not world.spicedb.writes
    assert not world.kube.patches
    assert world.spicedb.lines() == {"pool:acme/pm/private#grant@access_grant:acme/shift"}
    world.kube.delete(grant)
    await world.settle()
    assert not world.spicedb.rows()


async def test_a_grant_that_ended_before_it_was_made_is_expired_and_writes_nothing(
    world: World,
) -> None:
    grant = world.grant("late", "dev", validTo=-1)

    await world.settle()

    assert world.kube.condition(grant, "Active") == ("False", "Expired")
    assert world.ready(grant) == READY
    assert not world.spicedb.writes


async def test_an_ended_grant_can_be_extended(world: World) -> None:
    grant = world.grant("shift", "dev", validTo=1)
    await world.settle()
    world.now += timedelta(hours=1)
    await world.settle()

    world.kube.edit(grant, validTo=world.instant(60))
    await world.settle()

    assert world.kube.condition(grant, "Active") == ("True", "Active")
    assert_true(world)


async def test_an_operator_that_slept_over_the_end_says_so_when_it_wakes(world: World) -> None:
    grant = world.grant("shift", "dev", validTo=10)
    await world.settle()

    world.now += timedelta(minutes=30)
    world.restart()
    await world.settle()

    assert world.kube.condition(grant, "Active") == ("False", "Expired")


# SpiceDB is away, refuses, loses


async def test_an_outage_is_reported_and_ends_by_itself(world: World) -> None:
    world.spicedb.away = True
    key = world.agent("pm")
    await world.settle()
    assert world.ready(key) == ("False", "SpiceDBUnavailable")
    assert world.reconciler.alarm.is_set()
    assert not world.reconciler.server.reachable

    world.spicedb.away = False
    await world.settle_later()

    assert world.ready(key) == READY
    assert world.reconciler.server.reachable
    assert world.spicedb.lines() == {"organization:acme#member@agent:acme/pm"}


async def test_a_long_outage_is_told_to_every_resource_once(world: World) -> None:
    populate(world)
    await world.settle()
    world.forget_calls()

    world.spicedb.away = True
    world.reconciler.recheck_all()
    await world.settle_later(60)

    keys = list(world.reconciler.inventory)
    assert {world.ready(key) for key in keys} == {("False", "SpiceDBUnavailable")}
    assert sorted(world.kube.patches) == sorted(("status", key) for key in keys)
    assert sorted(world.diary.reasons()) == ["SpiceDBUnavailable"] * len(keys)
    world.spicedb.away = False
    await world.settle_later()
    assert_true(world)


async def test_a_deletion_waits_for_spicedb_with_its_finalizer_on(world: World) -> None:
    key = world.agent("pm")
    await world.settle()
    world.spicedb.away = True

    world.kube.delete(key)
    await world.settle()
    body = world.kube.get(key)
    assert body
    assert body["metadata"]["finalizers"] == [FINALIZER]
    assert world.ready(key) == ("False", "SpiceDBUnavailable")
    assert world.diary.reasons(key) == ["SpiceDBUnavailable"]

    world.spicedb.away = False
    await world.settle_later()
    assert world.kube.get(key) is None
    assert not world.spicedb.rows()


async def test_a_write_whose_answer_is_lost_is_found_by_reading(world: World) -> None:
    world.spicedb.answers_lost = 1
    key = world.agent("pm")

    await world.settle()
    assert world.ready(key) == ("False", "SpiceDBUnavailable")
    await world.settle_later(5)

    assert world.ready(key) == READY
    assert len(world.spicedb.writes) == 1


async def test_a_refused_row_is_alone_among_a_hundred_good_ones(world: World) -> None:
    world.spicedb.refuses = lambda row: row.subject == Object("agent", "acme/bad")
    bad = world.agent("bad")
    good = [world.agent(f"good-{n}") for n in range(100)]

    await world.settle()

    assert world.ready(bad) == ("False", "SpiceDBRefused")
    assert {world.ready(key) for key in good} == {READY}
    assert len(world.spicedb.rows()) == 100


async def test_an_unreadable_spec_is_alone_among_a_hundred_good_ones(world: World) -> None:
    groups = [{"name": "Not A Name"}] * 64
    bad = world.agent("bad", role="", groups=groups)
    good = [world.agent(f"good-{n}") for n in range(100)]

    await world.settle()

    assert world.ready(bad) == ("False", "InvalidSpec")
    assert {world.ready(key) for key in good} == {READY}


async def test_a_person_whose_id_is_too_long_for_spicedb_is_alone_and_unnamed(world: World) -> None:
    person = "日" * 256
    bad, good = world.link("bad", f"slack/{person}"), world.link("good", "slack/U1")

    await world.settle()

    assert world.ready(bad) == ("False", "InvalidSpec")
    assert "日" not in json.dumps((world.kube.get(bad) or {})["status"], ensure_ascii=False)
    assert world.ready(good) == READY


async def test_another_writer_of_the_same_rows_is_reported_as_contention(world: World) -> None:
    def thief(spicedb: FakeSpiceDB) -> None:
        spicedb.remove(*spicedb.rows())

    world.spicedb.thief = thief
    key = world.agent("pm")
    await world.settle()
    assert world.ready(key) == ("False", "Contended")
    assert len(world.spicedb.writes) == 3

    world.spicedb.thief = None
    await world.settle_later()
    assert world.ready(key) == READY


async def test_ready_is_not_said_before_spicedb_was_read_back(world: World) -> None:
    steps: list[str] = []

    def thief(spicedb: FakeSpiceDB) -> None:
        steps.append("write")
        if len(steps) == 1:
            spicedb.remove(*spicedb.rows())

    world.spicedb.thief = thief
    key = world.agent("pm")
    await world.settle()

    assert steps == ["write", "write"]
    assert world.ready(key) == READY
    assert len(world.spicedb.rows()) == 1


async def test_under_a_refused_schema_only_removals_are_written(world: World) -> None:
    stays, goes = world.agent("stays"), world.agent("goes")
    await world.settle()
    world.reconciler.server.schema_problem = "another schema has data"
    world.reconciler.recheck_all()
    world.forget_calls()

    world.kube.delete(goes)
    new = world.agent("new")
    await world.settle()

    assert world.kube.get(goes) is None
    assert world.spicedb.lines() == {"organization:acme#member@agent:acme/stays"}
    assert world.ready(stays) == world.ready(new) == ("False", "SchemaRefused")
    assert all(not write.touch for write in world.spicedb.writes)

    world.reconciler.server.schema_problem = ""
    world.reconciler.recheck_all()
    await world.settle()
    assert_true(world)


async def test_more_changes_than_one_write_takes_are_written_in_several(world: World) -> None:
    keys = [world.agent(f"a{n}", groups=[{"name": f"g{m}"} for m in range(64)]) for n in range(40)]

    await world.settle()

    assert {world.ready(key) for key in keys} == {READY}
    assert len(world.spicedb.rows()) == 40 * 65
    assert len(world.spicedb.writes) <= 4


async def test_an_agent_with_thousands_of_foreign_rows_is_cleaned_and_stops_nobody(
    world: World,
) -> None:
    bad, good = world.agent("bad"), world.agent("good")
    agent = Object("agent", "acme/bad")
    world.spicedb.put(
        *(Relationship(Object("group", f"acme/g{n}"), "reader", agent) for n in range(2500))
    )
    await world.settle_later(10)

    assert world.ready(good) == world.ready(bad) == READY
    assert len(world.spicedb.rows()) == 2


async def test_a_fault_of_our_own_loses_no_key(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.spicedb.refuses = lambda _: 1 // 0 == 1
    key = world.agent("pm")
    await world.settle()
    assert "a batch of 1 resources failed" in caplog.text
    assert world.ready(key) == ("", "")

    world.spicedb.refuses = lambda _: False
    await world.settle_later(5)
    assert world.ready(key) == READY


async def test_an_unsafe_server_is_shown_on_every_grant(world: World) -> None:
    world.reconciler.server.outdated_version = "v1.50.0"
    grant, agent = world.grant("oncall", "dev"), world.agent("dev")

    await world.settle()

    assert world.kube.condition(grant, "SpiceDBOutdated") == ("True", "UnsafeVersion")
    assert world.kube.condition(agent, "SpiceDBOutdated") == ("", "")
    assert world.ready(grant) == READY


# The API server is in the way


async def test_a_conflict_on_the_status_is_retried_on_the_newer_state(world: World) -> None:
    key = world.agent("pm")
    await world.settle()
    world.kube.edit(key, groups=[{"name": "all"}])
    world.kube.before_patch = lambda key: world.kube.annotate(key, changed="meanwhile")

    await world.settle_later(5)

    assert world.ready(key) == READY
    assert len(world.spicedb.writes) == 2


async def test_what_turned_is_announced_once_though_the_status_is_retried(
    world: World, audit: Callable[[], list[dict[str, Any]]]
) -> None:
    grant = world.grant("shift", "dev", validTo=10)
    await world.settle()
    world.diary.entries.clear()
    world.kube.failures = [ConflictError("409"), KubernetesError("500"), ConflictError("409")]

    await world.settle_later(40)

    assert world.kube.condition(grant, "Active") == ("False", "Expired")
    assert world.diary.reasons() == ["Expired"]
    assert [line["audit"] for line in audit()] == ["granted", "ended"]


async def test_a_conflict_on_the_finalizer_writes_nothing_of_the_older_state(world: World) -> None:
    world.agent("pm", groups=[{"name": "old"}])
    world.kube.before_patch = lambda key: world.kube.edit(key, groups=[{"name": "all"}])

    await world.settle_later(5)

    assert len(world.spicedb.writes) == 1
    assert world.spicedb.lines() == {
        "organization:acme#member@agent:acme/pm",
        "group:acme/all#reader@agent:acme/pm",
    }
    assert_true(world)


async def test_no_finalizer_of_another_is_lost_to_ours(world: World) -> None:
    key = world.agent("pm")
    await world.settle()
    world.kube.delete(key)

    def adds_one(key: ObjectKey) -> None:
        body = world.kube.get(key) or {}
        finalizers = [*body["metadata"]["finalizers"], "example.com/theirs"]
        world.kube.tamper(key, metadata=body["metadata"] | {"finalizers": finalizers})

    world.kube.before_patch = adds_one
    await world.settle_later(5)

    body = world.kube.get(key)
    assert body
    assert body["metadata"]["finalizers"] == ["example.com/theirs"]


@pytest.mark.parametrize("verb", ["finalizer", "status"])
async def test_an_object_that_is_gone_before_the_watch_says_so_is_not_asked_for_again_and_again(
    world: World, verb: str
) -> None:
    key = world.agent("pm")
    if verb == "status":
        await world.settle()
        world.kube.edit(key, groups=[{"name": "all"}])
    world.deliver()
    world.kube.force_delete(key)
    late, world.kube.watch = world.kube.watch, []  # the watch lags behind

    await world.settle()
    assert not world.spicedb.rows()

    world.kube.watch = late
    await world.settle()
    assert not world.spicedb.rows()
    assert_true(world)


async def test_an_answer_that_is_overtaken_by_the_deletion_brings_nothing_back(
    world: World,
) -> None:
    key = world.grant("late", "dev", validTo=-1)  # has nothing to write: no finalizer either
    world.deliver()
    answer = world.kube.patch_status

    async def slow(*arguments: Any) -> dict[str, Any]:
        body = await answer(*arguments)
        world.kube.delete(key)
        world.deliver()
        return body

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.kube, "patch_status", slow)
        await world.settle()

    assert not len(world.reconciler.inventory)


async def test_an_older_state_does_not_replace_a_newer_one(world: World) -> None:
    key = world.agent("pm")
    old = world.kube.get(key)
    assert old
    world.kube.edit(key, groups=[{"name": "all"}])
    await world.settle()

    world.reconciler.observe(old)
    await world.settle()

    assert len(world.spicedb.rows()) == 2


async def test_the_late_deletion_of_a_former_object_does_not_touch_the_new_one(
    world: World,
) -> None:
    world.agent("pm")
    await world.settle()
    former = world.kube.get(ObjectKey(Kind.MEMORY_AGENT, "acme", "pm"))
    assert former
    world.kube.force_delete(ObjectKey(Kind.MEMORY_AGENT, "acme", "pm"))
    world.kube.watch.clear()
    key = world.agent("pm")
    await world.settle()

    world.reconciler.observe(former, gone=True)
    await world.settle()

    assert world.ready(key) == READY
    assert len(world.spicedb.rows()) == 1


async def test_a_finalizer_taken_away_by_hand_comes_back(world: World) -> None:
    key = world.agent("pm")
    await world.settle()
    body = world.kube.get(key) or {}
    world.kube.tamper(key, metadata=body["metadata"] | {"finalizers": []})

    await world.settle()

    body = world.kube.get(key) or {}
    assert body["metadata"]["finalizers"] == [FINALIZER]


# Nothing to do


async def test_our_own_writes_ask_for_nothing(world: World) -> None:
    populate(world)
    await world.settle()
    world.forget_calls()
    for key in list(world.reconciler.inventory):
        world.kube.annotate(key, touched="yes")

    await world.settle()

    assert (world.spicedb.reads, world.spicedb.writes, world.kube.patches) == (0, [], [])


async def test_a_restart_with_unchanged_resources_reads_in_bulk_and_writes_nothing(
    world: World,
) -> None:
    populate(world)
    for n in range(100):
        world.grant(f"g{n}", "dev", validTo=60 + n)
    await world.settle()
    world.forget_calls()
    world.restart()
    world.deliver()

    await drift_check(world).check()
    assert not len(world.reconciler.queue)
    await world.settle()

    assert (world.spicedb.reads, world.spicedb.writes, world.kube.patches) == (0, [], [])
    world.now += timedelta(seconds=60)
    await world.settle()
    assert (
        world.kube.condition(ObjectKey(Kind.ACCESS_GRANT, "acme", "g0"), "Active")[1] == "Expired"
    )


async def test_repeated_drift_checks_do_not_let_the_queue_grow(world: World) -> None:
    for n in range(5):
        world.grant(f"g{n}", "dev", validTo=3600)
    await world.settle()

    for _ in range(200):
        await drift_check(world).check()

    assert len(world.reconciler.queue._heap) < 150


# Drift


@pytest.mark.parametrize(
    ("fault", "action"),
    [
        pytest.param(lambda w: w.spicedb.remove(*w.spicedb.rows()), "repaired", id="all removed"),
        pytest.param(
            lambda w: w.spicedb.put(
                Relationship(Object("group", "acme/secret"), "reader", Object("agent", "acme/pm"))
            ),
            "repaired",
            id="one added",
        ),
        pytest.param(
            lambda w: w.spicedb.put(
                Relationship(Object("organization", "acme"), "member", NOBODY),
                Relationship(Object("agent", "acme/nobody"), "owner", Object("person", "acme/s/u")),
                Relationship(
                    Object("pool", "acme/pm/private"), "grant", Object("access_grant", "acme/x")
                ),
            ),
            "revoked",
            id="rows of nobody",
        ),
        pytest.param(
            lambda w: w.spicedb.put(
                *(
                    Relationship(row.resource, row.relation, row.subject, None, None)
                    for row in w.spicedb.rows()
                    if row.caveat
                )
            ),
            "repaired",
            id="ends taken away",
        ),
    ],
)
async def test_drift_is_seen_and_repaired(
    world: World,
    fault: Callable[[World], None],
    action: str,
    audit: Callable[[], list[dict[str, Any]]],
) -> None:
    populate(world)
    await world.settle()
    right = world.spicedb.rows()
    seen = len(audit())

    fault(world)
    await drift_check(world).check()
    await world.settle()

    assert world.spicedb.rows() == right
    assert_true(world)
    assert {line["audit"] for line in audit()[seen:]} == {action}


async def test_what_belongs_to_recall_is_never_touched(world: World) -> None:
    agent = Object("agent", "acme/pm")
    theirs = {
        Relationship(Object("memory_fragment", "acme/1"), "shared_by", agent),
        Relationship(Object("pool", "acme/pm/team"), "open_to", Object("organization", "acme")),
        Relationship(Object("group", "acme/eng"), "reader", Object("person", "acme/slack/U1")),
        Relationship(Object("agent", "west/acme/pm"), "owner", Object("person", "west/acme/s/U")),
    }
    world.spicedb.put(*theirs)
    key = world.agent("pm", groups=[{"name": "eng"}])
    await world.settle()
    await drift_check(world).check()
    await world.settle()
    world.kube.delete(key)
    await world.settle()
    await drift_check(world).check()
    await world.settle()

    assert world.spicedb.rows() == theirs


async def test_clusters_with_prefixes_share_one_spicedb_in_peace() -> None:
    east, west = World(ids=Ids("east")), World(ids=Ids("west"))
    west.spicedb = east.spicedb
    west.restart()
    for world in (east, west):
        populate(world)
        await world.settle()
    both = east.spicedb.rows()
    assert len(both) == 2 * len({row for row in both if row.resource.id.startswith("east/")})

    for world in (east, west):
        await drift_check(world).check()
        assert not len(world.reconciler.queue)
    for body in east.kube.listing():
        meta = body["metadata"]
        east.kube.delete(ObjectKey(Kind(body["kind"]), meta["namespace"], meta["name"]))
    await east.settle()

    assert east.spicedb.rows() == {row for row in both if row.resource.id.startswith("west/")}


async def test_a_check_that_meets_a_resource_at_work_leaves_it_to_the_work(world: World) -> None:
    key = world.agent("pm")
    await world.settle()
    world.reconciler.queue.add(key)
    assert await world.reconciler.queue.take(1) == [key]
    world.reconciler.queue.add(key)  # asked for meanwhile

    world.reconciler.compare(key, world.spicedb.rows())
    world.reconciler.queue.done(key)

    assert await asyncio.wait_for(world.reconciler.queue.take(1), 1) == [key]


async def test_objects_that_vanished_unseen_are_forgotten_by_the_next_check(world: World) -> None:
    key = world.agent("pm")
    await world.settle()
    world.kube.force_delete(key)
    world.kube.watch.clear()  # the watch never tells

    await drift_check(world).check()
    await world.settle()

    assert not world.spicedb.rows()
    assert not len(world.reconciler.inventory)


async def test_an_emptied_spicedb_gets_its_schema_and_all_rows_back(world: World) -> None:
    populate(world)
    await world.settle()
    right = world.spicedb.rows()
    watch = ServerWatch(world.reconciler, world.spicedb, "the schema")
    await watch.look()
    world.reconciler.alarm.clear()

    world.spicedb.wipe()
    await watch.look()
    assert world.reconciler.alarm.is_set()
    await drift_check(world).check()
    await world.settle_later()

    assert world.spicedb.rows() == right
    assert_true(world)


async def test_a_batch_without_a_schema_raises_the_alarm_and_waits(world: World) -> None:
    old = world.agent("old")
    await world.settle()
    world.spicedb.wipe()
    world.kube.edit(old, groups=[{"name": "all"}])
    new = world.agent("new")

    await world.settle()

    assert world.reconciler.alarm.is_set()
    assert world.ready(old)[0] == world.ready(new)[0] == "False"
    await ServerWatch(world.reconciler, world.spicedb, "the schema").look()
    await world.settle_later()
    assert_true(world)


# The audit trail


async def test_each_change_of_access_leaves_one_line(
    world: World, audit: Callable[[], list[dict[str, Any]]]
) -> None:
    link = world.link("pm", "slack/U1")
    await world.settle()
    world.kube.edit(link, person={"provider": "slack", "id": "U2"})
    await world.settle()
    world.spicedb.remove(*world.spicedb.rows())
    await drift_check(world).check()
    await world.settle()
    world.kube.delete(link)
    await world.settle()

    lines = audit()
    assert [line["audit"] for line in lines] == ["granted", "changed", "repaired", "revoked"]
    assert [line["zedToken"] for line in lines] == ["token-1", "token-2", "token-3", "token-4"]
    assert [line["generation"] for line in lines] == [1, 2, 2, 3]
    assert {line["fieldManager"] for line in lines} == {"kubectl"}
    assert [(len(line["before"]), len(line["after"])) for line in lines] == [
        (0, 2),
        (2, 2),
        (0, 2),
        (2, 0),
    ]
    assert lines[0]["after"] == lines[1]["before"] != lines[1]["after"]
    assert "U1" not in json.dumps(lines)
    assert "U2" not in json.dumps(lines)


async def test_no_crash_loses_the_line_of_a_change(
    world: World, audit: Callable[[], list[dict[str, Any]]]
) -> None:
    """Whichever call it is killed before: each change is told at least once, none too often."""

    async def life(world: World) -> None:
        grant = world.grant("shift", "dev", validTo=60)
        await world.settle()
        world.kube.edit(grant, grantorRole="sre")
        await world.settle()
        world.kube.delete(grant)
        await world.settle()

    await life(world)
    assert [line["audit"] for line in audit()] == ["granted", "changed", "revoked"]

    for moment in range(world.fate.calls):
        seen = len(audit())
        killed = World()
        killed.fate.kill_before = moment
        with suppress(KilledError):
            await life(killed)
        told = {(line["generation"], line["audit"]) for line in audit()[seen:]}
        killed.restart()
        await drift_check(killed).check()
        await killed.settle()
        lines = audit()[seen:]
        assert len(lines) <= len(told) + 1, moment
        if killed.spicedb.writes:
            assert any(line["audit"] == "granted" for line in lines), moment
        if not killed.kube.listing():
            assert lines[-1]["audit"] == "revoked", moment


async def test_an_outage_in_which_nothing_changed_leaves_no_line(
    world: World, audit: Callable[[], list[dict[str, Any]]]
) -> None:
    populate(world)
    await world.settle()
    world.restart()
    await drift_check(world).check()
    seen = len(audit())

    world.spicedb.away = True
    world.reconciler.recheck_all()
    await world.settle_later(5)
    world.spicedb.away = False
    await world.settle_later(30)

    assert_true(world)
    assert audit()[seen:] == []


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        pytest.param({"validTo": 60}, {"validTo": -1}, "revoked", id="ended by an edit"),
        pytest.param(
            {"validFrom": 60, "validTo": 90}, {"validFrom": -60}, "changed", id="opened by an edit"
        ),
    ],
)
async def test_what_an_edit_did_is_not_said_of_time(
    world: World,
    audit: Callable[[], list[dict[str, Any]]],
    before: dict[str, int],
    after: dict[str, int],
    action: str,
) -> None:
    spec: dict[str, Any] = {**before}
    grant = world.grant("oncall", "dev", **spec)
    await world.settle()
    world.now += timedelta(seconds=5)
    world.kube.edit(grant, **{name: world.instant(value) for name, value in after.items()})
    await world.settle()
    assert [line["audit"] for line in audit()] == ["granted", action]


async def test_a_deletion_whose_answer_is_lost_leaves_its_line(
    world: World, audit: Callable[[], list[dict[str, Any]]]
) -> None:
    key = world.agent("pm")
    await world.settle()
    world.spicedb.answers_lost = 1
    world.kube.delete(key)
    await world.settle_later(5)

    assert world.kube.get(key) is None
    assert [line["audit"] for line in audit()] == ["granted", "revoked"]


# Crashes


async def _life(world: World) -> None:
    """Create, edit, delete; each with the operator at work in between."""
    populate(world)
    await world.settle()
    world.kube.edit(ObjectKey(Kind.ACCESS_GRANT, "acme", "oncall"), grantorRole="sre")
    world.kube.edit(
        ObjectKey(Kind.IDENTITY_LINK, "acme", "pm"), person={"provider": "slack", "id": "U9"}
    )
    world.agent("rival", serviceAccountName="dev")
    await world.settle()
    world.kube.delete(ObjectKey(Kind.MEMORY_AGENT, "acme", "rival"))
    world.kube.delete(ObjectKey(Kind.ACCESS_GRANT, "acme", "forever"))
    await world.settle()
    world.now += timedelta(seconds=900)
    await world.settle()


async def _calls_of_a_life() -> int:
    world = World()
    await _life(world)
    assert_true(world)
    return world.fate.calls


async def test_a_crash_before_any_call_of_a_life_converges_after_the_restart() -> None:
    calls = await _calls_of_a_life()
    assert calls > 40

    for moment in range(calls):
        world = World()
        world.fate.kill_before = moment
        with suppress(KilledError):
            await _life(world)
        assert world.fate.calls == moment

        world.restart()
        await drift_check(world).check()
        await world.settle()

        assert_true(world)
        world.forget_calls()
        await drift_check(world).check()
        assert not len(world.reconciler.queue), moment


async def test_a_crash_during_the_deletion_of_everything_leaves_nothing() -> None:
    async def end(world: World) -> None:
        for body in world.kube.listing():
            metadata = body["metadata"]
            world.kube.delete(
                ObjectKey(Kind(body["kind"]), metadata["namespace"], metadata["name"])
            )
        await world.settle()

    moment = 0
    while True:
        world = World()
        populate(world)
        await world.settle()
        world.fate.kill_before = world.fate.calls + moment
        try:
            await end(world)
        except KilledError:
            moment += 1
        else:
            break
        world.restart()
        await world.settle()

        assert not world.kube.listing()
        assert not world.spicedb.rows()
    assert moment > 10


# The loop


async def test_the_workers_take_turns_and_never_share_a_resource(world: World) -> None:
    busy: set[ObjectKey] = set()
    original = Reconciler._reconcile

    async def watched(reconciler: Reconciler, keys: list[ObjectKey]) -> None:
        assert not busy & set(keys)
        busy.update(keys)
        await original(reconciler, keys)
        busy.difference_update(keys)

    for n in range(250):
        world.agent(f"a{n}")
    world.deliver()
    reconciler = world.reconciler
    workers = [asyncio.create_task(reconciler.work()) for _ in range(WORKERS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reconciler, "_reconcile", watched)
        while len(reconciler.queue) or reconciler.queue._busy or world.kube.watch:
            await asyncio.sleep(0)
            world.deliver()
            assert not any(worker.done() for worker in workers)
    for worker in workers:
        worker.cancel()

    assert_true(world)
    assert len(world.spicedb.rows()) == 250


async def test_a_loop_that_takes_up_work_after_a_long_rest_counts_as_alive(world: World) -> None:
    reconciler = world.reconciler
    reconciler.last_progress = rested = reconciler.last_progress - 3600
    seen = asyncio.Event()

    def during_the_batch(_: Relationship) -> bool:
        assert reconciler.last_progress > rested
        seen.set()
        return False

    world.spicedb.refuses = during_the_batch
    world.agent("pm")
    world.deliver()
    worker = asyncio.create_task(reconciler.work())

    await asyncio.wait_for(seen.wait(), 5)
    worker.cancel()
