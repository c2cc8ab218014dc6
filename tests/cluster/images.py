"""Container images without Docker: buildah on a base made by debootstrap, kept as archives.

An image is named by what it is made of, so its archive in the cache never goes stale.
"""

import configparser
import contextlib
import dataclasses
import hashlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cluster import packages, tools
from tests.cluster.host import (
    REPOSITORY,
    ClusterError,
    cache_directory,
    locked,
    run,
    run_slowly,
    succeeds,
)

DEBIAN = "docker.io/library/debian:bookworm-slim"
SPICEDB_OFFICIAL = f"authzed/spicedb:{tools.SPICEDB_VERSION}"
SPICEDB_BUILT = f"localhost/spicedb:{tools.SPICEDB_VERSION}"
_OPERATOR = "localhost/memory-operator"
PAUSE = f"localhost/pause:{tools.KUBERNETES_VERSION}"

# What the Dockerfile copies, and what says how.
_OPERATOR_INPUTS = (
    ".dockerignore",
    "Dockerfile",
    "LICENSE",
    "README.md",
    "operator",
    "pyproject.toml",
    "requirements-build.lock",
    "requirements.lock",
    "schema",
)

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_CA_BUNDLE_IN_BUILD = "/run/host-ca-certificates.crt"

# /tmp as the official image has it, for the datastore's files; certificates for a datastore with TLS.
_SPICEDB_DOCKERFILE = """\
FROM scratch
COPY root /
USER 65532:65532
ENV PATH=/usr/local/bin
ENTRYPOINT ["spicedb"]
"""
_PAUSE_DOCKERFILE = """\
FROM scratch
COPY pause /pause
USER 65535:65535
ENTRYPOINT ["/pause"]
"""
_DEBIAN_DOCKERFILE = """\
FROM scratch
ADD root.tar /
CMD ["bash"]
"""

# Storage is mounted while buildah works. In namespaces of its own no mount and no process is left, even
# if it is killed; its record of what is mounted ($0) has to go at the same time.
_ALONE = ("unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
_BUILDAH = (
    'mkdir -p "$0" && mount -t tmpfs tmpfs "$0"'
    ' && root="$1" && shift && exec buildah --root "$root" --runroot "$0" "$@"'
)
_KEPT_ARCHIVES = 3

# What the official slim image is without, and what only the making of it needed; and its way of apt.
_NOT_IN_SLIM = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
)
_APT_KEEPS_NOTHING = """\
APT::Keep-Downloaded-Packages "false";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""


@dataclasses.dataclass(frozen=True)
class Image:
    """An image that was built: its name, and the archive to load it from."""

    name: str

    @property
    def archive(self) -> Path:
        return (
            cache_directory() / "images" / (self.name.replace("/", "_").replace(":", "_") + ".tar")
        )


def operator_name(repository: Path = REPOSITORY) -> str:
    """The name of the operator's image: its tag is a digest of all that goes into it."""
    digest = hashlib.sha256()
    for name in _OPERATOR_INPUTS:
        for file in _files_in(repository / name):
            digest.update(f"{file.relative_to(repository)}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return f"{_OPERATOR}:{digest.hexdigest()[:12]}"


def operator() -> Image:
    """The operator's image from the project's own Dockerfile."""
    image = Image(operator_name())
    if not image.archive.exists():
        with _building():
            if not image.archive.exists():
                _build_debian()
                _build(image, REPOSITORY, minutes=3)
                _forget_old_builds()
    return image


def spicedb() -> Image:
    """SpiceDB's image around the binary built here."""
    image = Image(SPICEDB_BUILT)
    if not image.archive.exists():
        binary = tools.path("spicedb")
        with _building():
            context = _new_context(_SPICEDB_DOCKERFILE)
            root = context / "root"
            for folder in ("etc/ssl/certs", "tmp", "usr/local/bin"):
                (root / folder).mkdir(parents=True)
            (root / "tmp").chmod(0o1777)
            shutil.copy(binary, root / "usr/local/bin/spicedb")
            shutil.copy(CA_BUNDLE, root / "etc/ssl/certs/")
            _build(image, context)
    return image


def pause() -> Image:
    """The image of every pod's sandbox."""
    image = Image(PAUSE)
    if not image.archive.exists():
        binary = tools.path("pause")
        with _building():
            context = _new_context(_PAUSE_DOCKERFILE)
            shutil.copy(binary, context)
            _build(image, context)
    return image


def built(name: str) -> Image:
    """An image that was built before, by its name."""
    image = Image(name)
    if not image.archive.exists():
        with _building():
            if not succeeds(*_buildah("inspect", "--type", "image", name)):
                raise ClusterError(f"there is no image {name}: build it first")
            _write_archive(image)
    return image


def pip_configuration(environment: Mapping[str, str], machine_wide: str) -> str:
    """This machine's way to its package index, for the pip in the build.

    The Dockerfile knows nothing of it: a mirror or an authority of its own is the machine's business.
    """
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(machine_wide)
    if not parser.has_section("global"):
        parser.add_section("global")
    for option in ("index-url", "extra-index-url", "trusted-host"):
        if value := environment.get("PIP_" + option.replace("-", "_").upper()):
            parser.set("global", option, value)
    parser.set("global", "cert", _CA_BUNDLE_IN_BUILD)
    written = io.StringIO()
    parser.write(written)
    return written.getvalue()


@contextlib.contextmanager
def _building() -> Iterator[Path]:
    """The only builder at work, with an empty folder for what it needs."""
    packages.ensure(packages.IMAGES)
    with locked(cache_directory() / ".images.lock", waiting_for="the build of an image"):
        shutil.rmtree(_work(), ignore_errors=True)
        _work().mkdir(parents=True)
        yield _work()
        shutil.rmtree(_work())


def _build(image: Image, context: Path, *, minutes: int = 1) -> None:
    machine_wide = Path("/etc/pip.conf")
    pip = _work() / "pip.conf"
    pip.write_text(
        pip_configuration(os.environ, machine_wide.read_text() if machine_wide.exists() else "")
    )
    _run_buildah(
        *("build", "--layers", "--pull-never", "--tag", image.name),
        f"--volume={pip}:/etc/pip.conf:ro",
        f"--volume={CA_BUNDLE}:{_CA_BUNDLE_IN_BUILD}:ro",
        context,
        what=f"building {image.name}",
        minutes=minutes,
    )
    _write_archive(image)


def _build_debian() -> None:
    """Make the base that the Dockerfile names, as no registry is asked for it."""
    if succeeds(*_buildah("inspect", "--type", "image", DEBIAN)):
        return
    root, context = _work() / "root", _work() / "debian"
    run_slowly(
        *_ALONE,
        *("debootstrap", "--variant=minbase", "bookworm", root),
        what="making the Debian base image",
        minutes=2,
        log=cache_directory() / "debootstrap.log",
    )
    for folder in _NOT_IN_SLIM:
        shutil.rmtree(root / folder)
        (root / folder).mkdir()
    (root / "etc/apt/apt.conf.d/keep-nothing").write_text(_APT_KEEPS_NOTHING)
    context.mkdir()
    (context / "Dockerfile").write_text(_DEBIAN_DOCKERFILE)
    run("tar", "-C", root, "-cf", context / "root.tar", ".")  # only an archive keeps its owners
    _run_buildah("build", "--tag", DEBIAN, context, what="packing the Debian base image")


def _write_archive(image: Image) -> None:
    image.archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = image.archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)  # an archive is never added to
    _run_buildah(
        *("push", image.name, f"docker-archive:{unfinished}:{image.name}"),
        what=f"packing {image.name}",
    )
    unfinished.rename(image.archive)


def _forget_old_builds() -> None:
    """Keep a few of the operator's images: every change of the code makes one."""
    archives = (cache_directory() / "images").glob("localhost_memory-operator_*.tar")
    for old in sorted(archives, key=lambda file: file.stat().st_mtime)[:-_KEPT_ARCHIVES]:
        tag = old.stem.rpartition("_")[2]
        succeeds(*_buildah("rmi", "--force", f"{_OPERATOR}:{tag}"), timeout=60)
        old.unlink()


def _run_buildah(*arguments: str | Path, what: str, minutes: int = 1) -> None:
    run_slowly(
        *_buildah(*arguments),
        what=what,
        minutes=minutes,
        log=cache_directory() / "buildah.log",
    )


def _buildah(*arguments: str | Path) -> tuple[str | Path, ...]:
    storage = cache_directory() / "buildah"
    settings = ("BUILDAH_ISOLATION=chroot", "STORAGE_DRIVER=overlay", f"TMPDIR={_work()}")
    return (
        *_ALONE,
        *("env", *settings, "sh", "-c", _BUILDAH, storage / "run", storage / "root"),
        *arguments,
    )


def _new_context(dockerfile: str) -> Path:
    context = _work() / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(dockerfile)
    return context


def _work() -> Path:
    return cache_directory() / ".images-work"


def _files_in(path: Path) -> list[Path]:
    """A file, or the files in a folder but for what Python leaves there."""
    if path.is_file():
        return [path]
    return sorted(
        file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    )
