"""What every test shares: which levels run, and that nothing is skipped unnoticed.

A bare `pytest` runs the unit tests: they need no server and no network. `--everything` adds the
integration tests (real API server, SpiceDB and Postgres) and the e2e tests (a real node), and fails
if any of them was skipped.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent
_HEAVY = (_ROOT / "integration", _ROOT / "e2e")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memory-operator")
    group.addoption("--everything", action="store_true", help="all levels; a skipped test fails")
    group.addoption("--allow-skips", action="store_true", help="with --everything: skips are fine")
    group.addoption("--provider", default="auto", help="kind, local, current or auto (default)")
    group.addoption("--cluster", default=None, metavar="NAME", help="the cluster that e2e uses")
    group.addoption("--chaos", type=int, default=1, metavar="N", help="how often to repeat faults")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the heavy levels out of a bare run; a path on the command line asks for them."""
    if collection_path not in _HEAVY or config.option.everything:
        return None
    named = [(_ROOT.parent / argument.split("::")[0]).resolve() for argument in config.args]
    asked_for = any(collection_path in (path, *path.parents) and path != _ROOT for path in named)
    return None if asked_for else True


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        reporter is None
        or not session.config.option.everything
        or session.config.option.allow_skips
    ):
        return
    skipped = [r.nodeid for r in reporter.stats.get("skipped", ()) if "optional" not in r.keywords]
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(
            f"failed: {len(skipped)} tests were skipped ({', '.join(skipped[:5])}); "
            "--allow-skips lets that pass",
            red=True,
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
