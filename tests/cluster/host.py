"""The machine below: where files lie, how a command is run, how one process waits for another."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRESS_SECONDS = 15


class ClusterError(Exception):
    """Something that keeps a cluster from working, and what to do about it."""


def is_root() -> bool:
    return os.geteuid() == 0


def cache_directory() -> Path:
    """What is expensive to make and can be made again: built tools and images."""
    if configured := os.environ.get("MEMORY_OPERATOR_CACHE"):
        return Path(configured).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memory-operator"


def state_directory() -> Path:
    """What running clusters own, each in a folder of its name that goes when it is down."""
    if configured := os.environ.get("MEMORY_OPERATOR_STATE"):
        return Path(configured).absolute()
    if is_root():
        return Path("/var/lib/memory-operator")
    return (
        Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "memory-operator"
    )


def run(*command: str | Path, input: str | None = None) -> str:  # noqa: A002
    """Run a command to its end and return what it printed."""
    done = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shown = " ".join(str(part) for part in command)
        raise ClusterError(f"{shown}\nfailed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def run_slowly(
    *command: str | Path,
    what: str,
    minutes: int,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command that takes minutes: a line of progress now and then, the output in a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{what}: about {minutes} min, once", flush=True)
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            [*_dies_with_us(), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | (environment or {}),
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PROGRESS_SECONDS)
                    break
                elapsed = int(time.monotonic() - started)
                print(
                    f"{what}: {elapsed // 60}:{elapsed % 60:02} of about {minutes} min", flush=True
                )
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        shown = " ".join(str(part) for part in command)
        raise ClusterError(f"{shown}\nfailed with {process.returncode} ({log}):\n{last_lines}")


def _dies_with_us() -> tuple[str, ...]:
    """The words that let a command end when we are killed, where the system has them."""
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


def succeeds(*command: str | Path, timeout: float = 20) -> bool:
    """Whether a command exists, ends in time and reports success."""
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def wait_until(what: str, condition: Callable[[], bool], *, seconds: float) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)


@contextlib.contextmanager
def locked(path: Path, *, waiting_for: str) -> Iterator[None]:
    """Hold a lock between processes; the kernel lets it go when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for {waiting_for}, which another process has begun", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
