"""Edge: the command line. ``memory-operator <command>``; each says what it does with ``--help``."""

import argparse
import asyncio
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from memory_operator import crds, logs
from memory_operator.errors import Error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; give the exit status: 0 fine, 1 not fine, 2 used wrongly."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            name = "_".join(str(part) for part in item["loc"]).upper()
            message = item["msg"].removeprefix("Value error, ")
            print(f"MEMORY_OPERATOR_{name}: {message}" if name else message, file=sys.stderr)
        return 2
    except Error as error:
        print(f"memory-operator: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="memory-operator", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("operator", help="reconcile custom resources into SpiceDB")
    command.set_defaults(run=_operator)

    command = commands.add_parser(
        "check", help="write, check and delete one relationship in SpiceDB"
    )
    command.set_defaults(run=_check)

    command = commands.add_parser(
        "release-finalizers",
        help="let objects be deleted in a cluster whose operator is gone for good",
        description="Take the operator's finalizer from every resource. What they granted stays in "
        "SpiceDB: remove it there. Without --yes it only says what it would do.",
    )
    command.add_argument("--namespace", "-n", action="append", default=[], help="only in this one")
    command.add_argument("--yes", action="store_true", help="really do it")
    command.set_defaults(run=_release_finalizers)

    command = commands.add_parser("crds", help="print the CustomResourceDefinitions")
    mode = command.add_mutually_exclusive_group()
    mode.add_argument("--write", action="store_true", help="write them below the working directory")
    mode.add_argument("--check", action="store_true", help="fail if the written ones are stale")
    command.set_defaults(run=_crds)

    command = commands.add_parser("schema", help="print the SpiceDB schema")
    command.set_defaults(run=_schema)
    return parser


# Imports stand in the commands: kopf, gRPC and the Kubernetes client take seconds to load, and
# `crds` and `schema` need none of them.


def _operator(_: argparse.Namespace) -> int:
    from memory_operator.app import run
    from memory_operator.settings import Settings

    settings = Settings()
    logs.configure(settings.log_level)
    asyncio.run(run(settings))
    return 0


def _check(_: argparse.Namespace) -> int:
    from memory_operator.app import connect_spicedb
    from memory_operator.identity import Ids
    from memory_operator.relationships import Changes, Object, Relationship
    from memory_operator.settings import Settings

    async def check() -> int:
        settings = Settings()
        ids, now = Ids(settings.id_prefix), datetime.now(UTC)
        # A memory is no relation of the operator's: it won't take this one for drift.
        memory = Object("memory_fragment", ids.join(settings.namespace, f"check-{uuid.uuid4()}"))
        agent = Object("agent", ids.join(settings.namespace, "check"))
        row = frozenset({Relationship(memory, "shared_by", agent)})
        spicedb = connect_spicedb(settings)
        try:
            await spicedb.write(Changes(touch=row))
            try:
                seen = await spicedb.check(memory, "view", agent, now=now)
            finally:
                await spicedb.write(Changes(delete=row))
            left = await spicedb.check(memory, "view", agent, now=now)
        finally:
            await spicedb.close()
        print(f"written and allowed: {seen}; deleted and denied: {not left}")
        return 0 if seen and not left else 1

    return asyncio.run(check())


def _release_finalizers(options: argparse.Namespace) -> int:
    from memory_operator.api import Kind, read
    from memory_operator.kube import Kubernetes
    from memory_operator.names import FINALIZER

    async def release() -> int:
        kube = await Kubernetes.connect()
        released = 0
        try:
            for kind in Kind:
                async for page in kube.pages(kind, options.namespace):
                    for resource in map(read, page):
                        metadata = resource.metadata
                        if FINALIZER not in metadata.finalizers:
                            continue
                        released += 1
                        print(resource.key)
                        if options.yes:
                            await kube.remove_finalizer(
                                resource.key, metadata.finalizers, metadata.resource_version
                            )
        finally:
            await kube.close()
        if options.yes:
            print(f"{released} released. What they granted is still in SpiceDB: remove it there.")
        else:
            print(
                f"{released} would be released. Do so with --yes, once no operator runs any more."
            )
        return 0

    return asyncio.run(release())


def _crds(options: argparse.Namespace) -> int:
    stale = 0
    for path, text in crds.files().items():
        file = Path(path)
        if options.write:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        elif options.check and (not file.exists() or file.read_text() != text):
            print(f"{path} is stale: run `make crds`", file=sys.stderr)
            stale += 1
        elif not options.check and path.startswith("crds/"):
            print(f"---\n{text}", end="")
    return 1 if stale else 0


def _schema(_: argparse.Namespace) -> int:
    from memory_operator.app import schema_text

    print(schema_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
