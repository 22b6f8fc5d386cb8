"""Arguments that give a name twice are refused whichever API they come through, as text or as an object."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import Agent, tool
from orchestrator.kernel.fact import ToolExecution
from orchestrator.llm.port import LLM
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.openai import OpenAI
from orchestrator.providers.reading import arguments, parsed
from tests.providers.loopback import Asked, Loopback, Reply
from tests.providers.talker import ARGUMENTS, talker
from tests.runtime.stage import NO_WAIT, Facts

ONCE = json.dumps(ARGUMENTS)
TWICE = '{"city": "Oslo", "city": "Rome"}'


def says_twice(asked: Asked, *, as_object: bool) -> Reply:
    """What `talker` says, with a second city in the arguments."""
    reply = talker(asked)
    text = json.dumps(ONCE)
    chunks = [
        chunk.decode().replace(text, TWICE if as_object else json.dumps(TWICE)).replace(ONCE, TWICE).encode()
        for chunk in reply.chunks
    ]
    return replace(reply, chunks=tuple(chunks))


def models(url: str) -> dict[str, LLM]:
    return {
        "chat": OpenAI("m", base_url=f"{url}/v1", api_key="k"),
        "responses": OpenAI("m", api="responses", base_url=f"{url}/v1", api_key="k"),
        "anthropic": Anthropic("m", base_url=url, api_key="k"),
    }


@pytest.mark.parametrize("as_object", [False, True], ids=["text", "object"])
@pytest.mark.parametrize("name", ["chat", "responses", "anthropic"])
async def test_a_call_that_gives_a_name_twice_is_refused(name: str, as_object: bool) -> None:
    ran, facts = [], Facts()

    @tool(effect="pure")
    def weather(city: str) -> str:
        ran.append(city)
        return "sunny"

    async with Loopback(lambda asked: says_twice(asked, as_object=as_object)) as server:
        llm: Any = models(server.url)[name]
        agent = Agent(llm, tools=[weather], observers=[facts], retry=NO_WAIT)
        await agent.run("weather?")
    assert ran == []
    assert [fact.outcome for fact in facts.of(ToolExecution)] == ["duplicate_keys"]


@pytest.mark.parametrize("name", ["chat", "anthropic"])
async def test_a_streamed_call_that_gives_a_name_twice_is_refused(name: str) -> None:
    ran, facts = [], Facts()

    @tool(effect="pure")
    def weather(city: str) -> str:
        ran.append(city)
        return "sunny"

    async with Loopback(lambda asked: says_twice(asked, as_object=False)) as server:
        llm: Any = models(server.url)[name]
        agent = Agent(llm, tools=[weather], observers=[facts], retry=NO_WAIT)
        async with agent.stream("weather?") as stream:
            async for _ in stream:
                pass
    assert ran == []
    assert [fact.outcome for fact in facts.of(ToolExecution)] == ["duplicate_keys"]


def test_an_object_is_written_with_all_its_names_at_every_depth() -> None:
    text = '{"a": [{"b": 1, "b": {"c": 2, "c": 3}}], "d": 4}'
    assert arguments(parsed(text)) == text
    assert parsed(text)["a"][0]["b"] == {"c": 3}
