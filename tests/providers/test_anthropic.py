"""Models behind Anthropic's API: how answers are read, whole and streamed, and how the model is set up.

The SDK is imported by the tests that use it: that takes longer than most, and every worker collects every file.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from orchestrator import Agent, tool
from orchestrator.errors import ConfigError, LLMError, MissingExtra
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.providers.anthropic import Anthropic
from tests.providers.anthropic_words import (
    HELLO,
    answer,
    events,
    message,
    model,
    text_block,
    turns,
    use,
    user,
)
from tests.providers.loopback import Asked, Loopback, Reply, json_reply, stream_reply
from tests.providers.loopback import in_a_thread as loopback_thread

# ---- answers ----

THOUGHT = {"type": "thinking", "thinking": "Hm, a city.", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "b3BhcXVl"}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "cities"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
CITED = {"type": "web_search_result_location", "url": "https://x.example", "cited_text": "old"}
CALL = use("a", at=1)
CALLED = (ToolCall("a", "look", '{"at": 1}'),)
PLAIN_USAGE = Usage(3, 2)

ANSWERS: dict[str, tuple[dict[str, Any], Response]] = {
    "text": (message(text_block("Hi.")), Response("Hi.", (), "end_turn", PLAIN_USAGE, "m-1")),
    "texts": (
        message(text_block("Hi"), text_block(" there.")),
        Response("Hi there.", (), "end_turn", PLAIN_USAGE, "m-1"),
    ),
    "nothing": (message(), Response(None, (), "end_turn", PLAIN_USAGE, "m-1")),
    "a stop sequence": (
        message(text_block("Hi"), stop="stop_sequence", stop_sequence="."),
        Response("Hi", (), "stop_sequence", PLAIN_USAGE, "m-1"),
    ),
    "thinking before an answer": (
        message(THOUGHT, text_block("Rome.")),
        Response("Rome.", (), "end_turn", PLAIN_USAGE, "m-1", None, "Hm, a city."),
    ),
    "thinking before a call": (
        message(THOUGHT, HIDDEN, text_block("Looking."), CALL, stop="tool_use"),
        Response(
            [{**THOUGHT, "model": "m"}, {**HIDDEN, "model": "m"}, text_block("Looking.")],
            CALLED,
            "tool_use",
            PLAIN_USAGE,
            "m-1",
            None,
            "Hm, a city.",
        ),
    ),
    "a tool of the provider's": (
        message(SEARCH, FOUND, text_block("None.")),
        Response([SEARCH, FOUND, text_block("None.")], (), "end_turn", PLAIN_USAGE, "m-1"),
    ),
    "a sentence parted by citations": (
        message(
            SEARCH,
            FOUND,
            text_block("Rome is "),
            {**text_block("old"), "citations": [CITED]},
            text_block("."),
        ),
        Response(
            [SEARCH, FOUND, {**text_block("Rome is old."), "citations": [CITED]}],
            (),
            "end_turn",
            PLAIN_USAGE,
            "m-1",
        ),
    ),
    "a refusal": (
        message(text_block("I"), stop="refusal", stop_details={"type": "refusal", "category": "bio"}),
        Response("I", (), "refusal", PLAIN_USAGE, "m-1", "the model declined to answer (bio)"),
    ),
    "an explained refusal": (
        message(stop="refusal", stop_details={"type": "refusal", "explanation": "No."}),
        Response(None, (), "refusal", PLAIN_USAGE, "m-1", "No."),
    ),
    "a full window": (
        message(text_block("H"), stop="model_context_window_exceeded"),
        Response("H", (), "model_context_window_exceeded", PLAIN_USAGE, "m-1"),
    ),
    "a cache": (
        message(
            text_block("Hi."),
            usage={
                "input_tokens": 10,
                "cache_read_input_tokens": 2000,
                "cache_creation_input_tokens": 300,
                "output_tokens": 50,
                "output_tokens_details": {"thinking_tokens": 40},
            },
        ),
        Response("Hi.", (), "end_turn", Usage(2310, 50, 2000, 40, cache_write_tokens=300), "m-1"),
    ),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_each_answer_is_read_alike_whole_and_streamed(name: str, *, streamed: bool) -> None:
    raw, expected = ANSWERS[name]
    heard: list[str] = []
    reply = stream_reply(events(raw)) if streamed else json_reply(raw)
    async with Loopback([reply]) as server, model(server.url) as llm:
        found = await llm.complete(replace(HELLO, on_delta=heard.append) if streamed else HELLO)
        assert server.asked[0].json.get("stream", False) is streamed
    assert found == expected
    if streamed:
        assert "".join(heard) == "".join(block["text"] for block in raw["content"] if block["type"] == "text")


async def test_thinking_goes_back_with_its_signature_before_the_results() -> None:
    @tool(effect="pure")
    async def look(at: int) -> str:
        """Look at a place."""
        return f"{at} is fine"

    replies = [json_reply(ANSWERS["thinking before a call"][0]), json_reply(message(text_block("Fine.")))]
    async with Loopback(replies) as server, model(server.url) as llm:
        run = await Agent(llm, tools=[look], observers=()).run("Look.")
        assert (run.outcome, run.output) == ("completed", "Fine.")
        assert server.asked[1].json["messages"] == [
            {"role": "user", "content": [text_block("Look.")]},
            {"role": "assistant", "content": [THOUGHT, HIDDEN, text_block("Looking."), CALL]},
            {"role": "user", "content": [answer("a", "1 is fine")]},
        ]
    assert run.messages[1].text == "Looking."


def test_thinking_without_a_signature_and_reasoning_of_others_stay_here() -> None:
    foreign = Message(
        "assistant",
        [
            {"type": "thinking", "thinking": "cut"},
            {"type": "reasoning", "encrypted_content": "x"},
            text_block("Hi."),
        ],
        reasoning="secret",
    )
    assert turns(user("hi"), foreign, user("so?"))[1] == ("assistant", "Hi.")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_paused_answer_is_asked_on_until_it_ends(*, streamed: bool) -> None:
    first = message(THOUGHT, text_block("Searching."), SEARCH, stop="pause_turn")
    second = message(FOUND, text_block(" None found."))
    replies = [stream_reply(events(one)) if streamed else json_reply(one) for one in (first, second)]
    async with Loopback(replies) as server, model(server.url) as llm:
        found = await llm.complete(replace(HELLO, on_delta=lambda _: None) if streamed else HELLO)
        assert server.asked[1].json["messages"][1] == {
            "role": "assistant",
            "content": [THOUGHT, text_block("Searching."), SEARCH],
        }
    thought = {**THOUGHT, "model": "m"}
    content = [thought, text_block("Searching."), SEARCH, FOUND, text_block(" None found.")]
    assert found == Response(content, (), "end_turn", Usage(6, 4), "m-1", None, "Hm, a city.")


async def test_the_total_timeout_of_a_request_counts_its_pauses() -> None:
    def slow(_: Asked) -> Reply:
        time.sleep(0.2)  # the server has its own time
        return json_reply(message(text_block("Searching."), SEARCH, stop="pause_turn"))

    async with (
        Loopback(slow) as server,
        Anthropic("m", base_url=server.url, api_key="k", cache_seconds=0, total_timeout=0.5) as llm,
    ):
        with pytest.raises(LLMError, match=r"within 0\.5 s in all"):
            await llm.complete(HELLO)
        assert len(server.asked) <= 3


async def test_a_paused_answer_is_billed_although_it_does_not_continue() -> None:
    first = message(THOUGHT, text_block("Searching."), SEARCH, stop="pause_turn")
    busy = json_reply({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, status=529)
    async with Loopback([json_reply(first), busy]) as server, model(server.url) as llm:
        with pytest.raises(LLMError) as failed:
            await llm.complete(HELLO)
    assert (failed.value.status, failed.value.usage) == (529, Usage(3, 2))


async def test_a_call_cut_off_in_a_stream_keeps_what_was_written() -> None:
    cut = events(message(CALL, stop="max_tokens")).replace('"partial_json": " 1}"', '"partial_json": ""')
    async with Loopback([stream_reply(cut)]) as server, model(server.url) as llm:
        found = await llm.complete(replace(HELLO, on_delta=lambda _: None))
    assert found.finish_reason == "max_tokens"
    assert found.tool_calls[0].arguments == '{"at":'
    assert turns(user("hi"), found.message())[1][1][0]["input"] == {"unparsed_arguments": '{"at":'}


async def test_a_long_answer_is_not_refused_by_the_sdk_and_text_without_utf_8_is_sent() -> None:
    async with (
        Loopback([json_reply(message(text_block("Hi.")))]) as server,
        Anthropic("m", base_url=server.url, api_key="k", max_tokens=100_000, cache_seconds=0) as llm,
    ):
        assert (await llm.complete(Request((user("a\ud800b"),)))).content == "Hi."
        assert server.asked[0].json["max_tokens"] == 100_000
        assert server.asked[0].json["messages"][0]["content"] == [text_block("a?b")]


# ---- the model ----


async def test_a_client_of_the_host_is_used_without_retries_and_left_open() -> None:
    import anthropic

    replies = [json_reply({}, 500), json_reply(message(text_block("Hi.")))]
    async with (
        Loopback(replies) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="k-host", max_retries=5) as client,
    ):
        async with Anthropic("m", client=client) as llm:
            with pytest.raises(LLMError):
                await llm.complete(HELLO)
            assert len(server.asked) == 1
        assert (await llm.complete(HELLO)).content == "Hi."
        assert server.asked[1].headers["authorization"] == "Bearer k-host"
        assert not client.is_closed()


def test_one_model_serves_runs_in_loops_of_their_own() -> None:
    with loopback_thread([json_reply(message(text_block("Hi.")))] * 3) as server:
        agent = Agent(model(server.url), observers=())
        assert [agent.run_sync("hello").output for _ in range(3)] == ["Hi."] * 3


async def test_a_cancelled_request_closes_its_connection() -> None:
    half = events(message(text_block("Hi."))).partition("event: content_block_stop")[0]
    begun = asyncio.Event()
    async with Loopback([stream_reply(half, "held")]) as server, model(server.url) as llm:
        asking = asyncio.create_task(llm.complete(replace(HELLO, on_delta=lambda _: begun.set())))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await server.until(lambda one: one.open == 0)


@pytest.mark.parametrize(
    ("options", "said_why"),
    [
        ({"model": ""}, "the model has no name"),
        ({"structured": "json"}, "structured is 'json'; possible: native, prompt"),
        ({"timeout": 0}, "timeout is 0; possible: seconds, more than 0"),
        ({"timeout": float("inf")}, "timeout is inf; possible: seconds, more than 0"),
        (
            {"base_url": "localhost:8080"},
            "base_url is 'localhost:8080'; possible: an address that begins with http:// or https://",
        ),
        ({"max_tokens": 0}, "max_tokens is 0; possible: 1 or more"),
        ({"client": object()}, "client is a object; possible: anthropic.AsyncAnthropic"),
        ({"api_key": "käse"}, "the API key is empty, or has characters that no HTTP header can have"),
        ({"api_key": " "}, "the API key is empty, or has characters that no HTTP header can have"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], said_why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Anthropic(
            **{"model": "m", "base_url": None, **({} if "client" in options else {"api_key": "k"}), **options}
        )
    assert str(caught.value) == said_why


def test_the_key_comes_from_the_environment_is_needed_for_anthropic_itself_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import anthropic

    with pytest.raises(ConfigError, match="set ANTHROPIC_API_KEY, give api_key"):
        Anthropic("m")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-environment")
    assert Anthropic("m")._key == SecretStr("sk-environment")
    assert "sk-environment" not in repr(Anthropic("m")) + str(vars(Anthropic("m")))
    with pytest.raises(ConfigError, match="client brings its own address and key"):
        Anthropic("m", client=anthropic.AsyncAnthropic(), api_key="k")
    with pytest.raises(ConfigError, match=r"client is a Anthropic; possible: anthropic\.AsyncAnthropic"):
        Anthropic("m", client=anthropic.Anthropic())  # type: ignore[arg-type]


def test_without_the_extra_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fsm-orchestrator\[anthropic\]'"):
        Anthropic("m", api_key="k")
