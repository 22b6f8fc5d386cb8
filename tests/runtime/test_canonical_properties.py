"""For many schemas and arguments: what is asked, covered by the digest, journalled and received is the same."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import inspect
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_core import to_jsonable_python

from orchestrator.journal.memory import MemoryJournal
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.question import Question
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.argument import DuplicateKeys, encode, json_data
from orchestrator.tools.spec import ToolSpec, canonical_arguments, tool
from orchestrator_guards import approval_digest
from tests.tiers import IN_CAMPAIGN, examples


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Account(BaseModel):
    owner: str = Field(alias="ownerName")
    number: int = Field(7, validation_alias="no")
    limit: float | None = None
    tags: set[str] = set()


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


def split(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


WHOLE = st.integers(-(10**20), 10**20)
REAL = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=8)
ANY = st.recursive(
    st.none() | st.booleans() | WHOLE | REAL | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [True, "nan", "inf", None, "1", 1.0, [], {}, "0x1", "-0", 1e308, "1e999"]
)

KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, WHOLE | WHOLE.map(str)),
    (float, REAL | WHOLE),
    (str, TEXT),
    (bool, st.booleans() | st.sampled_from([0, 1, "yes"])),
    (bool | int, st.booleans() | WHOLE),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False).map(str) | WHOLE),
    (dt.date, st.dates().map(str)),
    (dt.timedelta, st.integers(0, 10**6)),
    (Colour, st.sampled_from(["red", "blue"])),
    (Literal["a", 1], st.sampled_from(["a", 1, True])),
    (list[int], st.lists(WHOLE | WHOLE.map(str), max_size=4)),
    (set[str], st.lists(TEXT, max_size=6)),
    (frozenset[int], st.lists(st.integers(-50, 50), max_size=6)),
    (tuple[int, str], st.tuples(WHOLE, TEXT)),
    (dict[str, float], st.dictionaries(TEXT, REAL, max_size=3)),
    (bytes, TEXT),
    (Path, TEXT),
    (Point, st.builds(lambda x, y: {"y": y, "x": x}, WHOLE, WHOLE) | WHOLE.map(lambda x: {"x": x})),
    (
        Account,
        st.builds(
            lambda o, n, t: {"no": n, "tags": t, "ownerName": o}, TEXT, WHOLE, st.lists(TEXT, max_size=4)
        ),
    ),
    (Account | None, st.none() | TEXT.map(lambda o: {"ownerName": o})),
    (Annotated[list[str], BeforeValidator(split)], TEXT),
    (Annotated[int, AfterValidator(lambda number: number + 1)], WHOLE),  # never the same twice
    (Any, ANY),
]

DEFAULTS = [
    inspect.Parameter.empty,
    None,
    5,
    1.5,
    "x",
    object(),
    (1, 2),
    Colour.RED,
    {"b": 1, "a": 2},
    {3, 1},
]


@st.composite
def typed_calls(draw: st.DrawFn) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """Parameters of a function and arguments for it, mostly such as fit."""
    parameters, arguments = [], {}
    for name in draw(st.permutations(["a", "b", "c", "d"]))[: draw(st.integers(1, 4))]:
        annotation, values = draw(st.sampled_from(KINDS))
        default = draw(st.sampled_from(DEFAULTS))
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        )
        if default is inspect.Parameter.empty or draw(st.booleans()):
            arguments[name] = draw(ODD if draw(st.integers(0, 9)) == 0 else values)
    order = draw(st.permutations(list(arguments)))
    return parameters, {name: arguments[name] for name in order}


RAW_TYPES = [{}, {"type": "integer"}, {"type": "string", "default": "d"}, {"default": {"z": 1, "a": [2]}}]


@st.composite
def raw_calls(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A JSON schema and arguments for it."""
    names = draw(st.permutations(["a", "b", "c"]))
    properties = {name: draw(st.sampled_from(RAW_TYPES)) for name in names}
    arguments = {name: draw(ANY) for name in draw(st.sets(st.sampled_from(["a", "b", "c", "more"])))}
    return {"type": "object", "properties": properties}, arguments


def plain(value: Any) -> Any:
    """What a tool received, as JSON data; sets have the order of their texts."""
    if isinstance(value, set | frozenset):
        return sorted((plain(one) for one in value), key=lambda one: json.dumps(one, ensure_ascii=False))
    if isinstance(value, BaseModel):
        return {
            "ownerName": plain(value.owner),  # type: ignore[attr-defined]
            "number": value.number,  # type: ignore[attr-defined]
            "limit": value.limit,  # type: ignore[attr-defined]
            "tags": plain(value.tags),  # type: ignore[attr-defined]
        }
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return to_jsonable_python(value)


async def approved(
    spec: ToolSpec, text: str, reached: Counter[str]
) -> tuple[Question, dict[str, Any]] | None:
    """Run a call of a tool that a person approves; return the question and the announced call, if there was one."""

    def model(request: Request) -> Response:
        if request.messages[-1].role == "tool":
            return Response("done")
        return Response(None, (ToolCall("1", spec.name, text),))

    journal, question = MemoryJournal(), None
    agent = Agent(FunctionLLM(model), tools=[spec], journal=journal, observers=())
    task = asyncio.create_task(agent.run("go", run_id="r"))
    while not task.done():
        await asyncio.sleep(0)
        if question is None and agent._service.live.find("r") and (found := await agent.pending("r")):
            question = found[0]
            await agent.approve("r", digest=question.digest)
    await task
    records = await journal.load("r")
    asked = [record.body for record in records if record.kind == "asked"]
    intents = [call for record in records if record.kind == "intent" for call in record.body["calls"]]
    if question is None:
        assert (asked, intents) == ([], [])
        [done] = [record.body for record in records if record.kind == "done"]
        reached[done["outcome"]] += 1
        return None
    reached["asked"] += 1
    assert [one["digest"] for one in (*asked, *intents)] == [question.digest] * 2
    assert [one.get("arguments", text) for one in (*asked, *intents)] == [question.arguments] * 2
    return question, intents[0]


def check(spec: ToolSpec, arguments: dict[str, Any], received: list[Any], reached: Counter[str]) -> None:
    found = asyncio.run(approved(spec, json.dumps(arguments), reached))
    if found is None:
        assert received == []
        return
    question, _ = found
    assert question.digest == approval_digest(
        spec.name,
        question.arguments,
        run="r",
        call="1:0",
        fingerprint=LLM_LOOP.fingerprint,
        schema=dict(spec.parameters),
        effect=spec.effect,
        approval="always",
    )
    [one] = received
    shown = json.loads(question.arguments)
    assert plain(one) == shown
    names = list(spec.parameters["properties"])
    assert [name for name in shown if name in names] == [name for name in names if name in shown]


@pytest.mark.hypothesis
def test_what_is_shown_covered_journalled_and_received_is_the_same() -> None:
    reached: Counter[str] = Counter()

    @given(typed_calls())
    @settings(max_examples=examples(120, 5_000))
    def typed(drawn: tuple[list[inspect.Parameter], dict[str, Any]]) -> None:
        parameters, arguments = drawn
        received: list[Any] = []

        def pay(**values: Any) -> str:
            received.append(values)
            return "paid"

        pay.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        check(tool(approval=True)(pay), arguments, received, reached)

    typed()
    assert reached["asked"] > reached["invalid_args"]
    assert reached["unstable_args"] or not IN_CAMPAIGN  # fewer examples miss it


@pytest.mark.hypothesis
def test_the_same_holds_for_raw_schemas() -> None:
    reached: Counter[str] = Counter()

    @given(raw_calls())
    @settings(max_examples=examples(60, 2_000))
    def raw(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
        schema, arguments = drawn
        received: list[Any] = []

        def pay(**values: Any) -> str:
            received.append(values)
            return "paid"

        check(ToolSpec("pay", "", schema, pay, approval=True), arguments, received, reached)

    raw()
    assert reached["asked"]


# ---- names that are given twice ----

VALUES = st.sampled_from(["1", "1.0", "1e999", "NaN", "true", "null", '"x"', '"\\u0061"', '"'])


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON text of objects in the form of the canonical one, with names that may be given twice."""
    pairs = st.lists(st.tuples(st.sampled_from("abc"), values), max_size=3)
    return pairs.map(lambda found: "{" + ", ".join(f'"{name}": {one}' for name, one in found) + "}")


@tool
async def typed(a: int, b: dict[str, Any] | None = None, c: list[Any] | None = None) -> None:
    """Take something."""


untyped = ToolSpec("untyped", "", {"type": "object"}, lambda **_: None)


def fault(read: Callable[[str], object], text: str) -> type[Exception] | None:
    try:
        read(text)
    except ValueError as error:
        return type(error)
    return None


@given(
    text=objects(st.recursive(VALUES, lambda inner: objects(inner) | inner.map("[{}]".format), max_leaves=4))
)
def test_a_name_given_twice_is_the_first_fault_and_no_text_with_one_passes(text: str) -> None:
    scanned = fault(json_data, text)
    for spec in (typed, untyped):
        found = fault(lambda given, spec=spec: canonical_arguments(spec, given), text)  # type: ignore[misc]
        assert (found is DuplicateKeys) is (scanned is DuplicateKeys)
        assert found is not None or scanned is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_JSON)
def test_arguments_are_written_as_the_encoder_of_the_standard_library_writes_them(data: object) -> None:
    plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False)
    assert encode(data) == plain.encode(data)


@pytest.mark.parametrize("data", [float("nan"), [float("inf")], {"a": -float("inf")}])
def test_a_number_that_json_does_not_have_is_not_written(data: object) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode(data)
