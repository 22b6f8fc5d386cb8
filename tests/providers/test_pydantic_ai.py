"""Models of pydantic-ai under our loop: its doubles, its adapters against a loopback server, its errors as ours."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model as LibraryModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel as LibraryDouble
from pydantic_ai.usage import RequestUsage

from orchestrator import Agent, MemoryJournal, Message, RetryPolicy, ToolCall, tool
from orchestrator.errors import ConfigError, LLMError
from orchestrator.events import ReasoningDelta, TextDelta
from orchestrator.llm.message import Request, audio_part, file_part, image_part
from orchestrator.providers import Fallback, PydanticAIModel
from orchestrator.providers.anthropic import MessagesForm
from orchestrator.providers.openai import ChatForm
from orchestrator.providers.pydantic_ai_request import KEPT, conversation, response_of
from orchestrator.providers.vendor_model import repaired
from orchestrator.testing import refuse_real_models
from tests.providers.converse_wire import CONVERSE
from tests.providers.family import FAMILIES
from tests.providers.loopback import Loopback, Reply, in_a_thread, json_reply
from tests.providers.wire import CHAT, GEMINI, WEATHER, Said

HELLO = Request((Message("user", "Say hello."),))


@tool(effect="pure")
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"


def groq(url: str, **given: Any) -> PydanticAIModel:
    return PydanticAIModel("groq:qwen/qwen3.8-27b", base_url=url, api_key="key-0123456789", **given)


# ---- the doubles of the library ----


async def test_its_test_model_calls_every_tool_and_answers() -> None:
    result = await Agent(PydanticAIModel(LibraryDouble()), tools=[weather], observers=()).run("Weather?")
    assert result.output == '{"weather":"a: sunny"}'
    assert result.usage.input_tokens > 0


async def test_its_function_model_sees_the_conversation_and_the_tools() -> None:
    seen: list[tuple[list[ModelMessage], AgentInfo]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append((messages, info))
        if len(seen) == 1:
            return ModelResponse([ToolCallPart("weather", {"city": "Oslo"}, "c1")])
        return ModelResponse([TextPart("Sunny.")], usage=RequestUsage(input_tokens=9, output_tokens=3))

    model = PydanticAIModel(FunctionModel(answer))
    agent = Agent(model, tools=[weather], instructions="Be brief.", params={"temperature": 0.5}, observers=())
    assert (await agent.run("Weather in Oslo?")).output == "Sunny."
    (first, info), (second, _) = seen
    assert [type(part) for part in first[0].parts] == [SystemPromptPart, UserPromptPart]
    assert [one.name for one in info.function_tools] == ["weather"]
    assert info.model_settings is not None
    assert info.model_settings["temperature"] == 0.5
    assert isinstance(second[2], ModelRequest)
    returned = second[2].parts[0]
    assert isinstance(returned, ToolReturnPart)
    assert (returned.tool_call_id, returned.content) == ("c1", "Oslo: sunny")


async def test_a_stream_of_its_function_model_arrives_in_pieces() -> None:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for piece in ("One ", "two ", "three."):
            yield piece

    async with Agent(PydanticAIModel(FunctionModel(stream_function=answer)), observers=()).stream(
        "Go."
    ) as stream:
        pieces = [event.text async for event in stream if isinstance(event, TextDelta)]
    assert len(pieces) > 1
    assert "".join(pieces) == "One two three."


async def test_a_model_of_theirs_that_cannot_stream_answers_whole() -> None:
    class Whole(LibraryDouble):
        request_stream = LibraryModel.request_stream

    async with Agent(PydanticAIModel(Whole(custom_output_text="Done.")), observers=()).stream(
        "Go."
    ) as stream:
        pieces = [event.text async for event in stream if isinstance(event, TextDelta)]
    assert pieces == ["Done."]


async def test_its_doubles_answer_where_real_models_are_refused_and_its_adapters_do_not() -> None:
    with refuse_real_models():
        assert (
            await Agent(PydanticAIModel(LibraryDouble(custom_output_text="hi")), observers=()).run("x")
        ).output
        with pytest.raises(ConfigError, match="real model calls are refused"):
            await Agent(groq("http://127.0.0.1:9"), observers=()).run("x")


async def test_a_router_of_theirs_is_a_model() -> None:
    model = PydanticAIModel(FallbackModel(LibraryDouble(custom_output_text="hi"), LibraryDouble()))
    assert (await model.complete(HELLO)).content == "hi"
    model.check_params({"temperature": 1})


# ---- what a provider must receive back ----


async def test_the_thought_signature_of_a_gemini_call_is_journalled_and_sent_back() -> None:
    said: list[Said] = [WEATHER, "Sunny."]
    answers = iter(said)
    async with Loopback(lambda asked: GEMINI.reply(asked, next(answers))) as server:
        llm = PydanticAIModel("google:gemini-3.8-flash", base_url=server.url, api_key="k")
        result = await Agent(llm, tools=[weather], journal=MemoryJournal(), observers=()).run(
            "Weather in Oslo?"
        )
    assert result.output == "Sunny."
    assert result.messages[1].content[0]["type"] == KEPT  # type: ignore[index]
    sent = [part for content in server.asked[1].json["contents"] for part in content["parts"]]
    assert [part["thoughtSignature"] for part in sent if "functionCall" in part] == ["c2lnbmVk"]
    assert "/models/gemini-3.8-flash:generateContent" in server.asked[1].path


async def test_a_model_of_bedrock_receives_hints_for_its_prompt_cache() -> None:
    build = FAMILIES["pydantic-ai:bedrock"].llm
    async with Loopback(lambda asked: CONVERSE.reply(asked, "Sunny.")) as server:
        request = Request((Message("system", "Be brief."), *HELLO.messages))
        await build(server.url).complete(request)
        await build(server.url).complete(replace(request, params={"cache": False}))
    assert [asked.body.count(b"cachePoint") for asked in server.asked] == [2, 0]


def test_thinking_is_kept_and_left_out_by_the_adapters_of_other_vendors() -> None:
    thought = ThinkingPart("Hm.", signature="sig", provider_name="anthropic")
    response = response_of(ModelResponse([thought, TextPart("Hi.")], provider_name="anthropic"))
    message = response.message()
    assert (message.text, message.reasoning) == ("Hi.", "Hm.")
    assert isinstance(again := conversation([message])[1], ModelResponse)
    assert again.parts == [thought, TextPart("Hi.")]
    request = Request((Message("user", "x"), message))
    assert KEPT not in str(ChatForm().body("m", request, streamed=False))
    assert KEPT not in str(MessagesForm().body("m", request, streamed=False))


def test_a_changed_message_is_sent_as_it_is_now() -> None:
    thought = ThinkingPart("Hm.", signature="sig", provider_name="anthropic")
    message = response_of(ModelResponse([thought, TextPart("Hi.")])).message()
    assert isinstance(message.content, list)
    message.content[1]["text"] = "Hello."
    assert conversation([message])[1].parts == [TextPart("Hello.")]


async def test_its_reasoning_is_streamed() -> None:
    events = (
        'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
        '"delta":{"role":"assistant",%s},"finish_reason":%s}]}\n\n'
    )
    chunks = [
        events % ('"reasoning":"Hm."', "null"),
        events % ('"content":"Hi."', '"stop"'),
        "data: [DONE]\n\n",
    ]
    body = tuple(chunk.encode() for chunk in chunks)
    reply = Reply(200, {"content-type": "text/event-stream"}, body)
    async with Loopback([reply]) as server, Agent(groq(server.url), observers=()).stream("x") as stream:
        events_seen = [event async for event in stream]
    assert [event.text for event in events_seen if isinstance(event, ReasoningDelta)] == ["Hm."]


# ---- conversations ----


def test_a_repaired_conversation_has_a_form() -> None:
    calls = (ToolCall("", "a", "{}"), ToolCall("x", "b", "{}"), ToolCall("x", "c", "not json"))
    messages = [
        Message("user", "go"),
        Message("assistant", None, calls),
        Message("tool", "A", tool_call_id=""),
        Message("tool", "B", tool_call_id="x", is_error=True),
        Message("tool", "from elsewhere", tool_call_id="other", name="d"),
        Message("user", "and?"),
    ]
    sent = conversation(repaired(messages))
    called = [part for part in sent[1].parts if isinstance(part, ToolCallPart)]
    assert [part.tool_call_id for part in called] == ["call", "x", "x_2"]
    returned = [part for part in sent[2].parts if isinstance(part, ToolReturnPart)]
    assert [(part.tool_name, part.outcome) for part in returned] == [
        ("a", "success"),
        ("b", "failed"),
        ("c", "failed"),
    ]
    assert isinstance(sent[2].parts[-2], UserPromptPart)
    assert sent[2].parts[-2].content == "[result of d]\nfrom elsewhere"


def test_every_kind_of_part_has_a_form_and_an_unknown_one_is_refused() -> None:
    parts = [
        image_part(b"png", "image/png"),
        file_part(b"pdf", "application/pdf", "a.pdf"),
        audio_part(b"s", "mp3"),
    ]
    sent = conversation([Message("user", [*parts, image_part("https://example.org/a.png")])])[0].parts[0]
    assert isinstance(sent, UserPromptPart)
    assert [getattr(one, "media_type", None) for one in sent.content] == [
        *("image/png", "application/pdf", "audio/mpeg", "image/png")
    ]
    with pytest.raises(ConfigError, match="type 'video' has no form in pydantic-ai; use text, image"):
        conversation([Message("user", [{"type": "video"}])])


async def test_a_part_that_the_profile_of_the_model_does_not_read_is_refused_before_it_is_sent() -> None:
    model = PydanticAIModel(LibraryDouble(profile={"supports_image_input": False}))
    assert model.reads == ("text", "file", "audio")
    with pytest.raises(
        ConfigError, match="reads text, file, audio, but a user message has a part of kind 'image'"
    ):
        await model.complete(Request((Message("user", [image_part(b"png", "image/png")]),)))


# ---- errors ----


@pytest.mark.parametrize(
    ("reply", "kind", "wait"),
    [
        (json_reply({"error": {"message": "slow down"}}, 429, {"retry-after": "3"}), "rate_limited", 3.0),
        (json_reply({"error": {"message": "no"}}, 401), "auth", None),
        (json_reply({"error": {"message": "prompt is too long"}}, 400), "context_length", None),
        (json_reply({"error": {"message": "broken"}}, 500), "server_error", None),
        (Reply(None, then="reset"), "connection", None),
        (Reply(200, {"content-type": "application/json"}, (b"{nonsense",)), "malformed", None),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
async def test_a_failed_call_is_one_llm_error_with_its_kind(
    reply: Reply, kind: str, wait: float | None
) -> None:
    async with Loopback([reply]) as server:
        with pytest.raises(LLMError) as failed:
            await groq(server.url).complete(HELLO)
    assert (failed.value.kind, failed.value.retry_after) == (kind, wait)
    assert len(server.asked) == 1  # its SDK did not try again


async def test_our_retries_are_the_only_ones() -> None:
    replies = iter(
        [json_reply({"error": {}}, 503), json_reply({"error": {}}, 503), json_reply(CHAT.whole("Hi."))]
    )
    async with Loopback(lambda _: next(replies)) as server:
        result = await Agent(groq(server.url), retry=RetryPolicy(base=0, jitter=0), observers=()).run("x")
    assert result.output == "Hi."
    assert len(server.asked) == 3


async def test_a_fallback_of_ours_goes_on_with_the_next_family() -> None:
    async with Loopback([json_reply({"error": {}}, 503)]) as server:
        llm = Fallback([groq(server.url), PydanticAIModel(LibraryDouble(custom_output_text="second"))])
        assert (await Agent(llm, observers=()).run("x")).output == "second"


async def test_a_key_that_the_server_repeats_is_masked() -> None:
    async with Loopback([json_reply({"error": {"message": "bad key key-0123456789"}}, 401)]) as server:
        with pytest.raises(LLMError) as failed:
            await groq(server.url).complete(HELLO)
    assert "key-0123456789" not in str(failed.value)


async def test_a_request_that_the_library_refuses_is_an_error_of_the_host_and_is_not_repeated() -> None:
    def refuse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise UserError("not like this")

    with pytest.raises(ConfigError, match="pydantic-ai refused the request: not like this"):
        await PydanticAIModel(FunctionModel(refuse)).complete(HELLO)


async def test_a_misspelt_setting_is_an_error_before_the_first_request() -> None:
    async with Loopback([]) as server:
        with pytest.raises(
            ConfigError, match=r"'temprature' is no parameter of .*; did you mean 'temperature'"
        ):
            await groq(server.url).complete(Request(HELLO.messages, params={"temprature": 0}))
    assert server.asked == []


# ---- construction ----


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        ("nonsense", {}, "cannot be used: Unknown model: nonsense"),
        ("nowhere:m", {}, "cannot be used: Unknown model: nowhere:m"),
        ("groq:m", {}, "GROQ_API_KEY"),
        ("typesafe:m", {"api_key": "k"}, "pydantic-ai-slim"),
        ("groq:m", {"base_url": "localhost", "api_key": "k"}, "begins with http://"),
        ("groq:m", {"structured": "magic", "api_key": "k"}, "possible: native, prompt"),
        (7, {}, "model is a int; possible: PROVIDER:NAME"),
        (LibraryDouble(), {"api_key": "k"}, "give base_url and api_key to its provider"),
    ],
)
def test_arguments_that_cannot_work_are_refused_in_one_sentence(
    model: Any, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        PydanticAIModel(model, **given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_model_serves_one_loop_after_the_other_and_leaves_nothing_open() -> None:
    with in_a_thread(lambda asked: json_reply(CHAT.whole("hi"))) as server:
        agent = Agent(groq(server.url), observers=())
        assert [agent.run_sync("hello").output for _ in range(3)] == ["hi"] * 3
        gc.collect()  # a connection left open would warn now, which is an error here
        assert server.accepted == 3
