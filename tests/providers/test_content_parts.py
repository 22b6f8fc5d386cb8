"""Content parts in prompts and tool results: sent by each adapter, kept by the journal, refused before a request."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from orchestrator import Agent, tool
from orchestrator.errors import ConfigError
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import (
    Message,
    Request,
    ToolCall,
    audio_part,
    described,
    file_part,
    image_part,
    text_part,
)
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.openai import OpenAI
from orchestrator.providers.scripted import ScriptedLLM
from tests.providers.anthropic_words import message as anthropic_message
from tests.providers.anthropic_words import text_block
from tests.providers.loopback import Asked, Loopback, json_reply

PNG, PDF, WAV = b"\x89PNG one", b"%PDF-1.7", b"RIFF"
PNG64, PDF64, WAV64 = (b64encode(data).decode() for data in (PNG, PDF, WAV))
IMAGE, FILE = image_part(PNG, "image/png"), file_part(PDF, "application/pdf", "a.pdf")
AUDIO, NOTE = audio_part(WAV, "wav"), file_part("grüße".encode(), "text/plain", "n.txt")
LINK = image_part("https://x.example/a.png")

CHAT = {"choices": [{"message": {"content": "seen"}, "finish_reason": "stop"}]}
RESPONSES = {
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "seen"}]}],
}
MESSAGES = anthropic_message(text_block("seen"))

ADAPTERS: dict[str, Any] = {
    "chat": (lambda url, **more: OpenAI("m", base_url=f"{url}/v1", api_key="k", **more), CHAT),
    "responses": (
        lambda url, **more: OpenAI("m", base_url=f"{url}/v1", api_key="k", api="responses", **more),
        RESPONSES,
    ),
    "anthropic": (
        lambda url, **more: Anthropic("m", base_url=url, api_key="k", cache_seconds=0, **more),
        MESSAGES,
    ),
}

PDF_URL = f"data:application/pdf;base64,{PDF64}"
PNG_URL = f"data:image/png;base64,{PNG64}"
READ: dict[str, dict[str, list[Any]]] = {
    "chat": {
        "prompt": [
            {"type": "image_url", "image_url": {"url": PNG_URL}},
            {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
            {"type": "file", "file": {"file_data": PDF_URL, "filename": "a.pdf"}},
        ],
    },
    "responses": {
        "prompt": [
            {"type": "input_image", "image_url": PNG_URL},
            {"type": "input_image", "image_url": "https://x.example/a.png"},
            {"type": "input_file", "file_data": PDF_URL, "filename": "a.pdf"},
        ],
    },
    "anthropic": {
        "prompt": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG64}},
            {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PDF64},
                "title": "a.pdf",
            },
        ],
    },
}
TEXT = {"chat": "text", "responses": "input_text", "anthropic": "text"}
CALL = ToolCall("c1", "look", "{}")


async def sent(adapter: str, *messages: Message, **more: Any) -> list[Asked]:
    """The requests that the adapter sends for these messages."""
    make, reply = ADAPTERS[adapter]
    async with Loopback([json_reply(reply)]) as server, make(server.url, **more) as llm:
        response = await llm.complete(Request(messages))
        assert response.message().text == "seen"
        return server.asked


def turns(body: Any) -> list[Any]:
    found: list[Any] = body["input"] if "input" in body else body["messages"]
    return found


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_parts_of_a_prompt_are_sent_in_the_form_of_each_api(adapter: str) -> None:
    (asked,) = await sent(adapter, Message("user", [text_part("What is this?"), IMAGE, LINK, FILE]))
    text = {"type": TEXT[adapter], "text": "What is this?"}
    assert turns(asked.json)[0]["content"] == [text, *READ[adapter]["prompt"]]


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_parts_of_a_tool_result_are_sent_in_the_form_of_each_api(adapter: str) -> None:
    said = Message("tool", [text_part("a plan"), IMAGE, FILE], tool_call_id="c1", name="look")
    (asked,) = await sent(adapter, Message("user", "?"), Message("assistant", None, (CALL,)), said)
    image, _, file = READ[adapter]["prompt"]
    parts = [{"type": TEXT[adapter], "text": "a plan"}, image, file]
    last = turns(asked.json)[2:]
    if adapter == "chat":  # results are text there, so the other parts follow
        about = {"type": "text", "text": "Content of the result of call c1:"}
        assert [one["content"] for one in last] == ["a plan", [about, image, file]]
        assert [one["role"] for one in last] == ["tool", "user"]
    elif adapter == "responses":
        assert last == [{"type": "function_call_output", "call_id": "c1", "output": parts}]
    else:
        assert last[0]["content"] == [{"type": "tool_result", "tool_use_id": "c1", "content": parts}]


async def test_parts_of_several_results_follow_all_results_of_their_turn() -> None:
    calls = (CALL, ToolCall("c2", "look"))
    results = [Message("tool", [IMAGE], tool_call_id=call.id) for call in calls]
    (asked,) = await sent("chat", Message("assistant", None, calls), *results, Message("user", "and?"))
    assert [one["role"] for one in asked.json["messages"]] == ["assistant", "tool", "tool", "user", "user"]
    assert [part["type"] for part in asked.json["messages"][3]["content"]] == ["text", "image_url"] * 2


async def test_audio_is_sent_by_chat_and_text_files_become_text_for_anthropic() -> None:
    (asked,) = await sent("chat", Message("user", [AUDIO]))
    assert asked.json["messages"][0]["content"] == [
        {"type": "input_audio", "input_audio": {"data": WAV64, "format": "wav"}}
    ]
    (asked,) = await sent("anthropic", Message("user", [NOTE]))
    assert asked.json["messages"][0]["content"] == [
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "grüße"},
            "title": "n.txt",
        }
    ]


@pytest.mark.parametrize(
    ("adapter", "part", "more", "why"),
    [
        ("anthropic", AUDIO, {}, "reads text, image, file, but a user message has a part of kind 'audio'"),
        ("responses", AUDIO, {}, "reads text, image, file, but a user message has a part of kind 'audio'"),
        ("chat", IMAGE, {"reads": ["text"]}, "reads text, but a user message has a part of kind 'image'"),
        ("anthropic", file_part(b"x", "application/zip", "a.zip"), {}, "a file of type 'application/zip'"),
    ],
)
async def test_what_a_model_cannot_read_is_refused_before_the_request(
    adapter: str, part: Any, more: Any, why: str
) -> None:
    make, reply = ADAPTERS[adapter]
    async with Loopback([json_reply(reply)]) as server, make(server.url, **more) as llm:
        with pytest.raises(ConfigError, match=why):
            await llm.complete(Request([Message("user", [part])]))
        result = await Agent(llm, observers=()).run([Message("user", [part])])
        assert result.outcome is Outcome.FAILED
        assert isinstance(result.error, ConfigError)
        assert not server.asked


@pytest.mark.parametrize("reads", ["text", ["image"], ["text", "video"]])
def test_wrong_kinds_are_refused_with_the_possible_ones(reads: Any) -> None:
    with pytest.raises(ConfigError, match="possible: 'text' and any of text, image, file"):
        Anthropic("m", api_key="k", reads=reads)


async def test_parts_of_prompt_and_result_are_the_same_after_a_resume(tmp_path: Any) -> None:
    @tool(effect="pure")
    def look() -> list[Any]:
        return ["a plan", IMAGE]

    prompt = Message("user", [text_part("?"), IMAGE, FILE, AUDIO])
    llm = ScriptedLLM([[CALL], "seen"])
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        first = await Agent(llm, tools=[look], journal=journal, observers=()).run([prompt], run_id="r")
        said = first.messages[2]
        assert said == Message("tool", [text_part("a plan"), IMAGE], tool_call_id="c1", name="look")
        assert list(llm.requests[1].messages) == list(first.messages[:3])
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        again = await Agent(ScriptedLLM([]), tools=[look], journal=journal, observers=()).resume("r")
        assert again.messages == first.messages
        dones = [record.body for record in await journal.load("r") if record.kind == "done"]
        written = "".join(str(record.body) for record in await journal.load("r"))
        assert written.count(PNG64) == 2, "once for the prompt, once for the result"
        assert dones[0]["content"] == f"a plan\n{described(IMAGE)}"


def test_a_description_shows_kind_type_size_and_digest_so_that_another_content_differs() -> None:
    assert described(IMAGE).startswith("[image image/png, 8 bytes, sha256 ")
    assert described(IMAGE) != described(image_part(b"\x89PNG two", "image/png"))
    assert described(FILE).startswith("[file a.pdf application/pdf, 8 bytes, sha256 ")
    assert described(AUDIO).startswith("[audio audio/wav, 4 bytes, sha256 ")
    assert described(LINK) == "[image https://x.example/a.png]"


def test_bytes_without_a_media_type_are_refused() -> None:
    with pytest.raises(ConfigError, match="media_type is None; bytes need one, for example 'image/png'"):
        image_part(PNG)


CITED: list[dict[str, Any]] = [
    {"type": "text", "text": "Oslo is the capital"},
    {"type": "reference", "reference_ids": [1]},
    {"type": "text", "text": " of Norway."},
]
CITED_HISTORY = Request((Message("user", "Hi."), Message("assistant", CITED), Message("user", "Go on.")))


@pytest.mark.parametrize(
    ("provider", "sent"), [("mistral_ai", CITED), ("openai", "Oslo is the capital of Norway.")], ids=str
)
async def test_a_citation_is_sent_back_to_mistral_and_to_no_other_server(provider: str, sent: object) -> None:
    reply = json_reply({"choices": [{"message": {"content": "Fine."}, "finish_reason": "stop"}]})
    async with (
        Loopback([reply], vendor="mistral" if provider == "mistral_ai" else "openai") as server,
        OpenAI("m", base_url=server.url, api_key="k", provider=provider) as llm,
    ):
        await llm.complete(CITED_HISTORY)
        assert server.asked[0].json["messages"][1]["content"] == sent


async def test_a_citation_is_not_sent_to_anthropic() -> None:
    async with (
        Loopback([json_reply(anthropic_message(text_block("Fine.")))]) as server,
        Anthropic("m", base_url=server.url, api_key="k") as llm,
    ):
        await llm.complete(CITED_HISTORY)
        blocks = server.asked[0].json["messages"][1]["content"]
    assert [block["text"] for block in blocks] == ["Oslo is the capital", " of Norway."]
