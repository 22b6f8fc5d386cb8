"""Runs of the pipeline as records, and their restoration in another process or after a crash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.errors import ConfigError, Suspended
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.machines.pipeline import progress
from orchestrator.machines.pipeline.model import APART, PipelineContext
from orchestrator.machines.plain import plain_json
from orchestrator.runtime.service.position import rebuilt
from orchestrator_callbacks.pipeline import stage
from orchestrator_callbacks.pipeline.deps import PipelineDeps, PipelineRun


class PipelineCodec(ContextCodec[PipelineContext]):
    """The codec of the pipeline. Results of stages are restored from their own records, unless a hook changed them."""

    def changes(self, run: Run[PipelineContext, Any]) -> dict[str, Any]:
        """Return the changes since the last call."""
        changed = super().changes(run)
        amended = progress.amended(run.ctx)
        return {**changed, "amended": amended} if amended else changed


def codec(launch: Mapping[str, Any] | None = None) -> PipelineCodec:
    """Return the codec of a pipeline."""
    about = {"launch": dict(launch)} if launch else {}
    return PipelineCodec(PipelineContext, apart=APART, about=lambda _: about)


def plain_spec(spec: Any) -> Any:
    """Return a spec as JSON types. Raises ConfigError for an empty spec and for one without a JSON form."""
    if spec is None or spec == "":
        raise ConfigError("the spec is empty; give text or data that describes the task")
    try:
        return plain_json(spec)
    except ValueError as error:
        raise ConfigError(f"the spec cannot be stored as JSON: {error}") from None


def restored(
    stored: StoredRun,
    records: Iterable[Record],
    machine: Machine,
    deps: PipelineDeps,
    codec: ContextCodec[PipelineContext],
) -> PipelineRun:
    """Return the run as of its last record, ready for `drive`. Changes nothing outside."""
    ctx = codec.decoded(stored.context)
    for record in records:
        if record.kind == "stage":
            progress.replay(ctx, record.body)
        elif record.kind == "context" and "amended" in record.body:
            progress.amend(ctx, record.body["amended"])
    return rebuilt(stored, machine, ctx, deps, codec)


def is_irreversible(port: object) -> bool:
    """Return whether the work of a port must not happen twice."""
    return getattr(port, "effect", None) == "irreversible"


def refuse_unknown(run: PipelineRun) -> None:
    """Raise Suspended if such work has started and its result is unknown."""
    ports = {state.value: port for state, port in run.deps.ports.items()}
    if run.cursor.entry_pending and not stage.is_done(run) and is_irreversible(ports.get(run.cursor.state)):
        stage_name = run.cursor.state
        why = f"{stage_name} may have happened, and its port is irreversible; check it, then resume with again=True"
        raise Suspended(run.run_id, why)


def summary(run: Run[PipelineContext, Any]) -> dict[str, Any]:
    """Return the totals for `run.completed`, and the used share of each enabled limit."""
    ctx, limits = run.ctx, run.ctx.limits
    budgets = (
        ("iterations", ctx.iteration, limits.max_iterations),
        ("tokens", ctx.tokens, limits.token_budget),
    )
    return {
        "tokens": ctx.tokens,
        "refinements": ctx.refinements,
        "budget_used": {name: round(used / limit, 4) for name, used, limit in budgets if limit},
    }
