"""Why a server refused: its words, status and request id, from the wire to everybody who looks at the run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestrator import Agent, LLMError, MemoryJournal, Message, RetryPolicy, Runs, Runtime
from orchestrator.cli.runs.store import position_of
from orchestrator.console import console_app
from orchestrator.journal.redacted import parted
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request
from orchestrator.providers import Anthropic, OpenAI
from orchestrator.runtime.llm_loop.result import Result, ended_as
from orchestrator.runtime.runs.story import Story
from orchestrator.telemetry.log import TransitionLog
from tests.console.client import Client
from tests.console.stored import TOKEN
from tests.providers.loopback import Loopback, Reply, json_reply

WORDS = "Your prompt has 200001 tokens, and that is too many."
SECRET = "gho_0123456789abcdef"  # noqa: S105 - no real one
CODES = [
    {"error": {"message": WORDS, "type": "too_many_prompt_tokens", "code": 400}},
    {"error": {"message": WORDS, "code": "model_max_prompt_tokens_exceeded"}},
    {"error": {"message": WORDS, "code": "tokens_limit_reached", "type": "invalid_request_error"}},
    {"error": {"message": WORDS, "code": "Context_Length_Exceeded", "type": "invalid_request_error"}},
]


def events(*payloads: object) -> Reply:
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in payloads)
    return Reply(
        headers={"content-type": "text/event-stream", "x-request-id": "req_7"}, chunks=(text.encode(),)
    )


async def failed(
    reply: Reply, *, streamed: bool = False, model: type[OpenAI | Anthropic] = OpenAI
) -> LLMError:
    listener: Callable[[str], None] | None = (lambda _: None) if streamed else None
    async with Loopback([reply]) as server, model("m", base_url=server.url, api_key="k") as llm:
        with pytest.raises(LLMError) as caught:
            await llm.complete(Request((Message("user", "go"),), on_delta=listener))
    return caught.value


@pytest.mark.parametrize("body", CODES)
async def test_a_context_that_is_too_long_is_known_from_type_and_code(body: Mapping[str, Any]) -> None:
    error = await failed(json_reply(body, 400))
    assert (error.kind, error.status) == ("context_length", 400)
    assert WORDS in str(error)


@pytest.mark.parametrize("body", CODES)
async def test_the_same_error_inside_of_a_stream_is_the_same(body: Mapping[str, Any]) -> None:
    error = await failed(events(body), streamed=True)
    assert (error.kind, error.request_id) == ("context_length", "req_7")


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"x-request-id": "req_1"}, {}, "req_1"),
        ({"request-id": "req_2"}, {}, "req_2"),
        ({"cf-ray": "8f-FRA", "x-request-id": "req_3"}, {}, "req_3"),
        ({"cf-ray": "8f-FRA"}, {}, "8f-FRA"),
        ({}, {"error": {"message": "no", "request_id": "req_5"}}, "req_5"),
        ({"x-request-id": "two words"}, {}, ""),
        ({"x-request-id": "x" * 200}, {"request_id": 7}, ""),
        ({}, {}, ""),
    ],
)
@pytest.mark.parametrize("model", [OpenAI, Anthropic])
async def test_the_request_has_the_name_that_the_server_gave_it(
    model: type[OpenAI | Anthropic], headers: dict[str, str], body: dict[str, Any], expected: str
) -> None:
    reply = json_reply({"error": {"message": "no"}, **body}, 500, headers=headers)
    assert (await failed(reply, model=model)).request_id == expected


async def run_to_its_end(*, error_text: bool) -> tuple[Result, MemoryJournal, list[dict[str, Any]]]:
    """Run against a server that refuses every request; return the result, the journal and the log."""
    stream, journal = io.StringIO(), MemoryJournal()
    log = TransitionLog(stream, level="warning", error_text=error_text)
    words = f"{WORDS} {SECRET} {'x y ' * 2_000}"
    body = {"error": {"message": words, "type": "too_many_prompt_tokens"}}
    reply = json_reply(body, 400, headers={"x-request-id": "req_1"})
    async with Loopback(lambda _: reply) as server, OpenAI("m", base_url=server.url, api_key="k") as llm:
        runtime = Runtime(journal=journal, observers=[log])
        result = await Agent(llm, runtime=runtime, retry=RetryPolicy(attempts=1)).run("go", run_id="r")
    return result, journal, [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("error_text", [True, False])
async def test_the_log_has_kind_status_and_request_and_the_words_if_the_host_wants_them(
    error_text: bool,
) -> None:
    _, _, lines = await run_to_its_end(error_text=error_text)
    told = [line for line in lines if "error_type" in line]
    assert [line["msg"] for line in told] == ["llm.request", "fsm.transition_failed", "run.completed"]
    for line in told:
        assert (line["error_type"], line["error_code"]) == ("LLMError", "context_length")
        assert (line["http_status"], line["request_id"]) == (400, "req_1")
        assert (WORDS in line.get("error_text", "")) is error_text
    assert any(WORDS in json.dumps(line) for line in lines) is error_text


async def test_the_journal_keeps_the_words_bounded_and_every_view_shows_them() -> None:
    result, journal, _ = await run_to_its_end(error_text=False)
    assert (result.outcome, result.reason) == (Outcome.FAILED, "llm_error")
    assert ended_as(result).startswith("ended as failed (llm_error, context_length): ")
    records = await journal.load("r")
    [stored] = [record.body["error"] for record in records if record.body.get("error")]
    assert WORDS in stored["message"]
    assert SECRET not in json.dumps([record.body for record in records], default=str)
    assert len(stored["message"]) <= 2_000
    fields = stored["fields"]
    assert (fields["kind"], fields["status"], fields["request_id"]) == ("context_length", 400, "req_1")

    story = Story.of("r", records)
    assert story.error is not None
    assert story.error.facts.startswith("LLMError (context_length, HTTP 400, request req_1, ")
    assert ".py:" in story.error.facts
    assert WORDS in story.error.message
    assert story.error.place == "await_llm, turn 1, attempt 1"
    assert position_of(await journal.head("r"), story) == "ended: failed (llm_error, context_length)"

    shown = json.dumps([parted(record.kind, record.body).shown for record in records], default=str)
    assert "req_1" in shown
    assert WORDS not in shown


@pytest.mark.parametrize("content", [True, False])
async def test_the_console_shows_the_words_to_who_may_read_contents(content: bool) -> None:
    _, journal, _ = await run_to_its_end(error_text=False)
    client = Client(console_app(Runs(journal), token=TOKEN, content="always" if content else "never"))
    await client.post("/sign-in", {"token": TOKEN})
    page = (await client.get("/runs/r")).text
    assert "LLMError (context_length, HTTP 400, request req_1" in page
    assert "in await_llm, turn 1, attempt 1." in page
    assert (WORDS in page) is content


async def test_an_error_without_any_of_it_is_shown_as_before() -> None:
    journal = MemoryJournal()

    class Broken:
        model = "m"

        async def complete(self, _: Request) -> Any:
            raise ValueError("no")

    await Agent(Broken(), runtime=Runtime(journal=journal, observers=())).run("go", run_id="r")
    story = Story.of("r", await journal.load("r"))
    assert story.error is not None
    assert story.error.kind == ""
    assert story.error.facts.startswith("ValueError (test_error_reason.py:")
    assert position_of(await journal.head("r"), story).endswith(")")
