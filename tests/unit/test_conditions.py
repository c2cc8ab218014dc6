"""The words of the status."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from memory_operator import conditions
from memory_operator.api import Condition, Kind, ObjectKey
from memory_operator.conditions import Finding, merge

NOW = datetime(2027, 1, 31, 18, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
AGENT = ObjectKey(Kind.MEMORY_AGENT, "acme", "pm")
LONG = "x" * 5000

EVERY: dict[str, Callable[[str], Finding]] = {
    "ready": lambda _: conditions.ready(),
    "invalid spec": conditions.invalid_spec,
    "reserved namespace": conditions.reserved_namespace,
    "conflict": lambda text: conditions.conflict(text, [text])[0],
    "conflict itself": lambda text: conditions.conflict(text, [text])[1],
    "wrong name": conditions.wrong_name,
    "unavailable": conditions.spicedb_unavailable,
    "refused": conditions.spicedb_refused,
    "schema": conditions.schema_refused,
    "contended": lambda _: conditions.contended(),
    "outdated": conditions.spicedb_outdated,
    "found": lambda _: conditions.agent_found("GranteeFound", AGENT, found=True),
    "not found": lambda _: conditions.agent_found("GranteeFound", AGENT, found=False),
    "pending": lambda _: conditions.pending(NOW),
    "active": lambda _: conditions.active(NOW),
    "active for ever": lambda _: conditions.active(None),
    "expired": lambda _: conditions.expired(NOW),
}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())
@pytest.mark.parametrize("text", ["short", LONG])
def test_every_finding_makes_a_condition_that_the_crd_allows(
    make: Callable[[str], Finding], text: str
) -> None:
    (condition,) = merge((), [make(text)], generation=1, now=NOW)
    assert re.fullmatch(r"[A-Z][A-Za-z]{1,62}", condition.type)
    assert re.fullmatch(r"[A-Z][A-Za-z]{1,62}", condition.reason)
    assert 0 < len(condition.message) <= 1024
    assert condition.status in ("True", "False")


def merged(*findings: Finding, before: tuple[Condition, ...] = ()) -> tuple[Condition, ...]:
    return merge(before, findings, generation=2, now=LATER)


BEFORE = merge((), [conditions.ready(), conditions.pending(LATER)], generation=1, now=NOW)


def test_a_condition_that_stays_keeps_its_time_and_follows_the_generation() -> None:
    (ready,) = merged(conditions.ready(), before=BEFORE)
    assert ready.last_transition_time == "2027-01-31T18:00:00Z"
    assert ready.observed_generation == 2


def test_another_reason_of_the_same_status_keeps_the_time() -> None:
    (active,) = merged(conditions.expired(NOW), before=BEFORE)
    assert (active.status, active.reason) == ("False", "Expired")
    assert active.last_transition_time == "2027-01-31T18:00:00Z"


def test_a_condition_that_turns_gets_a_new_time() -> None:
    (active,) = merged(conditions.active(None), before=BEFORE)
    assert active.last_transition_time == "2027-01-31T18:05:00Z"


def test_a_new_condition_begins_now_and_one_that_is_over_is_left_out() -> None:
    after = merged(conditions.contended(), before=BEFORE[1:])
    assert [condition.type for condition in after] == ["Ready"]
    assert after[0].last_transition_time == "2027-01-31T18:05:00Z"


def test_a_conflict_names_account_and_rivals_and_says_what_to_do() -> None:
    ready, conflict = conditions.conflict("shared", ["one", "two"])
    assert (ready.status, conflict.status) == (False, True)
    for word in ("shared", "one, two", "serviceAccountName"):
        assert word in ready.message


def test_instants_are_written_as_the_api_does() -> None:
    assert conditions.pending(NOW).message == "opens at 2027-01-31T18:00:00Z"
    assert conditions.active(NOW).message == "ends at 2027-01-31T18:00:00Z"
    assert conditions.expired(NOW).message == "ended at 2027-01-31T18:00:00Z"
