"""The table: what each of the 54 recorded exchanges comes to, through the real SDK and our adapter.

Each file is served by a server on 127.0.0.1 as it was recorded, exchange by exchange, streams event by event. Another
vendor joins with a module of rows and a line in ADAPTERS.
"""

from __future__ import annotations

import filecmp
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Request, Response, ToolOffer
from orchestrator.llm.port import LLM
from orchestrator.llm.retry import FailureKind, classify
from orchestrator.providers import fault
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.openai import OpenAI
from orchestrator.tools.spec import ToolSpec
from tests.providers import rows_anthropic, rows_openai
from tests.providers.exchange import DATA, FILES, PLACES, Expected, Failed, Place, is_streamed, places
from tests.providers.loopback import Loopback, recorded_reply

SHARED = Path(__file__).parents[3] / "shared/data/provider_exchanges"

OTHER: dict[Place, Expected] = {
    ("28-server-error-500-then-ok", 0): Failed("server_error", 500, retryable=True),
    ("28-server-error-500-then-ok", 1): Response(),
}
"""No model was asked: only how the status is classified."""

ROWS: dict[Place, Expected] = {**rows_openai.ROWS, **rows_anthropic.ROWS, **OTHER}

HELLO = Request((Message("user", "hello"),))


@asynccontextmanager
async def openai_chat(url: str) -> AsyncIterator[LLM]:
    async with OpenAI("asked-for", base_url=url, api_key="sk-test") as llm:
        yield llm


@asynccontextmanager
async def openai_responses(url: str) -> AsyncIterator[LLM]:
    async with OpenAI("asked-for", base_url=url, api_key="sk-test", api="responses") as llm:
        yield llm


@asynccontextmanager
async def anthropic_messages(url: str) -> AsyncIterator[LLM]:
    async with Anthropic("asked-for", base_url=url, api_key="sk-test") as llm:
        yield llm


ADAPTERS: Mapping[str, Callable[[str], AbstractAsyncContextManager[LLM]]] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic-messages": anthropic_messages,
}


# ---- the collection ----


def test_every_exchange_has_its_row() -> None:
    assert len(PLACES) == 54
    assert sum(map(is_streamed, PLACES)) == 18
    missing = [f"{name}[{index}]" for name, index in PLACES if (name, index) not in ROWS]
    assert missing == []
    assert ROWS.keys() == set(PLACES)


def test_the_collection_is_the_one_that_is_described() -> None:
    assert Counter(file["api"] for file in FILES.values()) == {
        "openai-chat": 23,
        "anthropic-messages": 8,
        "openai-responses": 5,
        "other": 1,
    }
    statuses = Counter(
        exchange["response"]["status"] for file in FILES.values() for exchange in file["exchanges"]
    )
    assert statuses == {200: 42, 400: 4, 429: 4, 500: 2, 401: 1, 404: 1}


def test_our_copy_is_the_shared_one(absent: Callable[[str], NoReturn]) -> None:
    if not SHARED.is_dir():
        absent("no collection of exchanges beside the repository (../shared/data/provider_exchanges)")
    found = filecmp.cmpfiles(
        SHARED,
        DATA,
        sorted({path.name for folder in (SHARED, DATA) for path in folder.iterdir()}),
        shallow=False,
    )
    assert found[1:] == ([], [])
    assert len(found[0]) == 40


# ---- the table ----


async def come_to(llm: LLM, request: Request) -> Expected:
    try:
        return await llm.complete(request)
    except LLMError as error:
        return Failed.of(error)


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if file["api"] in ADAPTERS])
async def test_each_exchange_comes_to_its_row(name: str) -> None:
    file = FILES[name]
    replies = [recorded_reply(exchange["response"]) for exchange in file["exchanges"]]
    async with Loopback(replies) as server, ADAPTERS[file["api"]](server.url) as llm:
        for index in range(len(replies)):
            streamed = is_streamed((name, index))
            pieces: list[str] = []
            request = Request(HELLO.messages, on_delta=pieces.append if streamed else None)
            found = await come_to(llm, request)
            assert found == ROWS[name, index], index
            assert len(server.asked) == index + 1  # the SDK tries once
            if streamed and isinstance(found, Response):
                assert "".join(pieces) == (found.content or "")
        assert server.accepted == 1  # one connection, also after streams


@pytest.mark.parametrize("name", [name for name, _ in places("openai-chat") if is_streamed((name, 0))])
@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_a_stream_is_the_same_however_the_network_cuts_it(name: str, size: int) -> None:
    reply = recorded_reply(FILES[name]["exchanges"][0]["response"])
    whole = b"".join(reply.chunks)
    pieces = tuple(whole[at : at + size] for at in range(0, len(whole), size))
    cut = type(reply)(reply.status, reply.headers, pieces)
    async with Loopback([cut]) as server, openai_chat(server.url) as llm:
        assert await come_to(llm, Request(HELLO.messages, on_delta=lambda _: None)) == ROWS[name, 0]


def test_the_two_gets_are_told_apart_by_their_status() -> None:
    bad, good = (exchange["response"] for exchange in FILES["28-server-error-500-then-ok"]["exchanges"])
    error = fault.of_answer(bad["status"], bad["headers"], bad["body"])
    assert Failed.of(error) == ROWS["28-server-error-500-then-ok", 0]
    assert classify(error) == FailureKind("server_error", retryable=True)
    assert not fault.holds_error(good["body"])


# ---- what is sent ----

OURS = ("messages", "model", "tools", "tool_choice", "stream", "stream_options")


def recorded_request(body: Mapping[str, Any], *, streamed: bool) -> Request:
    """The request whose body this is: messages and tools in our words, all else as parameters."""
    params = {name: value for name, value in body.items() if name not in OURS}
    if "thinking" in params:  # of DeepSeek, unknown to the SDK of OpenAI
        params["extra_body"] = {"thinking": params.pop("thinking")}
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none", "required"):
        params["tool_choice"] = choice
    offers = [tool["function"] for tool in body.get("tools", ())]
    return Request(
        [Message.from_openai(message) for message in body["messages"]],
        tuple(map(offer, offers)),
        choice if "tool_choice" not in params else "auto",
        params=params,
        on_delta=(lambda _: None) if streamed else None,
    )


def offer(function: Mapping[str, Any]) -> ToolOffer:
    return ToolSpec(
        name=function["name"],
        description=function.get("description", ""),
        parameters=function["parameters"],
        call=lambda: None,
    )


def comparable(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A body without what may be said or left unsaid: defaults, members that are null, strictness of tools."""
    kept = {name: value for name, value in body.items() if (name, value) not in DEFAULTS}
    kept["model"] = model
    kept["messages"] = [
        {name: value for name, value in message.items() if value is not None} for message in body["messages"]
    ]
    for tool in body.get("tools", ()):
        function = {name: value for name, value in tool["function"].items() if name != "strict"}
        kept.setdefault("functions", []).append({"description": "", **function})
    kept.pop("tools", None)
    kept.pop("stream_options", None)
    return kept


DEFAULTS = [("tool_choice", "auto"), ("stream", False)]


@pytest.mark.parametrize("place", places("openai-chat"), ids=lambda place: f"{place[0]}-{place[1]}")
async def test_what_the_recorded_clients_sent_is_what_we_send(place: Place) -> None:
    name, index = place
    exchange = FILES[name]["exchanges"][index]
    body = exchange["request"]["body"]
    async with (
        Loopback([recorded_reply(exchange["response"])]) as server,
        OpenAI(body["model"], base_url=server.url, api_key="sk-test") as llm,
    ):
        await come_to(llm, recorded_request(body, streamed=is_streamed(place)))
        (asked,) = server.asked
    assert comparable(asked.json, body["model"]) == comparable(body, body["model"])
    assert (asked.method, asked.path) == ("POST", "/chat/completions")
    assert asked.headers["authorization"] == "Bearer sk-test"
