"""The event source of code mode: asks the model, reads its replies, runs its code. Seed 004 and systems.md 7.2.

Code comes before an answer in the same reply (L9): the blocks run, then the answer of the reply as it was counts, if
every block came to its end. An answer by the name of a variable that is not there is none: the model is told, and goes
on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import LimitReached
from orchestrator.llm.message import Message
from orchestrator.llm.port import LLM
from orchestrator.machines.code_mode.answer import FinalAnswer, Reply, read
from orchestrator.machines.code_mode.model import (
    CodeBlocksFound,
    CodeExecuted,
    CodeModeContext,
    CodeModeEvent,
    CodeModeState,
    DepthExceeded,
    FinalAnswerFound,
)
from orchestrator.machines.code_mode.ports import CodeResult, Repl
from orchestrator.machines.rlm.model import LLMResponseReceived, MaxIterationsReached, PolicyStop
from orchestrator.machines.rlm.policy import ContextCompressor, StoppingPolicy
from orchestrator_callbacks.rlm import prompt
from orchestrator_callbacks.rlm.blocking_source import BlockingSource
from orchestrator_callbacks.rlm.conversation import Conversation, at_last_turn, text_of

_NOTHING = (
    "There was neither a ```repl block nor an answer in your message. Write code in a ```repl block, or give the "
    "answer with FINAL(...) or FINAL_VAR(...)."
)
_UNCLOSED = "A block or an answer in your message begins and never ends; it did not count."
_NOT_TAKEN = "The answer in your message was not taken, because its code did not come to its end."
_NO_VARIABLE = "There is no variable {name!r} whose value could be the answer."


class CodeModeSource:
    """`await source(state, context)` for the machine of code mode; `blocking()` is the same for its sync `run`.

    `llm` is asked, `repl` runs the code and keeps its variables; both are the caller's. `stopping` and `compressor` may
    be None. `instructions` replace what the model is told about code mode.
    """

    def __init__(
        self,
        llm: LLM,
        repl: Repl,
        *,
        stopping: StoppingPolicy | None = None,
        compressor: ContextCompressor | None = None,
        params: Mapping[str, Any] | None = None,
        instructions: str | None = None,
    ) -> None:
        self._repl = repl
        self._instructions = prompt.CODE if instructions is None else instructions
        self._talk = Conversation(llm, "code", stopping=stopping, compressor=compressor, params=params)

    async def __call__(self, state: CodeModeState, ctx: CodeModeContext) -> CodeModeEvent | None:
        """Return the event that leaves a state; None in DONE."""
        match state:
            case CodeModeState.INIT:
                return await self._begin(ctx)
            case CodeModeState.SHALLOW_CALL:
                return await self._ask_once(ctx)
            case CodeModeState.PROMPTING:
                return await self._read(ctx)
            case CodeModeState.EXECUTING:
                return await self._execute(ctx)
            case _:
                return None

    def blocking(self) -> BlockingSource[CodeModeState, CodeModeEvent, CodeModeContext]:
        """Return this source for `machine.run`; close it, or use it as a context manager."""
        return BlockingSource(self)

    async def close(self) -> None:
        """Close the REPL."""
        await self._repl.close()

    # ---- the states ----

    async def _begin(self, ctx: CodeModeContext) -> CodeModeEvent:
        if ctx.depth >= ctx.max_depth:
            return DepthExceeded(ctx.depth, ctx.max_depth)
        prompt.begin(ctx, self._instructions)
        return LLMResponseReceived(text_of(await self._talk.ask(ctx)))

    async def _ask_once(self, ctx: CodeModeContext) -> CodeModeEvent:
        """Ask without a REPL. A model that knows the mode may mark its answer; a variable is nowhere here."""
        response = await self._talk.ask_with(prompt.shallow(ctx))
        said = text_of(response)
        final = read(said).final
        return LLMResponseReceived(final.value if final is not None and final.kind == "text" else said)

    async def _read(self, ctx: CodeModeContext) -> CodeModeEvent:
        """Tell code from an answer; a reply with neither is a turn all the same."""
        if await self._talk.should_stop(ctx):
            return PolicyStop()
        reply = read(ctx.last_response or "")
        if not reply.blocks:
            answer = await self._value(reply.final)
            if answer is not None:
                return FinalAnswerFound(answer)
        return CodeBlocksFound(reply.blocks)

    async def _execute(self, ctx: CodeModeContext) -> CodeModeEvent:
        """Run the blocks, look for the answer, tell the model, and let it say what comes next."""
        reply = read(ctx.last_response or "")
        done = await self._run(ctx)
        answer = await self._answer(reply, done)
        if answer is not None:
            return FinalAnswerFound(answer)
        told = [*([ctx.notice] if ctx.notice else []), *_told(ctx, done), *_remarks(reply, done)]
        await self._talk.complete_turn(ctx, "\n".join(result.told(_chars(ctx)) for result in done))
        if await self._talk.should_stop(ctx):  # before the limit, which asks once more (L6)
            return PolicyStop()
        if at_last_turn(ctx):
            return await self._ask_last(ctx, told)
        response = await self._talk.ask(ctx, [Message("user", "\n\n".join(told))])
        return CodeExecuted(tuple(told), text_of(response))

    # ---- parts of a turn ----

    async def _run(self, ctx: CodeModeContext) -> list[CodeResult]:
        """Run the blocks in order, also after one that failed, but not after the worker was lost with all names."""
        done: list[CodeResult] = []
        for code in ctx.blocks:
            done.append(await self._repl.run(code, seconds=ctx.limits.code_seconds or None))
            if done[-1].lost is not None:
                break
        return done

    async def _answer(self, reply: Reply, done: list[CodeResult]) -> str | None:
        """Return the answer of a turn whose code came to its end: what the code gave, else what the reply says."""
        if not all(result.ok for result in done):
            return None
        given = next((result.final for result in reversed(done) if result.final is not None), None)
        return given if given is not None else await self._value(reply.final)

    async def _value(self, final: FinalAnswer | None) -> str | None:
        if final is None or final.kind == "text":
            return None if final is None else final.value
        return await self._repl.variable(final.value)

    async def _ask_last(self, ctx: CodeModeContext, told: list[str]) -> MaxIterationsReached:
        """Ask for the answer; without a marked one the whole reply is it. No answer where a budget refuses (L8)."""
        try:
            response = await self._talk.ask(ctx, [Message("user", "\n\n".join([*told, prompt.LIMIT]))])
        except LimitReached:
            return MaxIterationsReached()
        said = text_of(response)
        answer = await self._value(read(said).final)
        return MaxIterationsReached((said if answer is None else answer) or None)


def _chars(ctx: CodeModeContext) -> int:
    return ctx.limits.result_chars or sys.maxsize


def _told(ctx: CodeModeContext, done: list[CodeResult]) -> list[str]:
    """Return what the model is told of its blocks, one text for each."""
    numbered = len(ctx.blocks) > 1
    texts = []
    for number, result in enumerate(done, 1):
        title = f"Result of block {number}" if numbered else "Result of your code"
        texts.append(f"{title}:\n{result.told(_chars(ctx))}")
    if skipped := len(ctx.blocks) - len(done):
        texts.append(f"The other {skipped} of your blocks did not run.")
    return texts


def _remarks(reply: Reply, done: list[CodeResult]) -> list[str]:
    """Return what the model is told of an answer that did not count, or of a reply with nothing in it."""
    remarks = [_UNCLOSED] if reply.unclosed else []
    if reply.final is not None:
        failed = not all(result.ok for result in done)
        remarks.append(_NOT_TAKEN if failed else _NO_VARIABLE.format(name=reply.final.value))
    elif not reply.blocks and not reply.unclosed:
        remarks.append(_NOTHING)
    return remarks
