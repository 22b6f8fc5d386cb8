"""Handoffs, agents as tools, guardrails and questions of child runs as type checkers see them, both strict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.types import checkers

pytestmark = pytest.mark.campaign


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    return checkers.copied("agents_together.py.txt", tmp_path)


def test_mypy_refuses_each_wrong_line_with_its_message(cases: Path) -> None:
    _, report = checkers.mypy(cases)
    found, wrong = checkers.messages(report), checkers.expected(cases)
    assert len(wrong) == 27
    assert found.keys() == wrong.keys(), report
    unlike = {line: found[line] for line, (_, text) in wrong.items() if text not in found[line]}
    assert unlike == {}


def test_pyright_refuses_each_wrong_line_by_its_rule(cases: Path) -> None:
    _, report = checkers.pyright(cases)
    found, wrong = checkers.rules(report), checkers.expected(cases)
    assert found.keys() == wrong.keys(), report
    unlike = {line: found[line] for line, (rule, _) in wrong.items() if rule not in found[line]}
    assert unlike == {}
