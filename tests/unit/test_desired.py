"""Decisions: from one resource, among the others, at one instant, to rows and words."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_operator.api import Kind, ObjectKey, format_instant, read
from memory_operator.app import schema_text
from memory_operator.desired import (
    ABSENT,
    OWNED_RELATIONS,
    Verdict,
    decide,
    filters_for,
    unit_of,
)
from memory_operator.identity import Ids
from memory_operator.inventory import Inventory
from memory_operator.relationships import Filter, Object, Relationship
from tests.unit.fakes import matches

CREATED = datetime(2027, 1, 31, 18, tzinfo=UTC)
OWN = "memory-system"
Json = dict[str, Any]


def make(kind: Kind, name: str, spec: Any, namespace: str = "acme", **metadata: Any) -> Json:
    return {
        "kind": kind.value,
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"{kind}-{namespace}-{name}",
            "resourceVersion": "1",
            "creationTimestamp": format_instant(CREATED),
            **metadata,
        },
        "spec": spec,
    }


def agent(name: str, namespace: str = "acme", **spec: Any) -> Json:
    return make(Kind.MEMORY_AGENT, name, {"role": "engineer"} | spec, namespace)


def link(name: str, person: str, *aliases: str, agent: str = "", namespace: str = "acme") -> Json:
    def split(text: str) -> dict[str, str]:
        provider, _, id_ = text.partition("/")
        return {"provider": provider, "id": id_}

    spec = {
        "agent": agent or name,
        "person": split(person),
        "aliases": [split(alias) for alias in aliases],
    }
    return make(Kind.IDENTITY_LINK, name, spec, namespace)


def grant(name: str, namespace: str = "acme", **spec: Any) -> Json:
    whole = {"grantorRole": "pm", "granteeAgent": "dev", "resourceScope": "private"} | spec
    return make(Kind.ACCESS_GRANT, name, whole, namespace)


def going(body: Json) -> Json:
    return {**body, "metadata": body["metadata"] | {"deletionTimestamp": format_instant(CREATED)}}


def at(seconds: float) -> datetime:
    return CREATED + timedelta(seconds=seconds)


def verdict_on(body: Json, *others: Json, seconds: float = 0, ids: Ids | None = None) -> Verdict:
    inventory = Inventory()
    for each in (*others, body):
        inventory.put(read(each))
    return decide(read(body).key, inventory, ids or Ids(), OWN, at(seconds))


def lines(rows: Iterable[Relationship]) -> set[str]:
    return {str(row) for row in rows}


def words(verdict: Verdict) -> dict[str, tuple[bool, str]]:
    """Conditions of a verdict, Ready included."""
    found = {finding.type: (finding.status, finding.reason) for finding in verdict.findings}
    if verdict.refusal:
        found["Ready"] = (verdict.refusal.status, verdict.refusal.reason)
    return found


# MemoryAgent


@pytest.mark.parametrize(
    ("body", "others", "rows"),
    [
        pytest.param(
            agent("pm"), [], {"organization:acme#member@agent:acme/pm"}, id="a member, no more"
        ),
        pytest.param(
            agent("pm", groups=[{"name": "a"}, {"name": "b", "access": "write"}]),
            [],
            {
                "organization:acme#member@agent:acme/pm",
                "group:acme/a#reader@agent:acme/pm",
                "group:acme/b#writer@agent:acme/pm",
            },
            id="groups to read and to write",
        ),
        pytest.param(
            agent("p.m", groups=[{"name": "slack.eng"}]),
            [],
            {
                "organization:acme#member@agent:acme/p=2Em",
                "group:acme/slack=2Eeng#reader@agent:acme/p=2Em",
            },
            id="dots are encoded",
        ),
        pytest.param(
            agent("pm"),
            [agent("pm", namespace="globex"), agent("other")],
            {"organization:acme#member@agent:acme/pm"},
            id="the same name elsewhere is somebody else",
        ),
        pytest.param(
            agent("pm", serviceAccountName="shared"),
            [going(agent("other", serviceAccountName="shared"))],
            {"organization:acme#member@agent:acme/pm"},
            id="a rival that is going is none",
        ),
        pytest.param(
            agent("pm", serviceAccountName="shared"),
            [agent("other", namespace="globex", serviceAccountName="shared")],
            {"organization:acme#member@agent:acme/pm"},
            id="accounts are per namespace",
        ),
        pytest.param(
            agent("pm"),
            [make(Kind.MEMORY_AGENT, "other", {"serviceAccountName": "pm"})],
            {"organization:acme#member@agent:acme/pm"},
            id="a rival that can't be read is none",
        ),
    ],
)
def test_an_agent_becomes(body: Json, others: list[Json], rows: set[str]) -> None:
    verdict = verdict_on(body, *others)
    assert lines(verdict.desired.required) == rows
    assert not verdict.desired.tolerated
    assert words(verdict) == {}
    assert verdict.wake_at is None


def test_a_role_is_no_row_so_another_role_changes_none() -> None:
    assert verdict_on(agent("pm", role="pm")) == verdict_on(agent("pm", role="sre"))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param(
            agent("one", serviceAccountName="x"),
            agent("two", serviceAccountName="x"),
            id="both say so",
        ),
        pytest.param(agent("one"), agent("two", serviceAccountName="one"), id="one by default"),
    ],
)
def test_agents_that_share_an_account_are_both_in_conflict(one: Json, two: Json) -> None:
    for body, rival in ((one, two), (two, one)):
        verdict = verdict_on(body, rival)
        assert not verdict.desired.required
        assert words(verdict) == {
            "Ready": (False, "Conflict"),
            "Conflict": (True, "SharedServiceAccount"),
        }
        assert verdict.refusal
        assert rival["metadata"]["name"] in verdict.refusal.message


@pytest.mark.parametrize(
    ("others", "owner"),
    [
        pytest.param([], None, id="no link"),
        pytest.param([link("pm", "slack/U1", "email/x@y")], "slack/U1", id="the person"),
        pytest.param([going(link("pm", "slack/U1"))], None, id="a link that is going"),
        pytest.param([link("pm", "slack/U1", agent="dev")], None, id="a link of another agent"),
        pytest.param([link("pm", "slack/U1", namespace="globex")], None, id="a link elsewhere"),
    ],
)
def test_an_agent_shows_whose_it_is(others: list[Json], owner: str | None) -> None:
    verdict = verdict_on(agent("pm"), *others)
    assert dict(verdict.status) == {"subject": "agent:acme/pm", "owner": owner}


# IdentityLink


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        pytest.param(
            link("pm", "slack/U1"),
            {
                "agent:acme/pm#owner@person:acme/slack/U1",
                "person:acme/slack/U1#agent@agent:acme/pm",
            },
            id="a person",
        ),
        pytest.param(
            link("pm", "slack/U1", "telegram/@jo", "email/jo@acme.example"),
            {
                "agent:acme/pm#owner@person:acme/slack/U1",
                "person:acme/slack/U1#agent@agent:acme/pm",
                "person:acme/telegram/=40jo#agent@agent:acme/pm",
                "person:acme/email/jo=40acme=2Eexample#agent@agent:acme/pm",
            },
            id="a person with aliases",
        ),
        pytest.param(
            link("pm", "slack/*"),
            {
                "agent:acme/pm#owner@person:acme/slack/=2A",
                "person:acme/slack/=2A#agent@agent:acme/pm",
            },
            id="a star is one person, not everyone",
        ),
        pytest.param(
            link("pm", "slack/U1", "slack/U1"),
            {
                "agent:acme/pm#owner@person:acme/slack/U1",
                "person:acme/slack/U1#agent@agent:acme/pm",
            },
            id="an alias that is the person",
        ),
    ],
)
def test_a_link_becomes(body: Json, rows: set[str]) -> None:
    verdict = verdict_on(body, agent("pm"))
    assert lines(verdict.desired.required) == rows
    assert words(verdict) == {"AgentFound": (True, "Found")}


def test_a_link_without_its_agent_is_written_and_says_so() -> None:
    verdict = verdict_on(link("pm", "slack/U1"), agent("pm", namespace="globex"))
    assert len(verdict.desired.required) == 2
    assert words(verdict) == {"AgentFound": (False, "NotFound")}


def test_a_link_that_does_not_bear_its_agents_name_is_refused() -> None:
    verdict = verdict_on(link("pm", "slack/U1", agent="dev"), agent("pm"), agent("dev"))
    assert not verdict.desired.required
    assert words(verdict) == {"Ready": (False, "InvalidName")}


def test_the_same_person_may_have_several_agents_and_each_link_its_own_rows() -> None:
    one = verdict_on(link("one", "slack/U1")).desired.required
    two = verdict_on(link("two", "slack/U1")).desired.required
    assert not one & two


# AccessGrant

POOL = "pool:acme/pm/private#grant@access_grant:acme/g"
FROM_CREATION = '"valid_from":"2027-01-31T18:00:00Z"'


@pytest.mark.parametrize(
    ("spec", "holding"),
    [
        pytest.param(
            {},
            f"access_grant:acme/g#holder@agent:acme/dev[not_before:{{{FROM_CREATION}}}]",
            id="for ever",
        ),
        pytest.param(
            {"validFrom": "2027-02-01T00:00:00Z"},
            "access_grant:acme/g#holder@agent:acme/dev"
            '[not_before:{"valid_from":"2027-02-01T00:00:00Z"}]',
            id="for ever from tomorrow",
        ),
        pytest.param(
            {"validTo": "2027-01-31T18:00:01Z"},
            "access_grant:acme/g#holder_until@agent:acme/dev"
            f'[grant_window:{{{FROM_CREATION},"valid_to":"2027-01-31T18:00:01Z"}}]'
            "[expiration:2027-01-31T18:10:01Z]",
            id="for a second",
        ),
        pytest.param(
            {"validTo": "9998-12-31T23:59:59Z"},
            "access_grant:acme/g#holder_until@agent:acme/dev"
            f'[grant_window:{{{FROM_CREATION},"valid_to":"9998-12-31T23:59:59Z"}}]'
            "[expiration:9999-01-01T00:09:59Z]",
            id="to the last instant",
        ),
    ],
)
def test_a_grant_becomes(spec: Json, holding: str) -> None:
    verdict = verdict_on(grant("g", **spec))
    assert lines(verdict.desired.required) == {POOL, holding}


@pytest.mark.parametrize(
    ("spec", "seconds", "state", "wake"),
    [
        pytest.param({"validFrom": 10, "validTo": 20}, 0, "Pending", 10, id="before"),
        pytest.param({"validFrom": 10, "validTo": 20}, 9.999, "Pending", 10, id="just before"),
        pytest.param({"validFrom": 10, "validTo": 20}, 10, "Active", 20, id="at the first instant"),
        pytest.param({"validFrom": 10, "validTo": 20}, 19.999, "Active", 20, id="at the last"),
        pytest.param({"validFrom": 10, "validTo": 20}, 20, "Expired", None, id="at the end"),
        pytest.param({"validFrom": 10, "validTo": 20}, 1e6, "Expired", None, id="long after"),
        pytest.param({"validTo": 1}, 0, "Active", 1, id="from its creation for a second"),
        pytest.param({"validTo": 1}, 1, "Expired", None, id="a second later"),
        pytest.param({"validTo": 0}, 0, "Expired", None, id="ended at its creation"),
        pytest.param({"validTo": -3600}, 0, "Expired", None, id="ended before its creation"),
        pytest.param({"validFrom": -60, "validTo": -30}, 0, "Expired", None, id="all in the past"),
        pytest.param({}, 0, "Active", None, id="without an end"),
        pytest.param({}, 1e9, "Active", None, id="without an end, much later"),
        pytest.param({}, -1, "Pending", 0, id="seen by a clock that is behind"),
        pytest.param({"validFrom": 10}, 0, "Pending", 10, id="for ever from then on"),
    ],
)
def test_the_state_of_a_grant_turns_at_the_instant(
    spec: dict[str, int], seconds: float, state: str, wake: int | None
) -> None:
    body = grant("g", **{name: format_instant(at(value)) for name, value in spec.items()})
    verdict = verdict_on(body, agent("dev"), seconds=seconds)

    rows, others = verdict.desired.required, verdict.desired.tolerated
    if state == "Expired":
        rows, others = others, rows
    assert len(rows) == 2
    assert not others
    assert words(verdict) == {
        "Active": (state == "Active", state),
        "GranteeFound": (True, "Found"),
    }
    assert verdict.wake_at == (None if wake is None else at(wake))
    assert dict(verdict.status) == {"validFrom": format_instant(at(spec.get("validFrom", 0)))}


@pytest.mark.parametrize(
    ("others", "found"),
    [
        pytest.param([], False, id="no such agent"),
        pytest.param([agent("dev", namespace="globex")], False, id="only elsewhere"),
        pytest.param([going(agent("dev"))], False, id="one that is going"),
        pytest.param([make(Kind.MEMORY_AGENT, "dev", {})], False, id="one that can't be read"),
        pytest.param([agent("dev")], True, id="there"),
    ],
)
def test_a_grant_is_written_whether_its_grantee_is_there_or_not(
    others: list[Json], found: bool
) -> None:
    verdict = verdict_on(grant("g"), *others)
    assert len(verdict.desired.required) == 2
    assert words(verdict)["GranteeFound"] == (found, "Found" if found else "NotFound")


@pytest.mark.parametrize(
    ("before", "after", "common"),
    [
        pytest.param({"grantorRole": "pm"}, {"grantorRole": "sre"}, 1, id="another role"),
        pytest.param({"resourceScope": "team"}, {"resourceScope": "global"}, 1, id="another scope"),
        pytest.param({"granteeAgent": "dev"}, {"granteeAgent": "ops"}, 1, id="another grantee"),
        pytest.param({}, {"reason": "because"}, 2, id="another reason"),
        pytest.param(
            {"validTo": "2027-02-01T00:00:00Z"},
            {"validTo": "2027-02-02T00:00:00Z"},
            1,
            id="another end",
        ),
        pytest.param({}, {"validTo": "2027-02-02T00:00:00Z"}, 1, id="an end after all"),
    ],
)
def test_an_edit_of_a_grant_moves_only_what_it_says(before: Json, after: Json, common: int) -> None:
    old = verdict_on(grant("g", **before)).desired.required
    new = verdict_on(grant("g", **(before | after))).desired.required
    assert len(old & new) == common
    assert len(new) == 2


@pytest.mark.parametrize(
    "spec",
    [{"validTo": "2027-02-01T00:00:00Z"}, {"validTo": "2027-02-02T00:00:00Z"}, {}],
)
def test_two_grants_for_one_pair_have_no_row_in_common(spec: Json) -> None:
    one = verdict_on(grant("one", **spec)).desired.required
    two = verdict_on(grant("two")).desired.required
    assert not {row.row for row in one} & {row.row for row in two}


# What grants nothing, whatever the kind

ONE_OF_EACH = [
    pytest.param(agent("pm"), id="agent"),
    pytest.param(link("pm", "slack/U1"), id="link"),
    pytest.param(grant("g"), id="grant"),
]


@pytest.mark.parametrize("body", ONE_OF_EACH)
def test_what_is_going_is_as_good_as_gone(body: Json) -> None:
    assert verdict_on(going(body)) == ABSENT


@pytest.mark.parametrize("body", ONE_OF_EACH)
def test_what_is_not_there_wants_nothing(body: Json) -> None:
    assert decide(read(body).key, Inventory(), Ids(), OWN, CREATED) == ABSENT


@pytest.mark.parametrize("body", ONE_OF_EACH)
def test_the_operators_own_namespace_is_no_organisation(body: Json) -> None:
    verdict = verdict_on({**body, "metadata": body["metadata"] | {"namespace": OWN}})
    assert not verdict.desired.required
    assert words(verdict) == {"Ready": (False, "ReservedNamespace")}


@pytest.mark.parametrize("body", ONE_OF_EACH)
@pytest.mark.parametrize("spec", [None, {}, "text"])
def test_a_spec_that_cannot_be_read_grants_nothing(body: Json, spec: Any) -> None:
    verdict = verdict_on({**body, "spec": spec})
    assert not verdict.desired.required
    assert words(verdict) == {"Ready": (False, "InvalidSpec")}


def test_a_person_too_long_for_an_id_is_an_invalid_spec() -> None:
    verdict = verdict_on(link("pm", "slack/" + "日" * 200))
    assert not verdict.desired.required
    assert words(verdict) == {"Ready": (False, "InvalidSpec")}


# Rows and units

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?", fullmatch=True)
names = st.from_regex(r"[a-z0-9]([-.]?[a-z0-9]){0,4}", fullmatch=True)
people = st.builds(
    lambda provider, id_: f"{provider}/{id_}",
    st.sampled_from(["slack", "email"]),
    st.text(st.sampled_from("aU1@*./é日=_-"), min_size=1, max_size=6),
)
resources = st.one_of(
    st.builds(
        lambda name, namespace, groups: agent(
            name, namespace, groups=[{"name": g, "access": a} for g, a in groups.items()]
        ),
        names,
        labels,
        st.dictionaries(names, st.sampled_from(["read", "write"]), max_size=3),
    ),
    st.builds(
        lambda name, namespace, person, aliases: link(name, person, *aliases, namespace=namespace),
        names,
        labels,
        people,
        st.lists(people, max_size=3),
    ),
    st.builds(
        lambda name, namespace, role, grantee, seconds: grant(
            name,
            namespace,
            grantorRole=role,
            granteeAgent=grantee,
            **({} if seconds is None else {"validTo": format_instant(at(seconds))}),
        ),
        names,
        labels,
        names,
        names,
        st.none() | st.integers(1, 1000),
    ),
)
all_ids = st.builds(Ids, st.just("") | labels)


@given(resources, all_ids)
def test_each_row_leads_back_to_its_resource_and_is_found_by_one_filter(
    body: Json, ids: Ids
) -> None:
    key = read(body).key
    required = verdict_on(body, ids=ids).desired.required
    assert required
    for row in required:
        assert unit_of(row, ids) == key
        assert sum(matches(filter_, row) for filter_ in filters_for(key, ids)) == 1
        assert (row.resource.type, row.relation) in OWNED_RELATIONS


@given(resources, resources, all_ids)
def test_the_filters_of_one_resource_find_no_row_of_another(one: Json, two: Json, ids: Ids) -> None:
    key, other = read(one).key, read(two).key
    if key == other:
        return
    for row in verdict_on(two, ids=ids).desired.required:
        assert not any(matches(filter_, row) for filter_ in filters_for(key, ids))


@given(resources, labels, labels)
def test_rows_of_another_cluster_have_no_unit_here(body: Json, here: str, there: str) -> None:
    for row in verdict_on(body, ids=Ids(there)).desired.required:
        assert (unit_of(row, Ids(here)) is not None) == (here == there)
        assert unit_of(row, Ids()) is None


@pytest.mark.parametrize(
    ("resource", "relation", "subject"),
    [
        ("memory_fragment:acme/1", "shared_by", "agent:acme/pm"),
        ("memory_fragment:acme/1", "involves", "person:acme/slack/U1"),
        ("memory_fragment:acme/1", "pool", "pool:acme/pm/private"),
        ("pool:acme/pm/team", "open_to", "organization:acme"),
        ("group:acme/eng", "reader", "person:acme/slack/U1"),
        ("group:acme/eng", "writer", "person:acme/slack/U1"),
        ("organization:acme", "member", "agent:acme"),
        ("organization:acme", "member", "agent:acme/a/b"),
        ("agent:acme/a.b", "owner", "person:acme/slack/U1"),
        ("pool:acme/pm/private", "grant", "access_grant:*"),
    ],
)
def test_what_is_not_ours_has_no_unit(resource: str, relation: str, subject: str) -> None:
    row = Relationship(Object(*resource.split(":")), relation, Object(*subject.split(":")))
    assert unit_of(row, Ids()) is None


def test_filters_are_narrow() -> None:
    key = ObjectKey(Kind.MEMORY_AGENT, "acme", "p.m")
    subject = Object("agent", "acme/p=2Em")
    assert filters_for(key, Ids()) == (
        Filter("organization", "member", subject=subject),
        Filter("group", subject=subject),
    )


def test_the_schema_has_every_owned_relation_and_recalls_are_not_among_them() -> None:
    known: set[tuple[str, str]] = set()
    type_ = ""
    for line in schema_text().splitlines():
        if definition := re.match(r"definition (\w+)", line):
            type_ = definition[1]
        elif relation := re.match(r"\s+relation (\w+):", line):
            known.add((type_, relation[1]))
    recalls = {("pool", "open_to")} | {row for row in known if row[0] == "memory_fragment"}
    assert set(OWNED_RELATIONS) == known - recalls
