"""Code mode: the model writes code and a REPL runs it, until the model gives a final answer.

Two edges beyond the usual ones let a StoppingPolicy end a run. Model calls belong to the states that wait for the next
event: INIT, SHALLOW_CALL and, after the code has run, EXECUTING. PROMPTING only parses the reply. Therefore
CodeExecuted leads back to PROMPTING, not to EXECUTING.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

from orchestrator.kernel.graph import Graph, bounding
from orchestrator.kernel.typed import StateMachine
from orchestrator.llm.message import Message
from orchestrator.machines.rlm.model import (
    LLMResponseReceived,
    MaxIterationsReached,
    ModeContext,
    PolicyStop,
    frozen,
    guarded,
    reach_limit,
    stop,
    take_response,
)
from orchestrator_guards import Verdict, iterations

# ---- states, events and context ----


class CodeModeState(Enum):
    """The five states."""

    INIT = auto()
    SHALLOW_CALL = auto()
    PROMPTING = auto()
    EXECUTING = auto()
    DONE = auto()


@dataclass(slots=True, frozen=True)
class DepthExceeded:
    """The run has reached the maximum depth: the model is called once."""

    depth: int = 0
    max_depth: int = 0


@dataclass(slots=True, frozen=True)
class CodeBlocksFound:
    """Code blocks of the model's reply. Empty if the reply has neither code nor an answer; the turn still counts."""

    blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        frozen(self, "blocks", self.blocks)


@dataclass(slots=True, frozen=True)
class FinalAnswerFound:
    """The final answer."""

    answer: str
    is_value: bool = False
    """The answer is the value of a variable, so it is complete even if the response that names it is not."""


@dataclass(slots=True, frozen=True)
class CodeExecuted:
    """The blocks ran, and the model responded to their results."""

    results: tuple[str, ...] = ()
    """Text about each block as added to the history."""
    response: str = ""
    incomplete: str = ""
    """As in LLMResponseReceived."""

    def __post_init__(self) -> None:
        frozen(self, "results", self.results)


CodeModeEvent: TypeAlias = (
    DepthExceeded
    | LLMResponseReceived
    | CodeBlocksFound
    | FinalAnswerFound
    | CodeExecuted
    | MaxIterationsReached
    | PolicyStop
)
"""The six events of code mode, and PolicyStop, which a StoppingPolicy may cause in any machine."""


@dataclass
class CodeModeContext(ModeContext):
    """The context of a run of code mode."""

    blocks: tuple[str, ...] = ()
    """Code to run."""


# ---- the REPL ----


RESULT_CHARS = 20_000
"""Maximum characters of one block's result in the history."""

Answer: TypeAlias = str | Exception
"""The answer to a query of the code: text, or an error that is raised in the code with the same message."""

Broker: TypeAlias = Callable[[tuple[str, ...]], Awaitable[Sequence[Answer]]]
"""Answers the prompts of one llm_query (one) or llm_query_batched (any number): as many answers, in the same order.

If it raises an Exception, all prompts of that call fail with it. Cancellation passes through.
"""


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of one block."""

    stdout: str = ""
    """Output of the code on both streams, in order. The end is missing if `dropped` is not 0."""
    error: str | None = None
    """The traceback of the code, or a description of the lost worker for the model."""
    final: str | None = None
    """The argument of FINAL_VAR; None if the code did not call it, or raised."""
    seconds: float = 0.0
    """Wall time of the code without the time that it waited for answers."""
    lost: str | None = None
    """Why the worker was lost with all its names: "wall time", "CPU time", "memory", "disk", "exit" or "protocol"."""
    dropped: int = 0
    """Characters of output that were not kept."""
    queries: int = 0
    """Prompts that the code sent to a model."""

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.error is None

    def text_for_model(self, limit: int = RESULT_CHARS) -> str:
        """Return the text for the model: at most `limit` characters, and a line about omitted output.

        The end of an error and the start of the output are kept, because they contain the most information.
        """
        error = self.error or ""
        if len(error) > limit // 2:
            error = "…" + error[-(limit // 2) :]
        kept = self.stdout[: max(limit - len(error), 0)]
        cut = self.dropped + len(self.stdout) - len(kept)
        parts = [kept.rstrip("\n")] if kept.strip() else []
        if cut:
            parts.append(
                f"[{cut:,} more characters of output were cut; print less, or keep it in a variable]"
            )
        if error:
            parts.append(error)
        return "\n".join(parts) or "(no output)"


class Repl(Protocol):
    """Keeps its names from block to block. Runs one block at a time."""

    async def run(self, code: str, *, seconds: float | None = None) -> CodeResult:
        """Run a block within `seconds` of wall time (default: the configured limit).

        Errors of the code are not raised.
        """
        ...

    async def variable(self, name: str) -> str | None:
        """Return a variable as text (its str()), or None if the name does not exist or has no text."""
        ...

    async def close(self) -> None:
        """Stop the worker. A second call has no effect."""
        ...


# ---- the graph ----


S = CodeModeState


@bounding
def may_continue(_event: CodeExecuted, ctx: CodeModeContext) -> Verdict:
    """Return whether there may be another turn after this one."""
    return iterations(ctx.iteration + 1, ctx.max_iterations)


def _take_blocks(event: CodeBlocksFound, ctx: CodeModeContext) -> None:
    ctx.blocks = event.blocks


def _take_results(event: CodeExecuted, ctx: CodeModeContext) -> None:
    """Complete the turn: add the results of the code and the model's response to them."""
    ctx.iteration += 1
    ctx.blocks, ctx.notice = (), ""
    if event.results:
        ctx.say(Message("user", "\n\n".join(event.results)))
    take_response(LLMResponseReceived(event.response, incomplete=event.incomplete), ctx)


def _keep_answer(event: FinalAnswerFound, ctx: CodeModeContext) -> None:
    ctx.final_answer = event.answer
    if event.is_value:
        ctx.incomplete = ""


def _finish_turn(event: FinalAnswerFound, ctx: CodeModeContext) -> None:
    ctx.iteration += 1
    _keep_answer(event, ctx)


def _answer_at_once(event: LLMResponseReceived, ctx: CodeModeContext) -> None:
    take_response(event, ctx)
    ctx.final_answer = event.response


def build_code_mode_machine() -> StateMachine[CodeModeState, CodeModeEvent, CodeModeContext]:
    """Return the machine of code mode. Build it once; run it with an event source and a context for each run."""
    machine: StateMachine[CodeModeState, CodeModeEvent, CodeModeContext]
    machine = StateMachine("code_mode", initial=S.INIT)
    for state in CodeModeState:
        machine.state(state)
    machine.terminal(S.DONE)
    machine.transition(S.INIT, DepthExceeded, S.SHALLOW_CALL)
    machine.transition(S.INIT, LLMResponseReceived, S.PROMPTING, action=take_response)
    machine.transition(S.SHALLOW_CALL, LLMResponseReceived, S.DONE, action=_answer_at_once)
    machine.transition(S.PROMPTING, CodeBlocksFound, S.EXECUTING, action=_take_blocks)
    machine.transition(S.PROMPTING, FinalAnswerFound, S.DONE, action=_keep_answer)
    machine.transition(S.PROMPTING, PolicyStop, S.DONE, action=stop)
    machine.transition(S.EXECUTING, FinalAnswerFound, S.DONE, action=_finish_turn)
    machine.transition(S.EXECUTING, CodeExecuted, S.PROMPTING, may_continue, _take_results)
    machine.transition(S.EXECUTING, MaxIterationsReached, S.DONE, action=reach_limit)
    machine.transition(S.EXECUTING, PolicyStop, S.DONE, action=stop)
    return machine


CODE_MODE: Graph = guarded(
    build_code_mode_machine(),
    {S.INIT: 600.0, S.SHALLOW_CALL: 600.0, S.PROMPTING: 60.0, S.EXECUTING: 3600.0},
    CodeModeContext,
)
