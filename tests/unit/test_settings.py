"""What is read from the environment."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from memory_operator.settings import Settings

NEEDED = {
    "SPICEDB_ENDPOINT": "spicedb.memory-system:50051",
    "SPICEDB_TOKEN_FILE": "/etc/spicedb/token",
    "NAMESPACE": "memory-system",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NEEDED.items():
        monkeypatch.setenv(f"MEMORY_OPERATOR_{name}", value)


def test_only_three_are_needed_and_the_others_are_safe() -> None:
    settings = Settings()
    assert settings.spicedb_token_file == Path("/etc/spicedb/token")
    assert settings.namespace == "memory-system"
    assert not settings.spicedb_insecure
    assert settings.spicedb_ca_file is None
    assert settings.id_prefix == ""
    assert settings.watch_namespaces == ()
    assert settings.drift_period_seconds == 300
    assert settings.http_port == 8080
    assert settings.log_level == "INFO"


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("WATCH_NAMESPACES", "acme", ("acme",)),
        ("WATCH_NAMESPACES", " acme, globex ,", ("acme", "globex")),
        ("WATCH_NAMESPACES", "", ()),
        ("SPICEDB_INSECURE", "true", True),
        ("SPICEDB_ENDPOINT", "[::1]:50051", "[::1]:50051"),
        ("ID_PREFIX", "", ""),
        ("ID_PREFIX", "east-1", "east-1"),
        ("DRIFT_PERIOD_SECONDS", "1.5", 1.5),
        ("HTTP_PORT", "0", 0),
        ("LOG_LEVEL", "DEBUG", "DEBUG"),
    ],
)
def test_a_setting_may_be(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, read: object
) -> None:
    monkeypatch.setenv(f"MEMORY_OPERATOR_{name}", value)
    settings = Settings()
    assert getattr(settings, name.lower()) == read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPICEDB_ENDPOINT", ""),
        ("SPICEDB_ENDPOINT", "spicedb"),
        ("SPICEDB_ENDPOINT", "https://spicedb:50051"),
        ("SPICEDB_ENDPOINT", "spicedb:port"),
        ("ID_PREFIX", "a/b"),
        ("ID_PREFIX", "-east"),
        ("ID_PREFIX", "e" * 64),
        ("DRIFT_PERIOD_SECONDS", "0"),
        ("DRIFT_PERIOD_SECONDS", "soon"),
        ("DRIFT_PERIOD_SECONDS", "nan"),
        ("HTTP_PORT", "70000"),
        ("LOG_LEVEL", "LOUD"),
        ("SPICEDB_INSECURE", "maybe"),
    ],
)
def test_a_setting_may_not_be(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"MEMORY_OPERATOR_{name}", value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert caught.value.errors()[0]["loc"][0] == name.lower()


@pytest.mark.parametrize("name", ["SPICEDB_ENDPOINT", "SPICEDB_TOKEN_FILE"])
def test_a_setting_may_not_be_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(f"MEMORY_OPERATOR_{name}")
    with pytest.raises(ValidationError):
        Settings()


def test_in_a_pod_the_namespace_is_the_pods(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MEMORY_OPERATOR_NAMESPACE")
    file = tmp_path / "namespace"
    monkeypatch.setattr("memory_operator.settings._OWN_NAMESPACE_FILE", file)
    with pytest.raises(ValidationError, match="MEMORY_OPERATOR_NAMESPACE is not set"):
        Settings()
    file.write_text("of-the-pod\n")
    assert Settings().namespace == "of-the-pod"
