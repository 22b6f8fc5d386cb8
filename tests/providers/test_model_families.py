"""Every family of models does the same things under our loop, against a server that speaks its protocol.

One test for each cell of the table in `orchestrator/providers/README.md`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any

import pydantic_ai.models
import pytest
from pydantic import BaseModel

from orchestrator import Agent, MemoryJournal, Message, Runtime, tool
from orchestrator.errors import ConfigError
from orchestrator.events import TextDelta
from orchestrator.llm.message import Request, image_part, text_part
from orchestrator.providers import price_table
from tests.providers.family import FAMILIES, Family, every
from tests.providers.loopback import Asked
from tests.providers.wire import WEATHER, Call, Wire

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16
GUIDE = Path(__file__).resolve().parents[2] / "orchestrator" / "providers" / "README.md"


every_family = every(FAMILIES)


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
async def test_chat(family: Family) -> None:
    async with family.server(script(family.wire, "Hello there.")) as server:
        response = await family.llm(server.url).complete(
            Request((Message("system", "Be brief."), Message("user", "Say hello.")))
        )
    assert response.message().text == "Hello there."
    assert response.tool_calls == ()
    assert "Be brief." in shown(server.asked[0])
    assert "Say hello." in shown(server.asked[0])


@every_family
async def test_stream(family: Family) -> None:
    async with family.server(script(family.wire, "Hello there.")) as server:
        agent = Agent(family.llm(server.url), observers=())
        async with agent.stream("Say hello.") as stream:
            pieces = [event.text async for event in stream if isinstance(event, TextDelta)]
            result = await stream.result()
    assert "".join(pieces) == result.output == "Hello there."


@every_family
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_tools(family: Family, streamed: bool) -> None:
    async with family.server(script(family.wire, WEATHER, "It is sunny.")) as server:
        agent = Agent(family.llm(server.url), tools=[weather], observers=(), journal=MemoryJournal())
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
async def test_partial_output(family: Family) -> None:
    cities = [City(city="Oslo", people=12), City(city="Bodø", people=5)]
    text = json.dumps([one.model_dump() for one in cities])
    async with family.server(script(family.wire, text)) as server:
        agent = Agent(family.llm(server.url), output_type=list[City], observers=())
        async with agent.stream("Which cities?") as stream:
            found = [value async for value in stream.partial()]
    assert found[-1] == cities
    assert all(value == cities[: len(value)] for value in found)


@every_family
async def test_structured_output(family: Family) -> None:
    async with family.server(script(family.wire, '{"city": "Oslo", "people": 717710}')) as server:
        result = await Agent(family.llm(server.url), output_type=City, observers=()).run("Which city?")
    assert result.output == City(city="Oslo", people=717710)
    assert "people" in shown(server.asked[0])


@every_family
async def test_parts(family: Family) -> None:
    """A family without images refuses them before the first request."""
    message = Message("user", [text_part("What is this?"), image_part(PNG, "image/png")])
    refused = nullcontext() if family.images else pytest.raises(ConfigError, match="reads text, but")
    async with family.server(script(family.wire, "A picture.")) as server:
        with refused:
            await family.llm(server.url).complete(Request((message,)))
    assert [base64.b64encode(PNG).decode() in shown(asked) for asked in server.asked] == [
        True
    ] * family.images


@every_family
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_usage(family: Family, streamed: bool) -> None:
    """Cached tokens are a part of the input, and have their own price."""
    async with family.server(script(family.wire, "Hello.")) as server:
        llm: Any = family.llm(server.url)
        row = (1_000_000.0, 10_000_000.0, 100_000.0)
        price = price_table({"m-dated": row, llm.model: row})
        agent = Agent(llm, runtime=Runtime(price=price, observers=()))
        if streamed:
            async with agent.stream("Say hello.") as stream:
                result = await stream.result()
        else:
            result = await agent.run("Say hello.")
    usage, cached = result.usage, family.cached
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (20, cached, 7)
    assert usage.cost == (20 - cached) * 1.0 + cached * 0.1 + 7 * 10.0


# ---- completeness ----

OTHER_CLASSES = {
    "bases": {"Model", "AbstractModel", "InMemoryBatchModel", "DecisionModel"},
    "doubles, in test_pydantic_ai.py": {"TestModel", "FunctionModel"},
    "wrappers, which hold models": {
        *("WrapperModel", "InstrumentedModel", "ConcurrencyLimitedModel", "BatchedModel", "FallbackModel"),
    },
    "models that decide, and write no text": {
        *("TypeSafeModel", "SystemOneModel", "GoogleDecisionsModel", "OpenAIDecisionsModel"),
    },
    "the session of an MCP client, no provider": {"MCPSamplingModel"},
}
TABLE = ("chat", "stream", "tools", "structured output", "parts", "usage")


def library_classes() -> set[str]:
    """Return the names of the model classes of pydantic-ai, also of those whose library is not installed here."""
    folder = Path(str(pydantic_ai.models.__file__)).parent
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    return {
        name for text in texts for name in re.findall(r"^class ((?!_)\w*Model)\((?!\))", text, re.MULTILINE)
    }


def test_every_model_class_of_the_library_is_a_family_or_is_left_out_for_a_reason() -> None:
    families = {family.model_class for family in FAMILIES.values() if family.model_class}
    others = set().union(*OTHER_CLASSES.values())
    assert library_classes() - others <= families


@every(name for name in FAMILIES if FAMILIES[name].model_class)
def test_a_family_is_of_its_class(family: Family) -> None:
    llm: Any = family.llm("http://127.0.0.1:9")
    assert type(llm._clients._spare).__name__ == family.model_class


def spelt(names: str) -> list[str]:
    """Return the families of a row: `a`, `b` or `prefix:` with `a`, `b`."""
    first, _, rest = names.replace("`", "").rpartition(" with ")
    return [f"{first}{name}" for name in rest.split(", ")]


def test_the_guide_has_a_row_for_each_family_and_a_column_for_each_test() -> None:
    rows = [
        line.strip("| \n").split(" | ") for line in GUIDE.read_text().splitlines() if line.startswith("|")
    ]
    at = next(number for number, row in enumerate(rows) if row[0] == "family")
    assert rows[at] == ["family", *TABLE]
    assert all(f"test_{name.replace(' ', '_')}" in globals() for name in TABLE)
    table = list(takewhile(lambda row: row[0].startswith("`"), rows[at + 2 :]))
    assert sorted((name, *cells) for names, *cells in table for name in spelt(names)) == sorted(
        (
            *(name, "yes", "yes", "yes", "yes"),
            *("yes" if one.images else "text", "yes" if one.cached else "no cached tokens"),
        )
        for name, one in FAMILIES.items()
    )
