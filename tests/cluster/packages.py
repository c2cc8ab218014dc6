"""Programs that come from the machine's own distribution."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.host import ClusterError, is_root, run

CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))  # Debian's, and most others'

# Each program, and the Debian package that has it.
_PACKAGES = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "faketime": "faketime",
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "pg_ctlcluster": "postgresql",
    "ptp": "containernetworking-plugins",
    "runc": "runc",
    "setsid": "util-linux",
    "unshare": "util-linux",
}

CONTROL_PLANE = ("openssl", "setsid")
NODE = (
    *CONTROL_PLANE,
    "conntrack",
    "containerd",
    "ip",
    "iptables",
    "nsenter",
    "ptp",
    "runc",
    "unshare",
)
IMAGES = ("buildah", "debootstrap", "unshare")


def ensure(programs: Iterable[str]) -> None:
    """Install what is missing, where this is Debian and we may; otherwise say what to install."""
    _extend_path()
    packages = sorted({_PACKAGES[program] for program in programs if not _is_installed(program)})
    if not packages:
        return
    install = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if not is_root() or shutil.which("apt-get") is None:
        raise ClusterError(f"programs are missing; on Debian: {install}")
    print(f"installing with apt-get: {', '.join(packages)}", flush=True)
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    run("apt-get", "update", "-qq")
    run(*install.split(), "--yes", "-qq")


def cni_directory() -> Path:
    """The folder with the network plugins."""
    return next(
        (found for found in CNI_DIRECTORIES if (found / "ptp").exists()), CNI_DIRECTORIES[0]
    )


def _extend_path() -> None:
    """Find the administrator's programs too: a shell without a login often has them not."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    missing = [folder for folder in ("/usr/sbin", "/sbin") if folder not in folders]
    os.environ["PATH"] = os.pathsep.join([*folders, *missing])


def _is_installed(program: str) -> bool:
    return shutil.which(program) is not None or (cni_directory() / program).exists()
