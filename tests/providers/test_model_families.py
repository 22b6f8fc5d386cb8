"""Every family of models does the same things under our loop, against a server that speaks its protocol.

One test for each cell of the table in `orchestrator/providers/README.md`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from orchestrator import Agent, MemoryJournal, Message, Runtime, tool
from orchestrator.events import TextDelta
from orchestrator.llm.content_part import image_part, text_part
from orchestrator.llm.message import Request
from orchestrator.llm.port import LLM
from orchestrator.providers import Anthropic, OpenAI, PydanticAIModel, price_table
from tests.providers.loopback import Asked, Loopback
from tests.providers.wire import CHAT, GEMINI, MESSAGES, RESPONSES, WEATHER, Call, Wire

KEY = "key-0123456789"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16
GUIDE = Path(__file__).resolve().parents[2] / "orchestrator" / "providers" / "README.md"


class Family(NamedTuple):
    """A family: its protocol, and a model of ours at the address of the server."""

    wire: Wire
    llm: Callable[[str], LLM]


def _of_library(name: str, path: str = "") -> Callable[[str], LLM]:
    return lambda url: PydanticAIModel(name, base_url=url + path, api_key=KEY)


FAMILIES: Mapping[str, Family] = {
    "openai": Family(CHAT, lambda url: OpenAI("m", base_url=f"{url}/v1", api_key=KEY)),
    "openai-responses": Family(
        RESPONSES, lambda url: OpenAI("m", base_url=f"{url}/v1", api_key=KEY, api="responses")
    ),
    "anthropic": Family(MESSAGES, lambda url: Anthropic("m", base_url=url, api_key=KEY)),
    "pydantic-ai:openai-chat": Family(CHAT, _of_library("openai-chat:gpt-4o", "/v1")),
    "pydantic-ai:openai": Family(RESPONSES, _of_library("openai:gpt-5", "/v1")),
    "pydantic-ai:anthropic": Family(MESSAGES, _of_library("anthropic:claude-sonnet-5-5")),
    "pydantic-ai:google": Family(GEMINI, _of_library("google:gemini-3.8-flash")),
    "pydantic-ai:groq": Family(CHAT, _of_library("groq:meta-llama/llama-4-scout-17b-16e-instruct")),
    "pydantic-ai:mistral": Family(CHAT, _of_library("mistral:mistral-large-latest")),
}
OLD_SDK = int(version("openai").split(".")[0]) < 3
"""The adapters of pydantic-ai need a newer SDK than ours does."""
every_family = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.skipif(OLD_SDK and ":openai" in name, reason="an older SDK of OpenAI")
        )
        for name in FAMILIES
    ],
)


class City(BaseModel):
    """A place."""

    city: str
    people: int


@tool(effect="pure")
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"


def script(wire: Wire, *said: str | Call) -> Callable[[Asked], Any]:
    left = iter(said)
    return lambda asked: wire.reply(asked, next(left))


def shown(asked: Asked) -> str:
    return asked.body.decode()


@every_family
async def test_chat(name: str) -> None:
    wire, build = FAMILIES[name]
    async with Loopback(script(wire, "Hello there.")) as server:
        response = await build(server.url).complete(
            Request((Message("system", "Be brief."), Message("user", "Say hello.")))
        )
    assert response.message().text == "Hello there."
    assert response.tool_calls == ()
    assert "Be brief." in shown(server.asked[0])
    assert "Say hello." in shown(server.asked[0])


@every_family
async def test_stream(name: str) -> None:
    wire, build = FAMILIES[name]
    async with Loopback(script(wire, "Hello there.")) as server:
        agent = Agent(build(server.url), observers=())
        async with agent.stream("Say hello.") as stream:
            pieces = [event.text async for event in stream if isinstance(event, TextDelta)]
            result = await stream.result()
    assert "".join(pieces) == result.output == "Hello there."


@every_family
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_tools(name: str, streamed: bool) -> None:
    wire, build = FAMILIES[name]
    async with Loopback(script(wire, WEATHER, "It is sunny.")) as server:
        agent = Agent(build(server.url), tools=[weather], observers=(), journal=MemoryJournal())
        if streamed:
            async with agent.stream("Weather in Oslo?") as stream:
                result = await stream.result()
        else:
            result = await agent.run("Weather in Oslo?")
    assert result.output == "It is sunny.", result.error
    assert [call.name for call in result.messages[1].tool_calls] == ["weather"]
    assert "Look up the weather." in shown(server.asked[0])
    assert "Oslo: sunny" in shown(server.asked[1])


@every_family
async def test_structured_output(name: str) -> None:
    wire, build = FAMILIES[name]
    async with Loopback(script(wire, '{"city": "Oslo", "people": 717710}')) as server:
        result = await Agent(build(server.url), output_type=City, observers=()).run("Which city?")
    assert result.output == City(city="Oslo", people=717710)
    assert "people" in shown(server.asked[0])


@every_family
async def test_parts(name: str) -> None:
    wire, build = FAMILIES[name]
    message = Message("user", [text_part("What is this?"), image_part(PNG, "image/png")])
    async with Loopback(script(wire, "A picture.")) as server:
        await build(server.url).complete(Request((message,)))
    assert base64.b64encode(PNG).decode() in shown(server.asked[0])


@every_family
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_usage(name: str, streamed: bool) -> None:
    """Cached tokens are a part of the input, and have their own price."""
    wire, build = FAMILIES[name]
    async with Loopback(script(wire, "Hello.")) as server:
        price = price_table({"m-dated": (1_000_000.0, 10_000_000.0, 100_000.0)})
        agent = Agent(build(server.url), runtime=Runtime(price=price, observers=()))
        if streamed:
            async with agent.stream("Say hello.") as stream:
                result = await stream.result()
        else:
            result = await agent.run("Say hello.")
    usage = result.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (20, 5, 7)
    assert usage.cost == 15 * 1.0 + 5 * 0.1 + 7 * 10.0


def test_the_guide_has_a_row_for_each_family_and_a_column_for_each_test() -> None:
    rows = [
        line.strip("| \n").split(" | ") for line in GUIDE.read_text().splitlines() if line.startswith("| ")
    ]
    at = next(number for number, row in enumerate(rows) if row[0] == "family")
    columns, cells = rows[at][1:], rows[at + 1 : at + 1 + len(FAMILIES)]
    assert [f"test_{name.replace(' ', '_')}" for name in columns] == [
        name
        for name in globals()
        if name.startswith("test_")
        and name != "test_the_guide_has_a_row_for_each_family_and_a_column_for_each_test"
    ]
    assert cells == [[f"`{name}`", *["yes"] * len(columns)] for name in FAMILIES]
