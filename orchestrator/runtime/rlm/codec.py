"""Runs of the modes as records, and out of records again: in another process, after a crash, tomorrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from orchestrator.errors import ConfigError, Suspended
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Message, Usage
from orchestrator.machines.code_mode.answer import code_blocks
from orchestrator.machines.code_mode.model import CodeModeContext, CodeModeState
from orchestrator.machines.pipeline.plain import plain_json
from orchestrator.machines.rlm.model import ModeContext
from orchestrator.machines.rlm.table import FAILED
from orchestrator.machines.tools_mode.model import ToolsModeContext, ToolsModeState
from orchestrator.runtime.service.position import rebuilt
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.rlm.budget_account import RunBudget
from orchestrator_callbacks.rlm.deps import ModeDeps, ModeRun
from orchestrator_callbacks.rlm.prompt import AGAIN, LOST

_GROWING, _STORED = "message_history", "messages"
_RERUN = ("pure", "idempotent")


class ModeCodec(ContextCodec[ModeContext]):
    """The codec of a mode. The history is written message by message, under the name that all records have for it."""

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the whole context."""
        body = dict(super().opening(run))
        return {**body, "context": _renamed(body["context"], _GROWING, _STORED)}

    def changes(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return what is other than at the last call."""
        return _renamed(super().changes(run), _GROWING, _STORED)

    def read(self, stored: StoredRun) -> ModeContext:
        """Return the context of a stored run, with what its prompt is about. Raises Corrupt."""
        ctx = self.decoded(stored.context | {_GROWING: stored.messages})
        ctx.context = stored.created.get("material")
        said = next((one for one in reversed(ctx.messages[ctx.earlier :]) if one.role == "assistant"), None)
        if said is not None and ctx.begun:
            ctx.last_response = said.text
            if isinstance(ctx, ToolsModeContext):
                ctx.calls = said.tool_calls
            elif isinstance(ctx, CodeModeContext):
                ctx.blocks = code_blocks(said.text)
        return ctx


def _renamed(body: Mapping[str, Any], name: str, to: str) -> dict[str, Any]:
    return {to if one == name else one: value for one, value in body.items()}


def codec(kind: type[ModeContext], launch: Mapping[str, Any] | None = None) -> ModeCodec:
    """Return the codec of a mode.

    What a prompt is about is written once, with the run's begin; what the model said last, and what that asks for,
    stands in the history.
    """
    about = {"launch": dict(launch)} if launch else {}
    return ModeCodec(
        kind,
        growing=_GROWING,
        apart=("context", "shared", "last_response", "blocks", "calls"),
        about=lambda ctx: {"conversation_id": ctx.conversation_id, "material": ctx.context, **about},
    )


def plain_context(context: Any) -> Any:
    """Return what a prompt is about as text or JSON types. Raises ConfigError for what JSON has no form for."""
    try:
        if isinstance(context, str):
            context.encode()  # half a surrogate pair is no text
            return context
        return plain_json(context)
    except ValueError as error:
        raise ConfigError(
            f"the context cannot be stored as JSON: {error}; give text, or data that JSON has"
        ) from None


def restored(stored: StoredRun, machine: Machine, deps: ModeDeps, codec: ModeCodec) -> ModeRun:
    """Return the run as it stood at its last record, ready for `drive`. Touches nothing outside.

    An event of a mode is an object and no record has it: what led to it is done again. The REPL is a new one.
    """
    ctx = codec.read(stored)
    run: ModeRun = rebuilt(stored, machine, ctx, deps, codec)
    if run.cursor.pending_event is not None and run.cursor.pending_event.value != FAILED:
        run.restore(replace(run.cursor, entry_pending=True, pending_event=None))
    if isinstance(ctx, CodeModeContext) and ctx.begun:
        begun = run.cursor.entry_pending and not stored.unbegun
        repeats = begun and run.cursor.state == CodeModeState.EXECUTING.name and ctx.blocks
        ctx.notice = f"{LOST} {AGAIN}" if repeats else LOST
    return run


def reserved(purse: RunBudget) -> dict[str, Any]:
    """Return what is written before a request goes out: all that the run will have used if it costs its bound."""
    return {"usage": asdict(purse.committed), "sub_calls": purse.calls}


def charge(run: ModeRun, records: Iterable[Record]) -> None:
    """Count what was in flight when the run stopped, and what came after its last transition, as if it had come."""
    said: Mapping[str, Any] | None = None
    for record in records:
        if record.kind in {"transition", "resumed"}:  # they have what was used by then
            said = None
        elif record.kind == "reserved":
            said = record.body
    if said is not None:
        run.ctx.usage, run.ctx.sub_calls = Usage.of(said["usage"]), said["sub_calls"]


def refuse_unknown(run: ModeRun, tools: ToolSet) -> None:
    """Raise Suspended where calls may have run that must not run twice: they began, and nobody knows the end."""
    ctx = run.ctx
    if not (
        isinstance(ctx, ToolsModeContext)
        and run.cursor.state == ToolsModeState.EXECUTING_TOOLS.name
        and run.cursor.entry_pending
    ):
        return
    specs = [tools.find(call.name) for call in ctx.calls]
    unknown = sorted({spec.name for spec in specs if spec is not None and spec.effect not in _RERUN})
    if unknown:
        why = f"calls of {', '.join(unknown)} may have run already; look, then resume it with again=True"
        raise Suspended(run.run_id, why)


def said_in(ctx: ModeContext, before: int) -> list[Message]:
    """Return the conversation after a run: what was said before it, its prompt and its answer, nothing between."""
    earlier = [Message.from_openai(one) for one in ctx.message_history if one.get("role") != "system"][
        :before
    ]
    answer = ctx.final_answer
    ends = [Message("user", ctx.prompt)] + ([Message("assistant", answer)] if answer is not None else [])
    return [*earlier, *ends]


def summary(run: ModeRun) -> dict[str, Any]:
    """Return the totals that `run.completed` logs, and for each limit that is on the share of it that was used."""
    ctx, limits = run.ctx, run.ctx.limits
    budgets = (
        ("iterations", ctx.iteration, limits.max_iterations),
        ("input_tokens", ctx.usage.input_tokens, limits.max_input_tokens),
        ("output_tokens", ctx.usage.output_tokens, limits.max_output_tokens),
        ("cost", ctx.usage.cost_micros or 0, limits.max_cost_micros),
    )
    return {
        "tokens_in": ctx.usage.input_tokens,
        "tokens_out": ctx.usage.output_tokens,
        "cost": ctx.usage.cost,
        "budget_used": {name: round(used / limit, 4) for name, used, limit in budgets if limit},
    }
