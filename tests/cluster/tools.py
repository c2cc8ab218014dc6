"""The programs that a cluster is made of, built from their Go modules once per version.

A program of the right version on the PATH is taken as it is. All others are built into the cache, each
in a folder named by its version, so that a new version never meets an old build.
"""

import dataclasses
import functools
import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.cluster.host import ClusterError, cache_directory, locked, run_slowly

KUBERNETES_VERSION = "v1.37.2"
SPICEDB_VERSION = "v1.57.1"
HELM_VERSION = "v4.3.1"
KIND_VERSION = "v0.33.0"

KUBE_MODULE = Path(__file__).parent / "kube"
# Parts of the one multi-call binary, each called through a link of its name.
KUBE_PARTS = (
    "coredns",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)

OLDEST_GO = (1, 21)  # the first that fetches the Go version which a module asks for


@dataclasses.dataclass(frozen=True)
class Tool:
    """Something that Go builds: the command writes into the folder `{out}`."""

    name: str
    version: str
    minutes: int  # on two cores, with nothing built before
    command: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    links: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        return cache_directory() / f"{self.name}-{self.version}"


def path(name: str) -> Path:
    """Where a program is, built first where it has to be."""
    return _on_path(name) or build(_tool_with(name)) / name


def build_all(names: Iterable[str]) -> None:
    """Build what is missing of the named programs, and say where each one is."""
    for name in names:
        print(f"{name}: {path(name)}", flush=True)


def build(tool: Tool) -> Path:
    """Build a tool unless it is built, and return its folder."""
    if tool.directory.exists():
        return tool.directory
    with locked(_lock_file(tool), waiting_for=f"the build of {tool.name}"):
        if not tool.directory.exists():
            _build_now(tool)
    return tool.directory


def _build_now(tool: Tool) -> None:
    go = _go()
    unfinished = cache_directory() / f".{tool.name}-{tool.version}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)  # of a killed build: the lock is ours now
    unfinished.mkdir(parents=True)
    environment = {
        "CGO_ENABLED": "0",  # static, so that the binaries run in an image made from scratch
        "GOBIN": str(unfinished),
        "GOFLAGS": "",
        "GOTOOLCHAIN": "auto",
        "GOWORK": "off",
        **tool.environment,
    }
    run_slowly(
        *(go, *(part.format(out=unfinished) for part in tool.command)),
        what=f"building {tool.name} {tool.version}",
        minutes=tool.minutes,
        log=cache_directory() / f"{tool.name}-build.log",
        environment=environment,
    )
    for link in tool.links:
        (unfinished / link).symlink_to(tool.name)
    unfinished.rename(tool.directory)  # atomic: the folder is there only when it is complete


def _lock_file(tool: Tool) -> Path:
    return cache_directory() / f".{tool.name}.lock"


def _go() -> str:
    """The Go compiler, or what to do when there is none."""
    needed = f"Go {'.'.join(map(str, OLDEST_GO))} or newer"
    go = shutil.which("go")
    if go is None:
        raise ClusterError(
            f"{needed} is needed to build the cluster's programs, and there is no `go` on the PATH:"
            " install it as https://go.dev/doc/install says"
        )
    shown = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = go_version(shown)
    if found < OLDEST_GO:
        raise ClusterError(
            f"{needed} is needed to build the cluster's programs, and {go} is {shown.strip()!r}:"
            " install a newer one as https://go.dev/doc/install says"
        )
    return go


def go_version(shown: str) -> tuple[int, int]:
    """Major and minor version from the output of `go version`."""
    match = re.search(r"\bgo(\d+)\.(\d+)", shown)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# How a program on the PATH says its version.
_VERSION_COMMANDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "helm": (("version", "--short"), HELM_VERSION),
    "kind": (("version",), KIND_VERSION),
    "kubectl": (("version", "--client"), KUBERNETES_VERSION),
    "spicedb": (("version",), SPICEDB_VERSION),
}


@functools.cache
def _on_path(name: str) -> Path | None:
    """The program on the PATH, if it is of exactly the version that would be built."""
    if name not in _VERSION_COMMANDS or (found := shutil.which(name)) is None:
        return None
    arguments, version = _VERSION_COMMANDS[name]
    try:
        shown = subprocess.run(
            [found, *arguments], capture_output=True, text=True, check=False, timeout=20
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(found) if says_version(shown, version) else None


def says_version(shown: str, version: str) -> bool:
    """Whether a program's output names a version, and not one that only begins like it."""
    return re.search(rf"{re.escape(version)}(?![\w.-])", shown) is not None


def _install(name: str, package: str, version: str, minutes: int, **environment: str) -> Tool:
    """A tool that its own Go module describes completely."""
    command = ("install", "-trimpath", "-ldflags=-s -w", f"{package}@{version}")
    return Tool(name, version, minutes, command, environment)


def _kube() -> Tool:
    """Kubernetes, etcd and CoreDNS from this repository's own module."""
    inputs = [KUBE_MODULE / part for part in ("go.mod", "go.sum", "main.go", "pause/main.go")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in inputs)).hexdigest()[:12]
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    version = "k8s.io/component-base/version"
    flags = (
        f"-s -w -X {version}.gitVersion={KUBERNETES_VERSION}"
        f" -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    )
    return Tool(
        name="kube",
        version=f"{KUBERNETES_VERSION}-{digest}",
        minutes=12,
        command=(
            *("build", "-C", str(KUBE_MODULE), "-trimpath", "-buildvcs=false", "-ldflags", flags),
            *("-o", "{out}/", ".", "./pause"),
        ),
        links=KUBE_PARTS,
    )


_TOOLS: Mapping[str, Callable[[], Tool]] = {
    "kube": _kube,
    # SpiceDB asks for a newer Go than Kubernetes does: named here, every machine builds with the same.
    "spicedb": lambda: _install(
        "spicedb",
        "github.com/authzed/spicedb/cmd/spicedb",
        SPICEDB_VERSION,
        minutes=4,
        GOTOOLCHAIN="go1.27.3",
    ),
    "helm": lambda: _install("helm", "helm.sh/helm/v4/cmd/helm", HELM_VERSION, minutes=3),
    "kind": lambda: _install("kind", "sigs.k8s.io/kind", KIND_VERSION, minutes=1),
}


def _tool_with(name: str) -> Tool:
    if name in KUBE_PARTS or name == "pause":
        return _kube()
    if name not in _TOOLS:
        known = ", ".join(sorted({*_TOOLS, *KUBE_PARTS}))
        raise ClusterError(f"no tool is named {name!r}; there are {known}")
    return _TOOLS[name]()
