"""Usage that a server does not report: it is unknown, never 0, and every limit counts an estimate of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import Agent, Limits, MemoryJournal, Message, Response, Runtime, Usage, tool
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request
from orchestrator.providers import Anthropic, OpenAI, price_table
from orchestrator.providers.reading import is_reported
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.telemetry.metrics import Metrics
from tests.providers.loopback import Loopback, Reply

PRICE = price_table({"m": (1_000.0, 1_000.0)})
"""A thousandth of the currency for each token."""
PLAIN = {"prompt_tokens": 30, "completion_tokens": 4}

REPORTED: dict[str, tuple[dict[str, Any], Usage]] = {
    "in the answer": ({"usage": PLAIN}, Usage(30, 4)),
    "in the choice, as Moonshot does": ({"choice": PLAIN}, Usage(30, 4)),
    "in x_groq": ({"x_groq": {"usage": PLAIN}}, Usage(30, 4)),
    "cached tokens at the top, as Moonshot does": (
        {"usage": {**PLAIN, "cached_tokens": 8}},
        Usage(30, 4, cached_input_tokens=8),
    ),
    "whole floats": ({"usage": {"prompt_tokens": 30.0, "completion_tokens": 4.0}}, Usage(30, 4)),
    "digits": ({"usage": {"prompt_tokens": "30", "completion_tokens": "4"}}, Usage(30, 4)),
    "details that are no object": ({"usage": {**PLAIN, "prompt_tokens_details": 7}}, Usage(30, 4)),
    "a total in place of the output": ({"usage": {"prompt_tokens": 30, "total_tokens": 34}}, Usage(30, 4)),
    "timings of llama.cpp": (
        {"timings": {"cache_n": 10, "prompt_n": 20, "predicted_n": 4}},
        Usage(30, 4, cached_input_tokens=10),
    ),
    "a cost in parts, as Perplexity does": (
        {"usage": {**PLAIN, "cost": {"request_cost": 0.005, "total_cost": 0.006}}},
        Usage(30, 4, cost=0.006),
    ),
    "a cost that is no amount": ({"usage": {**PLAIN, "cost": "cheap"}}, Usage(30, 4)),
}
MISSING: dict[str, dict[str, Any]] = {
    "nothing": {},
    "null": {"usage": None},
    "an empty object": {"usage": {}},
    "a text": {"usage": "30 and 4"},
    "a list": {"usage": [30, 4]},
    "zeros": {"usage": {"prompt_tokens": 0, "completion_tokens": 0}},
    "no output although there is text": {"usage": {"prompt_tokens": 30, "completion_tokens": 0}},
    "words": {"usage": {"prompt_tokens": "many", "completion_tokens": "few"}},
    "a broken number": {"usage": {"prompt_tokens": 30.5, "completion_tokens": 4.5}},
    "booleans": {"usage": {"prompt_tokens": True, "completion_tokens": True}},
    "below 0": {"usage": {"prompt_tokens": -30, "completion_tokens": -4}},
    "more than any count": {"usage": {"prompt_tokens": 2**60, "completion_tokens": 4}},
    "one of the two": {"usage": {"prompt_tokens": 30}},
    "timings of an older llama.cpp": {"timings": {"prompt_n": 1, "predicted_n": 4}},
}


def completion(members: Mapping[str, Any], *, streamed: bool, size: int = 0) -> Reply:
    """An answer of chat completions; in `choice` is what stands inside the choice."""
    members = dict(members)
    choice = {"usage": members.pop("choice")} if "choice" in members else {}
    if not streamed:
        message = {"role": "assistant", "content": "four"}
        body = {"model": "m", "choices": [{"message": message, "finish_reason": "stop", **choice}], **members}
        return Reply(headers={"content-type": "application/json"}, chunks=(json.dumps(body).encode(),))
    events = [
        {"model": "m", "choices": [{"index": 0, "delta": {"content": "four"}}]},
        {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **choice}]},
        {"model": "m", "choices": [], **members},
        {"model": "m", "choices": [], "usage": None},
    ]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return event_stream(text, size)


def event_stream(text: str, size: int) -> Reply:
    raw = text.encode()
    step = size or len(raw)
    chunks = tuple(raw[start : start + step] for start in range(0, len(raw), step))
    return Reply(headers={"content-type": "text/event-stream"}, chunks=chunks)


async def ask(server: Loopback, *, streamed: bool, model: type[OpenAI | Anthropic] = OpenAI) -> Response:
    base = f"{server.url}/v1" if model is OpenAI else server.url
    async with model("m", base_url=base, api_key="k") as llm:
        listener: Callable[[str], None] | None = (lambda _: None) if streamed else None
        return await llm.complete(Request((Message("user", "2+2?"),), on_delta=listener))


FORMS = [(False, 0), (True, 0), (True, 1), (True, 7)]


@pytest.mark.parametrize(("streamed", "size"), FORMS)
@pytest.mark.parametrize("case", REPORTED)
async def test_usage_is_read_wherever_and_however_a_server_writes_it(
    case: str, streamed: bool, size: int
) -> None:
    members, expected = REPORTED[case]
    async with Loopback([completion(members, streamed=streamed, size=size)]) as server:
        assert (await ask(server, streamed=streamed)).usage == expected


@pytest.mark.parametrize(("streamed", "size"), FORMS)
@pytest.mark.parametrize("case", MISSING)
async def test_anything_else_is_not_reported(case: str, streamed: bool, size: int) -> None:
    async with Loopback([completion(MISSING[case], streamed=streamed, size=size)]) as server:
        response = await ask(server, streamed=streamed)
    assert (response.content, response.usage) == ("four", None)


def message_stream(start: object, end: object) -> str:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "m", "content": [], "usage": start}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "four"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ({"input_tokens": 30, "output_tokens": 1}, {"output_tokens": 4}, Usage(30, 4)),
        ({"input_tokens": 30, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 4}, Usage(30, 4)),
        ({"input_tokens": 0, "output_tokens": 0}, {"input_tokens": "30", "output_tokens": 4.0}, Usage(30, 4)),
        ({"input_tokens": 30, "output_tokens": 1}, None, None),
        ({"input_tokens": 30, "output_tokens": 1}, {}, None),
        (None, {"output_tokens": 4}, None),
        ("thirty", "four", None),
    ],
)
async def test_a_stream_of_messages_has_the_tokens_of_its_end(
    start: object, end: object, expected: Usage | None, size: int
) -> None:
    async with Loopback([event_stream(message_stream(start, end), size)]) as server:
        assert (await ask(server, streamed=True, model=Anthropic)).usage == expected


def test_an_answer_needs_input_and_for_its_text_and_calls_output() -> None:
    assert is_reported(Response("x", usage=Usage(1, 1)))
    assert is_reported(Response(None, usage=Usage(1, 0)))
    assert not is_reported(Response("x", usage=Usage(1, 0)))
    assert not is_reported(Response(reasoning="x", usage=Usage(1, 0)))
    assert not is_reported(Response(usage=Usage(0, 1)))
    assert not is_reported(Response(usage=None))


# ---- runs ----


@tool
async def look() -> str:
    """Look."""
    return "nothing yet"


def calling(_: object) -> Reply:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = {"model": "m", "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    return Reply(headers={"content-type": "application/json"}, chunks=(json.dumps(body).encode(),))


LIMITED = [
    (Limits(max_cost=0.6, max_no_progress=0, max_repeated_success=0), "cost"),
    (Limits(max_input_tokens=500, max_no_progress=0, max_repeated_success=0), "input_tokens"),
    (Limits(max_output_tokens=20, max_no_progress=0, max_repeated_success=0), "output_tokens"),
]


@pytest.mark.parametrize(("limits", "reason"), LIMITED)
async def test_a_limit_holds_although_the_server_reports_no_usage(limits: Limits, reason: str) -> None:
    journal, registry = MemoryJournal(), CollectorRegistry()
    async with Loopback(calling) as server, OpenAI("m", base_url=f"{server.url}/v1", api_key="k") as llm:
        runtime = Runtime(price=PRICE, journal=journal, observers=[Metrics(registry)])
        agent = Agent(llm, name="a", tools=[look], limits=limits, runtime=runtime)
        result = await agent.run("Look.")
        sent = len(server.asked)
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, reason)
    assert 1 < sent < 20
    used = result.usage
    assert (used.estimated_input_tokens, used.estimated_output_tokens) == (
        used.input_tokens,
        used.output_tokens,
    )
    assert used.cost_micros == used.estimated_cost_micros == 1_000 * (used.input_tokens + used.output_tokens)
    answers = [r.body for r in await journal.load(result.run_id) if r.kind == "answer"]
    assert [one["unreported"] for one in answers] == [True] * sent
    assert sum(one["usage"]["estimated_input_tokens"] for one in answers) == used.input_tokens
    labels = {"agent": "a", "provider": "openai", "model": "m"}
    assert registry.get_sample_value("orchestrator_llm_unreported_usage_total", labels) == sent
    tokens = {**labels, "machine": "llm_loop", "direction": "input"}
    assert not registry.get_sample_value("orchestrator_llm_tokens_total", tokens)


async def test_a_limit_that_ignores_unknown_costs_counts_none_and_the_answer_is_marked() -> None:
    journal = MemoryJournal()
    limits = Limits(
        max_cost=0.6, on_unknown_cost="ignore", max_iterations=30, max_no_progress=0, max_repeated_success=0
    )
    async with Loopback(calling) as server, OpenAI("m", base_url=f"{server.url}/v1", api_key="k") as llm:
        agent = Agent(llm, tools=[look], limits=limits, runtime=Runtime(price=PRICE, journal=journal))
        result = await agent.run("Look.")
        assert len(server.asked) == 30
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "max_iterations")
    assert (result.usage.cost, result.usage.estimated_cost_micros) == (None, 0)
    assert result.usage.estimated_input_tokens == result.usage.input_tokens > 0
    answers = [r.body for r in await journal.load(result.run_id) if r.kind == "answer"]
    assert all(one["unreported"] and "cost_micros" not in one["usage"] for one in answers)


async def test_a_custom_model_that_reports_no_tokens_keeps_that() -> None:
    agent = Agent(
        ScriptedLLM([Response("four", usage=Usage())]),
        runtime=Runtime(price=price_table({"scripted": (1, 1)})),
    )
    assert (await agent.run("2+2?")).usage == Usage(cost_micros=0)
