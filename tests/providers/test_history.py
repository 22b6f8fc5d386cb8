"""Histories that vendors refuse: what a model, a server or a host wrote is repaired before any request."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from orchestrator import Agent, Message, tool
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.llm.port import LLM
from orchestrator.providers import Anthropic, OpenAI
from orchestrator.providers.vendor_model import NO_RESULT, repaired
from orchestrator.testing import ScriptedLLM
from tests.providers.family import FAMILIES
from tests.providers.loopback import Loopback
from tests.providers.strict import VendorName
from tests.providers.wire import CHAT, GEMINI, MESSAGES, RESPONSES, WEATHER, Call, Wire
from tests.tiers import examples

KEY = "key-0123456789"


def user(text: str = "Go on.") -> Message:
    return Message("user", text)


def called(*calls: tuple[str, str]) -> Message:
    return Message("assistant", None, tuple(ToolCall(id_, name) for id_, name in calls))


def result(id_: str | None, text: str = "done", name: str | None = None) -> Message:
    return Message("tool", text, tool_call_id=id_, name=name)


def test_a_valid_conversation_stays_as_it_is() -> None:
    messages = [user(), called(("c1", "add"), ("c2", "add")), result("c1"), result("c2"), user()]
    assert all(now is then for now, then in zip(repaired(messages), messages, strict=True))


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("functions.add", "functions_add"),
        ("add two", "add_two"),
        ("adición", "adici_n"),
        ("", "unnamed"),
        ("x" * 200, "x" * 64),
        ("2x", "_2x"),
        ("-", "_-"),
    ],
)
def test_a_name_that_no_vendor_accepts_is_respelt_in_call_and_result(name: str, sent: str) -> None:
    messages = repaired([user(), called(("c1", name)), result("c1", name=name)])
    assert [call.name for call in messages[1].tool_calls] == [sent]
    assert messages[2].name == sent


def test_the_name_of_an_offered_tool_stays() -> None:
    messages = repaired([user(), called(("c1", "2x")), result("c1")], ["2x"])
    assert messages[1].tool_calls[0].name == "2x"


def test_empty_and_repeated_ids_become_unique_and_results_follow_their_calls() -> None:
    first = [called(("", "a"), ("", "b"), ("x", "c")), result("x", "C"), result("", "A"), result(None, "B")]
    second = [called(("x", "d")), result("x", "D")]
    messages = repaired([user(), *first, *second])
    assert [call.id for message in messages for call in message.tool_calls] == ["call", "call_2", "x", "x_2"]
    assert [(message.tool_call_id, message.content) for message in messages if message.role == "tool"] == [
        ("call", "A"),
        ("call_2", "B"),
        ("x", "C"),
        ("x_2", "D"),
    ]


def test_a_missing_result_is_said_and_one_too_many_becomes_text() -> None:
    messages = repaired([called(("a", "x"), ("b", "y")), user(), result("b"), result("b", "again", "y")])
    assert [message.role for message in messages] == ["assistant", "tool", "tool", "user", "user"]
    assert (messages[1].content, messages[1].is_error) == (NO_RESULT, True)
    assert messages[4].content == "[result of y]\nagain"
    parts = [{"type": "text", "text": "lost"}]
    (orphan,) = repaired([Message("tool", parts, tool_call_id="z")])
    assert orphan == Message("user", [{"type": "text", "text": "[result]"}, *parts])


def test_a_longer_conversation_starts_with_the_same_repaired_messages() -> None:
    messages = [user(), *(message for _ in range(5) for message in (called(("", "a b")), result("")))]
    whole = repaired(messages)
    for end in range(1, len(messages), 2):
        assert repaired(messages[:end]) == whole[:end]


def test_the_name_of_an_author_is_respelt() -> None:
    assert [message.name for message in repaired([Message("user", "hi", name="Ada L"), user()])] == [
        "Ada_L",
        None,
    ]


# ---- every adapter, against a strict server ----


ADAPTERS: dict[str, tuple[Wire, Callable[[str], LLM], VendorName]] = {
    "chat": (CHAT, lambda url: OpenAI("m", base_url=f"{url}/v1", api_key=KEY), ""),
    "openai": (
        CHAT,
        lambda url: OpenAI("m", base_url=f"{url}/v1", api_key=KEY, provider="openai"),
        "openai",
    ),
    "mistral": (
        CHAT,
        lambda url: OpenAI("m", base_url=f"{url}/v1", api_key=KEY, provider="mistral_ai"),
        "mistral",
    ),
    "responses": (RESPONSES, lambda url: OpenAI("m", base_url=url, api_key=KEY, api="responses"), ""),
    "anthropic": (MESSAGES, lambda url: Anthropic("m", base_url=url, api_key=KEY), ""),
    "pydantic-ai:anthropic": (MESSAGES, FAMILIES["pydantic-ai:anthropic"].llm, ""),
    "pydantic-ai:google": (GEMINI, FAMILIES["pydantic-ai:google"].llm, ""),
    "pydantic-ai:groq": (CHAT, FAMILIES["pydantic-ai:groq"].llm, ""),
}
every_adapter = pytest.mark.parametrize("adapter", ADAPTERS)

IDS = ("", "c1", "c1", "c2", "call|1:x", "é" * 5, "l" * 90, "functions.add:0")
NAMES = ("weather", "functions.add", "add two", "adición", "", "n" * 200, "2x")


def any_message(random: Random) -> Message:
    name = random.choice(NAMES)
    match random.choice(("user", "system", "assistant", "assistant", "tool", "tool", "tool")):
        case "assistant":
            calls = tuple(
                ToolCall(random.choice(IDS), random.choice(NAMES), random.choice(("{}", "", "null", '{"a')))
                for _ in range(random.randrange(4))
            )
            return Message("assistant", random.choice(("Yes.", "", None)), calls)
        case "tool":
            id_ = random.choice((None, *IDS))
            return Message(
                "tool", "done", (), id_, random.choice((name, None)), is_error=random.random() < 0.2
            )
        case "system":
            return Message("system", "Be brief.")
        case _:
            return Message("user", "And now?", name=random.choice((None, "Ada L")))


@every_adapter
async def test_any_history_is_accepted_by_a_strict_server(adapter: str, seed: int) -> None:
    wire, build, vendor = ADAPTERS[adapter]
    random = Random(seed)
    async with Loopback(lambda asked: wire.reply(asked, "Fine."), vendor=vendor) as server:
        llm = build(server.url)
        for _ in range(examples(100)):
            history = [any_message(random) for _ in range(random.randrange(10))]
            response = await llm.complete(Request([*history, user()]))
            assert response.message().text == "Fine."
            assert not server.errors, history


@tool(effect="pure")
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"


ODD_CALLS = (
    ToolCall("", "functions.weather", '{"city": "Oslo"}'),
    ToolCall("", "weather", '{"city": "Oslo"}'),
    ToolCall("c", "", "{}"),
    ToolCall("c", "weather", '{"city": "Bergen"}'),
)


@every_adapter
async def test_the_messages_of_a_run_are_the_history_of_the_next_one_with_any_provider(adapter: str) -> None:
    """The first model repeats ids, leaves them out and calls names that do not exist."""
    wire, build, vendor = ADAPTERS[adapter]
    script: list[Response | str] = [Response(None, ODD_CALLS), Response(None, ODD_CALLS[:2]), "It is sunny."]
    first = await Agent(ScriptedLLM(script), tools=[weather], observers=()).run("Weather?")
    assert first.output == "It is sunny."
    assert [call.name for call in first.messages[1].tool_calls] == [call.name for call in ODD_CALLS]
    answers: list[str | Call] = [WEATHER, "Still sunny."]
    async with Loopback(lambda asked: wire.reply(asked, answers.pop(0)), vendor=vendor) as server:
        agent = Agent(build(server.url), tools=[weather], observers=())
        result = await agent.run([*first.messages, user("And now?")])
    assert result.output == "Still sunny.", result.error


ILLEGAL_NAMES = ["functions.weather", "add two", "adición", "", "n" * 200]


@pytest.mark.parametrize(
    ("adapter", "name"),
    # The library of Google refuses an answer with an empty name.
    [
        (adapter, name)
        for adapter, (wire, *_) in ADAPTERS.items()
        for name in ILLEGAL_NAMES
        if name or wire is not GEMINI
    ],
)
async def test_a_call_of_an_illegal_name_is_an_error_that_the_model_reads(adapter: str, name: str) -> None:
    wire, build, vendor = ADAPTERS[adapter]
    answers: list[str | Call] = [Call(name, {"city": "Oslo"}), WEATHER, "It is sunny."]
    async with Loopback(lambda asked: wire.reply(asked, answers.pop(0)), vendor=vendor) as server:
        agent = Agent(build(server.url), tools=[weather], observers=())
        result = await agent.run("Weather in Oslo?")
    assert result.output == "It is sunny.", result.error
    assert [message.is_error for message in result.messages if message.role == "tool"] == [True, False]
