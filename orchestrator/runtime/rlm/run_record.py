"""The results of the runs of a mode, and their restoration from records in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, cast

from orchestrator.errors import ConfigError, Suspended
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import Transition
from orchestrator.kernel.journal import Record
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed import TypedMachine
from orchestrator.llm.message import Message, Usage
from orchestrator.machines.plain import plain_json
from orchestrator.machines.rlm.code_mode import CODE_MODE, CodeModeContext, CodeModeState
from orchestrator.machines.rlm.model import FAILED, ModeContext, finish_reason, output_of
from orchestrator.machines.rlm.reply import code_blocks
from orchestrator.machines.rlm.tools_mode import TOOLS_MODE, ToolsModeContext, ToolsModeState
from orchestrator.runtime.llm_loop.result import result_bundle, stopped
from orchestrator.runtime.service.restored_run import rebuilt
from orchestrator.tools.spec import REPEATABLE
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.rlm.conversation import AGAIN, LOST
from orchestrator_callbacks.rlm.model_call import ModeDeps, ModeRun, RunBudget
from orchestrator_guards import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RlmResult:
    """The end of a run."""

    run_id: str
    state: Enum
    """CodeModeState.DONE or ToolsModeState.DONE; another state only if the run ended early."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    finish_reason: str
    """The first that applies of `policy_stop`, `max_iterations` and `stop`; else the reason of the early end."""
    output: str | None
    """The answer; for a run that a policy stopped, the model's last response. None without an answer."""
    iterations: int
    depth: int
    usage: Usage
    """Usage of the run and its child runs."""
    sub_calls: int
    messages: tuple[Message, ...]
    transitions: tuple[Transition, ...]
    """The path of the run: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any."""
    error: Exception | None = None
    """The first error."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return result_bundle(self, CODE_MODE, TOOLS_MODE)

    def raise_for_outcome(self) -> RlmResult:
        """Return self if the run completed; else raise the RunStopped of its outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self) from self.error


def result_of(run: Run[ModeContext, Any], path: Iterable[Transition], end: Ending) -> RlmResult:
    """Return the result of a run with this end."""
    ctx = run.ctx
    answered = end.outcome in (Outcome.COMPLETED, Outcome.PARTIAL)
    state = cast("TypedMachine", run.machine).objects[run.cursor.state]
    return RlmResult(
        run_id=run.run_id,
        state=cast("Enum", state),
        outcome=end.outcome,
        reason=end.reason,
        finish_reason=finish_reason(ctx, end),
        output=output_of(ctx) if answered else None,
        iterations=ctx.iteration,
        depth=ctx.depth,
        usage=ctx.usage,
        sub_calls=ctx.sub_calls,
        messages=tuple(ctx.messages),
        transitions=tuple(path),
        verdict=getattr(run.error, "verdict", None) if ctx.verdict is None else ctx.verdict,
        error=run.error,
    )


_GROWING, _STORED = "message_history", "messages"


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
    unknown = sorted({spec.name for spec in specs if spec is not None and spec.effect not in REPEATABLE})
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
