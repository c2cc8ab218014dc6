"""Everything that is read from the environment, validated once."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_OWN_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Settings(BaseSettings):
    """Settings of the operator; each is an environment variable ``MEMORY_OPERATOR_<NAME>``."""

    model_config = SettingsConfigDict(
        env_prefix="MEMORY_OPERATOR_", frozen=True, use_attribute_docstrings=True
    )

    spicedb_endpoint: Annotated[str, Field(pattern=r"^[^\s/]+:\d{1,5}$")]
    """SpiceDB's gRPC address, ``host:port``."""

    spicedb_token_file: Path
    """File with SpiceDB's preshared key; read again at every call."""

    spicedb_insecure: bool = False
    """Speak plaintext instead of TLS: for a SpiceDB on this machine."""

    spicedb_ca_file: Path | None = None
    """CA bundle (PEM) for SpiceDB's certificate; default: the system's roots."""

    id_prefix: Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")] = ""
    """Put before every SpiceDB id, where several clusters share one SpiceDB."""

    namespace: str = ""
    """The operator's own namespace, in which no organisation can live; default: the pod's."""

    watch_namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    """Namespaces to watch, separated by commas; default: all."""

    drift_period_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300
    """Time between two comparisons of all resources with SpiceDB, in seconds."""

    http_port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port of /healthz, /readyz and /metrics."""

    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    """Least severity of what is logged."""

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="after")
    def _know_own_namespace(self) -> Self:
        # Without it, resources in the operator's own namespace could not be told and refused.
        if not self.namespace:
            try:
                object.__setattr__(self, "namespace", _OWN_NAMESPACE_FILE.read_text().strip())
            except OSError as error:
                raise ValueError(
                    "MEMORY_OPERATOR_NAMESPACE is not set and this is no pod: name the namespace "
                    "that belongs to the operator"
                ) from error
        return self
