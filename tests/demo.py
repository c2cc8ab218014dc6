"""`make demo`: the example organisation on a real cluster, told in a few lines.

It brings up a cluster, installs the chart, applies `examples/acme`, and shows who may recall what,
with an on-call grant that ends while you watch. Where there is neither Docker nor root, the operator
and SpiceDB run as processes beside a real API server.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import yaml
from authzed.api.v1 import SyncClient

from memory_operator.api import format_instant
from memory_operator.names import GROUP
from tests import cluster
from tests.cluster import providers, tools
from tests.cluster.host import ClusterError
from tests.support.installation import Installation
from tests.support.operator import OperatorProcess
from tests.support.organization import may, rows, touch, wait_for
from tests.support.spicedb import SpiceDB

EXAMPLE = Path("examples/acme")
GRANT_SECONDS = 10
_DECISION = "memory_fragment:acme/decision-postgresql"
_NOTE = "memory_fragment:acme/note-roadmap"
# What the stenographer and the product manager's agent keep; the recall service writes such rows.
_MEMORIES = (
    f"{_DECISION}#shared_by@agent:acme/stenographer",
    f"{_DECISION}#pool@pool:acme/stenographer/private",
    f"{_DECISION}#involves@person:acme/slack/U0123ABC",
    f"{_DECISION}#involves@person:acme/slack/U0456DEF",
    f"{_NOTE}#shared_by@agent:acme/pm",
    f"{_NOTE}#pool@pool:acme/product-manager/private",
)


def main() -> int:
    """Run the demo; give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", default="auto", choices=("auto", "kind", "local", "current"))
    provider = parser.parse_args().provider
    try:
        with ExitStack() as stack:
            tell(*stack.enter_context(stage(provider)))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def stage(provider: str) -> Iterator[tuple[cluster.Cluster, SyncClient]]:
    """Set up a cluster with the operator; give it and a client of its SpiceDB."""
    name = providers.chosen(provider)
    if name == "local" and os.geteuid() != 0:
        with _processes() as both:
            yield both
        return
    say(f"A cluster ({name})")
    tools.build_all(providers.tools_for(name))
    place = cluster.up(name)
    print(f"  up; try it yourself: export KUBECONFIG={place.kubeconfig}")
    say("The operator and SpiceDB, from the Helm chart")
    installation = Installation(place)
    installation.install()
    print(indent(installation.kubectl("get", "pods")))
    with installation.spicedb() as spicedb:
        yield place, spicedb.client()
    print("\nThe cluster is still up, for you to play with; `make down` takes it away.")


@contextmanager
def _processes() -> Iterator[tuple[cluster.Cluster, SyncClient]]:
    say("An API server, SpiceDB and the operator as processes of this machine")
    print("  Left out, for want of Docker or root: a node, pods, and with them the Helm chart.")
    tools.build_all(["kube", "spicedb"])
    with tempfile.TemporaryDirectory() as directory, SpiceDB(Path(directory)) as spicedb:
        place = cluster.up("local", control_plane=True, name="demo")
        try:
            place.kubectl("apply", "-f", "crds")
            with OperatorProcess(place.kubeconfig, spicedb, Path(directory) / "operator"):
                yield place, spicedb.client()
        finally:
            place.down()


def tell(place: cluster.Cluster, spicedb: SyncClient) -> None:
    """Tell the story."""
    say(f"kubectl apply -f {EXAMPLE}")
    for file in sorted(EXAMPLE.glob("*.yaml")):
        text = file.read_text()
        if "kind: AccessGrant" not in text:  # the grant comes later, for you to watch
            place.kubectl("apply", "-f", "-", input=text)
    for plural in ("memoryagents", "identitylinks"):
        place.kubectl(
            "wait",
            f"{plural}.{GROUP}",
            "--for=condition=Ready",
            "-n=acme",
            "--all",
            "--timeout=60s",
        )
    print(indent(place.kubectl("get", "memory", "--namespace=acme")))

    say("What SpiceDB now holds")
    print(indent("\n".join(sorted(rows(spicedb, "acme")))))

    say("Two memories")
    touch(spicedb, _MEMORIES)
    print("  decision  “Use PostgreSQL for the new service”: recorded by stenographer in Slack,")
    print("            where Cara (U0123ABC) and Bob (U0456DEF) took part")
    print("  note      a private note of pm, whose role is product-manager")
    table(spicedb)
    print("  Cara and Bob find what they decided through their own agents, which never stored it;")
    print("  only the stenographer may delete it. Nobody reads the note but its author.")

    valid_to = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=GRANT_SECONDS + 1)
    say(f"An on-call grant until {format_instant(valid_to)}")
    place.kubectl("apply", "-f", "-", input=_grant(valid_to))
    place.kubectl(
        "wait", f"accessgrants.{GROUP}/oncall", "--for=condition=Ready", "-n=acme", "--timeout=60s"
    )
    table(spicedb)
    watch(spicedb, valid_to)
    wait_for(lambda: "Expired" in _window(place), 10, lambda: _window(place))
    print(indent(place.kubectl("get", f"accessgrants.{GROUP}", "--namespace=acme")))


def table(spicedb: SyncClient) -> None:
    """Print who may do what with the two memories, as SpiceDB answers now."""
    print(f"\n  {'':14}{'recall decision':<18}{'delete decision':<18}recall note")
    for agent in ("cara", "bob", "stenographer", "pm", "oncall-bot"):
        subject = f"agent:acme/{agent}"
        answers = (
            may(spicedb, _DECISION, "view", subject),
            may(spicedb, _DECISION, "delete", subject),
            may(spicedb, _NOTE, "view", subject),
        )
        cells = ("yes" if answer else "-" for answer in answers)
        print(f"  {agent:14}{next(cells):<18}{next(cells):<18}{next(cells)}")
    print()


def watch(spicedb: SyncClient, valid_to: datetime) -> None:
    """Poll the grant closely until it has ended, and say when it did."""
    last = first = None
    shown = -1
    while first is None:
        now = datetime.now(UTC)
        if may(spicedb, _NOTE, "view", "agent:acme/oncall-bot"):
            last = now
        elif last:
            first = now
        left = max(0, int((valid_to - now).total_seconds()) + 1)
        if left != shown and first is None:
            shown = left
            print(f"  oncall-bot may recall the note; {left} s left", flush=True)
        if now > valid_to + timedelta(seconds=30):
            raise ClusterError("the grant did not end: please report this")
        time.sleep(0.005)
    assert last
    print(
        f"  last yes {last:%H:%M:%S.%f}\n  validTo  {valid_to:%H:%M:%S.%f}\n  first no {first:%H:%M:%S.%f}"
    )
    print("  Nothing ran at that moment: SpiceDB compared two instants.\n")


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def indent(text: str) -> str:
    """Indent lines by two spaces."""
    return "\n".join(f"  {line}" if line else "" for line in text.rstrip().splitlines())


def _grant(valid_to: datetime) -> str:
    body = yaml.safe_load((EXAMPLE / "30-oncall.yaml").read_text())
    body["spec"]["validTo"] = format_instant(valid_to)
    return str(yaml.safe_dump(body))


def _window(place: cluster.Cluster) -> str:
    return place.kubectl(
        "get",
        f"accessgrants.{GROUP}/oncall",
        "--namespace=acme",
        "--output=jsonpath={.status.conditions[?(@.type=='Active')].reason}",
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, grpc.RpcError) as stop:
        sys.exit(f"stopped: {stop!r}")
