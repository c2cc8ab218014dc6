"""AccessGrants over plain HTTP: a load generator must not take the cores that it measures."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from memory_operator.api import Kind, format_instant
from memory_operator.names import API_VERSION

Json = dict[str, Any]
CONCURRENCY = 16
"""Requests at a time: more do not make a two-core API server any faster."""


class Grants:
    """The AccessGrants of one namespace."""

    def __init__(self, session: aiohttp.ClientSession, server: str, namespace: str) -> None:
        self.namespace = namespace
        self._session = session
        self._url = f"{server}/apis/{API_VERSION}/namespaces/{namespace}/{Kind.ACCESS_GRANT.plural}"

    async def create(self, name: str, spec: Json) -> Json:
        """Create one."""
        body = {
            "apiVersion": API_VERSION,
            "kind": Kind.ACCESS_GRANT.value,
            "metadata": {"name": name},
            "spec": spec,
        }
        return await self._send("POST", self._url, body)

    async def edit(self, name: str, spec: Json) -> Json:
        """Merge into the spec of one."""
        return await self._send("PATCH", f"{self._url}/{name}", {"spec": spec})

    async def delete(self, name: str) -> None:
        """Ask for the deletion of one."""
        await self._send("DELETE", f"{self._url}/{name}")

    async def delete_all(self) -> None:
        """Ask for the deletion of all."""
        await self._send("DELETE", self._url)

    async def list(self) -> Json:
        """Give the whole list as the API server does: `items` and `metadata`."""
        return await self._send("GET", self._url)

    async def watch(self, version: str) -> AsyncIterator[Json]:
        """Give every event after a resource version.

        The API server ends the watch of a client that is too slow: it goes on where it ended.
        """
        while True:
            query = {"watch": "1", "resourceVersion": version}
            async with self._session.get(self._url, params=query) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    event: Json = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch has failed: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event

    async def _send(self, method: str, url: str, body: Json | None = None) -> Json:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self._session.request(
            method,
            url,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": kind},
        ) as answer:
            if not answer.ok:
                raise RuntimeError(f"{method} {url}: {answer.status} {await answer.text()}")
            content: Json = await answer.json()
            return content


@asynccontextmanager
async def connect(kubeconfig: Path, namespace: str) -> AsyncIterator[Grants]:
    """Connect as the kubeconfig's user."""
    settings = client.Configuration()
    await config.load_kube_config(str(kubeconfig), client_configuration=settings)
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    context.load_cert_chain(settings.cert_file, settings.key_file)
    connector = aiohttp.TCPConnector(ssl=context, limit=CONCURRENCY + 1)  # one for the watch
    no_limit = aiohttp.ClientTimeout(total=None)
    # The longest line is one watch event; a grant with managed fields has some three KiB.
    async with aiohttp.ClientSession(
        connector=connector, timeout=no_limit, read_bufsize=2**20
    ) as session:
        yield Grants(session, settings.host, namespace)


def spec(number: int, agents: int = 1) -> Json:
    """Give the spec of one grant of many: twenty roles, an end in a month."""
    return {
        "grantorRole": f"role-{number % 20}",
        "granteeAgent": f"agent-{number % agents}",
        "resourceScope": "private",
        "validTo": format_instant(datetime.now(UTC) + timedelta(days=30)),
    }


def is_ready(grant: Json) -> bool:
    """Whether a grant is Ready in its present generation."""
    return any(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and condition["observedGeneration"] == grant["metadata"]["generation"]
        for condition in grant.get("status", {}).get("conditions", ())
    )
