"""The schema, held against a real SpiceDB: every assertion of every validation file is a test."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import grpc
import pytest
from authzed.api.v1 import (
    CheckPermissionRequest,
    CheckPermissionResponse,
    Consistency,
    DiffSchemaRequest,
    ReadRelationshipsRequest,
    ReadSchemaRequest,
    Relationship,
    RelationshipFilter,
    RelationshipUpdate,
    SyncClient,
    WriteRelationshipsRequest,
    WriteSchemaRequest,
)

from tests.support.spicedb import SpiceDB
from tests.support.validation import Assertion, load, parse_relationship

SCHEMA = Path(__file__).parents[2] / "schema" / "schema.zed"
FILES = {path.stem: load(path) for path in sorted((SCHEMA.parent / "validations").glob("*.yaml"))}
FULL = Consistency(fully_consistent=True)


@pytest.fixture(params=["memory", "postgres"], scope="module")
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncClient]:
    """A server of either datastore with the project's schema and no relationships."""
    with SpiceDB(tmp_path_factory.mktemp("spicedb"), datastore=request.param) as server:
        client = server.client()
        client.WriteSchema(WriteSchemaRequest(schema=SCHEMA.read_text()))
        yield client


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], SyncClient]]:
    """Servers that each hold one validation file's relationships, by its name."""
    with ExitStack() as servers:

        @cache
        def start(name: str) -> SyncClient:
            server = servers.enter_context(SpiceDB(tmp_path_factory.mktemp(name)))
            client = server.client()
            client.WriteSchema(WriteSchemaRequest(schema=FILES[name].schema))
            _touch(client, FILES[name].relationships)
            return client

        yield start


@pytest.mark.parametrize(
    ("file", "assertion"),
    [
        pytest.param(name, assertion, id=f"{name}: {assertion.text} -> {assertion.kind}")
        for name, file in FILES.items()
        for assertion in file.assertions
    ],
)
def test_spicedb_agrees_with_the_validation_files(
    world: Callable[[str], SyncClient], file: str, assertion: Assertion
) -> None:
    assert _answer(world(file), assertion) == assertion.permissionship


@pytest.mark.parametrize(
    ("permission", "without"),
    [
        (permission, term)
        for permission in re.findall(r"permission (?:.+ \+ .+)", SCHEMA.read_text())
        for term in permission.partition(" = ")[2].split(" + ")
    ],
)
def test_each_way_to_a_permission_is_proven(
    world: Callable[[str], SyncClient], permission: str, without: str
) -> None:
    """Take one term out of a permission: some assertion must notice."""
    name, _, terms = permission.partition(" = ")
    rest = " + ".join(term for term in terms.split(" + ") if term != without)
    weaker = SCHEMA.read_text().replace(permission, f"{name} = {rest}")
    noticed = []
    for file, content in FILES.items():
        client = world(file)
        client.WriteSchema(WriteSchemaRequest(schema=weaker))
        noticed += [a for a in content.assertions if _answer(client, a) != a.permissionship]
        client.WriteSchema(WriteSchemaRequest(schema=content.schema))

    assert noticed


@pytest.mark.parametrize("name", FILES)
def test_every_validation_file_refuses_as_well_as_it_allows(name: str) -> None:
    kinds = {assertion.kind for assertion in FILES[name].assertions}

    assert {"assertTrue", "assertFalse"} <= kinds


@pytest.mark.optional
@pytest.mark.skipif(shutil.which("zed") is None, reason="zed isn't installed; SpiceDB was asked")
@pytest.mark.parametrize("name", FILES)
def test_zed_agrees_with_the_validation_files(name: str) -> None:
    file = SCHEMA.parent / "validations" / f"{name}.yaml"

    subprocess.run(["zed", "validate", str(file)], check=True)


def test_the_schema_is_accepted_and_recognised_as_the_same(client: SyncClient) -> None:
    """ReadSchema sorts and reformats, so texts can't be compared; DiffSchema sees the meaning."""
    assert client.ReadSchema(ReadSchemaRequest()).schema_text != SCHEMA.read_text()
    assert _differences(client, SCHEMA.read_text()) == []


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        pytest.param("now < valid_to", "now <= valid_to", id="a caveat"),
        pytest.param("share = shared_by", "share = shared_by + involves", id="a permission"),
        pytest.param("agent with not_before", "agent", id="a caveat taken from a relation"),
        pytest.param("grant_window and expiration", "grant_window", id="an expiration taken away"),
        pytest.param("member: agent\n", "member: agent | person\n", id="a subject type"),
    ],
)
def test_every_difference_in_meaning_is_seen(
    client: SyncClient, written: str, instead: str
) -> None:
    assert written in SCHEMA.read_text()

    assert _differences(client, SCHEMA.read_text().replace(written, instead)) != []


@pytest.mark.parametrize(
    "text",
    [
        "organization:acme#member@agent:acme/pm",
        'access_grant:acme/a#holder@agent:acme/x[not_before:{"valid_from":"2026-03-24T09:00:00Z"}]',
        (
            "access_grant:acme/b#holder_until@agent:acme/x"
            '[grant_window:{"valid_from":"1970-01-01T00:00:00Z","valid_to":"9998-12-31T23:59:59Z"}]'
            "[expiration:9999-01-01T00:09:59Z]"
        ),
    ],
)
def test_a_relationship_is_read_back_as_it_was_written(client: SyncClient, text: str) -> None:
    """Whole seconds and the strings of a context come back unchanged, on either datastore."""
    relationship = parse_relationship(text)
    _touch(client, [relationship])

    assert _read(client, relationship.resource.object_id) == [relationship]


def test_a_row_is_gone_after_its_expiration(client: SyncClient) -> None:
    """Writing one that ended already is no error, so a late operator does no harm."""
    _touch(
        client,
        [
            parse_relationship(
                "access_grant:acme/old#holder_until@agent:acme/x"
                '[grant_window:{"valid_from":"2020-01-01T00:00:00Z","valid_to":"2020-01-02T00:00:00Z"}]'
                "[expiration:2020-01-02T00:10:00Z]"
            )
        ],
    )

    assert _read(client, "acme/old") == []


def test_a_second_end_for_the_same_grant_replaces_the_first(client: SyncClient) -> None:
    """The reason for one access_grant object per AccessGrant."""
    row = (
        "access_grant:acme/twice#holder_until@agent:acme/x"
        '[grant_window:{{"valid_from":"2026-01-01T00:00:00Z","valid_to":"{0}"}}][expiration:{0}]'
    )
    first, second = (
        parse_relationship(row.format(end))
        for end in ("2097-01-01T00:00:00Z", "2098-01-01T00:00:00Z")
    )
    _touch(client, [first])
    _touch(client, [second])

    assert _read(client, "acme/twice") == [second]


def test_deleting_needs_neither_caveat_nor_expiration(client: SyncClient) -> None:
    _touch(
        client,
        [
            parse_relationship(
                'access_grant:acme/c#holder@agent:acme/x[not_before:{"valid_from":"2026-01-01T00:00:00Z"}]'
            )
        ],
    )
    bare = parse_relationship("access_grant:acme/c#holder@agent:acme/x")
    client.WriteRelationships(
        WriteRelationshipsRequest(
            updates=[
                RelationshipUpdate(operation=RelationshipUpdate.OPERATION_DELETE, relationship=bare)
            ]
        )
    )

    assert _read(client, "acme/c") == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("access_grant:acme/d#holder@agent:acme/x", id="a grant without a beginning"),
        pytest.param(
            "access_grant:acme/d#holder_until@agent:acme/x"
            '[grant_window:{"valid_from":"2026-01-01T00:00:00Z","valid_to":"2098-01-01T00:00:00Z"}]',
            id="a grant with an end that is never cleaned up",
        ),
        pytest.param(
            "access_grant:acme/d#holder_until@agent:acme/x[expiration:2098-01-01T00:00:00Z]",
            id="a grant with an end that only the expiration decides",
        ),
        pytest.param(
            'access_grant:acme/d#holder@agent:acme/x[not_before:{"valid_from":"tomorrow"}]',
            id="a time that is none",
        ),
        pytest.param("access_grant:acme/d#holder@person:acme/slack/U1", id="a grant to a person"),
        pytest.param("pool:acme/pm/team#open_to@agent:acme/pm", id="a pool open to one agent"),
        pytest.param("pool:acme/pm/private#grant@agent:acme/pm", id="a grant without its object"),
        pytest.param(
            "memory_fragment:acme/m#shared_by@person:acme/slack/U1",
            id="a memory stored by a person",
        ),
    ],
)
def test_what_the_schema_rules_out_is_refused(client: SyncClient, text: str) -> None:
    with pytest.raises(grpc.RpcError):
        _touch(client, [parse_relationship(text)])


@pytest.mark.parametrize(
    ("flags", "versions"), [([], ["v1.57.1"]), (["--disable-version-response"], [])]
)
def test_the_server_tells_its_version_to_those_who_ask(
    tmp_path: Path, flags: list[str], versions: list[str]
) -> None:
    with SpiceDB(tmp_path, flags=flags) as server:
        client = server.client()
        client.WriteSchema(WriteSchemaRequest(schema=SCHEMA.read_text()))
        _, call = client.ReadSchema.with_call(
            ReadSchemaRequest(), metadata=(("io.spicedb.requestversion", "1"),)
        )

    assert [v for k, v in call.trailing_metadata() if k == "io.spicedb.debug.version"] == versions


@pytest.mark.parametrize("tls", [False, True])
def test_a_wrong_key_is_refused(tmp_path: Path, *, tls: bool) -> None:
    """With PERMISSION_DENIED; UNAUTHENTICATED is for no key at all. Both mean: read it again."""
    with SpiceDB(tmp_path, tls=tls) as server:
        before = server.client()
        server.rotate_key()

        with pytest.raises(grpc.RpcError) as refused:
            before.ReadSchema(ReadSchemaRequest(), timeout=5, wait_for_ready=True)
        with pytest.raises(grpc.RpcError) as empty:
            server.client().ReadSchema(ReadSchemaRequest(), timeout=5)

    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert empty.value.code() is grpc.StatusCode.NOT_FOUND


def _answer(
    client: SyncClient, assertion: Assertion
) -> "CheckPermissionResponse.Permissionship.ValueType":
    return client.CheckPermission(
        CheckPermissionRequest(
            consistency=FULL,
            resource=assertion.check.resource,
            permission=assertion.check.relation,
            subject=assertion.check.subject,
            context=assertion.context,
        )
    ).permissionship


def _touch(client: SyncClient, relationships: Sequence[Relationship]) -> None:
    client.WriteRelationships(
        WriteRelationshipsRequest(
            updates=[
                RelationshipUpdate(
                    operation=RelationshipUpdate.OPERATION_TOUCH, relationship=relationship
                )
                for relationship in relationships
            ]
        )
    )


def _read(client: SyncClient, resource_id: str) -> list[Relationship]:
    found = client.ReadRelationships(
        ReadRelationshipsRequest(
            consistency=FULL,
            relationship_filter=RelationshipFilter(optional_resource_id_prefix=resource_id),
        )
    )
    return [
        each.relationship for each in found if each.relationship.resource.object_id == resource_id
    ]


def _differences(client: SyncClient, schema: str) -> list[str]:
    answer = client.DiffSchema(DiffSchemaRequest(comparison_schema=schema, consistency=FULL))
    return [str(difference.WhichOneof("diff")) for difference in answer.diffs]
