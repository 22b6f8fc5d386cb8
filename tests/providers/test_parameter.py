"""Misspelt parameters are errors before the first request; a 404 names the address; prompts carry cache hints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import Agent, Limits, Message, Runtime, tool
from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import Request
from orchestrator.llm.port import LLM
from orchestrator.providers import (
    Anthropic,
    Fallback,
    OpenAI,
    PydanticAIModel,
    RateLimit,
    RateLimitedModel,
    price_table,
)
from orchestrator.testing import ScriptedLLM
from tests.providers.loopback import Loopback, json_reply
from tests.providers.wire import CHAT, MESSAGES, WEATHER, Said

HELLO = Request((Message("system", "Be brief."), Message("user", "hello")))
EPHEMERAL = {"type": "ephemeral"}


def chat(url: str = "http://127.0.0.1:9/v1") -> OpenAI:
    return OpenAI("m", base_url=url, api_key="k")


@tool(effect="pure")
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"


# ---- names ----


@pytest.mark.parametrize(
    "made",
    [
        chat,
        lambda: OpenAI("m", api="responses", api_key="k"),
        lambda: Anthropic("m", api_key="k"),
        lambda: PydanticAIModel("groq:m", api_key="k"),
        lambda: Fallback([chat()]),
        lambda: RateLimitedModel(chat(), RateLimit(concurrency=1)),
    ],
    ids=["chat", "responses", "anthropic", "pydantic-ai", "fallback", "rate limit"],
)
def test_a_misspelt_parameter_is_refused_when_the_agent_is_built(made: Callable[[], LLM]) -> None:
    llm = made()
    with pytest.raises(ConfigError, match=r"'temprature' is no parameter of .*; did you mean 'temperature'"):
        Agent(llm, params={"temprature": 0})
    Agent(llm, params={"temperature": 0, "extra_body": {"anything": 1}})


async def test_a_misspelt_parameter_of_a_run_is_refused_when_it_starts() -> None:
    with pytest.raises(ConfigError, match="'max_token' is no parameter of"):
        await Agent(chat(), observers=()).run("hi", params={"max_token": 5})


async def test_a_parameter_that_a_hook_adds_is_refused_before_the_request_is_sent() -> None:
    async with Loopback([]) as server:
        with pytest.raises(ConfigError, match="'top_k' is no parameter of OpenAI"):
            await chat(server.url).complete(Request(HELLO.messages, params={"top_k": 4}))
    assert server.asked == []


async def test_members_of_extra_body_are_sent_beside_the_others() -> None:
    async with Loopback([json_reply(CHAT.whole("hi"))]) as server:
        params = {"temperature": 0, "extra_body": {"top_k": 4}}
        await chat(server.url).complete(Request(HELLO.messages, params=params))
    body = server.asked[0].json
    assert (body["temperature"], body["top_k"]) == (0, 4)
    assert "extra_body" not in body


def test_extra_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="extra_body is 7; possible: an object"):
        Agent(chat(), params={"extra_body": 7})


def test_a_model_that_cannot_check_takes_any_parameter() -> None:
    Agent(ScriptedLLM(["x"]), params={"temprature": 0})


# ---- a wrong address ----


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (chat, "/chat/completions"),
        (lambda url: Anthropic("m", base_url=url, api_key="k"), "/v1/messages"),
        (lambda url: PydanticAIModel("groq:m", base_url=url, api_key="k"), "/openai/v1/chat/completions"),
        (
            lambda url: PydanticAIModel("google:gemini-3.8-flash", base_url=url, api_key="k"),
            "/models/gemini-3.8-flash:generateContent",  # below the version of the API
        ),
    ],
    ids=["chat", "anthropic", "groq", "google"],
)
async def test_a_404_names_the_address_that_was_requested(build: Any, path: str) -> None:
    async with Loopback([json_reply({"error": {"message": "no such page"}}, 404)]) as server:
        with pytest.raises(LLMError) as failed:
            await build(server.url).complete(HELLO)
    [asked] = server.asked
    assert asked.path.endswith(path)
    assert f"at {server.url}{asked.path}: " in str(failed.value)
    assert failed.value.kind == "client_error"


# ---- hints for prompt caches ----


async def test_anthropic_caches_the_end_of_the_system_prompt_and_of_the_conversation() -> None:
    said: list[Said] = [WEATHER, "Sunny."]
    answers = iter(said)
    async with Loopback(lambda asked: MESSAGES.reply(asked, next(answers))) as server:
        llm = Anthropic("m", base_url=server.url, api_key="k", cache_seconds=3600)
        agent = Agent(llm, tools=[weather], instructions="Be brief.", observers=())
        assert (await agent.run("Weather in Oslo?")).output == "Sunny."
    for asked in server.asked:
        marked = asked.json["messages"][-1]["content"][-1], asked.json["system"][-1]
        assert [block["cache_control"] for block in marked] == [{**EPHEMERAL, "ttl": "1h"}] * 2
        assert str(asked.json).count("cache_control") == 2


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ("hello", {"cache_control": EPHEMERAL}),
        ([{"type": "text", "text": "hello", "cache_control": EPHEMERAL}], {}),
    ],
    ids=["a parameter", "a message"],
)
async def test_marks_of_the_host_are_the_only_ones(given: Any, params: dict[str, Any]) -> None:
    async with Loopback([json_reply(MESSAGES.whole("hi"))]) as server:
        llm = Anthropic("m", base_url=server.url, api_key="k")
        await llm.complete(Request((Message("system", "s"), Message("user", given)), params=params))
    assert str(server.asked[0].json).count("cache_control") == 1


def test_other_cache_seconds_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache_seconds is 60; possible: 0 \(no hints\), 300 and 3600"):
        Anthropic("m", api_key="k", cache_seconds=60)


def test_openai_gets_the_same_key_in_each_turn_of_a_conversation_and_other_servers_get_none() -> None:
    later = Request((*HELLO.messages, Message("assistant", "hi"), Message("user", "more")))
    other = Request((*HELLO.messages[:1], Message("user", "something else")))
    own = OpenAI("gpt-5", api_key="k", base_url="https://api.openai.com/v1")
    keys = [own._with_cache_hints({}, request)["prompt_cache_key"] for request in (HELLO, later, other)]
    assert keys[0] == keys[1] != keys[2]
    assert own._with_cache_hints({"prompt_cache_key": "mine"}, HELLO) == {"prompt_cache_key": "mine"}
    assert chat()._with_cache_hints({}, HELLO) == {}


async def test_pydantic_ai_is_told_to_cache() -> None:
    async with Loopback(lambda asked: MESSAGES.reply(asked, "hi")) as server:
        llm = PydanticAIModel("anthropic:claude-sonnet-5-5", base_url=server.url, api_key="k")
        await llm.complete(HELLO)
        await llm.complete(Request(HELLO.messages, params={"cache": False}))
    assert ["cache_control" in str(asked.json) for asked in server.asked] == [True, False]


async def test_writing_into_the_cache_has_a_price_of_its_own_and_the_limit_on_cost_expects_it() -> None:
    price = price_table({"m-dated": (1e6, 1e7, 1e5, 2e6), "m": (1e6, 1e7, 1e5, 2e6)})
    async with Loopback([json_reply(MESSAGES.whole("hi"))]) as server:
        llm = Anthropic("m", base_url=server.url, api_key="k", max_tokens=10)
        agent = Agent(llm, runtime=Runtime(price=price, observers=()), limits=Limits(max_cost=1e5))
        result = await agent.run("hello")
    assert result.usage.cache_write_tokens == 3
    assert result.usage.cost == 12 * 1 + 5 * 0.1 + 3 * 2 + 7 * 10
