"""The example organisation, applied as a user applies it, on the installed chart."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from authzed.api.v1 import SyncClient
from kubernetes import client

from tests.cluster import Cluster
from tests.support.access import Access, check_permission, watch_access
from tests.support.installation import Installation, SpiceDBAccess
from tests.support.organization import Organization, instant, may, new_organization, rows, touch

EXAMPLE = Path("examples/acme")
DECISION = "memory_fragment:acme/decision"
NOTE = "memory_fragment:acme/note"


@pytest.fixture(scope="module")
def spicedb(installation: Installation) -> Iterator[SpiceDBAccess]:
    with installation.spicedb() as access:
        yield access


@pytest.fixture(scope="module")
def zed(spicedb: SpiceDBAccess) -> SyncClient:
    return spicedb.client()


@pytest.fixture(scope="module")
def acme(cluster: Cluster, api: client.ApiClient, zed: SyncClient) -> Iterator[Organization]:
    with new_organization(api, "acme") as organization:
        cluster.kubectl("apply", "-f", str(EXAMPLE))
        organization.wait_ready("MemoryAgent")
        organization.wait_ready("IdentityLink")
        organization.wait_ready("AccessGrant")
        # What the recall service will write: a decision of Cara and Bob, and a private note.
        touch(
            zed,
            [
                f"{DECISION}#shared_by@agent:acme/stenographer",
                f"{DECISION}#involves@person:acme/slack/U0123ABC",
                f"{DECISION}#involves@person:acme/slack/U0456DEF",
                f"{NOTE}#shared_by@agent:acme/pm",
                f"{NOTE}#pool@pool:acme/product-manager/private",
            ],
        )
        yield organization


def test_applying_the_example_leads_to_exactly_these_relationships(
    acme: Organization, zed: SyncClient
) -> None:
    grant = acme.get("AccessGrant", "oncall")
    assert grant
    created = grant["metadata"]["creationTimestamp"]
    assert rows(zed, "acme") == {
        "organization:acme#member@agent:acme/cara",
        "organization:acme#member@agent:acme/bob",
        "organization:acme#member@agent:acme/stenographer",
        "organization:acme#member@agent:acme/pm",
        "organization:acme#member@agent:acme/oncall-bot",
        "group:acme/slack-engineering#reader@agent:acme/cara",
        "group:acme/slack-engineering#writer@agent:acme/stenographer",
        "agent:acme/cara#owner@person:acme/slack/U0123ABC",
        "person:acme/slack/U0123ABC#agent@agent:acme/cara",
        "person:acme/telegram/424242#agent@agent:acme/cara",
        "agent:acme/bob#owner@person:acme/slack/U0456DEF",
        "person:acme/slack/U0456DEF#agent@agent:acme/bob",
        (
            "access_grant:acme/oncall#holder_until@agent:acme/oncall-bot"
            f'[grant_window:{{"valid_from":"{created}","valid_to":"2030-01-01T00:00:00Z"}}]'
            "[expiration:2030-01-01T00:10:00Z]"
        ),
        "pool:acme/product-manager/private#grant@access_grant:acme/oncall",
    }


@pytest.mark.parametrize(
    ("agent", "views_decision", "deletes_decision", "views_note"),
    [
        ("cara", True, False, False),
        ("bob", True, False, False),
        ("stenographer", True, True, False),
        ("pm", False, False, True),
        ("oncall-bot", False, False, True),
        ("stranger", False, False, False),
    ],
)
def test_everyone_sees_what_they_are_entitled_to_and_nothing_more(
    acme: Organization,
    zed: SyncClient,
    agent: str,
    views_decision: bool,
    deletes_decision: bool,
    views_note: bool,
) -> None:
    assert acme.name == "acme"
    subject = f"agent:acme/{agent}"
    assert may(zed, DECISION, "view", subject) is views_decision
    assert may(zed, DECISION, "delete", subject) is deletes_decision
    assert may(zed, NOTE, "view", subject) is views_note


def test_a_grant_opens_and_ends_to_the_moment_with_no_operator_running(
    acme: Organization, installation: Installation, spicedb: SpiceDBAccess
) -> None:
    """Two grants: one ends while it is watched, the other opens; 20 ms between two polls."""
    begin = datetime.now(UTC).replace(microsecond=0)
    ends, opens = begin + timedelta(seconds=25), begin + timedelta(seconds=27)
    acme.grant("ending", "cara", role="pm-ending", validTo=_text(ends))
    acme.grant("opening", "cara", role="pm-opening", validFrom=_text(opens), validTo=instant(3600))
    acme.wait_ready("AccessGrant", "ending", "opening", seconds=15)
    installation.kubectl("scale", f"deployment/{installation.release}", "--replicas=0")
    installation.kubectl(
        "wait", "pod", "--for=delete", "-l=app.kubernetes.io/component=operator", "--timeout=20s"
    )
    try:
        until = ends + timedelta(seconds=30)
        ending, opening = asyncio.run(_watch(spicedb, ["pm-ending", "pm-opening"], until))
    finally:
        installation.kubectl("scale", f"deployment/{installation.release}", "--replicas=1")
        installation.kubectl(
            "rollout", "status", f"deployment/{installation.release}", "--timeout=120s"
        )

    for access in ending:
        assert access.mistakes(datetime.min.replace(tzinfo=UTC), ends) == []
        assert len(access.changes()) == 1
    for access in opening:
        assert access.mistakes(opens, None) == []
        assert len(access.changes()) == 1


async def _watch(spicedb: SpiceDBAccess, roles: list[str], until: datetime) -> list[list[Access]]:
    asked = spicedb.async_client()
    seen = await asyncio.gather(
        *(
            watch_access(
                check_permission(asked, f"pool:acme/{role}/private#read@agent:acme/cara"),
                until=until,
            )
            for role in roles
        )
    )
    return [list(by_consistency.values()) for by_consistency in seen]


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def test_every_example_is_accepted_by_the_api_server(cluster: Cluster, acme: Organization) -> None:
    assert acme.name == "acme"
    for file in sorted(Path("examples").rglob("*.yaml")):
        assert list(yaml.safe_load_all(file.read_text())), file
        cluster.kubectl("apply", "--dry-run=server", "-f", str(file))
