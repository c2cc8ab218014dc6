"""What is known of the resources, and who has to be looked at when one changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_operator.api import Kind, ObjectKey, read
from memory_operator.inventory import Inventory

Json = dict[str, Any]


def body(kind: Kind, name: str, spec: Json | None = None, *, going: bool = False) -> Json:
    specs: dict[Kind, Json] = {
        Kind.MEMORY_AGENT: {"role": "pm"},
        Kind.IDENTITY_LINK: {"agent": name, "person": {"provider": "slack", "id": "U1"}},
        Kind.ACCESS_GRANT: {
            "grantorRole": "pm",
            "granteeAgent": "dev",
            "resourceScope": "private",
        },
    }
    metadata = {
        "namespace": "acme",
        "name": name,
        "uid": name,
        "resourceVersion": "1",
        "creationTimestamp": "2027-01-01T00:00:00Z",
    }
    if going:
        metadata["deletionTimestamp"] = "2027-01-02T00:00:00Z"
    return {"kind": kind.value, "metadata": metadata, "spec": specs[kind] | (spec or {})}


def agent(name: str, account: str | None = None, *, going: bool = False) -> Json:
    spec = {"serviceAccountName": account} if account else {}
    return body(Kind.MEMORY_AGENT, name, spec, going=going)


def grant(name: str, grantee: str) -> Json:
    return body(Kind.ACCESS_GRANT, name, {"granteeAgent": grantee})


def link(name: str, *, going: bool = False) -> Json:
    return body(Kind.IDENTITY_LINK, name, going=going)


def holding(*bodies: Json) -> Inventory:
    inventory = Inventory()
    for each in bodies:
        inventory.put(read(each))
    return inventory


def names(keys: set[ObjectKey]) -> set[str]:
    return {f"{key.kind.plural[:-1]}/{key.name}" for key in keys}


EVERYBODY = [
    agent("dev", "shared"),
    agent("ops", "shared"),
    agent("pm"),
    link("dev"),
    link("nobody"),
    grant("one", "dev"),
    grant("two", "dev"),
    grant("three", "pm"),
]


@pytest.mark.parametrize(
    ("change", "dependents"),
    [
        pytest.param(
            agent("dev", "shared"),
            {"memoryagent/ops", "identitylink/dev", "accessgrant/one", "accessgrant/two"},
            id="an agent: its rivals, its link, grants that name it",
        ),
        pytest.param(
            agent("dev", "own"),
            {"memoryagent/ops", "identitylink/dev", "accessgrant/one", "accessgrant/two"},
            id="an agent that leaves an account: the rivals it had",
        ),
        pytest.param(
            agent("dev", "pm"),
            {
                "memoryagent/ops",
                "memoryagent/pm",
                "identitylink/dev",
                "accessgrant/one",
                "accessgrant/two",
            },
            id="an agent that takes another account: old and new rivals",
        ),
        pytest.param(agent("new"), set(), id="an agent that nobody knows"),
        pytest.param(agent("nobody"), {"identitylink/nobody"}, id="an agent that a link awaits"),
        pytest.param(link("dev"), {"memoryagent/dev"}, id="a link: its agent"),
        pytest.param(link("nobody"), set(), id="a link without agent"),
        pytest.param(grant("one", "pm"), set(), id="a grant: nobody"),
    ],
)
def test_a_change_asks_for_those_who_depend_on_it(change: Json, dependents: set[str]) -> None:
    assert names(holding(*EVERYBODY).put(read(change))) == dependents


def test_a_removal_asks_for_those_who_depended_on_it() -> None:
    inventory = holding(*EVERYBODY)
    key = ObjectKey(Kind.MEMORY_AGENT, "acme", "dev")
    assert names(inventory.remove(key)) == {
        "memoryagent/ops",
        "identitylink/dev",
        "accessgrant/one",
        "accessgrant/two",
    }
    assert inventory.remove(key) == set()
    assert inventory.get(key) is None
    assert len(inventory) == len(EVERYBODY) - 1


def test_rivals_are_named_in_order_and_without_those_who_are_going() -> None:
    inventory = holding(
        agent("a", "x"), agent("c", "x"), agent("b", "x"), agent("d", "x", going=True), agent("x")
    )
    first = inventory.agent("acme", "a")
    assert first
    assert inventory.rivals(first) == ["b", "c", "x"]


def test_an_edit_moves_an_agent_from_one_account_to_another() -> None:
    inventory = holding(agent("a", "x"), agent("b", "x"))
    inventory.put(read(agent("b", "y")))
    first = inventory.agent("acme", "a")
    assert first
    assert inventory.rivals(first) == []
    inventory.put(read(agent("a", "y")))
    second = inventory.agent("acme", "b")
    assert second
    assert inventory.rivals(second) == ["a"]


def test_an_edit_moves_a_grant_from_one_grantee_to_another() -> None:
    inventory = holding(grant("one", "dev"))
    inventory.put(read(grant("one", "ops")))
    assert names(inventory.put(read(agent("dev")))) == set()
    assert names(inventory.put(read(agent("ops")))) == {"accessgrant/one"}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(agent("dev", going=True), id="going"),
        pytest.param(agent("dev") | {"spec": {}}, id="unreadable"),
    ],
)
def test_an_agent_that_does_not_count_is_not_found(other: Json) -> None:
    inventory = holding(other)
    assert inventory.agent("acme", "dev") is None
    assert inventory.get(ObjectKey(Kind.MEMORY_AGENT, "acme", "dev")) is not None


def test_a_link_that_is_going_is_not_found() -> None:
    assert holding(link("dev")).link("acme", "dev") is not None
    assert holding(link("dev", going=True)).link("acme", "dev") is None
    assert holding(link("dev")).link("globex", "dev") is None


_bodies = st.one_of(
    st.builds(
        agent,
        st.sampled_from("abc"),
        st.sampled_from([None, "a", "x"]),
        going=st.booleans(),
    ),
    st.builds(grant, st.sampled_from("abc"), st.sampled_from("abc")),
    st.builds(link, st.sampled_from("abc")),
    st.builds(lambda name: agent(name) | {"spec": None}, st.sampled_from("abc")),
)


@given(st.lists(st.tuples(_bodies, st.booleans()), max_size=15))
def test_look_ups_after_any_history_are_those_of_a_fresh_inventory(
    history: list[tuple[Json, bool]],
) -> None:
    inventory = Inventory()
    newest: dict[ObjectKey, Json] = {}
    for each, removed in history:
        key = read(each).key
        if removed:
            inventory.remove(key)
            newest.pop(key, None)
        else:
            inventory.put(read(each))
            newest[key] = each
    fresh = holding(*newest.values())
    assert set(inventory) == set(fresh) == set(newest)
    for key in newest:
        found = inventory.agent(key.namespace, key.name)
        assert found == fresh.agent(key.namespace, key.name)
        if found:
            assert inventory.rivals(found) == fresh.rivals(found)
    for index, like in (
        (inventory._agents_by_account, fresh._agents_by_account),
        (inventory._grants_by_grantee, fresh._grants_by_grantee),
    ):
        assert {place: keys for place, keys in index.items() if keys} == like
