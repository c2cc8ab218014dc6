"""The operator as a process of this machine, against a real API server and a real SpiceDB."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from tests.support.spicedb import SpiceDB

OWN_NAMESPACE = "memory-system"


class OperatorProcess:
    """`memory-operator operator`, to be started, killed and started again.

    Attributes:
        log: what every run wrote, one after the other.
        environment: settings beyond the usual ones; change them before `start`.
        interpreter: what runs it, as for a profile; change it before `start`.
    """

    def __init__(
        self, kubeconfig: Path, spicedb: SpiceDB, directory: Path, **settings: str
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "operator.log"
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.interpreter = [sys.executable]
        self.environment = {
            "KUBECONFIG": str(kubeconfig),
            "MEMORY_OPERATOR_SPICEDB_ENDPOINT": spicedb.endpoint,
            "MEMORY_OPERATOR_SPICEDB_TOKEN_FILE": str(spicedb.token_file),
            "MEMORY_OPERATOR_SPICEDB_INSECURE": "false" if spicedb.ca_file else "true",
            "MEMORY_OPERATOR_NAMESPACE": OWN_NAMESPACE,
            "MEMORY_OPERATOR_HTTP_PORT": str(self.port),
            "MEMORY_OPERATOR_DRIFT_PERIOD_SECONDS": "300",
        }
        if spicedb.ca_file:
            self.environment["MEMORY_OPERATOR_SPICEDB_CA_FILE"] = str(spicedb.ca_file)
        for name, value in settings.items():
            self.environment[f"MEMORY_OPERATOR_{name.upper()}"] = value

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the running operator."""
        assert self._process, "the operator does not run"
        return self._process.pid

    def start(self, *, ready: bool = True) -> None:
        """Start it; return when it is ready, or at once."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.interpreter, "-m", "memory_operator", "operator"],
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
            )
        if ready:
            self.wait_ready()

    def wait_ready(self, seconds: float = 60) -> None:
        """Wait until /readyz says so."""
        deadline = time.monotonic() + seconds
        while (answer := self.get("readyz"))[0] != 200:
            assert self._process, "the operator was stopped"
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"not ready: {answer}\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it as a cluster would, with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it where it stands."""
        self._end(signal.SIGKILL)

    def get(self, page: str) -> tuple[int, str]:
        """Fetch /healthz, /readyz or /metrics; status 0 if nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/{page}", timeout=5
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, **labels: str) -> float:
        """Sum a metric over all series that have these labels."""
        _, text = self.get("metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"memory_operator_{name}" and labels.items() <= sample.labels.items()
        )

    def _end(self, how: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(how)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"the operator ignored {how.name}") from None
            self._process = None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
