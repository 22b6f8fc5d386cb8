"""Texts of models and agents are read in one pass, also those that never close anything, with the same results."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.llm.structured_output import json_values
from orchestrator.machines.ralph.contract import _fenced
from orchestrator.machines.ralph.outline import _HEADING, _title

FENCED = re.compile(r"^```(?:json)?[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r" {0,3}(?P<level>#{1,6})(?:[ \t]+(?P<text>.*?))?(?:[ \t]+#+)?[ \t]*")
"""What was read before, in time that grows with the square of the length."""


@given(st.lists(st.sampled_from(["```", "```json", "``` ", "{}", "", " ```", "```js"])).map("\n".join))
def test_fenced_blocks_are_those_that_one_expression_finds(text: str) -> None:
    assert list(_fenced(text)) == FENCED.findall(text)


@given(st.text("# \ta", max_size=12).map(lambda text: f"# {text}"))
def test_the_title_of_a_heading_is_what_one_expression_finds(line: str) -> None:
    before, now = HEADING.fullmatch(line), _HEADING.fullmatch(line)
    assert before is not None
    assert now is not None
    assert (now["level"], _title(now["text"] or "")) == (before["level"], (before["text"] or "").strip())


@pytest.mark.parametrize("length", [1_000, 400_000])
def test_long_texts_that_never_close_are_read_once(length: int) -> None:
    assert list(_fenced("```json\n" * length)) == []
    assert list(json_values('{"' + '\\"' * length)) == []
    assert list(json_values("[" * length)) == []
    assert _title("a" + " " * length + "b" + " #" * length) == "a" + " " * length + "b" + " #" * (length - 1)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": "}"} [1]', [{"a": "}"}, [1]]),
        ('{ 5" } then {"a": 1}', []),
        ('[1] and 5" more [2]', [[1], [2]]),
        ('{x 5" } [2]', [[2]]),
    ],
)
def test_a_quote_that_is_never_closed_begins_no_string(text: str, values: list[object]) -> None:
    assert list(json_values(text)) == values
