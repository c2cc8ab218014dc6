"""Processes that outlive the command which started them, known by their pid files.

A pid alone names another process once it is used again, so a pid file holds the first line of the
process's own /proc/PID/stat, with its start time. The process writes the file itself before it becomes
the program: a starter that is killed at any moment leaves no process without its file.
"""

import os
import signal
import subprocess
from pathlib import Path

from tests.cluster.host import ClusterError, wait_until

_WRITE_PID_FILE_THEN_BECOME = 'read -r stat </proc/$$/stat && echo "$stat" >"$0" && exec "$@"'
_STATE, _START_TIME = 0, 19  # positions in a stat line after the program's name


class Processes:
    """The processes of one cluster: pid files in `pid/`, what they print in `log/`."""

    def __init__(self, directory: Path) -> None:
        self._pids = directory / "pid"
        self._logs = directory / "log"

    def start(self, name: str, *command: str | Path) -> None:
        """Start a program in a session of its own."""
        self._pids.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        pid_file = self._pids / name
        with (self._logs / f"{name}.log").open("w") as log:
            # --fork: the program is nobody's child here, so it never becomes a zombie of ours
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", _WRITE_PID_FILE_THEN_BECOME, pid_file, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
            )
        wait_until(f"start of {name}", lambda: _pid_in(pid_file) is not None, seconds=10)

    def names(self) -> list[str]:
        """All that were started."""
        return sorted(file.name for file in self._pids.glob("*"))

    def pid(self, name: str) -> int | None:
        """The pid of a process that still runs."""
        return running_pid(self._pids / name)

    def dead(self) -> list[str]:
        """Those that were started and no longer run."""
        return [name for name in self.names() if self.pid(name) is None]

    def check(self, *names: str) -> None:
        """Raise with the end of its log when one of the named processes has ended."""
        for name in names:
            if self.pid(name) is None:
                raise ClusterError(f"{name} has ended:\n{self.last_lines(name)}")

    def last_lines(self, name: str) -> str:
        """The end of what a process printed, and where the rest is."""
        log = self._logs / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join([f"({log})", *lines[-10:]])

    def kill(self) -> None:
        """End all of them and wait until they are gone."""
        # Without asking first: all that they know is about to be deleted, and some take long to stop.
        pids = [pid for name in self.names() if (pid := self.pid(name))]
        for pid in pids:
            kill(pid)
        wait_until("end of the processes", lambda: not self._alive(), seconds=60)

    def _alive(self) -> list[str]:
        return [name for name in self.names() if self.pid(name)]


def kill(pid: int) -> None:
    """Send SIGKILL to a process that may have ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def running_pid(pid_file: Path) -> int | None:
    """The pid in a pid file, if that very process still runs."""
    written = _pid_in(pid_file)
    if written is None:
        return None
    pid, start_time = written
    try:
        now = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pid if now == (pid, start_time) else None


def _pid_in(pid_file: Path) -> tuple[int, int] | None:
    try:
        return parse_stat(pid_file.read_text())
    except FileNotFoundError:
        return None


def parse_stat(line: str) -> tuple[int, int] | None:
    """Pid and start time of a process from its /proc/PID/stat; None for a zombie or half a line."""
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(") ")[2].split()  # a program's name may hold spaces and parentheses
    if len(fields) <= _START_TIME or fields[_STATE] in "ZX":
        return None
    return int(pid), int(fields[_START_TIME])
