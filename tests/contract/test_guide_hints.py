"""Errors name a guide where a reader needs one, and every guide that is named exists."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from orchestrator import errors
from orchestrator.cli.docs import GUIDES
from tests.contract.syntax import nodes
from tests.contract.test_layers import ROOT

TOPICS = {guide.topic for guide in GUIDES}
FOLDERS = ("orchestrator", "callbacks", "guards")

NAMED = {
    "machines": errors.GraphError("g", ["p"]),
    "durability": errors.Held("r", "w"),
    "approvals": errors.AnswerRefused("r", "why"),
    "workers": errors.Overloaded("e", 1, 1),
    "agents": errors.CompletionError("issue", 2),
    "providers": errors.MissingExtra("openai", "openai", "providers"),
}


def named() -> Iterator[str]:
    """Yield the topic of each call of `see_guide`, and of each `MissingExtra` that names one, if it is a literal."""
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if "see_guide(" in text or "MissingExtra(" in text:
                yield from _literals(text)


def _literals(text: str) -> Iterator[str]:
    places = {"see_guide": 0, "MissingExtra": 2}
    for node in nodes(text):
        if isinstance(node, ast.Call) and (place := places.get(ast.unparse(node.func))) is not None:
            topic = node.args[place] if len(node.args) > place else None
            if isinstance(topic, ast.Constant):
                yield str(topic.value)


@pytest.mark.check
def test_every_guide_that_an_error_names_exists() -> None:
    topics = list(named())
    assert len(topics) >= 20
    assert set(topics) <= TOPICS


@pytest.mark.parametrize("topic", NAMED)
def test_an_error_ends_with_the_command_that_prints_its_guide(topic: str) -> None:
    assert str(NAMED[topic]).endswith(f"see `orchestrator docs {topic}`")


def test_a_missing_extra_of_the_command_line_names_no_command_that_it_lacks() -> None:
    assert (
        str(errors.MissingExtra("typer", "cli"))
        == "typer is not installed: pip install 'fsm-orchestrator[cli]'"
    )
