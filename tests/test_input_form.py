"""The values that a person types for the fields of a form, and what is no value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.input_request import MISSING, field_value, form_fields
from tests.tiers import examples

FIELDS: dict[str, Any] = {
    "text": {"type": "string", "default": "x"},
    "count": {"type": "integer", "default": "wrong"},
    "share": {"type": "number"},
    "sure": {"type": "boolean"},
    "level": {"enum": [1, "1a", None, True]},
    "colour": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]},
    "many": {"type": "array", "items": {"anyOf": [{"const": "r", "title": "Red"}, {"const": "b"}]}},
    "either": {"type": ["string", "null"]},
    "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "shared": {"$ref": "#/$defs/small"},
    "any": True,
}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "required": ["share"],
    "additionalProperties": False,
    "$defs": {"small": {"type": "integer", "maximum": 9}},
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "", "x"),
        ("text", "5", "5"),
        ("count", "7", 7),
        ("share", " 1e3 ", 1000.0),
        ("sure", "Y", True),
        ("sure", "no", False),
        ("sure", "", MISSING),
        ("level", "1", 1),
        ("level", "1a", "1a"),
        ("level", "null", None),
        ("level", "true", True),
        ("colour", "Red", "r"),
        ("colour", "b", "b"),
        ("many", "Red, b", ["r", "b"]),
        ("many", '["b"]', ["b"]),
        ("either", "5", "5"),
        ("either", "null", None),
        ("optional", "5", "5"),
        ("shared", "9", 9),
        ("any", "plain", "plain"),
    ],
)
def test_a_text_is_a_value_of_its_field(name: str, text: str, value: Any) -> None:
    found = field_value(SCHEMA, name, text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("share", " ", "share: a value is required"),
        ("share", "NaN", 'share: "NaN" is not of type "number"'),
        ("share", "1e999", 'share: "1e999" is not of type "number"'),
        ("count", "", 'count: "wrong" is not of type "integer"'),
        ("count", "9" * 5_000, "count: "),
        ("sure", "maybe", 'sure: "maybe" is not of type "boolean"'),
        ("many", "r, green", "many.1: "),
        ("shared", "10", "shared: 10 is greater than the maximum of 9"),
    ],
)
def test_a_text_that_is_no_value_is_refused_with_the_name_of_its_field(
    name: str, text: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        field_value(SCHEMA, name, text)
    assert len(str(refused.value)) < 1_000


@given(st.sampled_from([*FIELDS]), st.text(max_size=40))
@settings(max_examples=examples(100))
def test_any_text_is_a_value_or_refused(name: str, text: str) -> None:
    said = name
    try:
        field_value(SCHEMA, name, text)
    except ValueError as refused:
        said = str(refused)
    assert said.startswith(name)


def test_the_fields_of_a_form_have_types_choices_and_defaults_as_text() -> None:
    found = {one.name: one for one in form_fields(SCHEMA)}
    assert found["colour"].choices == ("r (Red)", "b (Blue)")
    assert found["level"].choices == ("1", "1a", "null", "true")
    assert (found["either"].kind, found["any"].kind) == ("string or null", "")
    assert [one.name for one in found.values() if one.is_required] == ["share"]
    assert (found["text"].default, found["share"].default) == ("x", None)
