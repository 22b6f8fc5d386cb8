"""Responses that the output limit or a filter cut, and refusals, in both modes."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import MemoryJournal, Outcome, Response, ToolCall, tool
from orchestrator.machines.rlm.code_mode import CodeResult
from orchestrator.rlm import Rlm
from orchestrator.testing import ScriptedLLM


class Repl:
    """A REPL that only writes down what it is given."""

    ran: list[str]

    def __init__(self, _context: object, **_: Any) -> None:
        pass

    async def run(self, code: str, *, seconds: float | None = None) -> CodeResult:
        self.ran.append(code)
        return CodeResult("ran")

    async def variable(self, name: str) -> str | None:
        return "42" if name == "answer" else None

    async def close(self) -> None:
        pass


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(Repl, "ran", found, raising=False)
    return found


def code(llm: ScriptedLLM, **options: Any) -> Rlm:
    return Rlm(llm, mode="code", repl=Repl, observers=(), **options)


async def test_code_that_was_cut_does_not_run_and_the_model_reads_why(ran: list[str]) -> None:
    llm = ScriptedLLM([Response("```repl\ndelete_all()", finish_reason="length"), "FINAL(done)"])
    done = await code(llm).run("?")
    assert (done.outcome, done.reason, done.output) == (Outcome.COMPLETED, "none", "done")
    assert ran == []
    assert "Your output limit cut your message" in llm.requests[1].messages[-1].text


async def test_a_value_is_complete_and_a_text_is_not(ran: list[str]) -> None:
    value = await code(ScriptedLLM([Response("FINAL_VAR(answer)\nand", finish_reason="length")])).run("?")
    text = await code(ScriptedLLM([Response("FINAL(forty\n(two)\nand", finish_reason="length")])).run("?")
    assert (value.outcome, value.reason, value.output) == (Outcome.COMPLETED, "none", "42")
    assert (text.outcome, text.reason, text.finish_reason) == (Outcome.PARTIAL, "truncated", "stop")
    assert ran == []


async def test_a_refusal_is_not_asked_for_again() -> None:
    llm = ScriptedLLM([Response("I would rather not", finish_reason="refusal")])
    done = await code(llm).run("?")
    assert (done.outcome, done.reason, done.output) == (Outcome.PARTIAL, "refused", "I would rather not")
    llm.assert_complete()


@pytest.mark.parametrize("arguments", ['{"text": "a', "", "{}"])
async def test_a_call_that_was_cut_does_not_run_and_the_model_reads_why(arguments: str) -> None:
    written: list[str] = []

    @tool
    def write(text: str = "") -> str:
        """Write."""
        written.append(text)
        return "ok"

    calls = ToolCall("1", "write", '{"text": "whole"}'), ToolCall("2", "write", arguments)
    llm = ScriptedLLM([Response(None, calls, "max_tokens"), "Done."])
    done = await Rlm(llm, mode="tools", tools=[write], observers=()).run("?")
    assert (done.outcome, done.output, written) == (Outcome.COMPLETED, "Done.", ["whole"])
    assert "your output limit cut this call" in llm.requests[1].messages[-1].text


async def test_the_end_of_a_run_is_the_same_when_it_is_read_again() -> None:
    journal = MemoryJournal()
    rlm = Rlm(
        ScriptedLLM([Response("half", finish_reason="length")]), mode="tools", observers=(), journal=journal
    )
    done = await rlm.run("?", run_id="r")
    again = await rlm.resume("r")
    for one in (done, again):
        assert (one.outcome, one.reason, one.output) == (Outcome.PARTIAL, "truncated", "half")
