"""Files of cases as mypy and pyright read them, both strict: each line marked `refused`, and no other, is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.types import checkers
from tests.types.checkers import Errors

FILES = {
    "agent": 20,  # Deps and Output of agents
    "agents_together": 27,  # handoffs, agents as tools, guardrails and questions of child runs
    "branches": 7,  # values of branches and outputs of workflows
    "typed_machine": 13,  # S, E and C of machines
}
"""File of cases -> how many of its lines are wrong."""
every_file = pytest.mark.parametrize("name", FILES)


# Each checker reads all files at once: nearly all of its time goes into the library, which they share.
@pytest.fixture(scope="module")
def by_mypy(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    return checkers.mypy([*FILES], tmp_path_factory.mktemp("mypy"))


@pytest.fixture(scope="module")
def by_pyright(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    return checkers.pyright([*FILES], tmp_path_factory.mktemp("pyright"))


@every_file
def test_each_file_has_its_wrong_lines(name: str) -> None:
    assert len(checkers.refused(name)) == FILES[name]


@pytest.mark.campaign
@every_file
def test_mypy_refuses_each_wrong_line_once_and_says_what_stands_there(name: str, by_mypy: Errors) -> None:
    found, wrong = by_mypy[name], checkers.refused(name)
    assert found.keys() == wrong.keys(), found
    # Of a lambda it says that it cannot be inferred, and why.
    assert [said for said in found.values() if len(said) > 1 and "of lambda" not in said[0]] == []
    assert [said for line, said in found.items() if wrong[line][1] not in "".join(said)] == []


@pytest.mark.campaign
@every_file
def test_pyright_refuses_each_wrong_line_by_the_rule_that_stands_there(name: str, by_pyright: Errors) -> None:
    found, wrong = by_pyright[name], checkers.refused(name)
    assert found.keys() == wrong.keys(), found
    assert [line for line, rules in found.items() if wrong[line][0] not in ("", *rules)] == []


def test_mypy_infers_states_events_and_context_of_a_machine(tmp_path: Path) -> None:
    # The lazy package names every module of the library under TYPE_CHECKING: half a minute, and nothing to this.
    found = checkers.mypy(["typed_machine"], tmp_path, skipped="orchestrator")
    assert found["typed_machine"].keys() == checkers.refused("typed_machine").keys(), found
