"""S, E and C as type checkers infer them: a file of cases, given to mypy and to pyright, both strict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.types import checkers


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    return checkers.copied("typed_machine.py.txt", tmp_path)


def test_mypy_infers_states_events_and_context(cases: Path) -> None:
    # The lazy package names every module of the library under TYPE_CHECKING: half a minute, and nothing to this.
    lines, report = checkers.mypy(cases, skipped="orchestrator")
    assert len(checkers.refused(cases)) == 13
    assert set(lines) == checkers.refused(cases), report


@pytest.mark.campaign
def test_pyright_infers_states_events_and_context(cases: Path) -> None:
    lines, report = checkers.pyright(cases)
    assert set(lines) == checkers.refused(cases), report
