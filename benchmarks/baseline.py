"""The operator to compare with: kopf as its documentation teaches it, and no work behind it.

Change handlers (create, update, resume) that patch a Ready condition, and a delete handler, for which
kopf keeps a finalizer on every object. It is silent: no Events, no lines per object.
"""

import argparse
import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import kopf

from memory_operator.api import Kind, format_instant
from memory_operator.handlers import login
from memory_operator.names import GROUP, VERSION


async def changed(meta: kopf.Meta, status: kopf.Status, patch: kopf.Patch, **_: Any) -> None:
    """Say Ready."""
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Reconciled",
        "message": "nothing was to be done",
        "observedGeneration": meta["generation"],
        "lastTransitionTime": format_instant(datetime.now(UTC)),
    }
    others = [each for each in status.get("conditions", ()) if each["type"] != "Ready"]
    patch.status["conditions"] = [*others, ready]


async def deleted(**_: Any) -> None:
    """Let it go."""


def _registry() -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login)
    for on in (kopf.on.create, kopf.on.update, kopf.on.resume):
        on(GROUP, VERSION, Kind.ACCESS_GRANT.plural, registry=registry)(changed)
    kopf.on.delete(GROUP, VERSION, Kind.ACCESS_GRANT.plural, registry=registry)(deleted)
    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    return settings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, help="where /healthz is answered")
    options = parser.parse_args()
    logging.basicConfig(level="WARNING")
    asyncio.run(
        kopf.operator(
            registry=_registry(),
            settings=_settings(),
            standalone=True,
            clusterwide=True,
            liveness_endpoint=f"http://127.0.0.1:{options.port}/healthz",
        )
    )
