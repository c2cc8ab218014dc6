"""One organisation in a test: its namespace, its custom resources, its rows in SpiceDB."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from authzed.api.v1 import (
    CheckPermissionRequest,
    CheckPermissionResponse,
    Consistency,
    ObjectReference,
    ReadRelationshipsRequest,
    RelationshipFilter,
    RelationshipUpdate,
    SubjectReference,
    SyncClient,
    WriteRelationshipsRequest,
)
from google.protobuf.struct_pb2 import Struct
from kubernetes import client

from memory_operator.api import format_instant
from memory_operator.names import API_VERSION, GROUP, VERSION
from memory_operator.spicedb import _from_message
from tests.support.validation import parse_relationship

Json = dict[str, Any]
_TYPES = ("organization", "group", "agent", "person", "access_grant", "pool")
_NUMBERS = itertools.count()


class Organization:
    """A namespace and what a person with rights in it does with kubectl."""

    def __init__(self, api: client.ApiClient, name: str) -> None:
        self.name = name
        self.core = client.CoreV1Api(api)
        self.objects = client.CustomObjectsApi(api)

    def create(self, kind: str, name: str, **spec: Any) -> Json:
        """Create one object; camelCase keys as in YAML."""
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        created: Json = self.objects.create_namespaced_custom_object(
            GROUP, VERSION, self.name, _plural(kind), body
        )
        return created

    def agent(self, name: str, role: str = "engineer", **spec: Any) -> Json:
        """Create a MemoryAgent."""
        return self.create("MemoryAgent", name, role=role, **spec)

    def link(self, agent: str, person: str, *aliases: str) -> Json:
        """Create an IdentityLink; people as `provider/id`."""
        return self.create(
            "IdentityLink",
            agent,
            agent=agent,
            person=_person(person),
            aliases=[_person(alias) for alias in aliases],
        )

    def grant(self, name: str, grantee: str, role: str = "pm", **spec: Any) -> Json:
        """Create an AccessGrant, for the private scope unless told otherwise."""
        spec = {"resourceScope": "private"} | spec
        return self.create("AccessGrant", name, grantorRole=role, granteeAgent=grantee, **spec)

    def patch(self, kind: str, name: str, **spec: Any) -> Json:
        """Merge into the spec of an object."""
        patched: Json = self.objects.patch_namespaced_custom_object(
            GROUP, VERSION, self.name, _plural(kind), name, {"spec": spec}
        )
        return patched

    def delete(self, kind: str, name: str) -> None:
        """Ask for an object's deletion; it goes when its finalizer is removed."""
        self.objects.delete_namespaced_custom_object(GROUP, VERSION, self.name, _plural(kind), name)

    def get(self, kind: str, name: str) -> Json | None:
        """Give an object, or None if there is none."""
        try:
            body: Json = self.objects.get_namespaced_custom_object(
                GROUP, VERSION, self.name, _plural(kind), name
            )
        except client.ApiException as error:
            if error.status == 404:
                return None
            raise
        return body

    def list(self, kind: str) -> list[Json]:
        """Give all objects of a kind."""
        items: list[Json] = self.objects.list_namespaced_custom_object(
            GROUP, VERSION, self.name, _plural(kind)
        )["items"]
        return items

    def condition(self, kind: str, name: str, type_: str = "Ready") -> tuple[str, str]:
        """Give status and reason of a condition of the present generation, or two empty strings."""
        body = self.get(kind, name) or {}
        for condition in body.get("status", {}).get("conditions", ()):
            current = condition["observedGeneration"] == body["metadata"]["generation"]
            if condition["type"] == type_ and current:
                return condition["status"], condition["reason"]
        return "", ""

    def wait_condition(
        self,
        kind: str,
        name: str,
        status: str,
        reason: str = "",
        type_: str = "Ready",
        seconds: float = 30,
    ) -> None:
        """Wait for a condition."""

        def holds() -> bool:
            seen = self.condition(kind, name, type_)
            return seen[0] == status and reason in ("", seen[1])

        wait_for(holds, seconds, lambda: f"{kind} {name}: {self.get(kind, name)}")

    def wait_ready(self, kind: str, *names: str, seconds: float = 30) -> None:
        """Wait until objects are Ready in their present generation; all of the kind if none is named."""

        def waiting() -> list[str]:
            return [
                item["metadata"]["name"]
                for item in self.list(kind)
                if (not names or item["metadata"]["name"] in names) and not is_ready(item)
            ]

        wait_for(lambda: not waiting(), seconds, lambda: f"not Ready: {kind} {waiting()[:5]}")

    def wait_gone(self, kind: str, name: str, seconds: float = 30) -> None:
        """Wait until an object no longer exists."""
        wait_for(lambda: self.get(kind, name) is None, seconds, lambda: f"{kind} {name} is there")

    def delete_namespace(self) -> None:
        """Delete the namespace and wait until it is gone with all in it."""
        self.core.delete_namespace(self.name)

        def gone() -> bool:
            try:
                self.core.read_namespace(self.name)
            except client.ApiException as error:
                return bool(error.status == 404)
            return False

        wait_for(gone, 90, lambda: str(self.core.read_namespace(self.name).status))


@contextmanager
def new_organization(api: client.ApiClient, name: str = "") -> Iterator[Organization]:
    """Create a namespace with a name that no other test has; delete it afterwards."""
    name = name or f"org-{next(_NUMBERS)}-{time.time_ns() % 1_000_000:06d}"
    organization = Organization(api, name)
    try:
        organization.core.create_namespace({"metadata": {"name": name}})
    except client.ApiException as error:
        if error.status != 409:
            raise
    try:
        yield organization
    finally:
        # What a test left behind must not wait for an operator that has stopped.
        for kind in ("MemoryAgent", "IdentityLink", "AccessGrant"):
            for item in organization.list(kind):
                if item["metadata"].get("finalizers"):
                    organization.objects.patch_namespaced_custom_object(
                        GROUP,
                        VERSION,
                        name,
                        _plural(kind),
                        item["metadata"]["name"],
                        {"metadata": {"finalizers": []}},
                    )
        try:
            organization.core.delete_namespace(name)
        except client.ApiException as error:
            if error.status != 404:
                raise


def rows(spicedb: SyncClient, organization: str = "", *, types: Iterable[str] = _TYPES) -> set[str]:
    """Give the operator's rows in zed's notation; of one organisation (by resource) if it is named."""
    found = set()
    for type_ in types:
        request = ReadRelationshipsRequest(
            consistency=Consistency(fully_consistent=True),
            relationship_filter=RelationshipFilter(resource_type=type_),
        )
        for message in spicedb.ReadRelationships(request):
            row = _from_message(message.relationship)
            if not organization or row.resource.id.split("/")[0] == organization:
                found.add(str(row))
    return found


def touch(spicedb: SyncClient, relationships: Iterable[str]) -> None:
    """Write rows in zed's notation, as another service or a hand would."""
    updates = [
        RelationshipUpdate(
            operation=RelationshipUpdate.OPERATION_TOUCH, relationship=parse_relationship(text)
        )
        for text in relationships
    ]
    spicedb.WriteRelationships(WriteRelationshipsRequest(updates=updates))


def may(spicedb: SyncClient, resource: str, permission: str, subject: str) -> bool:
    """Check a permission as a service does: fully consistent, with its own clock as `now`."""
    context = Struct()
    context.update({"now": datetime.now(UTC).isoformat()})
    response = spicedb.CheckPermission(
        CheckPermissionRequest(
            consistency=Consistency(fully_consistent=True),
            resource=_reference(resource),
            permission=permission,
            subject=SubjectReference(object=_reference(subject)),
            context=context,
        )
    )
    return bool(response.permissionship == CheckPermissionResponse.PERMISSIONSHIP_HAS_PERMISSION)


def wait_for(condition: Callable[[], bool], seconds: float, describe: Callable[[], str]) -> None:
    """Wait until something holds; fail with a description of what is instead."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {describe()}")
        time.sleep(0.1)


def is_ready(body: Json) -> bool:
    """Whether an object is Ready in its present generation."""
    return any(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and condition["observedGeneration"] == body["metadata"]["generation"]
        for condition in body.get("status", {}).get("conditions", ())
    )


def instant(seconds: float) -> str:
    """Write the instant that lies so many seconds ahead, as a spec takes it (rounded up)."""
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return format_instant(moment.replace(microsecond=0) + timedelta(seconds=1))


def _plural(kind: str) -> str:
    return f"{kind.lower()}s"


def _person(text: str) -> Json:
    provider, _, id_ = text.partition("/")
    return {"provider": provider, "id": id_}


def _reference(text: str) -> ObjectReference:
    type_, _, id_ = text.partition(":")
    return ObjectReference(object_type=type_, object_id=id_)
