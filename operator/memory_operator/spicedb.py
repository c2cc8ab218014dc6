"""Gateway to SpiceDB: write, read, check, schema. It knows neither kopf nor custom resources.

authzed's own client is synchronous inside a running loop when the connection is plaintext
(authzed-py #246), so the generated stubs are used on a `grpc.aio` channel. Every call has a deadline
and sends the key as it stands in the mounted file now: a rotated key needs no restart.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import grpc
from authzed.api.v1 import (
    CheckPermissionRequest,
    CheckPermissionResponse,
    Consistency,
    ContextualizedCaveat,
    Cursor,
    ObjectReference,
    ReadRelationshipsRequest,
    RelationshipFilter,
    RelationshipUpdate,
    SubjectFilter,
    SubjectReference,
    WriteRelationshipsRequest,
    ZedToken,
)
from authzed.api.v1 import Relationship as RelationshipMessage
from authzed.api.v1.permission_service_pb2_grpc import PermissionsServiceStub
from authzed.api.v1.schema_service_pb2 import (
    DiffSchemaRequest,
    ReadSchemaRequest,
    WriteSchemaRequest,
)
from authzed.api.v1.schema_service_pb2_grpc import SchemaServiceStub
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from memory_operator.errors import SpiceDBRefusedError, SpiceDBUnavailableError
from memory_operator.metrics import SPICEDB_DURATION, SPICEDB_REQUESTS
from memory_operator.relationships import Caveat, Changes, Filter, Object, Relationship

MAX_UPDATES = 1000
"""The most updates that SpiceDB takes in one WriteRelationships by default."""

_PAGE = 1000
_DEADLINE = 10.0  # seconds
_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.UNKNOWN,  # what 1.57.1 answers to a caveat value of the wrong type
    }
)
_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.2s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    # All our writes are touches and deletes: repeating one changes nothing.
                    "retryableStatusCodes": ["UNAVAILABLE", "ABORTED", "RESOURCE_EXHAUSTED"],
                },
            }
        ]
    }
)
_OPTIONS = (
    ("grpc.service_config", _SERVICE_CONFIG),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A server that restarts is back within seconds; the default backs off for up to two minutes.
    ("grpc.max_reconnect_backoff_ms", 3_000),
    ("grpc.lb_policy_name", "round_robin"),
)
_T = TypeVar("_T")


class SpiceDB:
    """One server, spoken to with deadlines and the current key.

    All methods raise `SpiceDBUnavailableError` where the server can't answer now and
    `SpiceDBRefusedError` where it refuses the request itself.
    """

    def __init__(
        self,
        endpoint: str,
        token_file: Path,
        *,
        insecure: bool = False,
        ca_file: Path | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._token_file = token_file
        if insecure:
            self._channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        else:
            roots = ca_file.read_bytes() if ca_file else None
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)
        self._permissions = PermissionsServiceStub(self._channel)
        self._schema = SchemaServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def write(self, changes: Changes) -> str:
        """Apply touches and deletes together; give the ZedToken of the write."""
        updates = [
            RelationshipUpdate(
                operation=RelationshipUpdate.OPERATION_DELETE, relationship=_to_message(row)
            )
            for row in changes.delete
        ] + [
            RelationshipUpdate(
                operation=RelationshipUpdate.OPERATION_TOUCH, relationship=_to_message(row)
            )
            for row in changes.touch
        ]
        request = WriteRelationshipsRequest(updates=updates)
        response = await self._call(
            "WriteRelationships", self._permissions.WriteRelationships, request
        )
        return str(response.written_at.token)

    async def read(self, filters: Iterable[Filter], at_least: str = "") -> frozenset[Relationship]:
        """Read all rows that match any of the filters, as of now or at least as of a ZedToken."""
        parts = await asyncio.gather(*(self._read_all(each, at_least) for each in filters))
        return frozenset().union(*parts)

    async def scan(self, filter_: Filter) -> AsyncIterator[Relationship]:
        """Stream all rows that match, in pages, fully consistent at each page."""
        cursor: Cursor | None = None
        while True:
            page = await self._call(
                "ReadRelationships", self._read_page, _read_request(filter_, "", cursor, _PAGE)
            )
            for message in page:
                yield _from_message(message.relationship)
            if len(page) < _PAGE:
                return
            cursor = page[-1].after_result_cursor

    async def check(
        self,
        resource: Object,
        permission: str,
        subject: Object,
        *,
        now: datetime,
        at_least: str = "",
    ) -> bool:
        """Say whether the subject has the permission at the instant `now`.

        Anything short of a plain yes is a no, a missing caveat value included.
        """
        context = Struct()
        context.update({"now": now.astimezone(UTC).isoformat()})
        request = CheckPermissionRequest(
            consistency=_consistency(at_least),
            resource=ObjectReference(object_type=resource.type, object_id=resource.id),
            permission=permission,
            subject=_subject(subject),
            context=context,
        )
        response = await self._call("CheckPermission", self._permissions.CheckPermission, request)
        return bool(
            response.permissionship == CheckPermissionResponse.PERMISSIONSHIP_HAS_PERMISSION
        )

    async def has_schema(self, text: str) -> bool:
        """Say whether the server's schema is this one, whatever its layout."""
        request = DiffSchemaRequest(
            consistency=Consistency(fully_consistent=True), comparison_schema=text
        )
        try:
            response = await self._call("DiffSchema", self._schema.DiffSchema, request)
        except SpiceDBRefusedError:  # NOT_FOUND: no schema was ever written
            return False
        return not response.diffs

    async def write_schema(self, text: str) -> None:
        """Replace the schema."""
        request = WriteSchemaRequest(schema=text)
        await self._call("WriteSchema", self._schema.WriteSchema, request)

    async def version(self) -> str:
        """Give the server's version as it reports it; empty if it doesn't."""
        call = self._schema.ReadSchema(
            ReadSchemaRequest(),
            metadata=(*self._metadata(), ("io.spicedb.requestversion", "true")),
            timeout=_DEADLINE,
        )
        try:
            await call
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # no schema yet: told all the same
                raise _translate(error) from error
        metadata = await call.trailing_metadata()
        return next((str(v) for k, v in metadata if k == "io.spicedb.debug.version"), "")

    async def _read_all(self, filter_: Filter, at_least: str) -> frozenset[Relationship]:
        request = _read_request(filter_, at_least)
        messages = await self._call("ReadRelationships", self._read_page, request)
        return frozenset(_from_message(message.relationship) for message in messages)

    async def _read_page(self, request: ReadRelationshipsRequest, **options: Any) -> list[Any]:
        return [item async for item in self._permissions.ReadRelationships(request, **options)]

    async def _call(self, method: str, function: Callable[..., Awaitable[_T]], request: Any) -> _T:
        code = "OK"
        with SPICEDB_DURATION.labels(method=method).time():
            try:
                return await function(request, metadata=self._metadata(), timeout=_DEADLINE)
            except grpc.aio.AioRpcError as error:
                code = error.code().name
                raise _translate(error) from error
            finally:
                SPICEDB_REQUESTS.labels(method=method, code=code).inc()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        try:
            token = self._token_file.read_text().strip()
        except OSError as error:
            raise SpiceDBUnavailableError(
                f"the file with SpiceDB's key can't be read: {error.strerror}"
            ) from error
        return (("authorization", f"Bearer {token}"),)


def _translate(error: grpc.aio.AioRpcError) -> SpiceDBRefusedError | SpiceDBUnavailableError:
    code = error.code()
    details = (error.details() or "").strip()
    if code in _REFUSALS:
        return SpiceDBRefusedError(details or code.name)
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        # Final only in theory: while a key is rotated, the server and we hold different ones.
        return SpiceDBUnavailableError("SpiceDB refuses the operator's key: check the token Secret")
    return SpiceDBUnavailableError(f"SpiceDB does not answer ({code.name})")


def _consistency(at_least: str) -> Consistency:
    if at_least:
        return Consistency(at_least_as_fresh=ZedToken(token=at_least))
    return Consistency(fully_consistent=True)


def _subject(subject: Object) -> SubjectReference:
    return SubjectReference(object=ObjectReference(object_type=subject.type, object_id=subject.id))


def _read_request(
    filter_: Filter, at_least: str, cursor: Cursor | None = None, limit: int = 0
) -> ReadRelationshipsRequest:
    subject = None
    if filter_.subject:
        subject = SubjectFilter(
            subject_type=filter_.subject.type, optional_subject_id=filter_.subject.id
        )
    return ReadRelationshipsRequest(
        consistency=_consistency(at_least),
        relationship_filter=RelationshipFilter(
            resource_type=filter_.resource_type,
            optional_resource_id=filter_.resource_id or "",
            optional_resource_id_prefix=filter_.resource_id_prefix or "",
            optional_relation=filter_.relation or "",
            optional_subject_filter=subject,
        ),
        optional_limit=limit,
        optional_cursor=cursor,
    )


def _to_message(relationship: Relationship) -> RelationshipMessage:
    message = RelationshipMessage(
        resource=ObjectReference(
            object_type=relationship.resource.type, object_id=relationship.resource.id
        ),
        relation=relationship.relation,
        subject=_subject(relationship.subject),
    )
    if relationship.caveat:
        context = Struct()
        context.update(dict(relationship.caveat.context))
        message.optional_caveat.CopyFrom(
            ContextualizedCaveat(caveat_name=relationship.caveat.name, context=context)
        )
    if relationship.expires_at:
        message.optional_expires_at.CopyFrom(
            Timestamp(seconds=int(relationship.expires_at.timestamp()))
        )
    return message


def _from_message(message: Any) -> Relationship:
    caveat = expires_at = None
    if message.HasField("optional_caveat"):
        context: Mapping[str, Any] = message.optional_caveat.context
        caveat = Caveat(
            message.optional_caveat.caveat_name,
            tuple(sorted((key, str(context[key])) for key in context)),
        )
    if message.HasField("optional_expires_at"):
        expires_at = datetime.fromtimestamp(message.optional_expires_at.seconds, UTC)
    subject = message.subject.object
    return Relationship(
        Object(message.resource.object_type, message.resource.object_id),
        message.relation,
        Object(subject.object_type, subject.object_id),
        caveat,
        expires_at,
    )
