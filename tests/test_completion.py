"""Reading a final answer: JSON out of text, schemas and types, error objects."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.llm.structured_output import OutputSpec, UnusableAnswer, error_payload, json_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1}', [{"a": 1}]),
        ("42", [42]),
        ("null", [None]),
        ('```json\n{"a": 1}\n```', [{"a": 1}]),
        ('{"a": 1}{"a": 2} and [3]', [{"a": 1}, {"a": 2}, [3]]),
        ('[x] {"a": [1, {"b": "}"}]} rest', [{"a": [1, {"b": "}"}]}]),
        ('{"a": "\\"}"} tail', [{"a": '"}'}]),
        ('{"a": {"b": 1}, "c": ', []),
        ('{"a": "cut', []),
        ('{not json {"a": 1}}', []),
        ("no json", []),
        ("", []),
        ("]}", []),
        ("[" * 200_000, []),
        ("[" * 200_000 + "]" * 200_000, []),
    ],
)
def test_whole_values_are_found_and_never_fragments(text: str, values: list[Any]) -> None:
    assert list(json_values(text)) == values


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_an_object_is_found_between_any_words(value: object) -> None:
    import json

    assert list(json_values(f"Sure: {json.dumps([value])}. Bye")) == [[value]]


def test_of_several_values_the_first_that_fits_is_taken() -> None:
    spec = OutputSpec.of({"type": "object", "required": ["a"]})
    assert spec.parse('{"b": 1} {"a": 2} {"a": 3}') == {"a": 2}


def test_the_fault_of_the_first_value_is_told() -> None:
    spec = OutputSpec.of({"type": "object", "required": ["a"]})
    with pytest.raises(UnusableAnswer, match=r'\$: "a" is a required property'):
        spec.parse('{"b": 1} [2]')


@pytest.mark.parametrize(
    ("text", "why"), [(" ", "the answer is empty"), ("hm", "the answer contains no JSON")]
)
def test_an_answer_without_a_value_says_so(text: str, why: str) -> None:
    with pytest.raises(UnusableAnswer, match=why):
        OutputSpec.of(int).parse(text)


def test_types_are_read_as_json_is() -> None:
    assert OutputSpec.of(date).parse('"2024-02-29"') == date(2024, 2, 29)
    with pytest.raises(UnusableAnswer, match=r"0: .*valid integer.*; 1: .*valid string"):
        OutputSpec.of(tuple[int, str]).parse('["x", 1]')


def test_a_local_reference_is_followed() -> None:
    local = {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}
    assert OutputSpec.of(local).parse("[1]") == [1]
    with pytest.raises(UnusableAnswer):
        OutputSpec.of(local).parse('["x"]')


@pytest.mark.parametrize("kind", [{"type": 7}, object(), "int or so"])
def test_what_is_neither_type_nor_schema_is_refused(kind: object) -> None:
    with pytest.raises(ConfigError, match="output_type"):
        OutputSpec.of(kind)


@pytest.mark.parametrize(
    ("text", "issue"),
    [
        ('{"error": "busy"}', "the answer is an error object: busy"),
        (' {"error": {"code": 7}, "x": 1}', "the answer is an error object: {'code': 7}"),
        ('{"error": null}', None),
        ('{"error": ""}', None),
        ('{"errors": 1}', None),
        ('[{"error": "busy"}]', None),
        ('{"error": ', None),
        ("error", None),
    ],
)
def test_an_error_object_is_told_from_other_answers(text: str, issue: str | None) -> None:
    assert error_payload(text) == issue


def test_a_long_error_is_cut() -> None:
    assert len(error_payload(f'{{"error": "{"x" * 5_000}"}}') or "") < 600


ELSEWHERE = "a reference leads to another document, and nothing is fetched"


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("#/$defs/nope", r"a \$ref has no target in its document \(Pointer '/\$defs/nope' does not exist\)"),
        ("http://127.0.0.1:9/other.json", ELSEWHERE),
        ("other.json", ELSEWHERE),
    ],
)
def test_a_schema_that_refers_to_what_it_has_not_is_refused_before_anything_is_asked(
    reference: str, why: str
) -> None:
    schema = {"type": "object", "properties": {"moon": {"$ref": reference}}}
    with pytest.raises(ConfigError, match=rf"output_type is .*: {why}"):
        OutputSpec.of(schema)


@pytest.mark.parametrize("reference", ["#/$defs/moon", "#"])
def test_a_schema_may_refer_to_parts_of_itself(reference: str) -> None:
    schema = {
        "type": "object",
        "$defs": {"moon": {"type": "object"}},
        "properties": {"moon": {"$ref": reference}},
    }
    assert OutputSpec.of(schema).parse('{"moon": {}}') == {"moon": {}}
