"""`@tool`, `ToolSpec` and the reading of arguments."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import enum
import functools
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
)

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Request, ToolOffer
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.argument import BadArguments, UnstableArguments
from orchestrator.tools.spec import ToolContext, ToolSpec, as_tool, canonical_arguments, parse_arguments, tool

if TYPE_CHECKING:
    from somewhere import OnlyForCheckers  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    city: str
    zip_code: int | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@tool(effect="pure", timeout=10)
async def search(query: str, limit: int = 5) -> list[str]:
    """Search the
    catalogue.

    Only what is in print.

    Args:
        query: what to look for,
            in plain words
        limit (int): at most so many

    Returns:
        titles: the best first
    """
    return [query] * limit


def takes(annotation: Any, default: Any = None) -> ToolSpec:
    """A tool with one optional parameter `value` of this type."""

    def taker(value: Any = default) -> None: ...

    taker.__annotations__["value"] = annotation
    return tool(taker)


# ---- schema ----


def test_the_schema_comes_from_type_hints_and_docstring() -> None:
    assert search.to_openai() == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the catalogue.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "what to look for, in plain words"},
                    "limit": {"type": "integer", "description": "at most so many", "default": 5},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }


def test_a_tool_is_an_offer_and_still_the_function_it_wraps() -> None:
    offer: ToolOffer = search
    assert Request((), tools=(offer,)).tools[0].name == "search"
    assert asyncio.run(search("moon", limit=2)) == ["moon", "moon"]
    assert (search.effect, search.timeout, search.is_async, search.takes_context) == ("pure", 10, True, False)


def test_an_undescribed_plain_function_is_an_irreversible_tool() -> None:
    def delete(path: str) -> None: ...

    spec = as_tool(delete)
    assert (spec.name, spec.description, spec.effect, spec.is_async) == ("delete", "", "irreversible", False)
    assert as_tool(spec) is spec


def test_name_and_description_can_be_given() -> None:
    spec = tool(name="find", description="Find it.")(search.call)
    assert (spec.name, spec.description) == ("find", "Find it.")


def test_an_annotation_that_describes_itself_wins_over_the_docstring() -> None:
    @tool
    def pick(a: Annotated[int, Field(description="own", ge=1)], b: Annotated[int, Field(ge=2)]) -> None:
        """Pick.

        Args:
            a: from the docstring
            b: from the docstring
        """

    assert pick.parameters["properties"] == {
        "a": {"type": "integer", "minimum": 1, "description": "own"},
        "b": {"type": "integer", "minimum": 2, "description": "from the docstring"},
    }


@pytest.mark.parametrize(
    ("annotation", "given_json", "value"),
    [
        (int, "3", 3),
        (int, '"3"', 3),
        (Colour, '"red"', Colour.RED),
        (Literal["a", "b"], '"b"', "b"),
        (Point, '{"x": 1}', Point(1)),
        (Place, '{"city": "Ulm"}', Place(city="Ulm")),
        (Place | None, "null", None),
        (list[Point], '[{"x": 1, "y": 2}]', [Point(1, 2)]),
        (set[int], "[1, 1]", {1}),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        ("Colour", '"blue"', Colour.BLUE),
        (Any, '{"any": [1, null]}', {"any": [1, None]}),
    ],
)
def test_arguments_arrive_as_the_types_that_were_asked_for(
    annotation: Any, given_json: str, value: object
) -> None:
    assert parse_arguments(takes(annotation), f'{{"value": {given_json}}}') == {"value": value}


def test_a_parameter_of_any_type_takes_any_json_and_one_without_a_type_is_refused() -> None:
    @tool
    def log(value: Any, level: Any = "info") -> None:
        """Log."""

    assert log.parameters["properties"] == {"value": {}, "level": {"default": "info"}}
    assert parse_arguments(log, '{"value": [1, {}]}') == {"value": [1, {}], "level": "info"}

    def bare(context, value, level="info"):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        """Log, with a ToolContext that is not annotated as one."""

    with pytest.raises(ConfigError) as refused:
        tool(bare)
    assert str(refused.value) == "tool 'bare': " + "; ".join(
        f"parameter '{name}' has no type; annotate it, with Any for any JSON value"
        for name in ("context", "value", "level")
    )


def test_names_that_pydantic_uses_itself_are_free() -> None:
    @tool
    def odd(schema: str, model_config: int, _private: int = 0, copy: int = 1) -> None: ...

    arguments = {"schema": "s", "model_config": 1, "_private": 2, "copy": 3}
    assert parse_arguments(odd, json.dumps(arguments)) == arguments


def test_an_absent_argument_stays_absent_so_the_default_of_the_function_holds() -> None:
    sentinel = object()

    def fetch(url: str, how: Any = sentinel) -> bool:
        return how is sentinel

    spec = tool(fetch)
    assert spec.parameters["properties"]["how"] == {}
    assert fetch(**parse_arguments(spec, '{"url": "u"}'))


# ---- what can be a tool ----


class Desk:
    """At the desk."""

    def __init__(self) -> None:
        self.calls = 0

    def ask(self, question: str) -> int:
        """Ask."""
        self.calls += 1
        return len(question)

    async def wait(self, ctx: ToolContext, seconds: float) -> None:
        """Wait."""

    @staticmethod
    def close(reason: str) -> None:
        """Close."""

    @classmethod
    def open(cls, reason: str) -> None:
        """Open."""

    async def __call__(self, number: int) -> int:
        return number


@functools.wraps(search.call)
def wrapper(*args: Any, **kwargs: Any) -> Any:
    return search.call(*args, **kwargs)


@pytest.mark.parametrize(
    ("source", "name", "properties", "is_async"),
    [
        (Desk().ask, "ask", {"question"}, False),
        (Desk().wait, "wait", {"seconds"}, True),
        (Desk.close, "close", {"reason"}, False),
        (Desk.open, "open", {"reason"}, False),
        (Desk(), "Desk", {"number"}, True),
        (functools.partial(Desk().ask), "ask", {"question"}, False),
        (functools.partial(search.call, limit=3), "search", {"query"}, True),
        (functools.partial(search.call, "moon"), "search", {"limit"}, True),
        (wrapper, "search", {"query", "limit"}, False),
    ],
)
def test_all_kinds_of_callables_can_be_tools(
    source: Callable[..., Any], name: str, properties: set[str], is_async: bool
) -> None:
    spec = as_tool(source)
    assert (spec.name, set(spec.parameters["properties"]), spec.is_async) == (name, properties, is_async)


def test_what_a_partial_binds_is_hidden_from_the_model_and_cannot_be_set_by_it() -> None:
    spec = as_tool(functools.partial(search.call, limit=3))
    assert "3" not in json.dumps(spec.to_openai())
    with pytest.raises(BadArguments, match="limit: Extra inputs"):
        parse_arguments(spec, '{"query": "a", "limit": 9}')


def test_an_object_is_described_by_its_class_if_its_call_is_not() -> None:
    assert as_tool(Desk()).description == "At the desk."


def test_a_context_is_the_first_parameter_and_not_in_the_schema() -> None:
    @tool
    def first(anything: ToolContext, query: str) -> None: ...

    @tool
    def unresolved(ctx: ToolContext, query: str) -> OnlyForCheckers: ...  # the return type is not read

    for spec in (first, unresolved):
        assert spec.takes_context
        assert set(spec.parameters["properties"]) == {"query"}


def variadic(*paths: str) -> None: ...
def keywords(**paths: str) -> None: ...
def positional(path: str, /) -> None: ...
def late(path: str, ctx: ToolContext) -> None: ...
def unknown(path: OnlyForCheckers) -> None: ...
def unreadable(path: str) -> None: ...
def untyped(desk: Desk) -> None: ...
def yields(path: str) -> Any:
    yield path


unreadable.__annotations__["path"] = "list["


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (variadic, "'variadic': parameter 'paths' takes any number of arguments; name each one"),
        (keywords, "'keywords': parameter 'paths' takes any number of arguments; name each one"),
        (positional, "'positional': parameter 'path' is positional-only; a model passes arguments by name"),
        (late, "'late': the ToolContext must be the first parameter, not 'ctx'"),
        (unknown, "'unknown': a type hint names 'OnlyForCheckers', which its module does not define"),
        (unreadable, "'unreadable': a type hint cannot be read"),
        (untyped, "'untyped': its parameters have no JSON schema: Unable to generate"),
        (yields, "'yields': it yields; a tool returns one result"),
        (Desk.ask, "'ask': it is a method without its object; make the tool of the bound method"),
        (Desk, "a type cannot become a tool; pass a function"),
        (5, "a int cannot become a tool; pass a function"),
    ],
)
def test_what_a_model_could_not_call_is_refused_with_a_sentence(source: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tool(source)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"effect": "safe"},
            "effect is 'safe'; possible: 'pure', 'idempotent', 'compensable', 'irreversible'",
        ),
        ({"progress": "none"}, "progress is 'none'; possible: 'strict', 'poll', 'cumulative'"),
        ({"effect": "compensable"}, "effect 'compensable' and undo need each other"),
        ({"undo": print}, "effect 'compensable' and undo need each other"),
        ({"timeout": 0}, "timeout is 0; possible: seconds above 0, or None"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"max_result_chars": -1}, "max_result_chars is -1; possible: 0 for no limit, or more"),
        ({"max_concurrency": -1}, "max_concurrency is -1"),
    ],
)
def test_impossible_options_are_refused_with_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tool(**options)(search.call)
    assert sentence in str(refused.value)


def test_all_impossible_options_stand_in_one_error() -> None:
    with pytest.raises(ConfigError, match=r"effect is 'safe'.*timeout is -1"):
        tool(effect="safe", timeout=-1)(search.call)  # type: ignore[call-overload]


# ---- arguments ----


@pytest.mark.parametrize(
    "text", ["", "null", "{}", "  \n", " null ", "```json\n{}\n```", "```\n\n```", "```{}```"]
)
def test_nothing_null_and_an_empty_object_are_no_arguments(text: str) -> None:
    def ping() -> None: ...

    assert parse_arguments(tool(ping), text) == {}
    assert parse_arguments(ToolSpec("ping", "", {}, ping), text) == {}


@pytest.mark.parametrize(
    "fenced", ['```json\n{"query": "a"}\n```', '```{"query": "a"}```', '\n```\n{"query": "a"}```']
)
def test_a_fence_round_the_arguments_is_dropped(fenced: str) -> None:
    assert parse_arguments(search, fenced) == {"query": "a", "limit": 5}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"query": "a', "the arguments are not one complete JSON object (Invalid JSON: EOF while parsing"),
        ("[1]", "the arguments are not one complete JSON object (Input should be an object)"),
        ('"query"', "the arguments are not one complete JSON object (Input should be an object)"),
        ("null", "query: Field required"),
        (
            '{"query": 1, "limit": "x"}',
            "query: Input should be a valid string; limit: Input should be a valid integer",
        ),
        ('{"query": "a", "size": 1}', "size: Extra inputs are not permitted"),
        ('{"query": "\ud800"}', "the arguments are not one complete JSON object"),
    ],
)
def test_bad_arguments_are_told_in_a_sentence_the_model_can_act_on(text: str, sentence: str) -> None:
    with pytest.raises(BadArguments) as bad:
        parse_arguments(search, text)
    assert str(bad.value).startswith(sentence)


def test_the_place_of_a_fault_inside_an_argument_is_named() -> None:
    with pytest.raises(BadArguments, match=r"^value\.0\.x: Input should be a valid integer"):
        parse_arguments(takes(list[Point]), '{"value": [{"x": "no"}]}')


def test_only_the_first_faults_are_listed() -> None:
    with pytest.raises(BadArguments) as bad:
        parse_arguments(takes(list[int]), json.dumps({"value": ["x"] * 1_000}))
    assert str(bad.value).count("value.") == 8


ECHO = ToolSpec(
    name="echo",
    description="Say it again.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string"}, "inner": {"$ref": "#/$defs/inner"}},
        "required": ["text"],
        "$defs": {"inner": {"type": "object", "properties": {"inner": {"$ref": "#/$defs/inner"}}}},
    },
    call=lambda **arguments: arguments,
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", '"text" is a required property'),
        ('{"text": 1}', 'text: 1 is not of type "string"'),
        ('{"text": "a", "inner": {"inner": 2}}', 'inner.inner: 2 is not of type "object"'),
        ('{"text": "a"', "the arguments are not one complete JSON object (EOF while parsing"),
        ("[]", "the arguments are not one complete JSON object (Input should be an object)"),
        ('{"text": "a", "inner": ' + '{"inner":' * 190 + "1" + "}" * 191, "inner.inner"),
    ],
)
def test_arguments_of_a_raw_schema_are_checked_against_it(text: str, sentence: str) -> None:
    with pytest.raises(BadArguments) as bad:
        parse_arguments(ECHO, text)
    assert str(bad.value).startswith((sentence, "the arguments are nested too deeply"))
    assert parse_arguments(ECHO, '{"text": "a", "more": [1]}') == {"text": "a", "more": [1]}


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"type": "array"}, "parameters describe a 'array'; arguments are an 'object'"),
        ({"type": "object", "properties": 5}, 'usable JSON schema: properties: 5 is not of type "object"'),
    ],
)
def test_a_raw_schema_that_describes_no_arguments_is_refused(schema: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ToolSpec("raw", "", schema, print)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/x.json", "file:///etc/passwd", "x.json"])
def test_a_reference_out_of_a_raw_schema_is_refused_and_never_fetched(reference: str) -> None:
    with pytest.raises(ConfigError, match="a reference leads to another document, and nothing is fetched"):
        ToolSpec("raw", "", {"properties": {"a": {"$ref": reference}}}, print)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("#/$defs/no", "Pointer '/$defs/no' does not exist"),
        ("#/properties/b", "Pointer '/properties/b' does not exist"),
        ("#there", "Anchor 'there' does not exist"),
    ],
)
def test_a_reference_without_a_target_in_a_raw_schema_is_named(reference: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ToolSpec("raw", "", {"properties": {"a": {"$ref": reference}}}, print)
    assert f"a $ref has no target in its document ({problem})" in str(caught.value)


def test_the_handler_of_a_raw_schema_may_take_a_context() -> None:
    def handler(ctx: ToolContext, **arguments: Any) -> None: ...

    assert ToolSpec("raw", "", {}, handler).takes_context
    assert not ToolSpec("raw", "", {}, print).takes_context


def test_the_checker_of_schemas_is_imported_for_raw_schemas_only() -> None:
    program = (
        "import sys; from orchestrator.tools.spec import tool, ToolSpec\n"
        "def f(a: int): 'f'\n"
        "tool(f); assert 'jsonschema_rs' not in sys.modules\n"
        "ToolSpec('f', '', {}, f); assert 'jsonschema_rs' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})


# ---- properties ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_json_value_arrives_as_it_was_sent(value: Any) -> None:
    text = json.dumps({"value": value}, ensure_ascii=False)
    assert parse_arguments(takes(Any), text) == json.loads(text)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_any_object_arrives_at_a_raw_schema_as_it_was_sent(arguments: dict[str, Any]) -> None:
    def handler(**_: Any) -> None: ...

    assert parse_arguments(ToolSpec("raw", "", {}, handler), json.dumps(arguments)) == arguments


ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)


@given(ANY_TEXT | st.from_regex(r"\s*(```json)?\s*[\[{\"]{0,3}query[\"\]}:, 0-9]*(```)?", fullmatch=True))
@example("[" * 100_000)
@example('{"query":' * 50_000)
@example('{"query": 1e999}')
@example('{"limit": ' + "9" * 5_000 + "}")
@example("```" + "a" * 100_000)
@example("\ud800")
def test_any_text_as_arguments_raises_nothing_but_bad_arguments(text: str) -> None:
    for spec in (search, ECHO):
        with contextlib.suppress(BadArguments):
            assert isinstance(parse_arguments(spec, text), dict)


# ---- context ----


async def test_remaining_counts_down_to_zero_on_the_clock_of_the_context() -> None:
    clock = FakeClock()
    context = ToolContext("run", "key", deadline=clock.monotonic() + 5, clock=clock)
    await clock.advance(3)
    assert context.remaining() == 2
    await clock.advance(3)
    assert context.remaining() == 0
    assert ToolContext("run", "key").remaining() is None


def test_each_context_has_its_own_cancelled() -> None:
    one, other = ToolContext("run", "1"), ToolContext("run", "2")
    one.cancelled.set()
    one.progress("half")
    assert not other.cancelled.is_set()


# ---- options ----


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("timout", "a tool has no option 'timout'; did you mean 'timeout'?"),
        ("zzz", "a tool has no option 'zzz'; known: name, description, effect, undo, timeout,"),
        ("read", "a tool has no option 'read'"),
    ],
)
def test_an_option_that_is_none_is_told_with_the_one_that_was_meant(option: str, said: str) -> None:
    options: Any = {option: 3}
    with pytest.raises(ConfigError) as caught:
        tool(**options)
    assert str(caught.value).startswith(said)


def test_the_docstring_of_tool_tells_every_option_with_its_default() -> None:
    told = dict(re.findall(r"^ {4}(\w+)=(\S+) ", inspect.getdoc(tool) or "", re.MULTILINE))
    options = {item.name: item.default for item in dataclasses.fields(ToolSpec) if item.kw_only and item.init}
    del options["read"], options["dump"], options["kind"]
    assert {name: ast.literal_eval(default) for name, default in told.items()} == options


# ---- the canonical form ----


@pytest.mark.parametrize(
    ("annotation", "default", "text", "canonical"),
    [
        (int, None, '{"value": "3"}', '{"value": 3}'),
        (int, 5, "", '{"value": 5}'),
        (int, None, "{}", "{}"),  # None is no int: the function uses its own default
        (Any, (1, 2), "{}", "{}"),  # JSON would make it a list
        (Point, Point(1), "{}", '{"value": {"x": 1, "y": 0}}'),
        (Point, None, '{"value": {"y": 2, "x": "1"}}', '{"value": {"x": 1, "y": 2}}'),
        (set[str], None, '{"value": ["b", "a", "c", "a"]}', '{"value": ["a", "b", "c"]}'),
        (bytes, None, '{"value": "ü"}', '{"value": "ü"}'),
        (float, None, '{"value": 1}', '{"value": 1.0}'),
        (bool | int, None, '{"value":true}', '{"value": true}'),
        (str, None, '{"value": "\\u202e\\u0061"}', '{"value": "\u202ea"}'),
    ],
)
def test_a_call_has_one_canonical_form(annotation: Any, default: Any, text: str, canonical: str) -> None:
    spec = takes(annotation, default)
    assert canonical_arguments(spec, text) == canonical
    assert canonical_arguments(spec, canonical) == canonical


def test_the_canonical_form_of_a_raw_schema_has_its_order_and_its_defaults() -> None:
    inner = {"type": "object", "properties": {"x": {}, "y": {}}}
    properties = {"b": {"default": 5}, "a": {"type": "string"}, "c": {"type": "array", "items": inner}}
    spec = ToolSpec("raw", "", {"properties": properties}, print)
    given = '{"more": 1, "c": [{"y": 1, "x": 2}], "a": "t"}'
    assert canonical_arguments(spec, given) == '{"b": 5, "a": "t", "c": [{"x": 2, "y": 1}], "more": 1}'


def test_a_default_that_its_own_raw_schema_refuses_is_left_out() -> None:
    spec = ToolSpec("raw", "", {"properties": {"a": {"type": "string", "default": None}}}, print)
    assert canonical_arguments(spec, "{}") == "{}"


class Limits(BaseModel):
    most: float | None = None
    count: int = 0


@pytest.mark.parametrize(
    ("annotation", "value", "sentence"),
    [
        (float, '"nan"', "value: Input should be a finite number"),
        (float, '"-Infinity"', "value: Input should be a finite number"),
        (float, "1e999", "the number 1e999 is too large; give a finite number"),
        (list[float], '["inf"]', "value.0: Input should be a finite number"),
        (float, "NaN", "NaN is not JSON; give a finite number"),
        (Any, "[Infinity]", "Infinity is not JSON; give a finite number"),
        (Any, "-1e999", "the number -1e999 is too large; give a finite number"),
        (Limits, '{"most": "nan"}', "a number has no JSON form"),
        (int, "true", "value: true is not a number"),
        (float, "false", "value: false is not a number"),
        (list[int], "[1, true]", "value.1: true is not a number"),
        (Limits, '{"count": true}', "value.count: true is not a number"),
        (Literal[1], "true", "value: true is not a number"),
    ],
)
def test_neither_nan_nor_true_is_a_number(annotation: Any, value: str, sentence: str) -> None:
    with pytest.raises(BadArguments) as bad:
        canonical_arguments(takes(annotation), f'{{"value": {value}}}')
    assert str(bad.value).startswith(sentence)


class Stamp:
    """A type without an equality of its own."""

    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Annotated[int, AfterValidator(lambda number: number * 2)], "1"),
        (Annotated[list[str], BeforeValidator(lambda text: text.split(","))], '"a,b"'),
        (SecretStr, '"abc"'),  # it is written as stars
        (Annotated[str, PlainSerializer(lambda _: "same")], '"abc"'),
    ],
)
def test_arguments_that_change_when_they_are_read_again_are_refused(annotation: Any, value: str) -> None:
    with pytest.raises(UnstableArguments, match="the arguments change when they are read a second time"):
        canonical_arguments(takes(annotation), f'{{"value": {value}}}')


def test_a_type_without_equality_is_judged_by_its_text() -> None:
    kind = Annotated[Any, PlainValidator(Stamp), PlainSerializer(lambda stamp: stamp.text)]
    assert canonical_arguments(takes(kind), '{"value":"a"}') == '{"value": "a"}'


class Batch(BaseModel):
    numbers: Iterable[int]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("annotation", "text", "read"),
    [
        (Iterable[int], "[1, 2]", list),
        (list[Iterable[int]], "[[1, 2]]", lambda value: list(value[0])),
        (Batch, '{"numbers": [1, 2]}', lambda value: list(value.numbers)),
    ],
    ids=["iterable", "in a list", "in a model"],
)
def test_an_iterable_reaches_the_tool_unused(annotation: Any, text: str, read: Any, *, exact: bool) -> None:
    arguments = parse_arguments(takes(annotation), f'{{"value": {text}}}', exact=exact)
    assert read(arguments["value"]) == [1, 2]


def test_a_text_that_is_not_canonical_any_more_does_not_run_as_if_it_were() -> None:
    assert parse_arguments(search, '{"query": "a", "limit": 5}', exact=True) == {"query": "a", "limit": 5}
    with pytest.raises(UnstableArguments):
        parse_arguments(search, '{"query": "a"}', exact=True)
