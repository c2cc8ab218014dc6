"""The load: create grants as fast as the API server takes them; or delete all. A process of its own.

Prints one line of JSON: how long the requests took, and how long until the last grant was done.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path

from benchmarks.client import CONCURRENCY, Grants, connect, is_ready, spec


async def create(grants: Grants, count: int, *, until_ready: bool) -> dict[str, float]:
    """Create `count` grants, and watch until all of them are Ready."""
    version = (await grants.list())["metadata"]["resourceVersion"]
    start = time.monotonic()
    done = asyncio.create_task(_all_ready(grants, version, count)) if until_ready else None
    numbers = iter(range(count))

    async def create_some() -> None:
        for number in numbers:
            await grants.create(f"grant-{number}", spec(number))

    await asyncio.gather(*(create_some() for _ in range(CONCURRENCY)))
    created = time.monotonic() - start
    if done:
        await done
    return {"requests": created, "done": time.monotonic() - start}


async def delete(grants: Grants) -> dict[str, float]:
    """Delete all grants, and watch until the last one is gone."""
    before = await grants.list()
    start = time.monotonic()
    gone = asyncio.create_task(
        _all_gone(grants, before["metadata"]["resourceVersion"], len(before["items"]))
    )
    await grants.delete_all()
    deleted = time.monotonic() - start
    await gone
    return {"requests": deleted, "done": time.monotonic() - start}


async def _all_ready(grants: Grants, version: str, count: int) -> None:
    waiting = {f"grant-{number}" for number in range(count)}
    async for event in grants.watch(version):
        if is_ready(event["object"]):
            waiting.discard(event["object"]["metadata"]["name"])
            if not waiting:
                return


async def _all_gone(grants: Grants, version: str, count: int) -> None:
    if not count:
        return
    async for event in grants.watch(version):
        count -= event["type"] == "DELETED"
        if not count:
            return


async def _main(options: argparse.Namespace) -> None:
    async with connect(options.kubeconfig, options.namespace) as grants:
        if options.delete:
            result = await delete(grants)
        else:
            result = await create(grants, options.create, until_ready=not options.alone)
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("namespace")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--create", type=int, metavar="COUNT")
    what.add_argument("--delete", action="store_true")
    parser.add_argument("--alone", action="store_true", help="do not wait for Ready")
    asyncio.run(_main(parser.parse_args()))
