"""Values of branches and outputs of workflows as type checkers infer them, both strict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.types import checkers

pytestmark = pytest.mark.campaign


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    return checkers.copied("branches.py.txt", tmp_path)


def test_mypy_infers_values_and_outputs_and_refuses_each_wrong_line(cases: Path) -> None:
    lines, report = checkers.mypy(cases)
    assert len(checkers.refused(cases)) == 7
    assert set(lines) == checkers.refused(cases), report


def test_pyright_infers_values_and_outputs_and_refuses_each_wrong_line(cases: Path) -> None:
    lines, report = checkers.pyright(cases)
    assert set(lines) == checkers.refused(cases), report
