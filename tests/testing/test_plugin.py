from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers.model_guard import NO_REAL_MODELS
from orchestrator.testing import plugin
from orchestrator.testing.coverage import CoverageShare, GraphCoverage

pytest_plugins = ["pytester"]  # allowed in a test module, unlike in a conftest that is not the root's

# pytester forgets what a run imported, our lazy packages do not: two classes of one name. So load it before.
LOADED = [
    import_module(f"orchestrator.{name}")
    for name in ("runtime.llm_loop", "providers.scripted", "testing.coverage", "testing.paths")
]
ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join(str(ROOT / folder) for folder in (".", "callbacks", "guards"))

README = """
import asyncio

from orchestrator import LLM_LOOP, Agent
from orchestrator.testing import ScriptedLLM, parametrize_paths, strict_guards, walk


@parametrize_paths(LLM_LOOP)                       # one test for each row of the table
def test_every_edge(path, graph_coverage):
    asyncio.run(walk(LLM_LOOP, path, force=True, observers=[graph_coverage(LLM_LOOP)]))


def test_my_agent(graph_coverage, no_real_models):
    llm = ScriptedLLM(["Two moons."])
    graph = strict_guards(LLM_LOOP)                # a guard that mutates or awaits fails the run
    agent = Agent(llm, graph=graph, observers=[graph_coverage(LLM_LOOP)])
    assert agent.run_sync("How many moons?").output == "Two moons."
    llm.assert_complete()
"""

WITHOUT_RESTART = README.replace(
    "@parametrize_paths(LLM_LOOP) ",
    """
def no_restart(graph):
    from orchestrator.testing import edge_paths
    return [path for path in edge_paths(graph) if path[-1].event != "restart_loop"]


@parametrize_paths(LLM_LOOP, no_restart)""",
)

MODEL = """
import asyncio
import pytest
from orchestrator.errors import ConfigError
from orchestrator.llm.message import Response
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.providers.model_guard import real_models_refused

class Paid:
    model = "paid"
    async def complete(self, request):
        return Response("that cost you")

def test_ask():
    result = Agent(Paid(), observers=()).run_sync("hello")
    assert result.output == "that cost you"
"""


COVERAGE = GraphCoverage(LLM_LOOP)
STATES, ROWS, ANSWERS = (share.total for share in (COVERAGE.states, COVERAGE.transitions, COVERAGE.guards))
SHARE = CoverageShare(STATES + ROWS + 3, STATES + ROWS + ANSWERS).percent
"""What the tests of the README cover, in percent."""


def covered(*, transitions: int, guards: int) -> list[str]:
    """The shares of a report in which every state was seen, the total last."""
    taken = [(STATES, STATES), (transitions, ROWS), (guards, ANSWERS)]
    shares = [CoverageShare(*one) for one in taken]
    total = CoverageShare(*map(sum, zip(*taken, strict=True)))
    return [str(share) for share in (*shares, total)]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's project that loads our plugin and no other, whether this package is installed or not."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv(NO_REAL_MODELS, raising=False)
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the project's tests, in a process of its own where there are workers."""
    plugins = ["-p", "orchestrator.testing.plugin"]
    if "-n" not in options:
        return project.runpytest_inprocess(*plugins, *options)
    return project.runpytest_subprocess(*plugins, "-p", "xdist.plugin", *options)


# ---- coverage ----


def test_the_report_sums_over_tests_and_lists_what_is_missing(project: pytest.Pytester) -> None:
    project.makepyfile(WITHOUT_RESTART)
    result = run(project, "--graph-coverage")
    result.assert_outcomes(passed=ROWS)
    result.stdout.fnmatch_lines(
        [
            "*graph coverage*",
            "graph * states * transitions * guards * total",
            f"llm_loop  {'*'.join(covered(transitions=ROWS - 1, guards=2))}",
            "  missing transition update_budgets --restart_loop--> await_llm",
            "  missing guard may_continue never says deny: update_budgets --budget_ok--> await_llm",
        ]
    )


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("least", "options", "code"),
    [(f"{SHARE - 0.1:.1f}", (), 0), (f"{SHARE + 0.1:.1f}", (), 1), (f"{SHARE + 0.1:.1f}", ("-n", "2"), 1)],
)
def test_too_little_coverage_fails_a_green_session_and_the_sum_over_workers_is_that_of_one_process(
    project: pytest.Pytester, least: str, options: tuple[str, ...], code: int
) -> None:
    project.makepyfile(README)
    result = run(project, f"--graph-coverage-fail-under={least}", *options)
    result.assert_outcomes(passed=ROWS + 1)
    shares = covered(transitions=ROWS, guards=3)
    result.stdout.fnmatch_lines([f"llm_loop  {'*'.join(shares)}"])
    assert result.ret == code
    shown = f"FAILED graph coverage: llm_loop has {shares[-1]}, wanted {least} %"
    assert (shown in result.outlines) is bool(code)


def test_a_gate_does_not_pass_on_nothing(project: pytest.Pytester) -> None:
    project.makepyfile("def test_nothing(): pass")
    result = run(project, "--graph-coverage-fail-under=1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED graph coverage: no graph was watched"])
    assert run(project, "--graph-coverage-fail-under=1", "--collect-only").ret == pytest.ExitCode.OK


def test_failed_tests_keep_their_exit_code_and_still_get_the_report(project: pytest.Pytester) -> None:
    project.makepyfile(README + "\n\ndef test_red(): assert False\n")
    result = run(project, "--graph-coverage-fail-under=50")
    result.assert_outcomes(passed=ROWS + 1, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"llm_loop  {STATES}/{STATES} 100 %*"])


@pytest.mark.parametrize("wrong", ["lots", "-1", "101", "nan"])
def test_a_mark_that_is_no_percentage_is_refused(project: pytest.Pytester, wrong: str) -> None:
    result = run(project, f"--graph-coverage-fail-under={wrong}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*a percentage from 0 to 100 is required, not '{wrong}'*"])


# ---- the switch ----


@pytest.mark.parametrize(
    ("options", "ini", "environment", "passes"),
    [
        ((), "", None, True),
        (("--no-real-models",), "", None, False),
        ((), "orchestrator_no_real_models = true", None, False),
        ((), "orchestrator_no_real_models = false", None, True),
        ((), "", "1", False),
        ((), "orchestrator_no_real_models = true", "0", True),
        (("--no-real-models",), "", "0", False),
        pytest.param(("--no-real-models", "-n", "1"), "", None, False, marks=pytest.mark.campaign),
    ],
)
def test_argument_beats_environment_beats_file(
    project: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    ini: str,
    environment: str | None,
    passes: bool,
) -> None:
    project.makeini(f"[pytest]\n{ini}\n")
    project.makepyfile(MODEL)
    if environment is not None:
        monkeypatch.setenv(NO_REAL_MODELS, environment)
    result = run(project, *options)
    result.assert_outcomes(passed=int(passes), failed=int(not passes))
    if not passes:
        result.stdout.fnmatch_lines(["*real model calls are refused, and Paid is not a test double*"])


def test_one_test_can_switch_real_models_off(project: pytest.Pytester) -> None:
    project.makepyfile(
        MODEL
        + """
def test_off(no_real_models):
    with pytest.raises(ConfigError):
        test_ask()

def test_on_again():
    assert not real_models_refused()
"""
    )
    run(project).assert_outcomes(passed=3)


def test_the_switch_is_put_back_when_the_session_ends(project: pytest.Pytester) -> None:
    project.makepyfile(f"import os\ndef test_set(): assert os.environ[{NO_REAL_MODELS!r}] == '1'")
    run(project, "--no-real-models").assert_outcomes(passed=1)
    assert NO_REAL_MODELS not in os.environ


# ---- errors of tools ----

BROKEN = """
from orchestrator import Agent, Limits, ToolCall, tool
from orchestrator.testing import ScriptedLLM


@tool(effect="pure")
def refund(order: str) -> str:
    "Refund an order."
    return {}[order]


@tool(effect="pure")
def refuse(order: str) -> str:
    "Refuse."
    raise ValueError("no refund after 30 days")


def run(called, **options):
    llm = ScriptedLLM([[ToolCall("1", called.name, '{"order": "A1"}')], "Done."])
    return Agent(llm, tools=[called], observers=(), **options).run_sync("Refund A1.")


def test_that_looks_at_nothing():
    run(refund)


def test_that_looks_at_the_output():
    assert run(refund).output == "Done."


def test_that_wants_the_model_to_read_it():
    assert run(refund, limits=Limits(on_tool_error="return")).output == "Done."


def test_an_answer_for_the_model():
    assert run(refuse).output == "Done."


def test_that_fails_for_another_reason():
    assert run(refuse).output == "Refunded."
"""


@pytest.mark.parametrize(
    ("ini", "passed", "failed"),
    [("", 2, 3), ("return", 4, 1), ("raise", 1, 4)],
    ids=["default", "return", "raise"],
)
def test_a_bug_of_a_tool_fails_its_test_and_each_failed_test_shows_the_tracebacks_of_tools(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ini: str, passed: int, failed: int
) -> None:
    monkeypatch.delenv(plugin.ON_TOOL_ERROR)
    project.makepyfile(test_broken=BROKEN)
    if ini:
        project.makeini(f"[pytest]\norchestrator_on_tool_error = {ini}")
    result = project.runpytest_subprocess("-p", "orchestrator.testing.plugin")
    result.assert_outcomes(passed=passed, failed=failed)
    shown = result.stdout.str()
    assert 'raise ValueError("no refund after 30 days")' in shown
    assert "tool_set.py" not in shown
    if ini != "return":
        place = "tool refund raised KeyError: 'A1' (test_broken.py:8)"
        assert f"{place}; a test that wants this says Limits(on_tool_error='return')" in shown
        assert "return {}[order]" in shown


# ---- in projects that do not ask for it ----


def test_a_clock_is_there_for_the_asking(project: pytest.Pytester) -> None:
    project.makepyfile("def test_time(fake_clock): assert fake_clock.time() == fake_clock.time()")
    run(project).assert_outcomes(passed=1)


def test_a_project_that_does_not_use_it_sees_and_loads_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
import sys

def test_nothing_is_loaded():
    ours = {name for name in sys.modules if name.partition(".")[0].startswith("orchestrator")}
    kit = "orchestrator.testing"
    guard = {"orchestrator.providers", "orchestrator.providers.model_guard"}
    assert ours == {"orchestrator", "orchestrator.errors", *guard, kit, f"{kit}.plugin"}
"""
    )
    strict = ("--strict-markers", "--strict-config", "-W", "error")
    result = project.runpytest_subprocess("-p", "orchestrator.testing.plugin", *strict)
    result.assert_outcomes(passed=1)
    assert "graph coverage" not in result.stdout.str()


def test_the_plugin_imports_no_library() -> None:
    program = (
        "import pytest, sys; before = set(sys.modules); import orchestrator.testing.plugin; "
        "fresh = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(fresh - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "['orchestrator']"
