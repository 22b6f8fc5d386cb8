"""Parallel calls from every server: never merged, split or lost.

What a server gave with an answer is given back to it, and to no other one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from orchestrator import Agent, Limits, SqliteJournal, tool
from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Request, Response, ToolCall
from orchestrator.llm.port import LLM
from orchestrator.providers import Fallback
from orchestrator.providers.anthropic import MessagesForm
from orchestrator.providers.openai import (
    CHAT_SERVERS,
    KEPT,
    MAX_BYTES,
    PLACEHOLDER,
    OpenAI,
    PartialCall,
    kept_part,
    server_of,
)
from orchestrator.providers.vendor_model import SdkModel
from orchestrator.testing import ScriptedLLM
from tests.providers.anthropic_words import model as anthropic
from tests.providers.loopback import Asked, Loopback, Reply, json_reply, stream_reply
from tests.providers.shapes_calls import LEFT, Fragment, X, Y, fragment
from tests.providers.strict import VendorName
from tests.runtime.stage import NO_WAIT
from tests.tiers import examples

BOTH = (ToolCall("a", "f", X), ToolCall("b", "g", Y))


def chat_stream(fragments: Sequence[Fragment]) -> Reply:
    """The fragments as the stream of a server."""
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [fragment(*one)]}}]} for one in fragments]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (*chunks, end)) + "data: [DONE]\n\n"
    return stream_reply(text)


def in_chunks(text: str, size: int) -> Reply:
    whole, raw = stream_reply(text), text.encode()
    at = range(0, len(raw) + size, size) if size else (0, len(raw))
    return Reply(200, whole.headers, tuple(raw[a:b] for a, b in pairwise(at) if raw[a:b]))


async def streamed(llm: SdkModel) -> Response:
    async with llm:
        return await llm.complete(Request((Message("user", "Go."),), on_delta=lambda _: None))


async def test_calls_that_cannot_be_told_apart_are_an_error_that_the_model_reads() -> None:
    """Fragments of two calls of one tool, interleaved, without index and id."""
    paid: list[int] = []

    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    mixed = [(0, "", "pay", '{"cents"'), (0, "", "pay", '{"cents"'), (0, "", "", ": 1}"), (0, "", "", ": 2}")]
    end = {"choices": [{"index": 0, "delta": {"content": "Sorry."}, "finish_reason": "stop"}]}
    done = stream_reply(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n")
    async with (
        Loopback([chat_stream(mixed), done]) as server,
        OpenAI("m", base_url=f"{server.url}/v1", api_key="k") as llm,
    ):
        agent = Agent(llm, tools=[pay], observers=())
        async with agent.stream("Pay 1 and 2.") as running:
            result = await running.result()
    assert (result.output, paid) == ("Sorry.", [])
    (error,) = [message for message in result.messages if message.role == "tool"]
    assert error.is_error


def test_complete_arguments_are_recognized_however_they_are_cut(seed: int) -> None:
    random = Random(seed)
    letters = '{}[]",:\\x 1é'
    for _ in range(examples(200)):
        value = {"a": "".join(random.choices(letters, k=random.randrange(12))), "b": [{}, {"c": None}]}
        text = json.dumps(value)
        call = PartialCall(0)
        at = 0
        while at < len(text):
            assert not call.is_complete()
            size = random.randint(1, 4)
            call.pieces.append(text[at : at + size])
            at += size
        assert call.is_complete(), text
        assert call.arguments == text


# ---- Responses ----


@pytest.mark.parametrize("indices", [(0, 1), ("0", "1"), (LEFT, LEFT), (0, 0)])
async def test_calls_of_a_response_that_came_in_pieces_only_are_read(indices: tuple[Any, ...]) -> None:
    """The server leaves the output of its last event empty, and sends no finished items."""
    events: list[dict[str, Any]] = []
    for index, call in zip(indices, BOTH, strict=True):
        at = {} if index is LEFT else {"output_index": index}
        item = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": ""}
        events.append({"type": "response.output_item.added", **at, "item": item})
        halves = call.arguments[:3], call.arguments[3:]
        kind = "response.function_call_arguments.delta"
        events += [{"type": kind, **at, "delta": half} for half in halves]
    events.append({"type": "response.completed", "response": {"status": "completed", "output": []}})
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in events)
    async with Loopback([stream_reply(text)]) as server:
        response = await streamed(OpenAI("m", base_url=server.url, api_key="k", api="responses"))
    assert response.tool_calls == BOTH


# ---- Anthropic ----


def blocks(*indices: Any) -> list[dict[str, Any]]:
    """The events of a text and two calls, whose blocks have these indices."""
    contents = [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "I look."}),
        *(
            (
                {"type": "tool_use", "id": id_, "name": name, "input": {}},
                {"type": "input_json_delta", "partial_json": given},
            )
            for id_, name, given in (("a", "f", X), ("b", "g", Y))
        ),
    ]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"type": "message", "model": "m", "content": []}}
    ]
    for index, (start, delta) in zip(indices, contents, strict=True):
        at = {} if index is LEFT else {"index": index}
        events += [
            {"type": "content_block_start", **at, "content_block": start},
            {"type": "content_block_delta", **at, "delta": delta},
            {"type": "content_block_stop", **at},
        ]
    stop = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    return [*events, stop, {"type": "message_stop"}]


@pytest.mark.parametrize("size", [1, 7, 0], ids=["bytes", "sevens", "whole"])
@pytest.mark.parametrize(
    "indices", [(0, 1, 2), (0, 0, 0), ("0", "1", "2"), (LEFT,) * 3, (0, LEFT, LEFT), (1, 1, 0)]
)
async def test_blocks_with_any_index_are_all_read(indices: tuple[Any, ...], size: int) -> None:
    text = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in blocks(*indices))
    async with Loopback([in_chunks(text, size)]) as server:
        response = await streamed(anthropic(server.url))
    assert response.message().text == "I look."
    assert response.tool_calls == BOTH


@pytest.mark.parametrize("index", [0, LEFT])
async def test_blocks_that_start_before_they_are_filled_are_told_apart_by_type(index: Any) -> None:
    start, call = blocks(index, index, index)[1:4], blocks(index, index, index)[4:7]
    opened = [start[0], call[0], start[1], call[1], start[2], call[2]]
    whole = [blocks(0, 0, 0)[0], *opened, *blocks(0, 0, 0)[-2:]]
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in whole)
    async with Loopback([stream_reply(text)]) as server:
        response = await streamed(anthropic(server.url))
    assert (response.message().text, response.tool_calls) == ("I look.", BOTH[:1])


STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
DETAILS: list[dict[str, Any]] = [
    {
        "type": "reasoning.text",
        "index": 0,
        "format": "anthropic-claude-v1",
        "text": "Two steps.",
        "signature": "c2ln",
    },
    {"type": "reasoning.encrypted", "index": 1, "data": "b3BhcXVl"},
]


@tool(effect="pure")
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"


def call(id_: str, city: str = "Oslo", **more: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    return {"id": id_, "type": "function", "function": function, **more}


def signed(signature: str) -> dict[str, Any]:
    return {"extra_content": {"google": {"thought_signature": signature}}}


def said(*calls: Mapping[str, Any], text: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": [*calls]} if calls else {}), **more}


def reply(asked: Asked, message: Mapping[str, Any], *pieces: Mapping[str, Any]) -> Reply:
    """The message as JSON, or as a stream of these pieces; without pieces, as a stream of one."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    if not asked.json.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return json_reply({"model": "m", "choices": [choice], "usage": usage})
    calls = [{**one, "index": at} for at, one in enumerate(message.get("tool_calls") or ())]
    deltas = pieces or ({**message, **({"tool_calls": calls} if calls else {})},)
    chunks = [{"model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end = {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage}
    return stream_reply(
        "".join(f"data: {json.dumps(one)}\n\n" for one in (*chunks, end)) + "data: [DONE]\n\n"
    )


def script(*messages: Mapping[str, Any]) -> Callable[[Asked], Reply]:
    left = iter(messages)
    return lambda asked: reply(asked, next(left))


async def run(llm: LLM, prompt: str | Sequence[Message], *, streamed: bool, **options: Any) -> Any:
    agent = Agent(llm, tools=[weather], observers=(), **options)
    if not streamed:
        return await agent.run(prompt)
    async with agent.stream(prompt) as stream:
        return await stream.result()


MODELS: list[OpenAI] = []


@pytest.fixture(autouse=True)
def keep_models() -> Iterator[None]:
    """Keep the models of a test until its loop has closed their clients."""
    yield
    MODELS.clear()


def chat(url: str, provider: str | None = None, *, model: str = "m", **options: Any) -> OpenAI:
    MODELS.append(OpenAI(model, base_url=f"{url}/v1", api_key="k", provider=provider, **options))
    return MODELS[-1]


# ---- Gemini ----


@STREAMED
@pytest.mark.parametrize("provider", ["gcp.gemini", None], ids=["its own endpoint", "a proxy"])
async def test_the_signatures_of_gemini_are_given_back_in_every_step(
    provider: str | None, streamed: bool
) -> None:
    """Of parallel calls, the first is signed; an answer of text can have a signature as well."""
    first = said(call("a", **signed("one")), call("b", "Bergen"))
    second = said(call("c", "Moss", **signed("two")), text="One more.")
    done = said(text="It is sunny.", **signed("three"))
    async with Loopback(script(first, second, done, said(text="Yes.")), vendor="gemini") as server:
        llm = chat(server.url, provider)
        result = await run(llm, "Weather?", streamed=streamed)
        assert result.output == "It is sunny.", result.error
        again = await run(llm, [*result.messages, Message("user", "Sure?")], streamed=streamed)
    assert again.output == "Yes.", again.error
    sent = server.asked[3].json["messages"]
    assert [one.get("content") for one in sent if one["role"] == "assistant"] == [
        None,
        "One more.",
        "It is sunny.",
    ]
    assert sent[1]["tool_calls"] == [call("a", **signed("one")), call("b", "Bergen")]
    assert [one["extra_content"] for one in sent if "extra_content" in one] == [
        signed("three")["extra_content"]
    ]


@STREAMED
async def test_calls_of_another_model_get_the_placeholder_that_gemini_documents(streamed: bool) -> None:
    """The first model calls a tool and fails then; Gemini takes its place within the turn."""
    other = ScriptedLLM(
        [Response(None, (ToolCall("x", "weather", '{"city": "Oslo"}'), ToolCall("y", "weather", "{}")))],
        model="other",
    )
    async with Loopback(script(said(text="It is sunny.")), vendor="gemini") as server:
        broken = Breaking(other)
        llm = Fallback([broken, chat(server.url, "gcp.gemini")])
        result = await run(llm, "Weather?", streamed=streamed, retry=NO_WAIT)
    assert result.output == "It is sunny.", result.error
    (message,) = [one for one in server.asked[0].json["messages"] if one["role"] == "assistant"]
    assert [one.get("extra_content") for one in message["tool_calls"]] == [
        {"google": {"thought_signature": PLACEHOLDER}},
        None,
    ]


class Breaking:
    """A model that answers once, and is then overloaded."""

    model = "other"

    def __init__(self, llm: LLM) -> None:
        self._llm: LLM | None = llm

    async def complete(self, request: Request) -> Response:
        if self._llm is None:
            raise LLMError("overloaded", kind="server_error", status=503)
        llm, self._llm = self._llm, None
        return await llm.complete(request)


@pytest.mark.parametrize(
    ("model", "is_signed"),
    [("gemini-3-pro", True), ("google/gemini-flash-latest", True), ("gemini-2.5-flash", False)],
)
async def test_models_of_gemini_without_signatures_get_no_placeholder(model: str, is_signed: bool) -> None:
    calls = Message("assistant", None, (ToolCall("x", "weather", "{}"),))
    messages = [
        Message("user", "Weather?"),
        calls,
        Message("tool", "sunny", tool_call_id="x"),
        Message("user", "So?"),
    ]
    async with Loopback(script(said(text="Fine."))) as server:
        await chat(server.url, "gcp.gemini", model=model).complete(Request(messages))
    assert (PLACEHOLDER in server.asked[0].body.decode()) is is_signed


async def test_compaction_drops_signatures_with_their_calls() -> None:
    answers = (said(call(str(n), f"City {n}", **signed(f"s{n}")), text="x" * 400) for n in range(6))
    limits = Limits(compaction_threshold=0.01, compaction_cooldown=2)
    async with Loopback(script(*answers, said(text="Done.")), vendor="gemini") as server:
        llm: Any = chat(server.url, "gcp.gemini")
        llm.context_window = 200
        result = await run(llm, "Weather?", streamed=False, limits=limits)
    assert result.output == "Done.", result.error
    assert any("Summary of the conversation" in asked.body.decode() for asked in server.asked)


# ---- OpenRouter, and servers that we do not know ----


@STREAMED
async def test_reasoning_details_of_openrouter_are_given_back_as_one_sequence(streamed: bool) -> None:
    message = said(call("a"), reasoning="Two steps.", reasoning_details=DETAILS)
    pieces: list[dict[str, Any]] = [
        {"reasoning": "Two ", "reasoning_details": [{**DETAILS[0], "text": "Two ", "signature": None}]},
        {"reasoning": "steps.", "reasoning_details": [{**DETAILS[0], "text": "steps.", "signature": None}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "", "signature": "c2ln"}]},
        {"reasoning_details": [DETAILS[1]], "tool_calls": [{**call("a"), "index": 0}]},
    ]

    def answer(asked: Asked) -> Reply:
        first = asked.json["messages"][-1]["role"] == "user"
        return reply(asked, message, *pieces) if first else reply(asked, said(text="It is sunny."))

    async with Loopback(answer) as server:
        result = await run(chat(server.url, "openrouter"), "Weather?", streamed=streamed)
    assert (result.output, result.messages[1].reasoning) == ("It is sunny.", "Two steps.")
    sent = server.asked[1].json["messages"][1]
    assert sent == said(call("a"), reasoning_details=DETAILS)


async def test_members_that_we_do_not_know_go_to_the_same_server_only(tmp_path: Path) -> None:
    """They are journalled: a run that was stopped in one process continues in another."""
    begun = asyncio.Event()

    @tool(effect="pure", name="weather")
    async def hanging(city: str) -> str:
        """Look up the weather."""
        begun.set()
        await asyncio.Event().wait()
        return city

    more: dict[str, Any] = {
        "provider_specific_fields": {"thought_signatures": ["s"]},
        "reasoning_opaque": "o",
    }
    message = said(call("a", provider_specific_fields={"signature": "t"}), **more, annotations=[], audio=None)
    async with (
        Loopback(script(message, said(text="Done."))) as server,
        Loopback(script(said(text="Done."))) as other,
    ):
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            agent = Agent(chat(server.url), name="a", tools=[hanging], journal=journal, observers=())
            stopped = asyncio.create_task(agent.run("Weather?", run_id="r"))
            await begun.wait()
            stopped.cancel()
            with suppress(asyncio.CancelledError):
                await stopped
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            agent = Agent(chat(server.url), name="a", tools=[weather], journal=journal, observers=())
            result = await agent.resume("r")
        assert result.output == "Done.", result.error
        await chat(other.url).complete(Request(result.messages[:3]))
    assert server.asked[1].json["messages"][1] == said(
        call("a", provider_specific_fields={"signature": "t"}), **more
    )
    assert other.asked[0].json["messages"][1] == said(call("a"))


@pytest.mark.parametrize("provider", ["openai", "groq", "mistral_ai", "cerebras", "azure.ai.openai"])
async def test_a_vendor_that_refuses_unknown_members_gets_none(provider: str) -> None:
    vendor: VendorName = "openai" if provider == "openai" else ""
    message = said(call("a", content_filter_results={"x": 1}), executed_tools=[1])
    async with Loopback(script(message, said(text="It is sunny.")), vendor=vendor) as server:
        result = await run(chat(server.url, provider), "Weather?", streamed=True)
    assert result.output == "It is sunny.", result.error
    assert server.asked[1].json["messages"][1].keys() == {"role", "content", "tool_calls"}
    assert result.messages[1].content is None


def test_the_adapters_of_other_vendors_leave_the_members_out() -> None:
    part = kept_part("x.example", said(call("a"), reasoning_details=DETAILS), [call("a", **signed("s"))])
    assert part is not None
    message = Message("assistant", [part, {"type": "text", "text": "Hi."}], (ToolCall("a", "weather"),))
    request = Request((Message("user", "x"), message, Message("tool", "sunny", tool_call_id="a")))
    assert KEPT not in str(MessagesForm().body("m", request, streamed=False))
    apis: tuple[Literal["chat", "responses"], ...] = ("chat", "responses")
    for api in apis:
        llm: Any = OpenAI("m", base_url="https://y.example/v1", api_key="k", api=api)
        body = str(llm._form.body("m", request, streamed=False))
        assert (KEPT in body, "c2ln" in body, "Hi." in body) == (False, False, True)


def test_members_are_bounded_and_those_left_out_are_named() -> None:
    deep: Any = []
    for _ in range(2_000):
        deep = [deep]
    message = {"first": "x" * 100, "large": "y" * MAX_BYTES, "deep": deep, "huge": 10**400, "last": [1]}
    part = kept_part("h", message, [{"id": "a", "function": {"name": "f", "thought": "s"}}])
    assert part is not None
    assert part["message"] == {"first": "x" * 100, "last": [1]}
    assert part["calls"] == [{"function": {"thought": "s"}}]
    assert part["left_out"] == ["large", "deep", "huge"]
    assert kept_part("h", {"content": "x", "annotations": [], "other": {"all": None}}, [call("a")]) is None


@STREAMED
async def test_members_beside_a_structured_answer_change_nothing_of_it(streamed: bool) -> None:
    answer = said(text='{"city": "Oslo"}', reasoning_details=DETAILS)
    async with Loopback(script(answer)) as server:
        result = await run(chat(server.url), "Which?", streamed=streamed, output_type=dict[str, str])
    assert result.output == {"city": "Oslo"}, result.error


# ---- DeepSeek ----


@STREAMED
@pytest.mark.parametrize("provider", ["deepseek", "moonshot_ai"])
async def test_turns_with_tools_of_deepseek_always_carry_their_reasoning(
    provider: str, streamed: bool
) -> None:
    """Also if it is empty, in all later requests, and for calls of another model."""
    first = said(call("a"), reasoning_content="The user wants the weather.")
    second = said(call("b", "Bergen"))
    history = [
        Message("user", "Weather in Moss?"),
        Message("assistant", None, (ToolCall("z", "weather", '{"city": "Moss"}'),)),
        Message("tool", "Moss: sunny", tool_call_id="z"),
    ]
    answers = (first, second, said(text="It is sunny.", reasoning_content="Both."), said(text="Yes."))
    async with Loopback(script(*answers), vendor="deepseek") as server:
        llm = chat(server.url, provider)
        result = await run(llm, [*history, Message("user", "And now?")], streamed=streamed)
        assert result.output == "It is sunny.", result.error
        again = await run(llm, [*result.messages, Message("user", "Sure?")], streamed=streamed)
    assert again.output == "Yes.", again.error
    sent = [one for one in server.asked[3].json["messages"] if one["role"] == "assistant"]
    assert [one["reasoning_content"] for one in sent] == ["", "The user wants the weather.", "", "Both."]


@pytest.mark.parametrize(("name", "sent"), [("reasoning", {"reasoning": "Hm."}), ("", {})])
async def test_a_host_names_the_member_of_the_reasoning(name: str, sent: dict[str, str]) -> None:
    thought = Message("assistant", "Hi.", reasoning="Hm.")
    async with Loopback(script(said(text="Fine."))) as server:
        llm = chat(server.url, "deepseek", reasoning_field=name)
        await llm.complete(Request((Message("user", "x"), thought, Message("user", "y"))))
    found = server.asked[0].json["messages"][1]
    assert {key: value for key, value in found.items() if key not in ("role", "content")} == sent


# ---- families ----


@pytest.mark.parametrize(
    ("address", "provider"),
    [
        ("https://api.openai.com/v1/", "openai"),
        ("https://my.openai.azure.com/openai/", "azure.ai.openai"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "gcp.gemini"),
        ("https://us-central1-aiplatform.googleapis.com/v1/projects/p", "gcp.vertex_ai"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://api.cerebras.ai/v1", "cerebras"),
        ("https://api.mistral.ai/v1", "mistral_ai"),
        ("https://api.moonshot.cn/v1", "moonshot_ai"),
    ],
)
def test_a_vendor_is_known_by_its_address(address: str, provider: str) -> None:
    assert server_of(address) is CHAT_SERVERS[provider]
    assert server_of("http://127.0.0.1:8080/v1", provider) is CHAT_SERVERS[provider]


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1/v1", "https://api.openai.com.example/v1", "https://openrouter.ai/api/v1", ""],
)
def test_another_address_has_no_rules(address: str) -> None:
    assert server_of(address) not in CHAT_SERVERS.values()


def test_a_vendor_without_rules_can_be_named() -> None:
    assert server_of("https://api.openai.com/v1", "my_gateway") not in CHAT_SERVERS.values()
