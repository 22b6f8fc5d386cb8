from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.cli.exit import EXIT_CODES, MEANINGS, Exit, table
from orchestrator.kernel.outcome import Outcome

Cli = Callable[..., Any]

LOOK = ("--tool", "models:look")
ENDS = [
    ("answers", LOOK, "completed", "none", 0),
    ("breaks", (), "failed", "llm_error", 1),
    (
        "wraps_up",
        (*LOOK, "--limit", "max_iterations=2", "--limit", "wrap_up_turns=1"),
        "partial",
        "max_iterations",
        3,
    ),
    ("repeats", (*LOOK, "--limit", "max_iterations=2"), "budget_exceeded", "max_iterations", 4),
    ("repeats", (*LOOK, "--limit", "max_repeated_success=0"), "no_progress", "stalled", 5),
]


@pytest.mark.parametrize(("model", "options", "outcome", "reason", "code"), ENDS)
def test_a_run_exits_with_the_code_of_its_outcome(
    cli: Cli, model: str, options: tuple[str, ...], outcome: str, reason: str, code: int
) -> None:
    done = cli("run", "How many moons?", "--model", f"python:models:{model}", "--json", *options)
    result = json.loads(done.out)
    assert (result["outcome"], result["reason"], done.code) == (outcome, reason, code)
    assert len(done.err.splitlines()) == (0 if code == 0 else 1)


@pytest.mark.canary
def test_the_code_of_an_outcome_leaves_the_process(process: Cli) -> None:
    done = process(
        "run", "How many moons?", "--model", "python:models:repeats", *LOOK, "--limit", "max_iterations=2"
    )
    assert done.code == 4
    assert len(done.err.splitlines()) == 1


def test_each_outcome_has_a_code_of_its_own() -> None:
    assert set(EXIT_CODES) == set(Outcome)
    assert {outcome.value: int(code) for outcome, code in EXIT_CODES.items()} == {
        "completed": 0,
        "failed": 1,
        "partial": 3,
        "budget_exceeded": 4,
        "no_progress": 5,
        "cancelled": 6,
        "rejected": 7,
    }
    assert int(Exit.USAGE) == 2
    assert Exit.USAGE not in EXIT_CODES.values()


@pytest.mark.parametrize("command", [(), ("run",), ("replay",)])
def test_the_codes_are_in_the_help(cli: Cli, command: tuple[str, ...]) -> None:
    said = cli(*command, "--help").out
    assert set(MEANINGS) == set(Exit)
    for line in table().splitlines():
        assert line in said
