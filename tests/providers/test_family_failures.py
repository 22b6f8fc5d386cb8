"""Failures of each vendor's library are ours: their kind, delay and text, and no library tries again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import Message, Request
from orchestrator.providers import PydanticAIModel
from tests.providers.converse_wire import frame, frames
from tests.providers.family import FAMILIES, Family, every
from tests.providers.grok_server import THROTTLED, GrokServer
from tests.providers.loopback import SILENCE, Asked, Loopback, Reply, in_a_thread, json_reply

HELLO = Request((Message("user", "Say hello."),))
LIBRARIES = (
    *("openai", "openai-responses", "anthropic", "pydantic-ai:openai-chat", "pydantic-ai:openai"),
    *("pydantic-ai:anthropic", "pydantic-ai:google", "pydantic-ai:groq", "pydantic-ai:mistral"),
    *("pydantic-ai:bedrock", "pydantic-ai:cohere", "pydantic-ai:huggingface"),
)
"""A family for each way into a library."""
every_library = every(LIBRARIES)


async def failure(
    family: Family, reply: Reply, request: Request = HELLO
) -> tuple[LLMError, list[Asked], str]:
    """Return the error of a call that is answered so, the requests, and the address of the server."""
    async with Loopback([reply]) as server:
        with pytest.raises(LLMError) as failed:
            await family.llm(server.url).complete(request)
    return failed.value, server.asked, server.url


@every_library
async def test_throttling_is_reported_with_its_delay_and_not_repeated(family: Family) -> None:
    body = {"error": {"message": "slow down"}, "message": "slow down"}
    error, asked, _ = await failure(family, json_reply(body, 429, {"retry-after": "3"}))
    assert (error.kind, error.retry_after, len(asked)) == ("rate_limited", 3.0, 1)
    assert "slow down" in str(error)


@every(["pydantic-ai:xai"])
async def test_throttling_by_grpc_is_reported_and_not_repeated(family: Family) -> None:
    async with GrokServer(lambda _: THROTTLED) as server:
        with pytest.raises(LLMError, match="slow down") as failed:
            await family.llm(server.url).complete(HELLO)
    assert (failed.value.kind, len(server.asked)) == ("rate_limited", 1)


@every_library
async def test_a_404_names_the_address(family: Family) -> None:
    error, _, url = await failure(family, json_reply({"error": {"message": "no"}}, 404))
    assert error.status == 404
    assert f"at {url}" in str(error)


@every_library
async def test_a_misspelt_parameter_is_an_error_before_the_first_request(family: Family) -> None:
    async with Loopback([]) as server:
        with pytest.raises(ConfigError, match=r"'temprature' is no parameter of .*'temperature'"):
            await family.llm(server.url).complete(Request(HELLO.messages, params={"temprature": 0}))
    assert server.asked == []


@every_library
@pytest.mark.parametrize("then", ["reset", "end"])
async def test_a_stream_that_is_cut_is_a_failed_connection_with_the_text_so_far(
    family: Family, then: Any
) -> None:
    def answer(asked: Asked) -> Reply:
        whole = family.wire.reply(asked, "Hello there.")
        first = next(at for at, chunk in enumerate(whole.chunks) if b"Hello" in chunk)
        return Reply(whole.status, whole.headers, whole.chunks[: first + 1], then)

    said: list[str] = []
    request = Request(HELLO.messages, on_delta=said.append)
    async with Loopback(answer) as server:
        with pytest.raises(LLMError) as failed:
            await family.llm(server.url).complete(request)
    assert (failed.value.kind, failed.value.partial) == ("connection", "Hello ")
    assert "".join(said) == "Hello "


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai:m", "OPENAI_API_KEY"),
        ("anthropic:m", "ANTHROPIC_API_KEY"),
        ("google:m", "GOOGLE_API_KEY"),
        ("groq:m", "GROQ_API_KEY"),
        ("mistral:m", "MISTRAL_API_KEY"),
        ("openrouter:m", "OPENROUTER_API_KEY"),
        ("bedrock:m", "region"),
    ],
)
def test_a_missing_key_is_one_sentence_that_names_its_variable(
    model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError) as refused:
        PydanticAIModel(model)
    assert variable in str(refused.value)
    assert "To try" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_missing_credentials_of_bedrock_are_an_error_of_authentication(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LLMError, match="no credentials to call the provider with") as failed:
        await PydanticAIModel("bedrock:us.amazon.nova-lite-v1:0").complete(HELLO)
    assert failed.value.kind == "auth"


@pytest.mark.parametrize("on_delta", [None, lambda _: None], ids=["whole", "streamed"])
def test_a_cancelled_call_of_bedrock_holds_no_thread_that_delays_the_end_of_the_process(
    on_delta: Any,
) -> None:
    async def cancelled(server: Loopback) -> None:
        llm = FAMILIES["pydantic-ai:bedrock"].llm(server.url)
        call = asyncio.ensure_future(llm.complete(Request(HELLO.messages, on_delta=on_delta)))
        while not server.asked:  # noqa: ASYNC110 - the server is in another thread
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with in_a_thread(lambda _: SILENCE) as server:
        asyncio.run(cancelled(server))
        for thread in [one for one in threading.enumerate() if one.name == "AnyIO worker thread"]:
            thread.join(timeout=60)
            assert not thread.is_alive()


async def test_a_model_of_bedrock_that_fails_in_a_stream_is_asked_again() -> None:
    parts = (
        frame("messageStart", {"role": "assistant"}),
        frame("contentBlockDelta", {"delta": {"text": "Hello"}, "contentBlockIndex": 0}),
        frame("modelStreamErrorException", {"message": "it broke"}, message="exception"),
    )
    request = Request(HELLO.messages, on_delta=lambda _: None)
    error, _, _ = await failure(FAMILIES["pydantic-ai:bedrock"], frames(*parts), request)
    assert (error.kind, error.partial) == ("server_error", "Hello")
    assert "it broke" in str(error)
