"""What processes use, by /proc, and what the API server was asked, by its metrics."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster import Cluster

_USER, _SYSTEM = 11, 12  # positions in a stat line after the program's name
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def rss_mib(pid: int) -> float:
    """Resident memory of a process now."""
    return _status_kib(pid, "VmRSS") / 1024


def peak_rss_mib(pid: int) -> float:
    """The most resident memory that a process has had."""
    return _status_kib(pid, "VmHWM") / 1024


def _status_kib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise AssertionError(f"no {name} of process {pid}")


@dataclass(frozen=True)
class Requests:
    """Requests to the API server for our resources and for Events, by verb."""

    counts: Counter[str]

    @classmethod
    def so_far(cls, cluster: Cluster) -> "Requests":
        """Read the API server's counter."""
        counts: Counter[str] = Counter()
        text = cluster.kubectl("get", "--raw=/metrics")
        lines = "\n".join(line for line in text.splitlines() if "apiserver_request_total" in line)
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                resource, verb = sample.labels["resource"], sample.labels["verb"]
                if resource in ("accessgrants", "events"):
                    counts["EVENT" if resource == "events" else verb] += int(sample.value)
        return cls(counts)

    def since(self, earlier: "Requests") -> Counter[str]:
        """Give what was asked in between."""
        return self.counts - earlier.counts
