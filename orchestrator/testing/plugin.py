"""The pytest plugin: coverage of graphs, a clock to move, no real models, pure guards, tools without bugs.

pytest loads it in every project that has this package installed. Unless its options and fixtures are used it imports
nothing, and only enables the check of guards (`orchestrator.kernel.purity`) and of tools
(`orchestrator.tools.tool_error`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.providers.model_guard import NO_REAL_MODELS

if TYPE_CHECKING:
    from orchestrator.kernel.graph import Graph
    from orchestrator.testing.clock import FakeClock
    from orchestrator.testing.coverage import CoverageTally, GraphCoverage

CHECK_PURITY = "ORCHESTRATOR_CHECK_PURITY"
"""The variable of `kernel.purity`, which is not imported for it."""

ON_TOOL_ERROR = "ORCHESTRATOR_ON_TOOL_ERROR"
"""The variable of `tools.tool_error`, which is not imported for it."""

_SEEN: pytest.StashKey[dict[str, CoverageTally]] = pytest.StashKey()
"""Fingerprint -> coverage of that graph by all tests of this process."""
_TOOL_ERROR = "orchestrator.tools.tool_error"
_SENT = "orchestrator_graph_coverage"
"""Key under which an xdist worker sends its share to the controller."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("orchestrator", "state graphs of LLM agents")
    group.addoption(
        "--graph-coverage",
        action="store_true",
        help="report states, transitions and guard results of the graphs given to the graph_coverage fixture",
    )
    group.addoption(
        "--graph-coverage-fail-under",
        type=_percent,
        metavar="N",
        help="like --graph-coverage, and fail when a graph has less than N %% in total, or none was watched",
    )
    group.addoption(
        "--no-real-models",
        action="store_true",
        help="refuse every LLM whose class does not say `double = True`",
    )
    parser.addini(
        "orchestrator_no_real_models",
        f"as --no-real-models; {NO_REAL_MODELS} in the environment overrides it",
        type="bool",
        default=False,
    )
    parser.addini(
        "orchestrator_check_purity",
        f"guards that change their context raise GraphError; {CHECK_PURITY} in the environment overrides it",
        type="bool",
        default=True,
    )
    parser.addini(
        "orchestrator_on_tool_error",
        "raise_bugs (default): a KeyError, NameError or the like in a tool ends its run and fails the test; raise: "
        f"every exception of a tool does; return: the model reads it; {ON_TOOL_ERROR} in the environment overrides it",
        default="raise_bugs",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the switches as environment variables, so that workers and subprocesses under test obey them too."""
    config.stash[_SEEN] = {}
    if config.getini("orchestrator_check_purity") and CHECK_PURITY not in os.environ:
        _set(config, CHECK_PURITY)
    if ON_TOOL_ERROR not in os.environ:
        _set(config, ON_TOOL_ERROR, str(config.getini("orchestrator_on_tool_error")))
    chosen = config.getoption("--no-real-models")
    configured = config.getini("orchestrator_no_real_models") and NO_REAL_MODELS not in os.environ
    if chosen or configured:
        _set(config, NO_REAL_MODELS)


def _set(config: pytest.Config, variable: str, value: str = "1") -> None:
    patch = pytest.MonkeyPatch()
    patch.setenv(variable, value)
    config.add_cleanup(patch.undo)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Fail a test in which a bug of a tool ended a run, and show the tracebacks of tools in a test that failed."""
    before = sys.modules.get(_TOOL_ERROR)
    if before is not None:
        before.RAISED.clear()
        before.ENDED.clear()
    outcome = yield
    after = sys.modules.get(_TOOL_ERROR)
    if after is None or not after.RAISED:
        return
    item.add_report_section("call", "errors of tools", "\n".join(map(after.traceback_of, after.RAISED)))
    if after.ENDED and outcome.excinfo is None:
        why = f"{after.ENDED[0]}; a test that wants this says Limits(on_tool_error='return')"
        outcome.force_exception(pytest.fail.Exception(why, pytrace=False))


@pytest.fixture
def no_real_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse, during this test, every LLM whose class does not have `double = True`."""
    monkeypatch.setenv(NO_REAL_MODELS, "1")


@pytest.fixture
def fake_clock() -> FakeClock:
    """Return a clock that stands still until `await fake_clock.advance(seconds)`."""
    from orchestrator.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def graph_coverage(request: pytest.FixtureRequest) -> Iterator[Callable[[Graph], GraphCoverage]]:
    """Return `graph_coverage(GRAPH)`: an observer of this test's runs that also counts for the session's report."""
    from orchestrator.testing.coverage import GraphCoverage

    made: list[GraphCoverage] = []

    def watch(graph: Graph) -> GraphCoverage:
        made.append(GraphCoverage(graph))
        return made[-1]

    yield watch
    for coverage in made:
        _add(request.config, coverage)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the share of a finished xdist worker; one that crashed has none."""
    shares: Sequence[dict[str, Any]] = getattr(node, "workeroutput", {}).get(_SENT, ())
    for share in shares:
        from orchestrator.testing.coverage import CoverageTally

        _add(node.config, CoverageTally.from_data(share))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the share in a worker; otherwise fail a green session with too little coverage."""
    config = session.config
    worker: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if worker is not None:
        worker[_SENT] = [tally.to_data() for tally in config.stash[_SEEN].values()]
    elif session.exitstatus == pytest.ExitCode.OK and _shortfalls(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, then one line for each graph with too little coverage."""
    gated = config.getoption("--graph-coverage-fail-under") is not None
    if config.getoption("collectonly") or not (gated or config.getoption("--graph-coverage")):
        return
    seen = config.stash[_SEEN]
    terminalreporter.section("graph coverage")
    if seen:
        from orchestrator.testing.coverage import report

        for line in report(seen.values()):
            terminalreporter.line(line)
    else:
        terminalreporter.line("no test gave a graph to the graph_coverage fixture")
    for line in _shortfalls(config):
        terminalreporter.line(f"FAILED graph coverage: {line}", red=True)


def _shortfalls(config: pytest.Config) -> list[str]:
    """Return the graphs below the required share. A session that watched no graph fails too."""
    least: float | None = config.getoption("--graph-coverage-fail-under")
    if least is None or config.getoption("collectonly"):
        return []
    seen = config.stash[_SEEN].values()
    if not seen:
        return ["no graph was watched"]
    low = [tally for tally in seen if tally.total.percent < least]
    return [f"{tally.graph} has {tally.total}, wanted {least:g} %" for tally in low]


def _add(config: pytest.Config, tally: CoverageTally) -> None:
    seen = config.stash[_SEEN]
    if tally.fingerprint in seen:
        seen[tally.fingerprint].merge(tally)
    else:
        seen[tally.fingerprint] = tally


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:  # noqa: PLR2004 - percent; a NaN fails too
        raise argparse.ArgumentTypeError(f"a percentage from 0 to 100 is required, not {text!r}")
    return value
