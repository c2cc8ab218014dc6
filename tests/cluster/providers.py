"""The choice of a provider, and the verbs that work on all of them."""

import re
from collections.abc import Callable

from tests.cluster import current, kind, local
from tests.cluster.cluster import Cluster
from tests.cluster.host import ClusterError, state_directory

NAMES = ("auto", "kind", "local", "current")
DEFAULT_NAME = "memory-operator"


def up(provider: str = "auto", *, control_plane: bool = False, name: str | None = None) -> Cluster:
    """Bring a cluster up, or return the one of that name that is up already.

    A control plane without a node is always a local one, and has a name of its own by default.
    """
    name = full_name(name, control_plane=control_plane)
    if control_plane:
        return local.up(name, control_plane=True)
    match chosen(provider):
        case "kind":
            return kind.up(name)
        case "current":
            return current.up(name)
        case _:
            return local.up(name)


def down(name: str | None = None, *, control_plane: bool = False) -> bool:
    """Take a cluster down, in whatever state it is; whether there was one."""
    name = full_name(name, control_plane=control_plane)
    provider = provider_of(name)
    if provider is not None:
        _down_of[provider](name)
    return provider is not None


def full_name(name: str | None, *, control_plane: bool) -> str:
    """The name that is meant: a default where none is given, and an error where it can't be one."""
    if name is None:
        return f"{DEFAULT_NAME}-control-plane" if control_plane else DEFAULT_NAME
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise ClusterError(f"{name!r} is no name for a cluster: lower-case letters, digits and '-'")
    return name


def status() -> str:
    """What is up, for a person."""
    return "\n".join(_described(name) for name in known()) or "no cluster is up"


def chosen(provider: str, docker_works: Callable[[], bool] = kind.works) -> str:
    """The provider that is meant: `auto` is kind where Docker works, and local elsewhere."""
    if provider not in NAMES:
        raise ClusterError(f"there is no provider {provider!r}, only {', '.join(NAMES)}")
    if provider != "auto":
        return provider
    return "kind" if docker_works() else "local"


def tools_for(provider: str) -> list[str]:
    """What has to be built for a provider; integration tests need a local control plane with any."""
    return ["kube", "spicedb", "helm", *(["kind"] if chosen(provider) == "kind" else [])]


def known() -> list[str]:
    """The names of all clusters that came up here, or began to."""
    return sorted(file.parent.name for file in state_directory().glob("*/provider"))


def provider_of(name: str) -> str | None:
    """The provider that a cluster was made with."""
    recorded = state_directory() / name / "provider"
    return recorded.read_text() if recorded.exists() else None


_down_of: dict[str, Callable[[str], None]] = {
    "kind": kind.down,
    "local": local.down,
    "current": current.down,
}


def _described(name: str) -> str:
    find = {"kind": kind.find, "local": local.find, "current": current.find}
    provider = provider_of(name) or "local"
    cluster = find[provider](name)
    if cluster is None:
        return f"{name} ({provider}): not complete; `up` makes it anew, `down` clears it away"
    kind_of = "" if cluster.has_node else ", only a control plane"
    lines = [f"{name} ({provider}{kind_of})", f"kubeconfig: {cluster.kubeconfig}"]
    return "\n  ".join([*lines, *cluster.describe()])
