"""`stream.partial()`: the output as far as the model has written it, in the type of the output."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, NotRequired

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from orchestrator import (
    Agent,
    LocalEngine,
    MemoryJournal,
    Outcome,
    Response,
    RunExists,
    RunStream,
    ToolContext,
    tool,
)
from orchestrator.llm.structured_output import OutputSpec, UnusableAnswer
from orchestrator.providers.scripted import call
from orchestrator.testing import ScriptedLLM
from tests.runtime.stage import agent
from tests.tiers import examples


class Place(BaseModel):
    name: str
    people: int


class Trip(BaseModel):
    title: str
    places: list[Place]
    note: str = ""


class Card(TypedDict):
    title: str
    tags: NotRequired[list[str]]


PLACES = '[{"name": "Oslo", "people": 12}, {"name": "Bod\\u00f8", "people": 5}]'
TRIP = f'{{"title": "North", "places": {PLACES}, "note": "cold"}}'


def prefixes(kind: object, text: str) -> list[Any]:
    """The different values of all prefixes of a text, in their order."""
    spec = OutputSpec.of(kind)
    found: list[Any] = []
    for end in range(len(text) + 1):
        try:
            value = spec.parse_partial(text[:end])
        except UnusableAnswer:
            continue
        if not found or value != found[-1]:
            found.append(value)
    return found


OSLO, BODO = Place(name="Oslo", people=12), Place(name="Bodø", people=5)
PREFIXES: list[tuple[object, str, list[Any]]] = [
    (list[int], "[1, 20, 300]", [[], [1], [1, 20], [1, 20, 300]]),
    (list[bool], "[true, false]", [[], [True], [True, False]]),
    (dict[str, float], '{"a": 1.5, "b": -2e3}', [{}, {"a": 1.5}, {"a": 1.5, "b": -2000.0}]),
    (Card, '{"title": "x", "tags": ["a", "b"]}', [
        {"title": "x"}, {"title": "x", "tags": []}, {"title": "x", "tags": ["a"]}, {"title": "x", "tags": ["a", "b"]},
    ]),
    (Place, '{"name": "Oslo", "people": 12}', [OSLO]),
    (list[Place], f"[{OSLO.model_dump_json()}, {BODO.model_dump_json()}]", [[], [OSLO], [OSLO, BODO]]),
    (Trip, TRIP, [
        Trip(title="North", places=[]),
        Trip(title="North", places=[OSLO]),
        Trip(title="North", places=[OSLO, BODO]),
        Trip(title="North", places=[OSLO, BODO], note="cold"),
    ]),
    (dict[str, list[Place]], '{"n": [{"name": "Oslo", "people": 12}]}', [{}, {"n": []}, {"n": [OSLO]}]),
    (Literal["a", "b"] | list[int], "[7]", [[], [7]]),
    ({"type": "array", "items": {"type": "object", "required": ["a"]}}, '[{"a": 1}, {"b": 2, "a": 3}]', [
        [], [{"a": 1}], [{"a": 1}, {"b": 2, "a": 3}],
    ]),
    (list[int], "Here you are:\n```json\n[1, 2]\n```", [[], [1], [1, 2]]),
    (list[Place], '["not a place"] [{"name": "Oslo", "people": 12}]', [[], [OSLO]]),
    (list[str], '["a \\"b\\" [", "c"]', [[], ['a "b" ['], ['a "b" [', "c"]]),
    (list[int], "no JSON", []),
    (int, "12", []),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "expected"), PREFIXES)
def test_a_value_has_what_has_arrived_completely(kind: object, text: str, expected: list[Any]) -> None:
    assert prefixes(kind, text) == expected


def test_a_constraint_is_waited_for() -> None:
    class Panel(BaseModel):
        votes: list[int] = Field(min_length=2)

    assert prefixes(Panel, '{"votes": [1, 2, 3]}') == [Panel(votes=[1, 2]), Panel(votes=[1, 2, 3])]


# ---- any document ----

Made = tuple[object, Any]


def made(rng: random.Random, depth: int = 3) -> Made:
    """A random type, and a random JSON value of it."""
    kinds: list[Callable[[], Made]] = [
        lambda: (int, rng.randrange(-10_000, 10_000)),
        lambda: (str, "".join(rng.choices('ab"\\{}[],:é\n 1', k=rng.randrange(6)))),
        lambda: (bool | None, rng.choice([True, False, None])),
        lambda: (float, rng.choice([0.5, -1e20, 3.25])),
    ]
    if not depth:
        return rng.choice(kinds)()
    shape = rng.choice(["list", "dict", "model", "typed", "leaf"])
    if shape == "leaf":
        return rng.choice(kinds)()
    parts = [made(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    kind, value = parts[0]
    if shape == "list":
        return list[kind], [value] * rng.randrange(4)  # type: ignore[valid-type]
    if shape == "dict":
        return dict[str, kind], {f"k{number}": value for number in range(rng.randrange(4))}  # type: ignore[valid-type]
    members = {f"m{number}": part[0] for number, part in enumerate(parts)}
    values = {f"m{number}": part[1] for number, part in enumerate(parts)}
    if shape == "typed":
        return TypedDict("Typed", {name: NotRequired[one] for name, one in members.items()}), values  # type: ignore[operator]
    fields: Any = {"__annotations__": members, "__module__": __name__}
    return type("Made", (BaseModel,), fields), values


def plain(value: Any) -> Any:
    """A value as JSON."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def continues(before: Any, after: Any) -> bool:
    """Whether a value has all of an earlier one, in its order: only the last item may have grown."""
    if isinstance(before, dict) and isinstance(after, dict):
        before, after = list(before.items()), list(after.items())
        if [name for name, _ in before] != [name for name, _ in after[: len(before)]]:
            return False
        before, after = [one for _, one in before], [one for _, one in after]
    if isinstance(before, list) and isinstance(after, list):
        if not before or len(after) < len(before):
            return not before
        *same, last = before
        return same == after[: len(same)] and continues(last, after[len(same)])
    return bool(before == after)


def test_the_prefixes_of_any_document_grow_up_to_the_document(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(examples(300)):
        kind, value = made(rng)
        kind, value = list[kind], [value] * rng.randrange(3)  # type: ignore[valid-type]
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        found = [plain(one) for one in prefixes(kind, text)]
        assert found[-1] == plain(OutputSpec.of(kind).parse(text)), (kind, text)
        for before, after in pairwise(found):
            assert continues(before, after), (kind, text, before, after)


# ---- a stream ----


async def values(stream: RunStream[Any, Any]) -> list[Any]:
    async with stream:
        return [value async for value in stream.partial()]


async def test_a_stream_yields_values_of_its_type_and_ends_with_the_output() -> None:
    one = agent([TRIP], output_type=Trip)
    found = await values(one.stream("?"))
    assert found == [
        Trip(title="North", places=[]),
        Trip(title="North", places=[OSLO]),
        Trip(title="North", places=[OSLO, BODO]),
        Trip(title="North", places=[OSLO, BODO], note="cold"),
    ]


async def test_free_text_grows() -> None:
    found = await values(agent(["one two three"]).stream("?"))
    assert found == ["one", "one two", "one two three"]


async def test_the_last_value_is_the_output_after_the_validators() -> None:
    one = agent(["[1, 2]"], output_type=list[int])

    @one.output_validator
    def doubled(output: list[int], _: ToolContext) -> list[int]:
        return [2 * number for number in output]

    assert await values(one.stream("?")) == [[1], [1, 2], [2, 4]]


async def test_an_answer_that_is_requested_again_begins_again() -> None:
    one = agent(["[1, 2, true", "[3, 4]"], output_type=list[int])
    found = await values(one.stream("?"))
    assert found[-2:] == [[3], [3, 4]]
    assert found[0] == [1]


async def test_a_run_without_an_output_ends_without_it() -> None:
    one = agent(["[1, "] * 3, output_type=list[int])
    async with one.stream("?") as stream:
        assert (await stream.result()).outcome is Outcome.FAILED


async def test_text_beside_tool_calls_and_child_runs_are_no_value_of_another_type() -> None:
    @tool(effect="pure")
    def look() -> str:
        return "[7, 8]"

    clerk = Agent(ScriptedLLM(["[9, 9, 9]"]), name="clerk", observers=())
    script = [Response("I look it up.", (call(look), call("clerk", task="?"))), "[1, 2]"]
    one = agent(script, [look, clerk.as_tool("clerk", "Knows.")], output_type=list[int])
    assert await values(one.stream("?")) == [[1], [1, 2]]


async def test_values_come_from_every_segment_of_a_team_and_from_no_agent_below_it() -> None:
    helper = agent(["[7, 8, 9]"], name="helper", output_type=list[int])
    script = [call("help", task="?"), "[1, 2]"]
    billing = agent(script, name="billing", tools=[helper.as_tool("help", "Helps.")], output_type=list[int])
    handing = Response("One moment.", (call("transfer_to_billing"),))
    triage = agent(
        [handing], name="triage", handoffs=[billing], output_type=list[int], journal=MemoryJournal()
    )
    assert await values(triage.stream("?", run_id="p")) == [[1], [1, 2]]
    assert await values(triage.stream_resume("p")) == [[1, 2]]


async def test_free_text_of_a_team_begins_again_with_the_agent_that_took_over() -> None:
    billing = agent(["It is paid."], name="billing")
    handing = Response("One moment.", (call("transfer_to_billing"),))
    triage = agent([handing], name="triage", handoffs=[billing])
    found = await values(triage.stream("?"))
    first = found.index("One moment.")
    assert all("One moment.".startswith(text) for text in found[: first + 1])
    assert all("It is paid.".startswith(text) for text in found[first + 1 :])
    assert found[-1] == "It is paid."


async def test_the_type_of_a_run_counts_on_every_facade() -> None:
    journal = MemoryJournal()
    one = agent(["[1, 2]"] * 4, journal=journal, name="one")
    assert await values(one.stream("?", output_type=list[int])) == [[1], [1, 2]]
    assert await values(one.stream("?", output_type=list[int], run_id="r", if_exists="resume")) == [
        [1],
        [1, 2],
    ]
    assert await values(one.stream("?", output_type=list[int], run_id="r", if_exists="resume")) == [[1, 2]]
    assert await values(one.stream_resume("r")) == [[1, 2]]
    async with LocalEngine(one) as engine:
        assert await values(engine.stream("?", output_type=list[int])) == [[1], [1, 2]]
    variant = one.replace(model=ScriptedLLM(["[1, 2]"]), output_type=list[int])
    assert await values(variant.stream("?")) == [[1], [1, 2]]


async def test_a_reader_that_leaves_leaves_the_run_where_it_is() -> None:
    journal = MemoryJournal()
    one = agent(["[1, 2]", "[1, 2]"], journal=journal, output_type=list[int])
    async with one.stream("?", run_id="r") as stream:
        async for value in stream.partial():
            assert value == [1]
            break
    assert (await journal.head("r")).status != "ended"
    assert await values(one.stream_resume("r")) in ([[1], [1, 2]], [[1, 2]])


async def test_the_errors_of_the_run_are_raised() -> None:
    one = agent(["[1]"], journal=MemoryJournal(), output_type=list[int])
    await one.run("?", run_id="r")
    with pytest.raises(RunExists):
        await values(one.stream("?", run_id="r"))


async def test_an_answer_whose_beginning_was_dropped_has_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.runtime.service.run_feed.KEPT", 3)
    one = agent(["[1, 2, 3, 4]"], output_type=list[int])
    async with one.stream("?") as stream:
        await stream.result()  # before any event is read
        found = [value async for value in stream.partial()]
    assert found[-1] == [1, 2, 3, 4]
    assert all(value == [1, 2, 3, 4][: len(value)] for value in found)
