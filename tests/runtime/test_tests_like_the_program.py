"""Tests that read like the program: typed calls, outputs as values, a model with no script, replace and override."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from orchestrator import Agent, ConfigError, MemoryJournal, Runs, SqliteJournal, tool
from orchestrator.kernel.fact import Fact, RunStarted
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.json_schema import checker
from orchestrator.providers.schema_model import value_of
from orchestrator.testing import SchemaLLM, ScriptedLLM, call
from orchestrator.tools.spec import ToolContext


class Receipt(BaseModel):
    order_id: str
    cents: int = Field(gt=0)


@tool(effect="pure")
def refund(order_id: str, cents: int, on: dt.date | None = None) -> str:
    """Refund an order."""
    return f"{cents} for {order_id}"


# ---- ScriptedLLM ----


def test_a_script_is_made_of_tools_and_of_values_of_the_output() -> None:
    llm = ScriptedLLM([call(refund, order_id="A1", cents=500), Receipt(order_id="A1", cents=500)])
    result = Agent(llm, tools=[refund], output_type=Receipt, observers=()).run_sync("Refund A1.")
    assert result.output == Receipt(order_id="A1", cents=500)
    assert result.messages[2].content == "500 for A1"
    assert [one.id for message in result.messages for one in message.tool_calls] == ["call_1_0"]
    llm.assert_complete()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"order_id": "A1"}, "cents: Field required"),
        ({"order_id": "A1", "cent": 5}, "cents: Field required; cent: Extra inputs are not permitted"),
        ({"order_id": "A1", "cents": "many"}, "cents: Input should be a valid integer"),
    ],
)
def test_the_arguments_of_a_typed_call_are_checked_against_the_tool(
    arguments: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=r"^call of refund: ") as refused:
        call(refund, **arguments)
    assert fault in str(refused.value)
    assert call("refund", **arguments).name == "refund"  # by its name, so that a test can make mistakes


def test_arguments_of_a_typed_call_are_values_of_python() -> None:
    made = call(refund, order_id="A1", cents=5, on=dt.date(2026, 1, 31))
    assert made.arguments == '{"order_id": "A1", "cents": 5, "on": "2026-01-31"}'


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(("value", "kind"), [(Point(1, 2), Point), (7, int), (1.5, float), (True, bool)])
def test_an_output_in_a_script_is_a_value(value: object, kind: type) -> None:
    result: Any = Agent(ScriptedLLM([value]), output_type=kind, observers=()).run_sync("Go.")
    assert result.output == value
    assert type(result.output) is kind


# ---- SchemaLLM ----


class Colour(enum.Enum):
    RED = "red"


class Node(BaseModel):
    name: str
    below: list[Node] = []


class Everything(BaseModel):
    text: Annotated[str, Field(min_length=7, max_length=9)]
    short: Annotated[str, Field(max_length=2)]
    whole: Annotated[int, Field(ge=10, multiple_of=4)]
    negative: Annotated[int, Field(lt=-3)]
    share: Annotated[float, Field(gt=0, lt=1)]
    colour: Colour
    choice: Literal["a", "b"]
    either: int | str
    maybe: str | None
    day: dt.date
    at: dt.datetime
    pair: tuple[int, str]
    several: Annotated[list[int], Field(min_length=3)]
    distinct: Annotated[set[str], Field(min_length=2)]
    node: Node
    mapping: dict[str, int]
    sure: bool
    anything: Any
    example: Annotated[str, Field(pattern="^A[0-9]$", examples=["A1"])]
    named: int = 3


def test_a_value_is_made_for_every_kind_of_schema() -> None:
    found = value_of(Everything.model_json_schema())
    assert checker(Everything.model_json_schema())(found) == []
    read = Everything.model_validate(found)
    assert (read.text, read.short, read.whole, read.negative) == ("textxxx", "sh", 12, -4)
    assert (read.colour, read.choice, read.example, read.maybe) == (Colour.RED, "a", "A1", "maybe")


def test_a_schema_without_a_possible_value_is_refused_with_what_helps() -> None:
    with pytest.raises(ConfigError) as refused:
        value_of({"type": "string", "pattern": "^A[0-9]$"}, "the output")
    assert "no value could be made from the schema of the output: the whole value: " in str(refused.value)
    assert "give the schema an example (Field(examples=[…])), or use ScriptedLLM" in str(refused.value)


def test_a_model_without_a_script_calls_each_tool_once_and_answers_in_the_output_type() -> None:
    called: list[str] = []

    @tool(effect="pure")
    def lookup(context: ToolContext, city: str, days: Annotated[int, Field(ge=1, le=7)]) -> str:
        """Look up the weather."""
        called.append(f"{city} {days}")
        return "sunny"

    @tool(effect="pure")
    async def now() -> str:
        """Return the time."""
        called.append("now")
        return "noon"

    result = Agent(SchemaLLM(), tools=[lookup, now], output_type=Receipt, observers=()).run_sync("Go.")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, Receipt(order_id="order_id", cents=1))
    assert sorted(called) == ["city 1", "now"]
    text = Agent(SchemaLLM(), tools=[lookup, now], observers=()).run_sync("Go.")
    assert text.output == "I called lookup, now."
    assert Agent(SchemaLLM(), observers=()).run_sync("Go.").output == "I have no tools to call."


# ---- replace and override ----


class Watch:
    def __init__(self) -> None:
        self.runs: list[str] = []

    def observe(self, fact: Fact, /) -> None:
        if isinstance(fact, RunStarted):
            self.runs.append(fact.run_id)


class Shout:
    async def before_finalize(self, run: Any, output: str) -> str:
        return output.upper()


def shop(journal: Any = None, observers: Any = ()) -> Agent[Any, str]:
    return Agent(
        ScriptedLLM(["of the shop"] * 9), name="shop", tools=[refund], journal=journal, observers=observers
    )


async def test_journal_and_observers_are_replaced_and_everything_else_stays(tmp_path: Path) -> None:
    first, watch = Watch(), Watch()
    agent = shop(MemoryJournal(), [first])
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        other = agent.replace(journal=journal, observers=[watch], model=ScriptedLLM(["replaced"]))
        result = await other.run("Go.", run_id="r1")
        assert (result.output, first.runs, watch.runs) == ("replaced", [], ["r1"])
        assert (await Runs(journal).get("r1")).head.agent == "shop"
        assert other.name == agent.name == "shop"
    assert (await agent.run("Go.", run_id="r1")).output == "of the shop"
    assert first.runs == ["r1"]


def test_hooks_are_replaced_and_validators_and_the_output_type_stay() -> None:
    agent: Any = Agent(ScriptedLLM([Receipt(order_id="A1", cents=1)] * 2), output_type=Receipt, observers=())
    seen: list[object] = []

    @agent.output_validator  # type: ignore[untyped-decorator]
    def see(output: object, _: ToolContext) -> object:
        seen.append(output)
        return output

    assert agent.replace(observers=()).run_sync("Go.").output == Receipt(order_id="A1", cents=1)
    assert seen == [Receipt(order_id="A1", cents=1)]
    assert shop().replace(hooks=[Shout()]).run_sync("Go.").output == "OF THE SHOP"
    assert shop().replace(output_type=str).replace(observers=()).run_sync("Go.").output == "of the shop"


def test_an_agent_is_another_one_inside_the_block_for_code_that_holds_it() -> None:
    agent, watch = shop(), Watch()

    def code_that_holds_it() -> object:
        return agent.run_sync("Go.").output

    with agent.override(
        model=ScriptedLLM(["overridden"]), observers=[watch], journal=MemoryJournal()
    ) as inside:
        assert inside is agent
        assert code_that_holds_it() == "overridden"
    assert code_that_holds_it() == "of the shop"
    assert len(watch.runs) == 1
    with pytest.raises(KeyError), agent.override(model=SchemaLLM()):
        raise KeyError
    assert code_that_holds_it() == "of the shop"


async def test_a_run_that_started_before_the_block_keeps_its_model() -> None:
    gate = asyncio.Event()

    async def slow(_: object) -> str:
        await gate.wait()
        return "of the shop"

    agent: Agent[Any, str] = Agent(ScriptedLLM([slow]), observers=())
    before = asyncio.create_task(agent.run("Go."))
    await asyncio.sleep(0)
    with agent.override(model=ScriptedLLM(["overridden"])):
        assert (await agent.run("Go.")).output == "overridden"
        gate.set()
        assert (await before).output == "of the shop"
