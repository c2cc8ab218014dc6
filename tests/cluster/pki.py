"""Keys, certificates and kubeconfigs of a local cluster, made with openssl.

Everything is verified as on a real cluster: the API server by its own authority, the administrator and
every component by a client certificate, and the kubelet in both directions.
"""

import base64
from pathlib import Path

import yaml

from tests.cluster.host import run

DAYS = "365"
# Elliptic keys are made at once; RSA ones take a noticeable part of the time that `up` has.
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"

    def create(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        run(
            *("openssl", "req", "-x509", *_NEW_KEY, "-keyout", self.key),
            *("-out", self.certificate, "-days", DAYS, "-subj", "/CN=memory-operator-test"),
        )

    def sign(
        self, file_name: str, *, user: str, group: str = "", names: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """Make a key with a certificate for a user, or for a server with the given names."""
        key, request, certificate, extensions = (
            self.directory / f"{file_name}.{suffix}" for suffix in ("key", "csr", "crt", "ext")
        )
        subject = (f"/O={group}" if group else "") + f"/CN={user}"
        run("openssl", "req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", subject)
        usage = "serverAuth" if names else "clientAuth"
        extensions.write_text(
            f"extendedKeyUsage={usage}\n" + (f"subjectAltName={','.join(names)}\n" if names else "")
        )
        run(
            *("openssl", "x509", "-req", "-in", request, "-out", certificate, "-days", DAYS),
            *("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial"),
            *("-extfile", extensions),
        )
        return key, certificate

    def kubeconfig(self, file: Path, *, server: str, user: str, group: str = "") -> Path:
        """Write a kubeconfig with a new client certificate; it stands alone, with no paths in it."""
        key, certificate = self.sign(file.name, user=user, group=group)
        cluster = {"server": server, "certificate-authority-data": _encoded(self.certificate)}
        credentials = {
            "client-certificate-data": _encoded(certificate),
            "client-key-data": _encoded(key),
        }
        name = "memory-operator"
        file.touch(mode=0o600)
        file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": name, "cluster": cluster}],
                    "users": [{"name": name, "user": credentials}],
                    "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                    "current-context": name,
                }
            )
        )
        return file


def create_key_pair(private: Path, public: Path) -> None:
    """A key without a certificate, as tokens are signed with."""
    run("openssl", "genpkey", "-algorithm", "EC", *_NEW_KEY[2:4], "-out", private)
    run("openssl", "pkey", "-in", private, "-pubout", "-out", public)


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
