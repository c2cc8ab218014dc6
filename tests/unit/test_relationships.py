"""The diff: what is, what should be, and the write between them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_operator.relationships import (
    GRANT_WINDOW,
    Caveat,
    Changes,
    Desired,
    Object,
    Relationship,
    plan,
)

INSTANT = datetime(2027, 1, 31, 18, tzinfo=UTC)
# So few of each that the same row turns up with different caveats and ends.
_objects = st.builds(
    Object, st.sampled_from(["agent", "pool"]), st.sampled_from(["acme/a", "acme/b"])
)
_caveats = st.none() | st.builds(
    Caveat, st.just("not_before"), st.sampled_from([(("valid_from", "1"),), (("valid_from", "2"),)])
)
_rows = st.builds(
    Relationship,
    _objects,
    st.sampled_from(["holder", "grant"]),
    _objects,
    _caveats,
    st.sampled_from([None, INSTANT]),
)


def _unique(rows: list[Relationship]) -> frozenset[Relationship]:
    return frozenset({row.row: row for row in rows}.values())


row_sets = st.lists(_rows, max_size=8).map(_unique)


@st.composite
def desires(draw: st.DrawFn) -> Desired:
    """Required and tolerated rows, which have no row in common."""
    required = draw(row_sets)
    taken = {item.row for item in required}
    tolerated = frozenset(item for item in draw(row_sets) if item.row not in taken)
    return Desired(required, tolerated)


@given(row_sets, desires())
def test_a_plan_leads_exactly_to_what_is_required_and_what_is_tolerated_and_there(
    current: frozenset[Relationship], desired: Desired
) -> None:
    after = plan(current, desired).applied_to(current)
    assert after == desired.required | (desired.tolerated & current)


@given(row_sets, desires())
def test_a_plan_that_was_applied_leaves_nothing_to_do(
    current: frozenset[Relationship], desired: Desired
) -> None:
    after = plan(current, desired).applied_to(current)
    assert not plan(after, desired)


@given(row_sets, desires())
def test_a_write_names_no_row_twice(current: frozenset[Relationship], desired: Desired) -> None:
    changes = plan(current, desired)
    rows = [item.row for item in (*changes.touch, *changes.delete)]
    assert len(rows) == len(set(rows)) == len(changes)


@given(row_sets, desires())
def test_a_plan_is_no_larger_than_the_difference(
    current: frozenset[Relationship], desired: Desired
) -> None:
    changes = plan(current, desired)
    assert not changes.touch & current
    assert changes.delete <= current


@given(row_sets, desires())
def test_removals_grant_nothing(current: frozenset[Relationship], desired: Desired) -> None:
    assert plan(current, desired).removals(current).applied_to(current) <= current


@given(row_sets, desires())
def test_removals_leave_nothing_that_is_not_wanted_as_it_stands(
    current: frozenset[Relationship], desired: Desired
) -> None:
    left = plan(current, desired).removals(current).applied_to(current)
    assert left <= desired.required | desired.tolerated


@given(row_sets, desires(), st.integers(1, 5))
def test_a_large_plan_reaches_its_end_in_parts_that_take_away_first(
    current: frozenset[Relationship], desired: Desired, limit: int
) -> None:
    seen_touch = False
    for _ in range(30):
        part = plan(current, desired).first(limit)
        if not part:
            break
        assert len(part) <= limit
        assert not (seen_touch and part.delete)
        seen_touch = bool(part.touch)
        current = part.applied_to(current)
    assert current == desired.required | (desired.tolerated & current)


@given(st.lists(st.tuples(row_sets, desires()), max_size=3))
def test_the_union_of_changes_is_all_of_them(
    parts: list[tuple[frozenset[Relationship], Desired]],
) -> None:
    changes = [plan(*part) for part in parts]
    union = Changes.union(changes)
    assert union.touch == {row for part in changes for row in part.touch}
    assert union.delete == {row for part in changes for row in part.delete}


def test_another_end_for_the_same_row_is_a_touch_alone() -> None:
    grant, agent = Object("access_grant", "acme/g"), Object("agent", "acme/a")
    early = Relationship(grant, "holder_until", agent, expires_at=INSTANT)
    late = Relationship(grant, "holder_until", agent, expires_at=INSTANT.replace(hour=19))

    changes = plan({early}, Desired(frozenset({late})))

    assert changes == Changes(touch=frozenset({late}))
    assert changes.applied_to({early}) == {late}


def test_two_grants_for_one_pair_do_not_touch_each_others_rows() -> None:
    agent, pool = Object("agent", "acme/a"), Object("pool", "acme/pm/private")

    def rows(name: str) -> frozenset[Relationship]:
        grant = Object("access_grant", f"acme/{name}")
        return frozenset({Relationship(grant, "holder", agent), Relationship(pool, "grant", grant)})

    assert not {row.row for row in rows("one")} & {row.row for row in rows("two")}
    both = rows("one") | rows("two")
    assert plan(rows("one"), Desired()).applied_to(both) == rows("two")


@pytest.mark.parametrize(
    ("relationship", "text"),
    [
        pytest.param(
            Relationship(Object("agent", "acme/pm"), "owner", Object("person", "acme/slack/U1")),
            "agent:acme/pm#owner@person:acme/slack/U1",
            id="plain",
        ),
        pytest.param(
            Relationship(
                Object("access_grant", "acme/g"),
                "holder_until",
                Object("agent", "acme/a"),
                Caveat(GRANT_WINDOW, (("valid_from", "x"), ("valid_to", "y"))),
                INSTANT,
            ),
            'access_grant:acme/g#holder_until@agent:acme/a[grant_window:{"valid_from":"x",'
            '"valid_to":"y"}][expiration:2027-01-31T18:00:00Z]',
            id="with caveat and expiration",
        ),
    ],
)
def test_a_relationship_is_written_as_zed_does(relationship: Relationship, text: str) -> None:
    assert str(relationship) == text
