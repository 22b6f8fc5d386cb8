"""What `ralph run` and `runs show` print of the calls of coding agents, and how a limit on their cost ends a run.

A shell script behaves as Claude Code does; `runtime/test_coding_agents.py` has the real programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.exit import EXIT_CODES
from orchestrator.kernel.outcome import Outcome

Cli = Callable[..., Any]
AGENTS = "".join(f'[agents.{role}]\nagent = "claude"\n' for role in ("planner", "executor", "reviewer"))
CODER = """#!/bin/sh
case "$(cat)" in
*"You are the planner of a loop"*)
    printf '# Tasks\\n\\n## Implementation Tasks\\n\\n- task-1: Say hello\\n' > s/one/tasks.md
    said='{\\"status\\": \\"completed\\"}' ;;
*"You are the executor of a loop"*)
    echo '# Task Report' > s/one/tasks.task-1-report.md
    said='{\\"status\\": \\"completed\\", \\"success_criteria_met\\": true}' ;;
*) said='{\\"status\\": \\"completed\\", \\"verdict\\": \\"Qualified\\"}' ;;
esac
echo "$@" >> arguments
cat <<END
{"type": "result", "is_error": false, "session_id": "id-7", "total_cost_usd": 0.01, "result": "$said",
END
"""
RESULT = '"usage": {"input_tokens": 1000, "output_tokens": 50}, "modelUsage": {"opus": {"outputTokens": 50}}}'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session, and a program `claude` on PATH that works in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "claude"
    script.write_text(CODER.replace('$said",\nEND', f'$said", {RESULT}\nEND'))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    here = tmp_path / "project"
    (here / "s" / "one").mkdir(parents=True)
    monkeypatch.chdir(here)
    return here


def ralph(cli: Cli, project: Path, limits: str = "") -> Any:
    (project / "ralph.toml").write_text(f"{limits}\n{AGENTS}")
    return cli("ralph", "run", "Say hello", "--session", "s/one", "--sessions", "s", "--trust")


def test_tokens_cost_and_sessions_of_coding_agents_are_shown(cli: Cli, project: Path) -> None:
    done = ralph(cli, project)
    assert done.code == 0, done.err
    assert "3 agent calls, 3,000 tokens in, 150 out, cost 0.03\n" in done.out
    shown = cli("runs", "show", "one").out
    assert "counted by the limits, with child runs and estimates: 3,150 tokens" in shown
    rows = [line.split() for line in shown.splitlines() if "id-7" in line]
    assert [row[:5] for row in rows] == [
        ["planner", "-", "claude", "opus", "id-7"],
        ["executor", "task-1", "claude", "opus", "id-7"],
        ["reviewer", "task-1", "claude", "opus", "id-7"],
    ]
    stored = json.loads(cli("runs", "show", "one", "--json").out)
    assert [one["usage"]["cost"] for one in stored["agent_calls"]] == [0.01] * 3
    assert stored["usage"]["cost"] == 0.03
    assert "claude, call" in cli("runs", "events", "one").out


def test_a_limit_on_cost_ends_the_run_by_its_guard_and_the_rest_is_the_limit_of_the_program(
    cli: Cli, project: Path
) -> None:
    done = ralph(cli, project, "limits = { max_cost = 0.02 }")
    assert done.code == EXIT_CODES[Outcome.BUDGET_EXCEEDED]
    assert "outcome: budget_exceeded (cost)" in done.out
    assert "cost: 0.02 of 0.02 used" in done.err
    given = [line.split("--max-budget-usd ")[1] for line in Path("arguments").read_text().splitlines()]
    assert given == ["0.02", "0.01"]
