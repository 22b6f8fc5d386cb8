from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import Message, Request, Response, ToolCall, Transcript, Usage
from orchestrator.providers.scripted import (
    AUTO_ID,
    FunctionLLM,
    ScriptedLLM,
    ScriptExhausted,
    call,
)
from orchestrator.testing.clock import FakeClock

ASKED = Request((Message("user", "hello"),))
SEARCH = ToolCall("a", "search", '{"q": 1}')


class Waits:
    """A clock whose waits take no time and are listed."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(0, callback)


@pytest.mark.parametrize(
    ("item", "content", "calls"),
    [
        ("done", "done", ()),
        ("", "", ()),
        (SEARCH, None, (SEARCH,)),
        ([SEARCH, SEARCH], None, (SEARCH, SEARCH)),
        (Response("both", (SEARCH,)), "both", (SEARCH,)),
        (Message("assistant", "both", (SEARCH,)), "both", (SEARCH,)),
        ({"content": "plain"}, "plain", ()),
        ({"role": "assistant", "content": None, "tool_calls": [SEARCH.to_openai()]}, None, (SEARCH,)),
        (lambda request: f"{len(request.messages)} message", "1 message", ()),
        (lambda request: [SEARCH], None, (SEARCH,)),
    ],
    ids=["text", "empty", "call", "calls", "response", "message", "content", "openai", "fn-text", "fn-calls"],
)
async def test_an_item_may_have_any_form_of_an_answer(
    item: Any, content: str | None, calls: tuple[ToolCall, ...]
) -> None:
    response = await ScriptedLLM([item]).complete(ASKED)
    assert (response.content, response.tool_calls) == (content, calls)


async def test_an_item_may_be_an_async_function() -> None:
    async def answer(request: Request) -> list[ToolCall]:
        await asyncio.sleep(0)
        return [SEARCH]

    assert (await ScriptedLLM([answer]).complete(ASKED)).tool_calls == (SEARCH,)


async def test_an_exception_is_raised_and_counts_as_a_turn() -> None:
    llm = ScriptedLLM([LLMError("busy", kind="rate_limited"), "done"])
    with pytest.raises(LLMError, match="busy"):
        await llm.complete(ASKED)
    assert (await llm.complete(ASKED)).content == "done"


async def test_a_function_may_give_an_exception() -> None:
    with pytest.raises(TimeoutError):
        await ScriptedLLM([lambda request: TimeoutError()]).complete(ASKED)


async def test_calls_without_id_get_one_by_turn_and_position() -> None:
    llm = ScriptedLLM([[call("a", x=1), call("b")], [call("a"), SEARCH]])
    ids = [one.id for _ in range(2) for one in (await llm.complete(ASKED)).tool_calls]
    assert ids == ["call_1_0", "call_1_1", "call_2_0", "a"]


def test_call_takes_any_argument_name() -> None:
    made = call("rename", name="x", id=3)
    assert (made.id, made.name, json.loads(made.arguments)) == (AUTO_ID, "rename", {"name": "x", "id": 3})


async def test_short_forms_cost_one_token_each_way_or_what_the_test_says() -> None:
    assert (await ScriptedLLM(["done"]).complete(ASKED)).usage == Usage(1, 1)
    assert (await ScriptedLLM(["done"], usage=Usage(9, 4)).complete(ASKED)).usage == Usage(9, 4)
    assert (await ScriptedLLM([Response("done")]).complete(ASKED)).usage == Usage()


async def test_the_finish_reason_follows_from_the_form() -> None:
    llm = ScriptedLLM(["done", SEARCH, Response("cut", finish_reason="length")])
    reasons = [(await llm.complete(ASKED)).finish_reason for _ in range(3)]
    assert reasons == ["stop", "tool_calls", "length"]


async def test_requests_are_kept_as_they_were_asked() -> None:
    history = [Message("user", "hello")]
    llm = ScriptedLLM(["one", "two"])
    await llm.complete(Request(Transcript(history)))
    history.append(Message("assistant", "one"))
    await llm.complete(Request(Transcript(history)))
    assert [len(request.messages) for request in llm.requests] == [1, 2]


async def test_running_past_the_end_names_the_turn() -> None:
    llm = ScriptedLLM(["only"])
    await llm.complete(ASKED)
    with pytest.raises(ScriptExhausted, match="turn 2: the script has only 1 answers"):
        await llm.complete(ASKED)
    llm.assert_complete()


async def test_what_was_not_consumed_is_named() -> None:
    llm = ScriptedLLM(["first", SEARCH, "x" * 200])
    await llm.complete(ASKED)
    with pytest.raises(AssertionError, match=r"2 of 3 .* #2 call of search; #3 'xxx.*…$") as caught:
        llm.assert_complete()
    assert len(str(caught.value)) < 160
    await llm.complete(ASKED)
    await llm.complete(ASKED)
    llm.assert_complete()


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (1j, "script item 2: 1j is not an answer"),
        ([], r"script item 2: \[\] is not an answer"),
        (["text"], "is not an answer"),
        (Message("user", "?"), "not a user message"),
        ({"role": "robot"}, "script item 2: unknown role 'robot'"),
    ],
    ids=str,
)
def test_an_item_that_is_no_answer_is_refused_at_once(item: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ScriptedLLM(["fine", item])


async def test_a_function_that_gives_no_answer_is_named_by_its_turn() -> None:
    with pytest.raises(ConfigError, match="turn 1: None is not an answer"):
        await FunctionLLM(lambda request: None).complete(ASKED)  # type: ignore[arg-type,return-value]


async def test_latency_is_waited_on_the_clock_for_every_answer() -> None:
    clock = Waits()
    llm = ScriptedLLM(["one", LLMError("down")], latency=0.25, clock=clock)
    await llm.complete(ASKED)
    with pytest.raises(LLMError):
        await llm.complete(ASKED)
    assert clock.slept == [0.25, 0.25]


async def test_concurrent_requests_get_answers_in_the_order_they_arrived() -> None:
    llm = ScriptedLLM([str(number) for number in range(5)], latency=0.001)
    answers = await asyncio.gather(*(llm.complete(ASKED) for _ in range(5)))
    assert [answer.content for answer in answers] == ["0", "1", "2", "3", "4"]


async def test_an_answer_nobody_waited_for_is_consumed() -> None:
    clock = FakeClock()
    llm = ScriptedLLM(["slow", "next"], latency=5, clock=clock)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(llm.complete(ASKED), 0.001)
    asking = asyncio.create_task(llm.complete(ASKED))
    await clock.advance(5)
    assert (await asking).content == "next"


def test_a_negative_latency_is_refused() -> None:
    with pytest.raises(ConfigError, match="latency"):
        ScriptedLLM([], latency=-1)


@pytest.mark.parametrize("text", ["two words\nthree  ", " lead", "", "one", "  \n"])
async def test_text_is_streamed_in_pieces_that_add_up(text: str) -> None:
    pieces: list[str] = []
    await ScriptedLLM([text]).complete(Request((), on_delta=pieces.append))
    assert "".join(pieces) == text


async def test_a_function_answers_every_request() -> None:
    llm = FunctionLLM(lambda request: str(request.messages[-1].text).upper())
    for _ in range(3):
        assert (await llm.complete(ASKED)).content == "HELLO"
    assert len(llm.requests) == 3


async def test_doubles_say_that_they_are_and_what_they_are_called() -> None:
    llm = ScriptedLLM(["x", Response("y", model="gpt")], model="mini")
    assert (llm.double, FunctionLLM.double, FunctionLLM(str).model) == (True, True, "function")
    assert [(await llm.complete(ASKED)).model for _ in range(2)] == ["mini", "gpt"]
