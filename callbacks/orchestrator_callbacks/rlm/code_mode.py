"""Code mode: its event source, which calls the model, parses its replies and runs its code, and its hooks.

Each hook gets the event that leaves its state from the run's event source.

Code runs before an answer in the same reply counts: if every block ends without an error, the answer of the reply
counts as it was. An answer that names a missing variable does not count: the model is informed and continues.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import LimitReached
from orchestrator.llm.message import Message
from orchestrator.llm.port import LLM
from orchestrator.machines.rlm.code_mode import (
    CodeBlocksFound,
    CodeExecuted,
    CodeModeContext,
    CodeModeEvent,
    CodeModeState,
    CodeResult,
    DepthExceeded,
    FinalAnswerFound,
    Repl,
)
from orchestrator.machines.rlm.model import LLMResponseReceived, MaxIterationsReached, PolicyStop
from orchestrator.machines.rlm.policy import ContextCompressor, StoppingPolicy
from orchestrator.machines.rlm.reply import FinalAnswer, Reply, read
from orchestrator_callbacks.rlm import conversation
from orchestrator_callbacks.rlm.conversation import (
    BlockingSource,
    Conversation,
    at_last_turn,
    incomplete_of,
    text_of,
)
from orchestrator_callbacks.rlm.model_call import ModeRun, next_event

_NOTHING = (
    "There was neither a ```repl block nor an answer in your message. Write code in a ```repl block, or give the "
    "answer with FINAL(...) or FINAL_VAR(...)."
)
_UNCLOSED = "A block or an answer in your message begins and never ends; it did not count."
_TRUNCATED = "Your output limit cut your message before its end; write shorter messages."
_NOT_TAKEN = "The answer in your message was not taken, because its code did not come to its end."
_NO_VARIABLE = "There is no variable {name!r} whose value could be the answer."


class CodeModeSource:
    """Event source for the machine of code mode: `await source(state, context)`.

    Args:
        llm: The model. It belongs to the caller.
        repl: Runs the code and keeps its variables. It belongs to the caller.
        stopping: Decides after each turn whether another one follows.
        compressor: Shortens the history for the model.
        params: Parameters of the model requests.
        instructions: Replaces the instructions about code mode.

    Example:
        with CodeModeSource(llm, repl).blocking() as source:
            machine.run(CodeModeState.INIT, CodeModeContext(prompt="How many lines?"), source)
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
        self._instructions = conversation.CODE if instructions is None else instructions
        self._conversation = Conversation(
            llm, "code", stopping=stopping, compressor=compressor, params=params
        )

    async def __call__(self, state: CodeModeState, ctx: CodeModeContext) -> CodeModeEvent | None:
        """Return the event that leaves a state; None in DONE."""
        match state:
            case CodeModeState.INIT:
                if ctx.depth >= ctx.max_depth:
                    return DepthExceeded(ctx.depth, ctx.max_depth)
                conversation.begin(ctx, self._instructions)
                response = await self._conversation.ask(ctx)
                return LLMResponseReceived(text_of(response), incomplete=incomplete_of(response))
            case CodeModeState.SHALLOW_CALL:
                # Call the model without a REPL. The model may mark its answer; an answer by variable
                # is not possible here.
                response = await self._conversation.ask_with(conversation.shallow(ctx))
                said = text_of(response)
                final = read(said).final
                answer = final.value if final is not None and final.kind == "text" else said
                return LLMResponseReceived(answer, incomplete=incomplete_of(response))
            case CodeModeState.PROMPTING:
                return await self._read(ctx)
            case CodeModeState.EXECUTING:
                return await self._execute(ctx)
            case _:
                return None

    def blocking(self) -> BlockingSource[CodeModeState, CodeModeEvent, CodeModeContext]:
        """Return a synchronous source for `machine.run`. Close it, or use it as a context manager."""
        return BlockingSource(self)

    async def close(self) -> None:
        """Close the REPL."""
        await self._repl.close()

    # ---- the states ----

    async def _read(self, ctx: CodeModeContext) -> CodeModeEvent:
        """Distinguish code from an answer. A reply with neither also counts as a turn, but not a refusal."""
        if await self._conversation.should_stop(ctx):
            return PolicyStop()
        reply = read(ctx.last_response or "")
        if not reply.blocks:
            answer = await self._value(reply.final)
            if answer is not None:
                return FinalAnswerFound(answer, is_value=_is_variable(reply.final))
            if ctx.incomplete in {"filtered", "refused"}:  # the next reply would be the same
                return FinalAnswerFound(ctx.last_response or "")
        return CodeBlocksFound(reply.blocks)

    async def _execute(self, ctx: CodeModeContext) -> CodeModeEvent:
        """Run the blocks, look for the answer, and call the model with the results."""
        reply = read(ctx.last_response or "")
        done = await self._run(ctx)
        answer = await self._answer(reply, done)
        if answer is not None:
            given = any(result.final is not None for result in done)
            return FinalAnswerFound(answer, is_value=given or _is_variable(reply.final))
        # The text for the model about each block.
        numbered = len(ctx.blocks) > 1
        texts = []
        for number, result in enumerate(done, 1):
            title = f"Result of block {number}" if numbered else "Result of your code"
            texts.append(f"{title}:\n{result.text_for_model(_chars(ctx))}")
        if skipped := len(ctx.blocks) - len(done):
            texts.append(f"The other {skipped} of your blocks did not run.")
        results = [*([ctx.notice] if ctx.notice else []), *texts]
        if ctx.incomplete == "truncated":
            results.append(_TRUNCATED)
        # The text for the model about an answer that did not count, or about a reply without code and answer.
        remarks = [_UNCLOSED] if reply.unclosed else []
        if reply.final is not None:
            failed = not all(result.ok for result in done)
            remarks.append(_NOT_TAKEN if failed else _NO_VARIABLE.format(name=reply.final.value))
        elif not reply.blocks and not reply.unclosed:
            remarks.append(_NOTHING)
        results += remarks
        await self._conversation.complete_turn(
            ctx, "\n".join(result.text_for_model(_chars(ctx)) for result in done)
        )
        if await self._conversation.should_stop(
            ctx
        ):  # before the limit check, which calls the model once more
            return PolicyStop()
        if at_last_turn(ctx):
            # Request the final answer; an unmarked reply counts as a whole.
            try:
                response = await self._conversation.ask(
                    ctx, [Message("user", "\n\n".join([*results, conversation.LIMIT]))]
                )
            except LimitReached:
                return MaxIterationsReached()
            said = text_of(response)
            answer = await self._value(read(said).final)
            return MaxIterationsReached((said if answer is None else answer) or None)
        response = await self._conversation.ask(ctx, [Message("user", "\n\n".join(results))])
        return CodeExecuted(tuple(results), text_of(response), incomplete_of(response))

    # ---- parts of a turn ----

    async def _run(self, ctx: CodeModeContext) -> list[CodeResult]:
        """Run the blocks in order, even after a failed one, but not after the worker was lost with its variables."""
        done: list[CodeResult] = []
        for code in ctx.blocks:
            done.append(await self._repl.run(code, seconds=ctx.limits.code_seconds or None))
            if done[-1].lost is not None:
                break
        return done

    async def _answer(self, reply: Reply, done: list[CodeResult]) -> str | None:
        """Return the answer of a turn without code errors: from FINAL_VAR in the code, else from the reply."""
        if not all(result.ok for result in done):
            return None
        given = next((result.final for result in reversed(done) if result.final is not None), None)
        return given if given is not None else await self._value(reply.final)

    async def _value(self, final: FinalAnswer | None) -> str | None:
        if final is None or final.kind == "text":
            return None if final is None else final.value
        return await self._repl.variable(final.value)


def _is_variable(final: FinalAnswer | None) -> bool:
    return final is not None and final.kind == "variable"


def _chars(ctx: CodeModeContext) -> int:
    return ctx.limits.result_chars or sys.maxsize


# ---- hooks ----


async def enter_init(run: ModeRun) -> Any:
    """Call the model, or report that the run is too deep for turns."""
    return await next_event(run)


async def enter_shallow_call(run: ModeRun) -> Any:
    """Call the model once."""
    return await next_event(run)


async def enter_prompting(run: ModeRun) -> Any:
    """Parse the model's reply."""
    return await next_event(run)


async def enter_executing(run: ModeRun) -> Any:
    """Run the code, and call the model with the results."""
    return await next_event(run)
