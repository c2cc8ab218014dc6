"""The command line: `python -m tests.cluster up|down|status|build|images`."""

import argparse
import sys
import time

from tests.cluster import providers, tools
from tests.cluster.cluster import Cluster
from tests.cluster.host import ClusterError


def main() -> int:
    arguments = _parser().parse_args()
    started = time.monotonic()
    try:
        _run(arguments)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command begins anew", file=sys.stderr)
        return 130
    if arguments.verb != "status":
        print(f"done in {time.monotonic() - started:.1f} s")
    return 0


def _run(arguments: argparse.Namespace) -> None:
    match arguments.verb:
        case "up":
            cluster = _up(arguments)
            print(f"{cluster.name} is up: export KUBECONFIG={cluster.kubeconfig}")
        case "down":
            _down(arguments)
        case "status":
            print(providers.status())
        case "build":
            tools.build_all(arguments.names or providers.tools_for(arguments.provider))
        case "images":
            images = _up(arguments).images()
            print(f"{images.operator}\n{images.spicedb}")


def _down(arguments: argparse.Namespace) -> None:
    given = providers.full_name(arguments.name, control_plane=arguments.control_plane)
    for name in providers.known() if arguments.all else [given]:
        print(f"{name} is down" if providers.down(name) else f"{name} was not up")


def _up(arguments: argparse.Namespace) -> Cluster:
    return providers.up(
        arguments.provider, control_plane=arguments.control_plane, name=arguments.name
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (
        ("up", "bring a cluster up, or find it up"),
        ("down", "take a cluster down, leaving nothing behind"),
        ("status", "say what is up"),
        ("build", "build the programs that a cluster is made of"),
        ("images", "build the operator's and SpiceDB's images and load them into the cluster"),
    ):
        command = verbs.add_parser(verb, help=text, description=text)
        command.add_argument("--provider", choices=providers.NAMES, default="auto")
        command.add_argument("--name", help=f"the cluster's name ({providers.DEFAULT_NAME})")
        command.add_argument("--control-plane", action="store_true", help="without a node or root")
        if verb == "down":
            command.add_argument("--all", action="store_true", help="all that came up here")
        if verb == "build":
            command.add_argument("names", nargs="*", help="tools; all that are needed by default")
    return parser


if __name__ == "__main__":
    sys.exit(main())
