"""Promises about the tree itself that no other test would notice broken."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from memory_operator.app import schema_text
from memory_operator.names import MINIMUM_SPICEDB

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "operator"
PACKAGE = SOURCES / "memory_operator"
MODULES = sorted(PACKAGE.rglob("*.py"))


def committed() -> list[Path]:
    """Every file that git knows of, and that is there."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in listing.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_operator_is_a_source_root_and_shadows_no_module_of_python() -> None:
    assert not (SOURCES / "__init__.py").exists()
    assert not list(SOURCES.glob("*.py"))
    import operator  # noqa: PLC0415  # the standard library's, whatever lies beside the tests

    assert not str(operator.__file__).startswith(str(ROOT))


def test_the_package_carries_the_one_schema_there_is() -> None:
    assert schema_text() == (ROOT / "schema" / "schema.zed").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"schema/schema.zed": "memory_operator/schema.zed"}


def test_chart_and_package_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((ROOT / "charts" / "memory-operator" / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]


def test_the_chart_deploys_a_spicedb_that_the_operator_takes_for_safe() -> None:
    values = (ROOT / "charts" / "memory-operator" / "values.yaml").read_text()
    tags = re.findall(r"tag: \"?v(\d+)\.(\d+)\.(\d+)", values)
    assert tags
    for tag in tags:
        assert tuple(int(part) for part in tag) >= MINIMUM_SPICEDB


def test_no_file_names_a_package_registry() -> None:
    # Mirrors are set up where the machine is, and never by this repository.
    registries = re.compile(
        r"pypi\.(org|python)|pythonhosted\.org|proxy\.golang\.org|deb\.debian\.org|registry\.npmjs\.org"
    )
    found = []
    for path in committed():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if registries.search(text):
            found.append(str(path.relative_to(ROOT)))
    assert not found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_module_says_where_it_stands(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_handlers_decide_nothing_and_fit_in_fifteen_lines() -> None:
    tree = ast.parse((PACKAGE / "handlers.py").read_text())
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    assert handlers
    for handler in handlers:
        assert (handler.end_lineno or 0) - handler.lineno < 15, handler.name
        assert not [node for node in ast.walk(handler) if isinstance(node, ast.If | ast.Match)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", path.read_text())
