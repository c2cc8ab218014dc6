"""The operator as one process: everything is made, wired and supervised here."""

import asyncio
import importlib.resources
import logging
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any, cast

import kopf
from aiohttp import web

from memory_operator import handlers, metrics
from memory_operator.announce import Announcer
from memory_operator.api import Kind
from memory_operator.drift import DriftCheck, ServerWatch, WatchMonitor
from memory_operator.errors import KubernetesError
from memory_operator.http import Health, application
from memory_operator.identity import Ids
from memory_operator.kube import Kubernetes
from memory_operator.names import FIELD_MANAGER
from memory_operator.reconcile import WORKERS, Reconciler
from memory_operator.settings import Settings
from memory_operator.spicedb import SpiceDB

_LOGGER = logging.getLogger(__name__)


def schema_text() -> str:
    """Give the SpiceDB schema that this version of the operator writes."""
    return importlib.resources.files("memory_operator").joinpath("schema.zed").read_text()


def connect_spicedb(settings: Settings) -> SpiceDB:
    """Make the SpiceDB gateway that the settings describe; call it inside the event loop."""
    return SpiceDB(
        settings.spicedb_endpoint,
        settings.spicedb_token_file,
        insecure=settings.spicedb_insecure,
        ca_file=settings.spicedb_ca_file,
    )


async def run(settings: Settings) -> None:
    """Run the operator until it is told to stop by a signal.

    Raises:
        KubernetesError: there is no cluster to talk to.
        ExceptionGroup: a background task has failed; the process is to be started anew.
    """
    metrics.BUILD_INFO.labels(version("memory-operator")).set(1)
    kube = await Kubernetes.connect()
    spicedb = connect_spicedb(settings)
    announcer = Announcer(kube)
    reconciler = Reconciler(spicedb, kube, announcer, Ids(settings.id_prefix), settings.namespace)
    monitor = WatchMonitor()
    drift = DriftCheck(
        reconciler,
        kube,
        spicedb,
        monitor,
        period=settings.drift_period_seconds,
        namespaces=settings.watch_namespaces,
    )
    server = await _serve(Health(reconciler, drift, monitor), reconciler, settings.http_port)
    stop = asyncio.Event()
    try:
        await _wait_for_crds(kube, settings)
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(task)
                for task in _background(
                    reconciler, drift, ServerWatch(reconciler, spicedb, schema_text())
                )
            ]
            background.append(group.create_task(announcer.run()))
            await _watch(settings, handlers.Memo(reconciler=reconciler, monitor=monitor), stop)
            for task in background:
                task.cancel()
        await announcer.drain(2.0)
    finally:
        stop.set()
        await server.cleanup()
        await spicedb.close()
        await kube.close()


def _background(
    reconciler: Reconciler, drift: DriftCheck, server_watch: ServerWatch
) -> list[Coroutine[Any, Any, None]]:
    async def work() -> None:
        # The first check settles what is as it should be; only the rest is worked on.
        await drift.tried.wait()
        await reconciler.work()

    async def check() -> None:
        await server_watch.look()  # the schema comes before the first comparison
        async with asyncio.TaskGroup() as group:
            group.create_task(server_watch.run())
            group.create_task(drift.run())

    return [check(), *(work() for _ in range(WORKERS))]


async def _watch(settings: Settings, memo: handlers.Memo, stop: asyncio.Event) -> None:
    """Run kopf until a signal comes or a background task fails and cancels us."""
    await kopf.operator(
        registry=handlers.registry(),
        settings=handlers.settings(),
        memo=memo,
        # Without it kopf asks for the user's name, and the user of a container has none.
        identity=cast("Any", FIELD_MANAGER),
        standalone=True,
        clusterwide=not settings.watch_namespaces,
        namespaces=settings.watch_namespaces,
        stop_flag=stop,
    )


async def _wait_for_crds(kube: Kubernetes, settings: Settings) -> None:
    """Wait until all three kinds are served: Helm starts us beside the CRDs, not after them."""
    for kind in Kind:
        while True:
            try:
                async for _ in kube.pages(kind, settings.watch_namespaces[:1]):
                    break
            except KubernetesError as error:
                _LOGGER.warning("waiting until %s can be listed: %s", kind.plural, error)
                await asyncio.sleep(2)
            else:
                break


async def _serve(health: Health, reconciler: Reconciler, port: int) -> web.AppRunner:
    runner = web.AppRunner(application(health, reconciler), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
