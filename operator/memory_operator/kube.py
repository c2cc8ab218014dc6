"""Gateway to the Kubernetes API: list our resources, write their finalizers and status, post Events.

It works on objects as the API server gives them and knows neither kopf nor SpiceDB. Only metadata
and status are ever written; specs belong to their authors.
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.config.incluster_config import SERVICE_TOKEN_FILENAME

from memory_operator.api import Kind, ObjectKey
from memory_operator.errors import ConflictError, KubernetesError, NotFoundError
from memory_operator.names import API_VERSION, FIELD_MANAGER, FINALIZER, GROUP, VERSION

_TIMEOUT = 30.0  # seconds
_PAGE = 500
_CONCURRENCY = 32
_MERGE_PATCH = "application/merge-patch+json"
_T = TypeVar("_T")
Json = dict[str, Any]


def in_pod() -> bool:
    """Say whether this process runs in a pod that has a ServiceAccount."""
    return Path(SERVICE_TOKEN_FILENAME).exists()


class Kubernetes:
    """One API server.

    All methods raise `NotFoundError`, `ConflictError` or plain `KubernetesError`.
    """

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._objects = client.CustomObjectsApi(api)

    @classmethod
    async def connect(cls) -> "Kubernetes":
        """Connect as the pod's ServiceAccount, or as the kubeconfig says outside of a pod.

        Raises:
            KubernetesError: there is neither.
        """
        settings = client.Configuration()
        settings.connection_pool_maxsize = _CONCURRENCY
        try:
            if in_pod():
                config.load_incluster_config(client_configuration=settings)
            else:
                await config.load_kube_config(client_configuration=settings)
        except config.ConfigException as error:
            raise KubernetesError(f"no cluster to talk to: {error}. Set KUBECONFIG") from error
        return cls(client.ApiClient(settings))

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def pages(self, kind: Kind, namespaces: Sequence[str] = ()) -> AsyncIterator[list[Json]]:
        """List all objects of a kind, page by page; in all namespaces if none is named."""
        for namespace in namespaces or (None,):
            token: str | None = None
            while token != "":
                page = await self._list(kind, namespace, token)
                token = page["metadata"].get("continue", "")
                # Items of a list come without their kind.
                yield [
                    {**item, "apiVersion": API_VERSION, "kind": kind.value}
                    for item in page["items"]
                ]

    async def add_finalizer(self, key: ObjectKey, finalizers: Sequence[str], version: str) -> Json:
        """Add our finalizer to those that the object has at `version`; give the object."""
        return await self._patch_finalizers(key, [*finalizers, FINALIZER], version)

    async def remove_finalizer(
        self, key: ObjectKey, finalizers: Sequence[str], version: str
    ) -> Json:
        """Take our finalizer away from those that the object has at `version`; give the object."""
        rest = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        return await self._patch_finalizers(key, rest, version)

    async def patch_status(self, key: ObjectKey, status: Json, version: str) -> Json:
        """Merge fields into the status of the object as it is at `version`; give the object.

        A field of None is taken away.
        """
        return await _call(
            self._objects.patch_namespaced_custom_object_status(
                GROUP,
                VERSION,
                key.namespace,
                key.kind.plural,
                key.name,
                {"metadata": {"resourceVersion": version}, "status": status},
                field_manager=FIELD_MANAGER,
                _content_type=_MERGE_PATCH,
                _request_timeout=_TIMEOUT,
            )
        )

    async def post_event(
        self, key: ObjectKey, uid: str, type_: str, reason: str, message: str
    ) -> None:
        """Post an Event of type Normal or Warning about one of our objects."""
        now = datetime.now(UTC)
        reference = {
            "apiVersion": API_VERSION,
            "kind": key.kind.value,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        }
        event = {
            # An Event's name is its object's and a time, as client-go does; objects' names are longer.
            "metadata": {"name": f"{key.name[:200].rstrip('-.')}.{int(now.timestamp() * 1e9):x}"},
            "involvedObject": reference,
            "type": type_,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "firstTimestamp": now.isoformat(timespec="seconds"),
            "lastTimestamp": now.isoformat(timespec="seconds"),
            "count": 1,
        }
        await _call(self._create_event(key.namespace, event))

    async def _create_event(self, namespace: str, event: Json) -> None:
        # Not by CoreV1Api: the whole core group's models take a second to load, and 24 MiB.
        request = await self._api.param_serialize(
            "POST",
            f"/api/v1/namespaces/{namespace}/events",
            header_params={"Content-Type": "application/json"},
            body=event,
            auth_settings=["BearerToken"],
        )
        response = await self._api.call_api(*request, _request_timeout=_TIMEOUT)
        await response.read()
        self._api.response_deserialize(response, {})

    async def _list(self, kind: Kind, namespace: str | None, token: str | None) -> Json:
        options = {"limit": _PAGE, "_continue": token or None, "_request_timeout": _TIMEOUT}
        if namespace:
            call = self._objects.list_namespaced_custom_object(
                GROUP, VERSION, namespace, kind.plural, **options
            )
        else:
            call = self._objects.list_cluster_custom_object(GROUP, VERSION, kind.plural, **options)
        return await _call(call)

    async def _patch_finalizers(self, key: ObjectKey, finalizers: list[str], version: str) -> Json:
        return await _call(
            self._objects.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                key.namespace,
                key.kind.plural,
                key.name,
                # The version makes this a compare-and-swap: no other finalizer is lost.
                {"metadata": {"finalizers": finalizers, "resourceVersion": version}},
                field_manager=FIELD_MANAGER,
                _content_type=_MERGE_PATCH,
                _request_timeout=_TIMEOUT,
            )
        )


async def _call(call: Awaitable[_T]) -> _T:
    try:
        return await call
    except client.ApiException as error:
        kind = {404: NotFoundError, 409: ConflictError}.get(error.status, KubernetesError)
        raise kind(f"the API server answered {error.status} {error.reason}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise KubernetesError(f"the API server does not answer ({type(error).__name__})") from error
