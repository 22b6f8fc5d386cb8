"""A state and a guard, added to a copy of this repository by the steps of CONTRIBUTING.md and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1200)]


class Edit(NamedTuple):
    """What is written behind a place of a file."""

    file: str
    after: str
    new: str


MODEL = "orchestrator/machines/llm_loop/model.py"
GRAPH = "orchestrator/machines/llm_loop/graph.py"
HOOKS = "callbacks/orchestrator_callbacks/llm_loop/enter.py"
HOOK_TEST = "tests/callbacks/test_reflect.py"

STATE = [
    Edit(MODEL, '    UPDATE_BUDGETS = "update_budgets"\n', '    REFLECT = "reflect"\n'),
    Edit(
        MODEL,
        '    TOOLS_EXECUTED = "tools_executed"\n',
        '    REFLECTION_NEEDED = "reflection_needed"\n    REFLECTED = "reflected"\n',
    ),
    Edit(GRAPH, "S.PROCESS_TOOLS, S.UPDATE_BUDGETS, ", "S.REFLECT, "),
    Edit(GRAPH, "        S.PROCESS_TOOLS: (1800.0, E.FAILURE),\n", "        S.REFLECT: (60.0, E.FAILURE),\n"),
    Edit(
        GRAPH,
        "        Edge(E.TOOLS_EXECUTED,      (S.PROCESS_TOOLS,),      S.UPDATE_BUDGETS),\n",
        "        Edge(E.REFLECTION_NEEDED,   (S.PROCESS_TOOLS,),      S.REFLECT),\n"
        "        Edge(E.REFLECTED,           (S.REFLECT,),            S.UPDATE_BUDGETS),\n",
    ),
    Edit(
        HOOKS,
        "",
        """

async def enter_reflect(run: LoopRun) -> LoopEvent:
    \"\"\"Ask the model to look at its results once more.\"\"\"
    run.ctx.progress.warning = "Look at the results once more."
    return LoopEvent.REFLECTED
""",
    ),
    Edit(
        HOOK_TEST,
        "",
        """
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext, LoopEvent
from orchestrator_callbacks.llm_loop.enter import enter_reflect


async def test_a_reflection_warns_the_model_and_leads_to_the_budgets():
    ctx = LoopContext([], Limits(), 0)
    assert await enter_reflect(Run(Machine(LLM_LOOP, Hooks({})), "r", ctx, None)) is LoopEvent.REFLECTED
    assert "once more" in ctx.progress.warning
""",
    ),
]
"""Model, table, hook and its test."""

GUARD = [
    Edit(
        "guards/orchestrator_guards/attempts.py",
        "",
        """

def reflections(attempts: int, limit: int) -> Verdict:
    \"\"\"May the results be looked at once more? `attempts`: reflections of the run so far.\"\"\"
    return Verdict(limit == 0 or attempts < limit, "reflections", attempts, limit)
""",
    ),
    Edit(
        "tests/guards/test_budget.py",
        '    "refinements": guards.refinements,\n',
        '    "reflections": guards.reflections,\n',
    ),
    Edit(GRAPH, "    progress,\n", "    reflections,\n"),
    Edit(
        GRAPH,
        "    limits, spent = ctx.limits, ctx.spent\n    asked: list[Verdict] = []\n",
        "    asked.append(reflections(0, 1))\n",
    ),
]
"""Function, test and one use."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of this repository, committed, so that what `make accept` changes can be listed."""
    into = tmp_path / "copy"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, into, ignore=ignored)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "as it is")):
        subprocess.run([*git, *command], cwd=into, check=True)
    return into


def make(copy: Path, edits: list[Edit]) -> None:
    for edit in edits:
        file = copy / edit.file
        text = file.read_text() if file.exists() else ""
        assert not edit.after or text.count(edit.after) == 1, edit
        at = text.index(edit.after) + len(edit.after) if edit.after else len(text)
        file.write_text(text[:at] + edit.new + text[at:])


def python(copy: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(copy / folder) for folder in (".", "callbacks", "guards"))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(copy: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    given = ("-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not campaign")
    return python(
        copy, "-m", "pytest", *given, *paths, CI=""
    )  # the copy has no recorded conversations beside it


def accept(copy: Path) -> set[str]:
    done = python(copy, "-m", "tests.accept")
    assert done.returncode == 0, done.stderr
    assert "nothing changed" not in done.stdout
    listed = subprocess.run(
        ["git", "diff", "--name-only"], cwd=copy, check=True, capture_output=True, text=True
    )
    changed = set(listed.stdout.split())
    assert all(path in done.stdout for path in changed - {edit.file for edit in (*STATE, *GUARD)})
    return changed


def test_a_state_takes_model_table_hook_and_its_test(copy: Path) -> None:
    make(copy, STATE)
    refused = run_tests(copy, "tests/contract/test_graphs.py")
    assert refused.returncode == pytest.ExitCode.TESTS_FAILED
    assert "run `make accept`" in refused.stdout

    assert accept(copy) - {MODEL, GRAPH, HOOKS} == {
        "README.md",
        "dashboards/grafana/run_flow.json",
        "dashboards/prometheus/rules.yml",
        "tests/data/golden/graph/llm_loop.txt",
    }
    done = run_tests(
        copy,
        *("tests/contract/test_graphs.py", "tests/machines/test_llm_loop_edges.py"),
        "tests/contract/test_guides.py::test_the_diagram_is_the_one_the_command_prints",
        "tests/contract/test_guides.py::test_the_traces_are_those_of_real_runs",
        *("tests/testing/test_paths.py", "tests/testing/test_coverage.py", "tests/testing/test_kit.py"),
        *("tests/kernel/test_diagram.py", "tests/kernel/test_graph.py", "tests/kernel/test_lint.py"),
        *("tests/dashboards/test_pack.py", "tests/dashboards/test_drift.py", HOOK_TEST),
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout


def test_a_guard_takes_function_test_and_one_use(copy: Path) -> None:
    make(copy, GUARD)
    refused = run_tests(copy, "tests/guards")
    assert refused.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    assert accept(copy) - {edit.file for edit in GUARD} == {
        "guards/README.md",
        "guards/orchestrator_guards/__init__.py",
        "guards/orchestrator_guards/verdict.py",
    }
    done = run_tests(copy, "tests/guards", "tests/machines/test_llm_loop_edges.py")
    assert done.returncode == pytest.ExitCode.OK, done.stdout
