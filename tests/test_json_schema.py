"""Values checked against schemas from outside: linear patterns, no fetching, sentences instead of raw exceptions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.llm.json_schema import SchemaFault, UnusablePattern, UnusableSchema, checker
from orchestrator.llm.structured_output import OutputSpec, UnusableAnswer
from orchestrator.tools.argument import BadArguments
from orchestrator.tools.spec import ToolSpec, parse_arguments

CATASTROPHIC = ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "^(a*)*$", "^(.*a){20}$", r"^(\w+\s?)*$"]
"""Patterns for which an engine that backtracks needs longer than anybody waits."""


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_pattern_that_would_backtrack_for_ever_is_answered_and_right(pattern: str) -> None:
    check = checker({"type": "string", "pattern": pattern})
    (fault,) = check("a" * 10_000 + "!")
    assert check("a" * 10_000) == []
    assert fault.message.startswith('"aaa')
    assert fault.message.endswith(f'does not match "{pattern}"')
    assert len(fault.message) < 320


def test_tools_and_outputs_are_checked_by_the_linear_engine() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    text = json.dumps({"a": "a" * 10_000 + "!"})
    with pytest.raises(BadArguments, match=r"^a: .* does not match"):
        parse_arguments(ToolSpec("raw", "", schema, print), text)
    with pytest.raises(UnusableAnswer, match=r"^\$\.a: .* does not match"):
        OutputSpec.of(schema).parse(text)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(?=a)b"},
        {"pattern": "(?<!a)b"},
        {"pattern": r"(a)\1"},
        {"pattern": "("},
        {"pattern": "a{1000}{1000}"},
        {"patternProperties": {"(?!a)": {}}},
        {"properties": {"deep": {"items": {"pattern": "(?=a)"}}}},
    ],
    ids=str,
)
def test_a_pattern_that_is_not_linear_is_refused_where_the_host_gives_it(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusablePattern, match="only expressions that match in linear time are allowed"):
        checker(schema)
    with pytest.raises(ConfigError, match=r"tool 'raw': .* linear time"):
        ToolSpec("raw", "", schema, print)
    with pytest.raises(ConfigError, match=r"output_type is .* linear time"):
        OutputSpec.of(schema)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"type": 7}, "type: 7 is not valid under any of the schemas"),
        ({"properties": {"pattern": {"type": 3}}}, "properties.pattern.type: 3 is not valid"),
        ({"$schema": 5}, '$schema: 5 is not of type "string"'),
        ({"$ref": "http://127.0.0.1:9/x"}, "nothing is fetched (Resource 'http://127.0.0.1:9/x'"),
        ({"$ref": "file:///etc/passwd"}, "nothing is fetched (Resource 'file:///etc/passwd'"),
        ({"$id": "http://me.test/x", "$ref": "y"}, "nothing is fetched (Resource 'http://me.test/y'"),
        ({"const": 10**5_000}, "it cannot be read (Failed to convert large integer"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnusableSchema) as refused:
        checker(schema)
    assert sentence in str(refused.value)


def test_a_schema_of_absurd_depth_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"not": schema}
    with pytest.raises(UnusableSchema, match="it cannot be read"):
        checker(schema)


@pytest.mark.parametrize("depth", [251, 100_000])
def test_a_value_of_absurd_depth_is_a_fault(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    check = checker({"type": "object", "properties": {"a": {"$ref": "#"}}})
    assert check(value) == [SchemaFault((), "the value is nested more than 250 levels deep")]


def test_an_unknown_dialect_is_read_as_the_newest_and_formats_are_no_constraint() -> None:
    check = checker({"$schema": "https://example.test/dialect", "type": "string", "format": "email"})
    assert check("no address") == []
    assert [fault.message for fault in check(1)] == ['1 is not of type "string"']


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(ANY, st.sampled_from([{}, {"type": "string"}, {"uniqueItems": True}, {"enum": [1]}, {"maximum": 3}]))
def test_any_value_gives_a_list_of_faults(value: Any, schema: dict[str, Any]) -> None:
    assert all(isinstance(fault, SchemaFault) for fault in checker(schema)(value))


def test_a_schema_whose_references_multiply_is_refused_at_construction() -> None:
    levels: dict[str, Any] = {"l0": {"type": "string"}}
    for number in range(1, 21):
        levels[f"l{number}"] = {"anyOf": [{"$ref": f"#/$defs/l{number - 1}"}] * 2}
    with pytest.raises(UnusableSchema, match="it has more than 100,000 subschemas"):
        checker({"$defs": levels, "$ref": "#/$defs/l20"})
    assert checker({"$defs": levels, "$ref": "#/$defs/l5"})("text") == []


def test_a_recursive_schema_is_used() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    check = checker(tree)
    assert check({"children": [{"children": []}]}) == []
    assert check({"children": [{"children": 3}]})[0].path == ("children", 0, "children")
