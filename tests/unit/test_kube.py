"""The gateway to the API server, against a server that keeps every request."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from memory_operator.api import Kind, ObjectKey
from memory_operator.errors import ConflictError, KubernetesError, NotFoundError
from memory_operator.kube import Kubernetes
from memory_operator.names import FINALIZER

KEY = ObjectKey(Kind.ACCESS_GRANT, "acme", "on.call")
GROUP = "/apis/memory-operator.dev/v1alpha1"


@dataclass
class Server:
    """Answers what it is told to."""

    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    content_types: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    status: int = 200

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.requests.append((request.method, request.path_qs, json.loads(text) if text else None))
        self.content_types.append(request.content_type)
        answer = self.answers.pop(0) if self.answers else {}
        return web.json_response(answer, status=self.status)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[Kubernetes]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    async with TestServer(app) as running:
        settings = client.Configuration(host=str(running.make_url("")).rstrip("/"))
        settings.api_key = {"BearerToken": "Bearer t"}
        kube = Kubernetes(client.ApiClient(settings))
        yield kube
        await kube.close()


async def test_lists_are_read_page_by_page_and_items_get_their_kind(
    kube: Kubernetes, server: Server
) -> None:
    server.answers = [
        {"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "a"}}]},
        {"metadata": {}, "items": [{"metadata": {"name": "b"}}]},
    ]
    pages = [page async for page in kube.pages(Kind.ACCESS_GRANT)]
    assert [[item["metadata"]["name"] for item in page] for page in pages] == [["a"], ["b"]]
    assert {item["kind"] for page in pages for item in page} == {"AccessGrant"}
    paths = [path for _, path, _ in server.requests]
    assert all(path.startswith(f"{GROUP}/accessgrants?") for path in paths)
    assert "continue" not in paths[0]
    assert "continue=more" in paths[1]


async def test_with_namespaces_each_is_listed_alone(kube: Kubernetes, server: Server) -> None:
    server.answers = [{"metadata": {}, "items": []}] * 2
    assert [page async for page in kube.pages(Kind.MEMORY_AGENT, ["acme", "globex"])] == [[], []]
    assert [path.partition("?")[0] for _, path, _ in server.requests] == [
        f"{GROUP}/namespaces/acme/memoryagents",
        f"{GROUP}/namespaces/globex/memoryagents",
    ]


async def test_our_finalizer_joins_and_leaves_by_compare_and_swap(
    kube: Kubernetes, server: Server
) -> None:
    await kube.add_finalizer(KEY, ["a/b"], "77")
    await kube.remove_finalizer(KEY, ["a/b", FINALIZER], "78")
    methods, paths, bodies = zip(*server.requests, strict=True)
    assert set(methods) == {"PATCH"}
    assert {path.partition("?")[0] for path in paths} == {
        f"{GROUP}/namespaces/acme/accessgrants/on.call"
    }
    assert all("fieldManager=memory-operator" in path for path in paths)
    assert set(server.content_types) == {"application/merge-patch+json"}
    assert bodies == (
        {"metadata": {"finalizers": ["a/b", FINALIZER], "resourceVersion": "77"}},
        {"metadata": {"finalizers": ["a/b"], "resourceVersion": "78"}},
    )


async def test_a_status_is_merged_into_the_subresource_at_a_version(
    kube: Kubernetes, server: Server
) -> None:
    server.answers = [{"metadata": {"resourceVersion": "78"}}]
    answer = await kube.patch_status(KEY, {"zedToken": "t", "owner": None}, "77")
    assert answer == {"metadata": {"resourceVersion": "78"}}
    ((method, path, body),) = server.requests
    assert method == "PATCH"
    assert path.startswith(f"{GROUP}/namespaces/acme/accessgrants/on.call/status?")
    assert body == {
        "metadata": {"resourceVersion": "77"},
        "status": {"zedToken": "t", "owner": None},
    }
    assert server.content_types == ["application/merge-patch+json"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("oncall", id="short"),
        pytest.param("x" * 253, id="longest"),
        pytest.param("x" * 199 + "." + "y" * 53, id="a dot where it is cut"),
        pytest.param("x" * 198 + "---" + "y" * 52, id="hyphens where it is cut"),
    ],
)
async def test_an_event_has_a_name_that_the_api_server_takes(
    kube: Kubernetes, server: Server, name: str
) -> None:
    key = ObjectKey(Kind.ACCESS_GRANT, "acme", name)
    await kube.post_event(key, "u-1", "Warning", "Conflict", "m" * 2000)
    ((method, path, body),) = server.requests
    assert (method, path) == ("POST", "/api/v1/namespaces/acme/events")
    event = body["metadata"]["name"]
    assert len(event) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", event)
    assert len(body["message"]) == 1024
    assert body["involvedObject"] == {
        "apiVersion": "memory-operator.dev/v1alpha1",
        "kind": "AccessGrant",
        "namespace": "acme",
        "name": name,
        "uid": "u-1",
    }


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, NotFoundError),
        (409, ConflictError),
        (403, KubernetesError),
        (422, KubernetesError),
        (429, KubernetesError),
        (500, KubernetesError),
        (503, KubernetesError),
    ],
)
async def test_a_refusal_becomes_one_of_our_errors(
    kube: Kubernetes, server: Server, status: int, error: type[KubernetesError]
) -> None:
    server.status = status
    calls = [
        kube.patch_status(KEY, {}, "77"),
        kube.add_finalizer(KEY, [], "77"),
        kube.post_event(KEY, "u", "Normal", "Active", "m"),
    ]
    for call in calls:
        with pytest.raises(KubernetesError, match=str(status)) as caught:
            await call
        assert type(caught.value) is error


async def test_a_server_that_is_not_there_becomes_one_of_our_errors() -> None:
    kube = Kubernetes(client.ApiClient(client.Configuration(host="http://127.0.0.1:1")))
    calls = [
        kube.patch_status(KEY, {}, "77"),
        kube.post_event(KEY, "u", "Normal", "Active", "m"),
    ]
    for call in calls:
        with pytest.raises(KubernetesError, match="does not answer"):
            await call
    await kube.close()
