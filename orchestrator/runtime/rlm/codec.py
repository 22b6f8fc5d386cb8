"""Runs of the modes as records, and their restoration in another process or after a crash."""

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
from orchestrator.machines.plain import plain_json
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
    """The codec of a mode. The history is stored message by message, under the common name of all records."""

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the whole context."""
        body = dict(super().opening(run))
        return {**body, "context": _renamed(body["context"], _GROWING, _STORED)}

    def changes(self, run: Run[Any, Any]) -> dict[str, Any]:
        """Return the changes since the last call."""
        return _renamed(super().changes(run), _GROWING, _STORED)

    def read(self, stored: StoredRun) -> ModeContext:
        """Return the context of a stored run, with the data of its prompt. Raises Corrupt."""
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

    The data of a prompt is stored once, at the start of the run. The last response of the model and its blocks or
    calls are restored from the history.
    """
    about = {"launch": dict(launch)} if launch else {}
    return ModeCodec(
        kind,
        growing=_GROWING,
        apart=("context", "shared", "last_response", "blocks", "calls"),
        about=lambda ctx: {"conversation_id": ctx.conversation_id, "material": ctx.context, **about},
    )


def plain_context(context: Any) -> Any:
    """Return the data of a prompt as text or JSON types. Raises ConfigError for data without a JSON form."""
    try:
        if isinstance(context, str):
            context.encode()  # a lone surrogate is not text
            return context
        return plain_json(context)
    except ValueError as error:
        raise ConfigError(f"the context cannot be stored as JSON: {error}; give text or JSON data") from None


def restored(stored: StoredRun, machine: Machine, deps: ModeDeps, codec: ModeCodec) -> ModeRun:
    """Return the run as of its last record, ready for `drive`. Changes nothing outside.

    An event of a mode is an object that no record contains, so the work that led to it is repeated. The REPL is a new
    one.
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


def reserved(budget: RunBudget) -> dict[str, Any]:
    """Return the record that is written before a request: the usage of the run if the request costs its maximum."""
    return {"usage": asdict(budget.committed), "sub_calls": budget.calls}


def charge(run: ModeRun, records: Iterable[Record]) -> None:
    """Charge the requests in flight when the run stopped, and the usage after its last transition."""
    said: Mapping[str, Any] | None = None
    for record in records:
        if record.kind in {"transition", "resumed"}:  # they contain the usage so far
            said = None
        elif record.kind == "reserved":
            said = record.body
    if said is not None:
        run.ctx.usage, run.ctx.sub_calls = Usage.of(said["usage"]), said["sub_calls"]


def refuse_unknown(run: ModeRun, tools: ToolSet) -> None:
    """Raise Suspended if calls may have run that must not run twice: they started, and their end is unknown."""
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
        why = f"calls of {', '.join(unknown)} may have run already; check that, then resume with again=True"
        raise Suspended(run.run_id, why)


def said_in(ctx: ModeContext, before: int) -> list[Message]:
    """Return the conversation after a run: the earlier messages, its prompt and its answer, without its turns."""
    earlier = [Message.from_openai(one) for one in ctx.message_history if one.get("role") != "system"][
        :before
    ]
    answer = ctx.final_answer
    ends = [Message("user", ctx.prompt)] + ([Message("assistant", answer)] if answer is not None else [])
    return [*earlier, *ends]


def summary(run: ModeRun) -> dict[str, Any]:
    """Return the totals for `run.completed`, and the used share of each enabled limit."""
    ctx, limits = run.ctx, run.ctx.limits
    budgets = (
        ("iterations", ctx.iteration, limits.max_iterations),
        ("input_tokens", ctx.usage.input_tokens, limits.max_input_tokens),
        ("output_tokens", ctx.usage.output_tokens, limits.max_output_tokens),
        ("cost", ctx.usage.cost_for_limits, limits.max_cost_micros),
    )
    return {
        "tokens_in": ctx.usage.input_tokens,
        "tokens_out": ctx.usage.output_tokens,
        "cost": ctx.usage.cost,
        "budget_used": {name: round(used / limit, 4) for name, used, limit in budgets if limit},
    }
