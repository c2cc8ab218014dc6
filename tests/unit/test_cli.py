"""The command line: what it prints, and how it ends."""

import logging
from pathlib import Path

import pytest
import yaml

from memory_operator import crds, logs
from memory_operator.__main__ import main
from memory_operator.api import Kind, ObjectKey
from memory_operator.kube import Kubernetes
from memory_operator.names import FINALIZER
from tests.unit.fakes import FakeKubernetes, World

ROOT = Path(__file__).parents[2]


def test_crds_are_printed_as_one_stream_that_kubectl_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["crds"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert documents == [crds.manifest(kind) for kind in Kind]


def test_written_crds_pass_the_check_until_one_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["crds", "--check"]) == 1
    assert main(["crds", "--write"]) == 0
    assert main(["crds", "--check"]) == 0
    capsys.readouterr()
    stale = tmp_path / "crds" / "accessgrants.yaml"
    stale.write_text(stale.read_text() + "\n")

    assert main(["crds", "--check"]) == 1

    assert capsys.readouterr().err == "crds/accessgrants.yaml is stale: run `make crds`\n"
    assert main(["crds", "--write"]) == 0
    assert main(["crds", "--check"]) == 0


def test_the_schema_is_printed_as_it_is_written_to_spicedb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == (ROOT / "schema" / "schema.zed").read_text()


@pytest.mark.parametrize("command", ["operator", "check"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPICEDB_ENDPOINT", None),
        ("SPICEDB_ENDPOINT", "nowhere"),
        ("DRIFT_PERIOD_SECONDS", "soon"),
        ("NAMESPACE", None),
    ],
)
def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    value: str | None,
) -> None:
    settings = {
        "SPICEDB_ENDPOINT": "localhost:1",
        "SPICEDB_TOKEN_FILE": "/dev/null",
        "NAMESPACE": "memory-system",
        name: value,
    }
    for each, text in settings.items():
        if text is None:
            monkeypatch.delenv(f"MEMORY_OPERATOR_{each}", raising=False)
        else:
            monkeypatch.setenv(f"MEMORY_OPERATOR_{each}", text)

    assert main([command]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"MEMORY_OPERATOR_{name}")
    assert value is None or value not in line


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["crds", "--write", "--check"]])
def test_used_wrongly_it_says_so_and_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: memory-operator" in capsys.readouterr().err


class Released(FakeKubernetes):
    """A cluster that can be connected to and left."""

    async def close(self) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    world = World()
    kube = Released(world.clock, world.fate)

    async def connect() -> Kubernetes:
        return kube

    monkeypatch.setattr(Kubernetes, "connect", connect)
    for namespace in ("acme", "globex"):
        key = kube.create(Kind.MEMORY_AGENT, namespace, "pm", role="pm")
        metadata = (kube.get(key) or {})["metadata"]
        kube.tamper(key, metadata=metadata | {"finalizers": [FINALIZER, "example.com/theirs"]})
    kube.create(Kind.MEMORY_AGENT, "acme", "free", role="pm")
    return kube


def _finalizers(kube: FakeKubernetes, namespace: str) -> list[str]:
    body = kube.get(ObjectKey(Kind.MEMORY_AGENT, namespace, "pm")) or {}
    finalizers: list[str] = body["metadata"]["finalizers"]
    return finalizers


def test_finalizers_are_only_shown_unless_told_to_release_them(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release-finalizers"]) == 0
    assert "2 would be released" in capsys.readouterr().out
    assert _finalizers(cluster, "acme") == [FINALIZER, "example.com/theirs"]


def test_finalizers_of_ours_alone_are_released_where_told(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release-finalizers", "--yes", "-n", "acme"]) == 0
    out = capsys.readouterr().out
    assert "MemoryAgent acme/pm" in out
    assert "1 released" in out
    assert _finalizers(cluster, "acme") == ["example.com/theirs"]
    assert _finalizers(cluster, "globex") == [FINALIZER, "example.com/theirs"]


def test_an_api_server_that_does_not_answer_is_an_error_of_one_line(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.away = True
    assert main(["release-finalizers"]) == 1
    assert capsys.readouterr().err.startswith("memory-operator: the API server does not answer")


# Log lines


def _record(name: str, message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "file", 1, message, arguments, None)


def test_a_log_line_is_one_json_object() -> None:
    line = yaml.safe_load(logs.JsonFormatter().format(_record("a.b", "two\nlines of %s", "é")))
    assert line["message"] == "two\nlines of é"
    assert (line["level"], line["logger"]) == ("WARNING", "a.b")


def test_an_exception_stays_within_its_line() -> None:
    record = _record("a.b", "failed")
    error = ValueError("inner\nlines")
    record.exc_info = (ValueError, error, None)
    text = logs.JsonFormatter().format(record)
    assert "\n" not in text
    assert "ValueError: inner" in yaml.safe_load(text)["exception"]


def test_an_audit_line_is_left_as_it_is() -> None:
    record = _record("memory_operator.audit", '{"audit":"granted"}')
    assert logs.JsonFormatter().format(record) == '{"audit":"granted"}'
