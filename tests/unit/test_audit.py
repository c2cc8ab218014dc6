"""The audit trail names roles and agents, and no person."""

import json
from typing import Any

import pytest

from memory_operator import audit
from memory_operator.api import Kind, Metadata, ObjectKey
from memory_operator.relationships import Object, Relationship
from tests.unit.fakes import START

LINK = ObjectKey(Kind.IDENTITY_LINK, "acme", "pm")
AGENT = Object("agent", "acme/pm")


def metadata(uid: str = "u-1") -> Metadata:
    return Metadata(uid, 4, "77", START, deleting=False, finalizers=(), manager="argocd")


def owner(person: str) -> Relationship:
    return Relationship(AGENT, "owner", Object("person", f"acme/slack/{person}"))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    caplog.set_level("INFO", "memory_operator.audit")

    class Lines(list[dict[str, Any]]):
        def __getitem__(self, index: Any) -> Any:
            return json.loads(caplog.records[index].getMessage())

    return Lines()


def test_a_line_says_what_changed_by_whom_and_where(lines: list[dict[str, Any]]) -> None:
    row = Relationship(Object("organization", "acme"), "member", AGENT)
    audit.record("granted", LINK, metadata(), after=[row], zed_token="t")
    line = lines[0]
    time = line.pop("time")
    assert time.endswith("+00:00")
    assert line == {
        "audit": "granted",
        "kind": "IdentityLink",
        "namespace": "acme",
        "name": "pm",
        "uid": "u-1",
        "generation": 4,
        "fieldManager": "argocd",
        "before": [],
        "after": ["organization:acme#member@agent:acme/pm"],
        "zedToken": "t",
    }


def test_no_line_names_a_person(
    lines: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    back = Relationship(Object("person", "acme/slack/U0SECRET"), "agent", AGENT)
    for each in (metadata(), None):
        audit.record("changed", LINK, each, before=[owner("U0SECRET")], after=[back])
    assert len(caplog.records) == 2
    assert "U0SECRET" not in caplog.text
    assert "slack" not in caplog.text
    assert "person:#" in lines[0]["before"][0]


def test_people_can_be_told_apart_within_one_resource(lines: list[dict[str, Any]]) -> None:
    audit.record("changed", LINK, metadata(), before=[owner("U1")], after=[owner("U2")])
    audit.record("changed", LINK, metadata(), before=[owner("U2")], after=[owner("U1")])
    assert lines[0]["before"] == lines[1]["after"] != lines[0]["after"] == lines[1]["before"]


def test_people_cannot_be_compared_across_resources(lines: list[dict[str, Any]]) -> None:
    for uid in ("u-1", "u-2"):
        audit.record("granted", LINK, metadata(uid), after=[owner("U1")])
    assert lines[0]["after"] != lines[1]["after"]


def test_where_no_resource_is_left_people_can_be_compared_within_the_line_only(
    lines: list[dict[str, Any]],
) -> None:
    for _ in range(2):
        audit.record("revoked", LINK, None, before=[owner("U1")], after=[owner("U1")])
    assert lines[0]["before"] == lines[0]["after"]
    assert lines[0]["before"] != lines[1]["before"]
    assert (lines[0]["uid"], lines[0]["generation"], lines[0]["fieldManager"]) == ("", 0, "")


def test_a_uid_of_any_length_keys_the_digest(lines: list[dict[str, Any]]) -> None:
    audit.record("granted", LINK, metadata("u" * 200), after=[owner("U1")])
    assert lines[0]["uid"] == "u" * 200


def test_rows_stand_in_order(lines: list[dict[str, Any]]) -> None:
    rows = [
        Relationship(Object("group", f"acme/{name}"), "reader", AGENT) for name in ("c", "a", "b")
    ]
    audit.record("granted", LINK, metadata(), after=rows)
    assert lines[0]["after"] == sorted(lines[0]["after"])
