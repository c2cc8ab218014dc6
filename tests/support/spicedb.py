"""A real SpiceDB for tests and benchmarks.

    with SpiceDB(tmp_path) as spicedb:
        spicedb.client().WriteSchema(WriteSchemaRequest(schema=...))

A server keeps its endpoint over `restart`, `kill` and `rotate_key`, so that a client under test can
be made to wait for it. The memory datastore is empty after each of these; Postgres keeps its rows.
"""

import datetime as dt
import ipaddress
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import grpc
from authzed.api.v1 import ReadSchemaRequest, SyncClient
from authzed.api.v1.schema_service_pb2_grpc import SchemaServiceStub
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cluster import packages, tools

_START_SECONDS = 30
_STOP_SECONDS = 10


class SpiceDB:
    """A SpiceDB server on a free port of the loopback interface.

    Attributes:
        endpoint: `127.0.0.1:port`, the same until the server object is gone.
        key: the preshared key that the server accepts now.
        token_file: a file with that key, as a mounted Secret would hold it; see `rotate_key`.
        ca_file: the certificate authority of a TLS server, else None.
        log: what every run of the server wrote, one after the other.
    """

    def __init__(
        self,
        directory: Path,
        *,
        datastore: Literal["memory", "postgres"] = "memory",
        tls: bool = False,
        clock_ahead: dt.timedelta = dt.timedelta(0),
        flags: Sequence[str] = (),
    ) -> None:
        """Prepare a server; nothing runs before `start`.

        Args:
            directory: where the log, the token and the certificates go.
            datastore: `postgres` brings a private PostgreSQL cluster with it.
            tls: serve TLS with a certificate of a fresh authority instead of plaintext.
            clock_ahead: how far the datastore's clock runs ahead; Postgres only, since the memory
                datastore has the server's own clock and a static binary cannot be fooled.
            flags: more flags for `spicedb serve`.
        """
        if clock_ahead and datastore == "memory":
            raise ValueError("the memory datastore has no clock of its own")
        self.endpoint = f"127.0.0.1:{_free_port()}"
        self.key = secrets.token_hex(16)
        self.token_file = directory / "token"
        self.ca_file = directory / "ca.crt" if tls else None
        self.log = directory / "spicedb.log"
        self._postgres = _Postgres(clock_ahead) if datastore == "postgres" else None
        self._flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.publish_key()
        if self.ca_file:
            write_certificates(self.ca_file, directory / "tls.crt", directory / "tls.key")
            self._flags += [f"--grpc-tls-cert-path={directory / 'tls.crt'}"]
            self._flags += [f"--grpc-tls-key-path={directory / 'tls.key'}"]

    def __enter__(self) -> Self:
        """Start the server."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server and remove its datastore."""
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Start the server, and its datastore if that does not run; return when it answers."""
        datastore = ["--datastore-engine=memory"]
        if self._postgres:
            new = self._postgres.start()
            datastore = [
                "--datastore-engine=postgres",
                f"--datastore-conn-uri={self._postgres.uri}",
            ]
            if new:
                self._run("datastore", "migrate", "head", *datastore)
        serve = [
            "serve",
            f"--grpc-addr={self.endpoint}",
            "--grpc-shutdown-grace-period=1s",
            "--log-format=json",
            "--metrics-enabled=false",
            "--skip-release-check",
            "--telemetry-endpoint=",
            *datastore,
            *self._flags,
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [tools.path("spicedb"), *serve],
                # Not a flag: the key of a test is no secret, but the habit is.
                env=os.environ | {"SPICEDB_GRPC_PRESHARED_KEY": self.key},
                stdout=log,
                stderr=log,
            )
        _wait_for(self._process, self._answers, self.log)

    def stop(self) -> None:
        """Stop the server as a cluster would, with SIGTERM. The datastore goes on."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server where it stands, with SIGKILL. The datastore goes on."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server and start it again at the same endpoint."""
        self.stop()
        self.start()

    def wipe(self) -> None:
        """Restart the server with an empty datastore: no schema, no relationships."""
        self.stop()
        if self._postgres:
            self._postgres.close()
        self.start()

    def rotate_key(self) -> None:
        """Restart the server with another key.

        `token_file` keeps the old one until `publish_key`: a mounted Secret lags behind, too.
        """
        self.stop()
        self.key = secrets.token_hex(16)
        self.start()

    def publish_key(self) -> None:
        """Write the server's key to `token_file`, in one step as kubelet does."""
        new = self.token_file.with_suffix(".new")
        new.write_text(self.key)
        new.replace(self.token_file)

    def close(self) -> None:
        """End the server and remove its datastore."""
        self.stop()
        if self._postgres:
            self._postgres.close()

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials of a client of this server, with its present key."""
        transport = (
            grpc.ssl_channel_credentials(self.ca_file.read_bytes())
            if self.ca_file
            else grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        )
        return grpc.composite_channel_credentials(
            transport, grpc.access_token_call_credentials(self.key)
        )

    def client(self) -> SyncClient:
        """A synchronous client with the server's present key."""
        return SyncClient(self.endpoint, self.credentials())

    def _run(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            subprocess.run([tools.path("spicedb"), *arguments], stdout=log, stderr=log, check=True)

    def _answers(self) -> bool:
        # A channel of its own for each try: one that was refused waits a second before the next.
        with grpc.secure_channel(self.endpoint, self.credentials()) as channel:
            try:
                SchemaServiceStub(channel).ReadSchema(ReadSchemaRequest(), timeout=1)
            except grpc.RpcError as error:
                return error.code() is grpc.StatusCode.NOT_FOUND
        return True

    def _end(self, how: signal.Signals) -> None:
        if self._process:
            _end(self._process, how)
            self._process = None


class _Postgres:
    """A private PostgreSQL cluster behind a unix socket."""

    def __init__(self, clock_ahead: dt.timedelta) -> None:
        self._clock = _faketime(clock_ahead) if clock_ahead else []
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"postgres:///postgres?host={self._home}&user=postgres"

    def start(self) -> bool:
        """Make and start a cluster unless one runs; say whether it is new."""
        if self._process:
            return False
        # Not in the test's own directory, which is closed to other users.
        self._home = home = Path(tempfile.mkdtemp(prefix="postgres-"))
        become: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to be root
            shutil.chown(home, "postgres", "postgres")
            become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": home,
            "track_commit_timestamp": "on",  # SpiceDB's Watch needs it
            "fsync": "off",
        }
        initdb = [_program("initdb"), f"{home}/data", "--auth=trust", "--username=postgres", "-N"]
        serve = [_program("postgres"), "-D", f"{home}/data"]
        serve += [f"--{name}={value}" for name, value in settings.items()]
        with (home / "log").open("wb") as log:
            subprocess.run([*become, *initdb], cwd=home, stdout=log, stderr=log, check=True)
            # The clock comes last: faketime's own semaphore must belong to the server's user.
            self._process = subprocess.Popen(
                [*become, *self._clock, *serve], cwd=home, stdout=log, stderr=log
            )
        _wait_for(self._process, self._answers, home / "log")
        return True

    def close(self) -> None:
        """Stop the cluster and remove it."""
        if self._process:
            _end(self._process, signal.SIGINT)
            self._process = None
        if self._home:
            shutil.rmtree(self._home)
            self._home = None

    def _answers(self) -> bool:
        ready = [_program("pg_isready"), "--quiet", f"--host={self._home}"]
        return subprocess.run(ready, check=False).returncode == 0


def _program(name: str) -> str:
    """The path of a PostgreSQL program: Debian keeps the server's out of PATH."""
    if not (on_path := shutil.which(name)):
        packages.ensure(["pg_ctlcluster"])
    return on_path or str(max(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))


def _faketime(ahead: dt.timedelta) -> list[str]:
    """The words in front of a command that let its clock run ahead. Its timers keep real time."""
    packages.ensure(["faketime"])
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return [
        *("env", f"LD_PRELOAD={library}", f"FAKETIME=+{ahead.total_seconds():.0f}s"),
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not answers():
        if process.poll() is not None:
            raise RuntimeError(f"the server ended at once: {log.read_text()[-2000:]}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server does not answer: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def write_certificates(
    authority: Path, certificate: Path, key: Path, name: str = "localhost"
) -> None:
    """Make an authority and a certificate of it for a name and the loopback address, for a day."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "spicedb")])
    names = x509.SubjectAlternativeName(
        [x509.DNSName(name), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
    )

    def builder(
        holder: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(holder)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=1))
        )

    signed = (
        builder(issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    authority.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    signed = (
        builder(subject, server_key.public_key())
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
