"""What people do with custom resources, and what SpiceDB then holds."""

import asyncio
import datetime as dt
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import yaml
from authzed.api.v1 import AsyncClient, SyncClient
from kubernetes import client

from memory_operator.names import API_VERSION, FINALIZER, GROUP, VERSION
from tests import cluster
from tests.support.access import Access, check_permission, watch_access
from tests.support.expectation import ended_rows, expected_rows
from tests.support.operator import OWN_NAMESPACE, OperatorProcess
from tests.support.organization import (
    Organization,
    instant,
    may,
    new_organization,
    rows,
    wait_for,
)
from tests.support.spicedb import SpiceDB

Json = dict[str, Any]
KINDS = ("MemoryAgent", "IdentityLink", "AccessGrant")
LONG_NAME = ".".join(["a" * 63] * 3 + ["b" * 61])  # 253 characters
YEAR = 365 * 86_400


def _bodies(organization: Organization) -> list[Json]:
    return [
        {**item, "kind": kind, "apiVersion": API_VERSION}
        for kind in KINDS
        for item in organization.list(kind)
    ]


def _settle(organization: Organization, zed: SyncClient) -> set[str]:
    """Wait until every object is Ready; see that SpiceDB holds what they say, and nothing else."""
    for kind in KINDS:
        organization.wait_ready(kind)
    bodies = _bodies(organization)
    held = rows(zed, organization.name)
    assert held - ended_rows(bodies) == expected_rows(bodies)
    return held


def _gone(organization: Organization, kind: str, name: str) -> None:
    organization.delete(kind, name)
    organization.wait_gone(kind, name)


def _can_read(zed: SyncClient, organization: Organization, agent: str, pool: str) -> bool:
    org = organization.name
    return may(zed, f"pool:{org}/{pool}", "read", f"agent:{org}/{agent}")


def _acts_for(zed: SyncClient, organization: Organization, agent: str, person: str) -> bool:
    org = organization.name
    return may(zed, f"person:{org}/{person}", "represents", f"agent:{org}/{agent}")


def _audit(operator: OperatorProcess, organization: Organization) -> list[Json]:
    lines = (json.loads(line) for line in operator.log.read_text().splitlines())
    return [x for x in lines if "audit" in x and x["namespace"] == organization.name]


def _events(organization: Organization) -> list[client.CoreV1Event]:
    found: list[client.CoreV1Event] = organization.core.list_namespaced_event(
        organization.name
    ).items
    return found


class TestMemoryAgent:
    def test_becomes_a_member_and_a_reader_and_a_writer(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        groups = [{"name": "slack-eng", "access": "write"}, {"name": "all"}]
        organization.agent("pm", role="pm", groups=groups)

        organization.wait_ready("MemoryAgent")

        org = organization.name
        assert rows(zed, org) == {
            f"organization:{org}#member@agent:{org}/pm",
            f"group:{org}/slack-eng#writer@agent:{org}/pm",
            f"group:{org}/all#reader@agent:{org}/pm",
        }
        assert may(zed, f"organization:{org}", "access", f"agent:{org}/pm")
        _gone(organization, "MemoryAgent", "pm")
        assert rows(zed, org) == set()

    def test_leaves_a_group_and_turns_from_writer_to_reader(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.agent("pm", groups=[{"name": "a", "access": "write"}, {"name": "b"}])
        _settle(organization, zed)

        organization.patch("MemoryAgent", "pm", groups=[{"name": "a", "access": "read"}])

        org = organization.name
        assert _settle(organization, zed) == {
            f"organization:{org}#member@agent:{org}/pm",
            f"group:{org}/a#reader@agent:{org}/pm",
        }

    def test_changes_its_role_and_goes_while_what_was_granted_of_the_role_stays(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        """A memory keeps the role that it was written with, and so does a grant."""
        organization.agent("planner", role="pm")
        organization.agent("bot")
        organization.grant("oncall", "bot", role="pm")
        before = _settle(organization, zed)

        organization.patch("MemoryAgent", "planner", role="lead")
        assert _settle(organization, zed) == before
        assert _can_read(zed, organization, "bot", "pm/private")
        assert not _can_read(zed, organization, "bot", "lead/private")

        _gone(organization, "MemoryAgent", "planner")  # the last that ever had the role
        _settle(organization, zed)
        assert _can_read(zed, organization, "bot", "pm/private")

    def test_two_with_one_service_account_are_both_out_until_one_changes(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.agent("a", serviceAccountName="shared")
        _settle(organization, zed)
        organization.agent("b", serviceAccountName="shared", groups=[{"name": "g"}])

        for name, rival in (("a", "b"), ("b", "a")):
            organization.wait_condition("MemoryAgent", name, "False", "Conflict")
            organization.wait_condition(
                "MemoryAgent", name, "True", "SharedServiceAccount", "Conflict"
            )
            assert f"MemoryAgent {rival}: give each" in _message(organization, name)
        assert rows(zed, organization.name) == set()

        organization.patch("MemoryAgent", "b", serviceAccountName="own")
        assert len(_settle(organization, zed)) == 3
        assert organization.condition("MemoryAgent", "a", "Conflict") == ("", "")

        organization.patch("MemoryAgent", "b", serviceAccountName="shared")
        organization.wait_condition("MemoryAgent", "a", "False", "Conflict")
        _gone(organization, "MemoryAgent", "b")
        assert len(_settle(organization, zed)) == 1

    def test_claims_the_account_of_its_own_name_by_default(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.agent("a")
        organization.agent("b", serviceAccountName="a")

        for name in ("a", "b"):
            organization.wait_condition("MemoryAgent", name, "False", "Conflict")
        assert rows(zed, organization.name) == set()

    def test_shows_its_subject_and_its_owner(self, organization: Organization) -> None:
        organization.agent("pm")
        organization.link("pm", "slack/U1")

        def owner() -> str | None:
            body = organization.get("MemoryAgent", "pm") or {}
            status: Json = body.get("status", {})
            return status.get("owner")

        wait_for(lambda: owner() == "slack/U1", 30, lambda: str(owner()))
        status = (organization.get("MemoryAgent", "pm") or {})["status"]
        assert status["subject"] == f"agent:{organization.name}/pm"
        assert status["zedToken"]
        organization.patch("IdentityLink", "pm", person={"provider": "email", "id": "a@b.c"})
        wait_for(lambda: owner() == "email/a@b.c", 30, lambda: str(owner()))
        _gone(organization, "IdentityLink", "pm")
        wait_for(lambda: owner() is None, 30, lambda: str(owner()))

    def test_may_have_the_longest_of_names(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.agent(LONG_NAME, groups=[{"name": "a.b"}])
        organization.link(LONG_NAME, "email/ann.lee@example.com", "wechat/李小龍")
        organization.grant(LONG_NAME, LONG_NAME, role="pm.emea")

        held = _settle(organization, zed)

        org = organization.name
        encoded = LONG_NAME.replace(".", "=2E")
        assert f"agent:{org}/{encoded}#owner@person:{org}/email/ann=2Elee=40example=2Ecom" in held
        assert f"group:{org}/a=2Eb#reader@agent:{org}/{encoded}" in held
        assert len(held) == 7
        for kind in KINDS:
            _gone(organization, kind, LONG_NAME)
        assert rows(zed, org) == set()


class TestIdentityLink:
    def test_leads_to_another_person_and_loses_an_alias(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.agent("pm")
        organization.link("pm", "slack/U1", "telegram/1", "telegram/2")
        _settle(organization, zed)
        for person in ("slack/U1", "telegram/1", "telegram/2"):
            assert _acts_for(zed, organization, "pm", person)

        organization.patch("IdentityLink", "pm", aliases=[{"provider": "telegram", "id": "2"}])
        _settle(organization, zed)
        assert not _acts_for(zed, organization, "pm", "telegram/1")
        assert _acts_for(zed, organization, "pm", "telegram/2")

        organization.patch("IdentityLink", "pm", person={"provider": "slack", "id": "U2"})
        _settle(organization, zed)
        assert not _acts_for(zed, organization, "pm", "slack/U1")
        assert _acts_for(zed, organization, "pm", "slack/U2")

        # The person may also be named once more, as an alias.
        organization.patch("IdentityLink", "pm", aliases=[{"provider": "slack", "id": "U2"}])
        _settle(organization, zed)
        _gone(organization, "IdentityLink", "pm")
        assert not _acts_for(zed, organization, "pm", "slack/U2")
        _settle(organization, zed)

    def test_made_anew_for_somebody_else_inherits_nothing(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.link("pm", "slack/U1", "telegram/1")
        _settle(organization, zed)

        _gone(organization, "IdentityLink", "pm")
        organization.link("pm", "slack/U2")

        org = organization.name
        assert _settle(organization, zed) == {
            f"agent:{org}/pm#owner@person:{org}/slack/U2",
            f"person:{org}/slack/U2#agent@agent:{org}/pm",
        }

    def test_waits_for_its_agent_and_notices_that_it_goes(self, organization: Organization) -> None:
        organization.link("pm", "slack/U1")
        organization.wait_ready("IdentityLink")
        organization.wait_condition("IdentityLink", "pm", "False", "NotFound", "AgentFound")
        organization.agent("pm")
        organization.wait_condition("IdentityLink", "pm", "True", "Found", "AgentFound")
        organization.delete("MemoryAgent", "pm")
        organization.wait_condition("IdentityLink", "pm", "False", "NotFound", "AgentFound")

    def test_that_cannot_be_encoded_is_alone_in_its_misfortune(
        self, organization: Organization, zed: SyncClient, operator: OperatorProcess
    ) -> None:
        """Valid by the CRD, but three bytes for each letter, three characters for each byte."""
        bad = "漢" * 256
        organization.link("bad", f"slack/{bad}")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: organization.grant(f"g{n}", "bot"), range(100)))

        organization.wait_condition("IdentityLink", "bad", "False", "InvalidSpec")
        organization.wait_ready("AccessGrant")

        message = _message(organization, "bad", "IdentityLink")
        assert "SpiceDB allows 1024: use a shorter name" in message
        assert "Nothing is granted by this resource until it is changed" in message
        assert "漢" not in message + operator.log.read_text()
        assert len(rows(zed, organization.name)) == 200
        organization.patch("IdentityLink", "bad", person={"provider": "slack", "id": "U1"})
        _settle(organization, zed)
        organization.patch("IdentityLink", "bad", person={"provider": "slack", "id": bad})
        organization.wait_condition("IdentityLink", "bad", "False", "InvalidSpec")
        assert len(rows(zed, organization.name)) == 200
        _gone(organization, "IdentityLink", "bad")


class TestAccessGrant:
    def test_two_for_the_same_pair_do_not_touch_each_other(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        """Written straight to the pool, they would overwrite each other's end."""
        organization.agent("bot")
        organization.grant("short", "bot", validTo=instant(3600))
        organization.grant("long", "bot", validTo=instant(YEAR))
        assert len(_settle(organization, zed)) == 5

        _gone(organization, "AccessGrant", "short")
        assert len(_settle(organization, zed)) == 3
        assert _can_read(zed, organization, "bot", "pm/private")

        organization.grant("short", "bot", validTo=instant(3600))
        _settle(organization, zed)
        _gone(organization, "AccessGrant", "long")
        _settle(organization, zed)
        assert _can_read(zed, organization, "bot", "pm/private")
        _gone(organization, "AccessGrant", "short")
        assert not _can_read(zed, organization, "bot", "pm/private")

    def test_moves_to_another_role_and_to_another_grantee(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        for agent in ("one", "two"):
            organization.agent(agent)
        organization.grant("g", "one", role="a", validTo=instant(3600))
        _settle(organization, zed)

        def readers() -> set[str]:
            return {
                f"{agent}:{role}/{scope}"
                for agent in ("one", "two")
                for role in ("a", "b")
                for scope in ("private", "team")
                if _can_read(zed, organization, agent, f"{role}/{scope}")
            }

        assert readers() == {"one:a/private"}
        organization.patch("AccessGrant", "g", grantorRole="b")
        _settle(organization, zed)
        assert readers() == {"one:b/private"}
        organization.patch("AccessGrant", "g", granteeAgent="two")
        _settle(organization, zed)
        assert readers() == {"two:b/private"}
        organization.patch("AccessGrant", "g", resourceScope="team")
        _settle(organization, zed)
        assert readers() == {"two:b/team"}

    def test_gets_an_end_and_the_end_moves(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.grant("g", "bot")
        _settle(organization, zed)
        for end in (instant(3600), instant(YEAR), instant(60)):
            organization.patch("AccessGrant", "g", validTo=end)
            held = _settle(organization, zed)
            assert sum("holder" in row for row in held) == 1
        opens = instant(30)
        organization.patch("AccessGrant", "g", validFrom=opens)
        organization.wait_condition("AccessGrant", "g", "False", "Pending", "Active")
        _settle(organization, zed)
        assert not _can_read(zed, organization, "bot", "pm/private")

    def test_begins_with_its_creation_unless_told_otherwise(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        created = organization.grant("g", "bot")["metadata"]["creationTimestamp"]
        held = _settle(organization, zed)

        body = organization.get("AccessGrant", "g") or {}
        assert body["status"]["validFrom"] == created
        assert "validFrom" not in body["spec"]
        assert any(f'"valid_from":"{created}"' in row for row in held)

    def test_for_nobody_yet_is_written_and_says_so(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.grant("g", "nobody")
        held = _settle(organization, zed)

        assert len(held) == 2
        organization.wait_condition("AccessGrant", "g", "False", "NotFound", "GranteeFound")
        organization.agent("nobody")
        organization.wait_condition("AccessGrant", "g", "True", "Found", "GranteeFound")
        _settle(organization, zed)
        _gone(organization, "MemoryAgent", "nobody")
        organization.wait_condition("AccessGrant", "g", "False", "NotFound", "GranteeFound")

    def test_of_one_second_is_seen_through(
        self, organization: Organization, zed: SyncClient, operator: OperatorProcess
    ) -> None:
        opens = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(seconds=4)
        ends = opens + dt.timedelta(seconds=1)
        organization.agent("bot")
        organization.grant("g", "bot", validFrom=_text(opens), validTo=_text(ends))

        organization.wait_condition("AccessGrant", "g", "False", "Expired", "Active")

        _settle(organization, zed)
        assert not _can_read(zed, organization, "bot", "pm/private")
        actions = [line["audit"] for line in _audit(operator, organization) if line["name"] == "g"]
        assert actions == ["granted", "opened", "ended"]
        _gone(organization, "AccessGrant", "g")
        assert not [row for row in rows(zed, organization.name) if "access_grant" in row]

    def test_that_was_over_before_it_began_writes_nothing(
        self, organization: Organization, zed: SyncClient, operator: OperatorProcess
    ) -> None:
        organization.agent("bot")
        organization.grant(
            "g", "bot", validFrom="2001-01-01T00:00:00Z", validTo="2001-01-02T00:00:00Z"
        )

        organization.wait_condition("AccessGrant", "g", "False", "Expired", "Active")

        organization.wait_ready("AccessGrant")
        assert not [row for row in rows(zed, organization.name) if "access_grant" in row]
        body = organization.get("AccessGrant", "g") or {}
        assert "finalizers" not in body["metadata"]
        assert not [line for line in _audit(operator, organization) if line["name"] == "g"]
        organization.patch("AccessGrant", "g", validTo=instant(3600))
        organization.wait_condition("AccessGrant", "g", "True", "Active", "Active")
        _settle(organization, zed)
        assert _can_read(zed, organization, "bot", "pm/private")

    def test_begins_and_ends_to_the_instant_while_the_operator_runs(
        self,
        organization: Organization,
        zed: SyncClient,
        operator: OperatorProcess,
        spicedb: SpiceDB,
    ) -> None:
        """Nobody writes anything at the end, and what is over stays over."""
        # Once nothing of earlier tests is left, nobody else has anything to write.
        wait_for(lambda: not rows(zed), 60, lambda: str(rows(zed)))
        organization.agent("bot")
        opens = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(seconds=10)
        ends = opens + dt.timedelta(seconds=5)
        organization.grant("until", "bot", "a", validFrom=_text(opens), validTo=_text(ends))
        organization.grant("since", "bot", "b", validFrom=_text(opens))
        _settle(organization, zed)
        writes = _writes(operator, spicedb)

        until, since = asyncio.run(
            _watch(spicedb, organization.name, ends + dt.timedelta(seconds=30.5))
        )

        assert _writes(operator, spicedb) == writes
        for access in until.values():
            assert access.mistakes(opens, ends) == []
            assert len(access.changes()) == 2
            assert access.polls[0][0] < opens
            assert access.polls[-1][0] > ends + dt.timedelta(seconds=30)
        for access in since.values():
            assert access.mistakes(opens, None) == []
            assert len(access.changes()) == 1
        organization.wait_condition("AccessGrant", "until", "False", "Expired", "Active")
        organization.wait_condition("AccessGrant", "since", "True", "Active", "Active")
        wanted = {"until": ["granted", "opened", "ended"], "since": ["granted", "opened"]}
        for name, actions in wanted.items():
            lines = [line for line in _audit(operator, organization) if line["name"] == name]
            assert [line["audit"] for line in lines] == actions


class TestOrganization:
    def test_the_same_names_in_two_do_not_meet(
        self, api: client.ApiClient, organization: Organization, zed: SyncClient
    ) -> None:
        with new_organization(api) as other:
            organization.agent("bot", groups=[{"name": "eng", "access": "write"}])
            organization.link("bot", "slack/U1")
            organization.grant("g", "bot")
            other.agent("bot")
            _settle(organization, zed)
            _settle(other, zed)

            def allowed(resource: str, permission: str) -> list[tuple[str, str]]:
                both = (organization.name, other.name)
                return [
                    (mine, asks)
                    for mine in both
                    for asks in both
                    if may(zed, resource.replace("ORG", mine), permission, f"agent:{asks}/bot")
                ]

            mine = (organization.name, organization.name)
            assert allowed("pool:ORG/pm/private", "read") == [mine]
            assert allowed("group:ORG/eng", "contribute") == [mine]
            assert allowed("person:ORG/slack/U1", "represents") == [mine]
            assert allowed("organization:ORG", "access") == [mine, (other.name, other.name)]
            for row in rows(zed):
                resource, _, subject = row.split("[")[0].partition("@")
                assert _owner_of(resource) == _owner_of(subject)

            # The same grant in the other one, and gone from the first: only the other's is left.
            other.grant("g", "bot")
            _settle(other, zed)
            _gone(organization, "AccessGrant", "g")
            _settle(organization, zed)
            _settle(other, zed)
            assert allowed("pool:ORG/pm/private", "read") == [(other.name, other.name)]

    def test_the_operators_own_namespace_is_none(
        self, api: client.ApiClient, operator: OperatorProcess, zed: SyncClient
    ) -> None:
        assert operator.pid
        with new_organization(api, OWN_NAMESPACE) as system:
            system.agent("bot")
            system.link("bot", "slack/U1")
            system.grant("g", "bot")

            for kind, name in (
                ("MemoryAgent", "bot"),
                ("IdentityLink", "bot"),
                ("AccessGrant", "g"),
            ):
                system.wait_condition(kind, name, "False", "ReservedNamespace")
                assert "create this resource in the organisation's" in _message(system, name, kind)
                assert "finalizers" not in (system.get(kind, name) or {})["metadata"]
            assert rows(zed, OWN_NAMESPACE) == set()

    def test_goes_with_all_that_it_granted(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.agent("bot", groups=[{"name": "eng"}])
        organization.link("bot", "slack/U1")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: organization.grant(f"g{n}", "bot"), range(50)))
        assert len(_settle(organization, zed)) == 104

        organization.delete_namespace()

        wait_for(lambda: not rows(zed, organization.name), 10, lambda: str(rows(zed)))


class TestStatus:
    def test_edited_by_hand_is_mended(self, organization: Organization, zed: SyncClient) -> None:
        organization.grant("g", "bot", validTo=instant(3600))
        _settle(organization, zed)
        before = (organization.get("AccessGrant", "g") or {})["status"]

        for forged in (
            {"conditions": None, "validFrom": "2001-01-01T00:00:00Z"},
            {"conditions": [before["conditions"][0] | {"status": "False", "reason": "Forged"}]},
            None,
        ):
            _patch_status(organization, "AccessGrant", "g", forged)

            def mended() -> bool:
                status = (organization.get("AccessGrant", "g") or {}).get("status", {})
                return _without_times(status) == _without_times(before)

            wait_for(mended, 30, lambda: str(organization.get("AccessGrant", "g")))

    def test_keeps_up_with_rapid_changes(self, organization: Organization, zed: SyncClient) -> None:
        organization.grant("g", "bot")
        for n in range(100):
            organization.patch("AccessGrant", "g", grantorRole=f"r{n}")
            _label(organization, "AccessGrant", "g", str(n))

        held = _settle(organization, zed)

        body = organization.get("AccessGrant", "g") or {}
        assert body["status"]["observedGeneration"] == body["metadata"]["generation"] == 101
        assert len(held) == 2

    def test_of_an_object_with_foreign_finalizers_says_the_truth_to_the_end(
        self, organization: Organization, zed: SyncClient
    ) -> None:
        organization.grant("g", "bot")
        _settle(organization, zed)
        _patch_metadata(
            organization, "AccessGrant", "g", finalizers=[FINALIZER, "example.com/other"]
        )
        organization.delete("AccessGrant", "g")

        def released() -> bool:
            body = organization.get("AccessGrant", "g") or {}
            finalizers: list[str] = body["metadata"]["finalizers"]
            return finalizers == ["example.com/other"]

        wait_for(released, 30, lambda: str(organization.get("AccessGrant", "g")))
        assert rows(zed, organization.name) == set()


class TestEventsAndAudit:
    def test_events_tell_what_turned_and_nothing_else(self, organization: Organization) -> None:
        organization.agent("fine")
        organization.link("fine", "slack/U0SECRET")
        organization.grant("fine", "fine", validFrom="2001-01-01T00:00:00Z", validTo=instant(4))
        organization.grant("early", "nobody")
        organization.agent("rival", serviceAccountName="fine")
        organization.wait_condition("MemoryAgent", "fine", "False", "Conflict")
        _gone(organization, "MemoryAgent", "rival")
        organization.wait_ready("MemoryAgent")
        for n in range(3):
            _label(organization, "MemoryAgent", "fine", str(n))
        organization.wait_condition("AccessGrant", "fine", "False", "Expired", "Active")

        def told() -> set[tuple[str, str, str]]:
            return {
                (e.type, f"{e.involved_object.kind}/{e.involved_object.name}", e.reason)
                for e in _events(organization)
            }

        wanted = {
            ("Warning", "MemoryAgent/fine", "Conflict"),
            ("Normal", "MemoryAgent/fine", "Reconciled"),
            ("Normal", "AccessGrant/fine", "Expired"),
            ("Warning", "AccessGrant/early", "GranteeNotFound"),
        }
        wait_for(lambda: wanted <= told(), 10, lambda: str(told()))
        # Whether these turned on the way depends on what was seen first; no others may appear.
        maybe = {
            ("Warning", "MemoryAgent/rival", "Conflict"),
            ("Warning", "IdentityLink/fine", "AgentNotFound"),
            ("Warning", "AccessGrant/fine", "GranteeNotFound"),
        }
        assert told() - maybe == wanted
        events = _events(organization)
        assert len(events) == len(told())
        assert not [event for event in events if "U0SECRET" in (event.message or "")]

    def test_every_change_of_access_leaves_one_line_without_a_person(
        self, organization: Organization, zed: SyncClient, operator: OperatorProcess
    ) -> None:
        people = [
            "U0SECRET",
            "ann.lee@example.com",
            "ann=2Elee=40example=2Ecom",
            "李小龍",
            "T0NEXT",
        ]
        organization.link("bot", f"slack/{people[0]}", f"email/{people[1]}", f"wechat/{people[3]}")
        organization.agent("bot")
        organization.grant("g", "bot", role="a", validTo=instant(3600))
        _settle(organization, zed)
        grant = organization.get("AccessGrant", "g") or {}
        organization.patch("AccessGrant", "g", grantorRole="b")
        organization.patch("IdentityLink", "bot", person={"provider": "slack", "id": people[4]})
        _settle(organization, zed)
        _gone(organization, "AccessGrant", "g")
        _gone(organization, "IdentityLink", "bot")

        lines = _audit(operator, organization)
        story = [(line["audit"], line["kind"], line["generation"]) for line in lines]
        assert sorted(story) == sorted(
            [
                ("granted", "AccessGrant", 1),
                ("granted", "IdentityLink", 1),
                ("granted", "MemoryAgent", 1),
                ("changed", "AccessGrant", 2),
                ("changed", "IdentityLink", 2),
                ("revoked", "AccessGrant", 3),
                ("revoked", "IdentityLink", 3),
            ]
        )
        granted, changed, revoked = (line for line in lines if line["kind"] == "AccessGrant")
        org = organization.name
        assert granted["before"] == []
        assert granted["after"] == changed["before"]
        assert f"pool:{org}/a/private#grant@access_grant:{org}/g" in changed["before"]
        assert f"pool:{org}/b/private#grant@access_grant:{org}/g" in changed["after"]
        assert changed["after"] == revoked["before"]
        assert revoked["after"] == []
        for line in (granted, changed, revoked):
            assert line["uid"] == grant["metadata"]["uid"]
            assert line["fieldManager"]
            assert line["zedToken"]
        # People can be told apart within one link's lines, and never named.
        links = [line for line in lines if line["kind"] == "IdentityLink"]
        assert len(set(links[0]["after"]) & set(links[1]["after"])) == 2  # the two aliases
        log = operator.log.read_text()
        assert not [person for person in people if person in log]

    def test_an_exported_organization_can_be_restored(
        self, control_plane: cluster.Cluster, organization: Organization, zed: SyncClient
    ) -> None:
        """With annotations, status, uid and finalizers; only `resourceVersion` has to be dropped."""
        here = f"--namespace={organization.name}"
        organization.agent("bot", groups=[{"name": "g", "access": "write"}])
        organization.link("bot", "slack/U1", "telegram/1")
        organization.grant("g", "bot", validFrom="2026-01-01T00:00:00Z", validTo=instant(3600))
        for kind in KINDS:
            for item in organization.list(kind):
                _patch_metadata(
                    organization, kind, item["metadata"]["name"], annotations={"example.com/a": "b"}
                )
        before = _settle(organization, zed)
        exported = yaml.safe_load(
            control_plane.kubectl("get", ",".join(KINDS), here, "--output=yaml")
        )
        assert len(exported["items"]) == 3

        control_plane.kubectl("delete", ",".join(KINDS), "--all", here)
        assert rows(zed, organization.name) == set()
        for item in exported["items"]:
            del item["metadata"]["resourceVersion"]
        control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(exported))

        assert _settle(organization, zed) == before
        for item in exported["items"]:
            del item["metadata"]["uid"]
        control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(exported))
        assert _settle(organization, zed) == before


def _message(organization: Organization, name: str, kind: str = "MemoryAgent") -> str:
    body = organization.get(kind, name) or {}
    (message,) = (c["message"] for c in body["status"]["conditions"] if c["type"] == "Ready")
    return str(message)


def _patch_metadata(organization: Organization, kind: str, name: str, **metadata: Any) -> None:
    organization.objects.patch_namespaced_custom_object(
        GROUP, VERSION, organization.name, f"{kind.lower()}s", name, {"metadata": metadata}
    )


def _label(organization: Organization, kind: str, name: str, value: str) -> None:
    _patch_metadata(organization, kind, name, labels={"n": value})


def _patch_status(organization: Organization, kind: str, name: str, status: Any) -> None:
    organization.objects.patch_namespaced_custom_object_status(
        GROUP, VERSION, organization.name, f"{kind.lower()}s", name, {"status": status}
    )


def _without_times(status: Json) -> Json:
    conditions = [
        {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        for condition in status.get("conditions", ())
    ]
    return {key: value for key, value in status.items() if key != "zedToken"} | {
        "conditions": sorted(conditions, key=lambda each: str(each["type"]))
    }


def _owner_of(reference: str) -> str:
    return reference.partition(":")[2].partition("#")[0].split("/")[0]


def _text(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _writes(operator: OperatorProcess, spicedb: SpiceDB) -> tuple[float, int]:
    """How often the operator says that it has written, and how often SpiceDB says so."""
    counted = operator.metric("spicedb_requests_total", method="WriteRelationships")
    return counted, spicedb.log.read_text().count('"grpc.method":"WriteRelationships"')


async def _watch(spicedb: SpiceDB, org: str, until: dt.datetime) -> list[dict[str, Access]]:
    connection = AsyncClient(spicedb.endpoint, spicedb.credentials())
    questions = (f"pool:{org}/{role}/private#read@agent:{org}/bot" for role in ("a", "b"))
    return await asyncio.gather(
        *(watch_access(check_permission(connection, each), until=until) for each in questions)
    )
