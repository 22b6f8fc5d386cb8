"""The adapter as a thing to hold: its key, its connections, its loops, its client, its end."""

from __future__ import annotations

import asyncio
import builtins
import gc
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, SecretStr

from orchestrator import Agent
from orchestrator.errors import ConfigError, LLMError, MissingExtra
from orchestrator.llm.message import Message, Request
from orchestrator.providers.openai import OpenAI
from orchestrator.providers.structured_output import is_object, keeps_strict_rules
from tests.providers.loopback import SILENCE, Asked, Loopback, Reply, in_a_thread, json_reply, stream_reply

HELLO = Request((Message("user", "hello"),))
KEY = "sk-very-secret"
ANSWER = json_reply({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})
HALF = 'data: {"choices": [{"delta": {"content": "Once"}}]}\n\n'


def again(_: Asked) -> Reply:
    return ANSWER


# ---- keys ----


@pytest.mark.parametrize(
    "given", [KEY, SecretStr(KEY), f" {KEY}\n"], ids=["text", "secret", "with a line end"]
)
async def test_the_key_goes_into_the_header_and_nowhere_else(
    given: str | SecretStr, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = json_reply({"error": {"message": f"no such key: {KEY}", "code": "invalid_api_key"}}, 401)
    async with Loopback([echo]) as server, OpenAI("m", base_url=server.url, api_key=given) as llm:
        with pytest.raises(LLMError) as caught:
            await llm.complete(HELLO)
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert caught.value.kind == "auth"
    shown = "".join(traceback.format_exception(caught.value)) + repr(llm) + str(vars(llm)) + caplog.text
    assert KEY not in shown
    assert "no such key: **********" in shown
    if version("openai") >= "3.50":  # earlier ones log what they send, where the host asks for DEBUG
        assert "hello" not in caplog.text


async def test_the_key_of_the_environment_is_taken_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-outside")
    async with Loopback([ANSWER]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        async with OpenAI("m") as llm:
            await llm.complete(HELLO)
    assert server.asked[0].headers["authorization"] == "Bearer sk-from-outside"


async def test_a_compatible_server_needs_no_key() -> None:
    async with Loopback([ANSWER]) as server, OpenAI("m", base_url=server.url) as llm:
        assert (await llm.complete(HELLO)).content == "hi"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: OpenAI("m"), "no API key for OpenAI: set OPENAI_API_KEY, give api_key"),
        (lambda: OpenAI("m", api_key=""), "the API key is empty"),
        (lambda: OpenAI("m", api_key="sk\nX-Evil: 1"), "no HTTP header can"),
        (lambda: OpenAI("", api_key=KEY), "the model has no name"),
        (lambda: OpenAI("m", api_key=KEY, api="realtime"),  # type: ignore[arg-type]
         "api is 'realtime'; possible: chat, responses"),
        (lambda: OpenAI("m", api_key=KEY, structured="json"),  # type: ignore[arg-type]
         "possible: native, prompt"),
        (lambda: OpenAI("m", api_key=KEY, timeout=0), "timeout is 0; possible: seconds, more than 0"),
        (lambda: OpenAI("m", api_key=KEY, timeout=float("inf")), "timeout is inf"),
        (lambda: OpenAI("m", base_url="models.test/v1"), "begins with http:// or https://"),
        (lambda: OpenAI("m", base_url="http://"), "begins with http:// or https://"),
        (lambda: OpenAI("m", base_url="http://[/v1"), "begins with http:// or https://"),
        (lambda: OpenAI("m", client=object()),  # type: ignore[arg-type]
         "client is a object; possible: openai.AsyncOpenAI"),
        (lambda: OpenAI("m", client=openai.AsyncOpenAI(api_key=KEY), api_key=KEY), "brings its own address and key"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_at_once(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert said in str(caught.value)
    assert "X-Evil" not in str(caught.value)


def test_without_the_extra_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "openai":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'fsm-orchestrator\[openai\]'") as caught:
        OpenAI("m", api_key=KEY)
    assert isinstance(caught.value, ImportError)


def test_importing_the_adapter_imports_no_sdk() -> None:
    code = (
        "import sys, orchestrator.providers.openai\n"
        "found = {'openai', 'httpx2', 'httpx', 'anthropic'} & set(sys.modules)\n"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_shows_its_name_and_api() -> None:
    llm = OpenAI("gpt-x", api_key=KEY, api="responses")
    assert (repr(llm), llm.model) == ("OpenAI('gpt-x', api='responses')", "gpt-x")
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(llm)


# ---- the host's client ----


async def test_the_hosts_client_is_used_without_its_retries_and_not_closed() -> None:
    async with Loopback([json_reply({}, 503), ANSWER]) as server:
        async with openai.AsyncOpenAI(
            api_key=KEY, base_url=server.url, max_retries=5, default_headers={"x-ours": "1"}
        ) as client:
            async with OpenAI("m", client=client) as llm:
                with pytest.raises(LLMError):
                    await llm.complete(HELLO)
                assert len(server.asked) == 1
            assert not client.is_closed()
            assert (await llm.complete(HELLO)).content == "hi"
        assert client.max_retries == 5
    assert server.asked[1].headers["x-ours"] == "1"


async def test_an_azure_client_asks_at_its_deployment() -> None:
    async with (
        Loopback([ANSWER]) as server,
        openai.AsyncAzureOpenAI(api_key=KEY, azure_endpoint=server.url, api_version="2024-06-01") as client,
    ):
        assert (await OpenAI("gpt-x", client=client).complete(HELLO)).content == "hi"
    assert server.asked[0].path == "/openai/deployments/gpt-x/chat/completions?api-version=2024-06-01"
    assert server.asked[0].headers["api-key"] == KEY


# ---- connections ----


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    "reply",
    [SILENCE, Reply(200, {"content-type": "application/json"}, (b"{", b" "), "held"), stream_reply(HALF, "held")],
    ids=["before the answer", "in the answer", "in a stream"],
)  # fmt: skip
async def test_a_cancelled_call_closes_its_connection(
    reply: Reply, api: Literal["chat", "responses"]
) -> None:
    begun = asyncio.Event()
    streamed = reply.headers.get("content-type", "").startswith("text/event-stream")
    request = replace(HELLO, on_delta=lambda _: begun.set()) if streamed else HELLO
    async with Loopback([reply, ANSWER]) as server, OpenAI("m", base_url=server.url, api=api) as llm:
        asking = asyncio.create_task(llm.complete(request))
        await server.until(lambda one: len(one.asked) == 1)
        if streamed and api == "chat":
            await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await server.until(lambda one: one.open == 0)
        if api == "chat":
            assert (await llm.complete(HELLO)).content == "hi"  # the model is as good as new


async def test_a_hundred_calls_at_once_leave_no_connection_behind() -> None:
    async with Loopback(again) as server:
        async with OpenAI("m", base_url=server.url) as llm:
            answers = await asyncio.gather(*(llm.complete(HELLO) for _ in range(100)))
            assert [one.content for one in answers] == ["hi"] * 100
            assert server.open > 0
        await server.until(lambda one: one.open == 0)


async def test_a_closed_model_can_be_asked_again() -> None:
    async with Loopback(again) as server:
        llm = OpenAI("m", base_url=server.url)
        for accepted in (1, 2):
            assert (await llm.complete(HELLO)).content == "hi"
            assert server.accepted == accepted
            await llm.aclose()
            await llm.aclose()
            await server.until(lambda one: one.open == 0)


def test_one_model_serves_one_loop_after_the_other_and_leaves_nothing_open() -> None:
    with in_a_thread(again) as server:
        llm = OpenAI("m", base_url=server.url, api_key=KEY)
        agent = Agent(llm, observers=())
        assert [agent.run_sync("hello").output for _ in range(3)] == ["hi"] * 3
        assert server.accepted == 3  # a connection belongs to its loop
        gc.collect()  # one left open would warn now, which is an error here
        assert len(llm._clients) <= 1


async def test_text_that_utf_8_has_no_form_for_does_not_stop_a_request() -> None:
    async with Loopback([ANSWER]) as server, OpenAI("m", base_url=server.url) as llm:
        await llm.complete(Request((Message("user", "half \ud83d of it"),)))
    assert server.asked[0].json["messages"][0]["content"] == "half ? of it"


async def test_a_long_history_costs_what_it_weighs() -> None:
    """Messages handed to the SDK by name would be compared with its types one by one: forty times as long."""
    history = [Message("user", "hello"), Message("assistant", "hi")] * 1_000
    async with Loopback(again) as server, OpenAI("m", base_url=server.url) as llm:
        await llm.complete(HELLO)
        sent = llm._sendable(await llm._clients.get(), {"model": "m", "messages": history, "stream": False})
        assert sent["messages"] == []
        await llm.complete(Request([*history, Message("user", "?")]))
    assert len(server.asked[1].json["messages"]) == 2_001


# ---- structured output ----


class City(BaseModel):
    city: str


@pytest.mark.parametrize("structured", ["native", "prompt"])
@pytest.mark.parametrize(
    "said", ['{"city": "Paris"}', '```json\n{\n  "city": "Paris"\n}\n```', 'Sure: {"city": "Paris"}']
)
async def test_a_run_reads_its_typed_answer_whatever_surrounds_it(
    structured: Literal["native", "prompt"], said: str
) -> None:
    reply = json_reply({"choices": [{"message": {"content": said}, "finish_reason": "stop"}]})
    async with Loopback([reply]) as server, OpenAI("m", base_url=server.url, structured=structured) as llm:
        result = await Agent(llm, output_type=City, observers=()).run("Where?")
    assert result.output == City(city="Paris")
    sent = server.asked[0].json
    assert ("response_format" in sent) is (structured == "native")
    assert ("JSON schema" in sent["messages"][0]["content"]) is (structured == "prompt")


async def test_an_answer_cut_off_is_asked_for_once_more() -> None:
    def saying(text: str, finish: str) -> Reply:
        return json_reply({"choices": [{"message": {"content": text}, "finish_reason": finish}]})

    replies = [saying('{"city": "Par', "length"), saying('{"city": "Paris"}', "stop")]
    async with Loopback(replies) as server, OpenAI("m", base_url=server.url) as llm:
        result = await Agent(llm, output_type=City, observers=()).run("Where?")
    assert (result.outcome, result.output) == ("completed", City(city="Paris"))
    assert "could not be used" in server.asked[1].json["messages"][-1]["content"]


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
DEEP: dict[str, Any] = TEXT
for _ in range(11):
    DEEP = closed(inner=DEEP)


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (closed(), True),
        (closed(a=TEXT, b={"type": ["integer", "null"], "minimum": 0, "description": "x"}), True),
        (closed(a={"type": "array", "items": closed(b=TEXT), "maxItems": 3}), True),
        (closed(a={"anyOf": [TEXT, {"type": "null"}]}), True),
        (closed(a={"enum": ["x", "y"]}, b={"type": "string", "format": "date-time"}), True),
        ({**closed(a={"$ref": "#/$defs/B"}), "$defs": {"B": closed(c=TEXT)}}, True),
        ({**closed(a=TEXT), "required": []}, False),
        ({**closed(a=TEXT), "additionalProperties": True}, False),
        ({"type": "object", "properties": {"a": TEXT}, "required": ["a"]}, False),
        (closed(a={"type": "string", "minLength": 1}), False),
        (closed(a={"type": "string", "default": "x"}), False),
        (closed(a={"type": "string", "format": "uri"}), False),
        (closed(a={"$ref": "#/$defs/B", "description": "x"}), False),
        (closed(a={"$ref": "http://models.test/schema"}), False),
        (closed(a={}), False),
        (closed(a=True), False),
        (closed(a={"type": "object"}), False),
        (closed(a={"type": "array", "items": {"type": "object"}}), False),
        (closed(a={"oneOf": [TEXT]}), False),
        ({**closed(), "anyOf": [TEXT]}, False),
        ({"type": "array", "items": TEXT}, False),
        (DEEP, False),
    ],
    ids=repr,
)
def test_strict_mode_is_asked_for_where_its_rules_are_kept(schema: dict[str, Any], strict: bool) -> None:
    assert keeps_strict_rules(schema) is strict
    assert is_object(schema) or not strict
