"""Grants begin and end to the instant, with nothing running at that moment.

On SpiceDB alone: rows are written once, then nobody writes any more, and two agents and a control
are polled every 20 ms. All servers are watched at the same time, which takes about 50 s.
See docs/schema.md for the figures that this prints (`pytest -rP`).
"""

import asyncio
import datetime as dt
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from authzed.api.v1 import (
    AsyncClient,
    RelationshipUpdate,
    WriteRelationshipsRequest,
    WriteSchemaRequest,
)

from tests.support.access import CONSISTENCIES, Access, check_permission, watch_access
from tests.support.spicedb import SpiceDB
from tests.support.validation import parse_relationship

SCHEMA = Path(__file__).parents[2] / "schema" / "schema.zed"

# What the project does not do, beside what it does: an end that only the expiration decides.
CONTROL = """
definition expiring_grant {
    relation holder: agent with expiration
    permission active = holder
}
"""

SERVERS = ["memory", "postgres", "postgres, clock 5 min ahead"]
CLOCK_AHEAD = dt.timedelta(minutes=5)
CLEANED_UP_AFTER = dt.timedelta(minutes=10)

BEFORE = dt.timedelta(seconds=12)  # longer than SpiceDB's revisions lag behind a write
LENGTH = dt.timedelta(seconds=5)
AFTER = dt.timedelta(seconds=30)

# The questions, by who asks: a holder with an end, one without, and the control.
MEMORY = "memory_fragment:acme/decision#view@agent:acme"
QUESTIONS = {
    "until": f"{MEMORY}/until",
    "since": f"{MEMORY}/since",
    "control": "expiring_grant:acme/control#active@agent:acme/control",
}


@dataclass(frozen=True)
class Observation:
    """What was seen of one server, by who asked and by consistency."""

    valid_from: dt.datetime
    valid_to: dt.datetime
    seen: dict[str, dict[str, Access]]


@pytest.fixture(scope="module")
def observations(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Observation]]:
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(_server(name, tmp_path_factory.mktemp("spicedb")))
            for name in SERVERS
        }
        yield asyncio.run(_observe_all(servers))


@pytest.mark.parametrize("consistency", CONSISTENCIES)
@pytest.mark.parametrize("name", SERVERS)
def test_a_grant_holds_from_valid_from_until_valid_to_exactly(
    observations: dict[str, Observation], name: str, consistency: str
) -> None:
    """Every poll is answered by `valid_from <= now < valid_to`, up to 30 s after the end."""
    observed = observations[name]
    access = observed.seen["until"][consistency]
    _report(f"{name}, {consistency}", observed, access)

    assert access.mistakes(observed.valid_from, observed.valid_to) == []
    assert len(access.changes()) == 2
    assert access.polls[-1][0] > observed.valid_to + AFTER - dt.timedelta(seconds=1)


@pytest.mark.parametrize("consistency", CONSISTENCIES)
@pytest.mark.parametrize("name", SERVERS)
def test_a_grant_without_an_end_begins_exactly_and_stays(
    observations: dict[str, Observation], name: str, consistency: str
) -> None:
    observed = observations[name]
    access = observed.seen["since"][consistency]

    assert access.mistakes(observed.valid_from, None) == []
    assert len(access.changes()) == 1


@pytest.mark.parametrize("name", ["memory", "postgres"])
def test_an_end_by_expiration_alone_is_measured_beside_it(
    observations: dict[str, Observation], name: str
) -> None:
    """Why there is a caveat. How late it is depends on SpiceDB's caches: printed, not promised."""
    observed = observations[name]
    for consistency, access in observed.seen["control"].items():
        late = access.last_allowed()
        assert late is not None
        print(f"{name}, {consistency}: {_offset(late, observed.valid_to)} by expiration alone")


def test_a_clock_that_runs_ahead_ends_what_only_expires_too_early(
    observations: dict[str, Observation],
) -> None:
    """The control of the clock itself: were it right, these polls would be allowed."""
    seen = observations["postgres, clock 5 min ahead"].seen["control"]

    assert {access.last_allowed() for access in seen.values()} == {None}


def _server(name: str, directory: Path) -> SpiceDB:
    ahead = CLOCK_AHEAD if "ahead" in name else dt.timedelta(0)
    return SpiceDB(
        directory,
        datastore="memory" if name == "memory" else "postgres",
        clock_ahead=ahead,
    )


async def _observe_all(servers: dict[str, SpiceDB]) -> dict[str, Observation]:
    found = await asyncio.gather(*(_observe(server) for server in servers.values()))
    return dict(zip(servers, found, strict=True))


async def _observe(server: SpiceDB) -> Observation:
    valid_from = dt.datetime.now(dt.UTC).replace(microsecond=0) + BEFORE
    valid_to = valid_from + LENGTH
    client = AsyncClient(server.endpoint, server.credentials())
    await client.WriteSchema(WriteSchemaRequest(schema=SCHEMA.read_text() + CONTROL))
    await client.WriteRelationships(
        WriteRelationshipsRequest(
            updates=[
                RelationshipUpdate(
                    operation=RelationshipUpdate.OPERATION_TOUCH,
                    relationship=parse_relationship(row),
                )
                for row in _rows(
                    _text(valid_from), _text(valid_to), _text(valid_to + CLEANED_UP_AFTER)
                )
            ]
        )
    )
    watches = [
        watch_access(check_permission(client, question), until=valid_to + AFTER)
        for question in QUESTIONS.values()
    ]
    seen = dict(zip(QUESTIONS, await asyncio.gather(*watches), strict=True))
    return Observation(valid_from, valid_to, seen)


def _rows(valid_from: str, valid_to: str, cleaned_up: str) -> list[str]:
    return [
        "memory_fragment:acme/decision#pool@pool:acme/planner/private",
        "pool:acme/planner/private#grant@access_grant:acme/until",
        "pool:acme/planner/private#grant@access_grant:acme/since",
        (
            "access_grant:acme/until#holder_until@agent:acme/until"
            f'[grant_window:{{"valid_from":"{valid_from}","valid_to":"{valid_to}"}}]'
            f"[expiration:{cleaned_up}]"
        ),
        (
            "access_grant:acme/since#holder@agent:acme/since"
            f'[not_before:{{"valid_from":"{valid_from}"}}]'
        ),
        f"expiring_grant:acme/control#holder@agent:acme/control[expiration:{valid_to}]",
    ]


def _text(instant: dt.datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def _report(what: str, observed: Observation, access: Access) -> None:
    (_, first_allowed), (last_allowed, first_denied) = access.changes()
    print(
        f"{what}: first allowed {_offset(first_allowed, observed.valid_from)} after validFrom, "
        f"last allowed {_offset(last_allowed, observed.valid_to)} and "
        f"first denied {_offset(first_denied, observed.valid_to)} after validTo; "
        f"{len(access.polls)} polls, at most {access.longest_pause().total_seconds():.3f} s apart"
    )


def _offset(instant: dt.datetime, reference: dt.datetime) -> str:
    return f"{(instant - reference).total_seconds():+.3f} s"
