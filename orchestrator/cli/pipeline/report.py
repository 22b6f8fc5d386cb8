"""`orchestrator pipeline report`: the metrics of a run, from its journal records or from a checkpoint."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.picture import check_picture, save_picture
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.drawing.element import duration
from orchestrator.drawing.plot import bars_svg
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.runtime.pipeline.orchestration import agent
from orchestrator.runtime.pipeline.orchestration.machine import RunMetrics
from orchestrator.runtime.service.recovery import path_of


def report_run(run: str | None, *, plot: Path | None, json: bool, journal: Address | None) -> int:
    """Print the report of a run, by default of the newest. Raises ConfigError if there is none.

    With `plot`, the time of each state is drawn into that file.
    """
    if plot is not None:
        check_picture(plot)

    async def work(store: OpenStore) -> tuple[str, RunMetrics]:
        head = await _newest(store) if run is None else await store.run(run)
        return head.run_id, await metrics_of(store, head)

    run_id, metrics = at_journal(journal, work, only_reads=True)
    if plot is not None:
        save_picture(plot, state_bars(run_id, metrics))
    if json:
        say_json({"run_id": run_id, **metrics.as_json()})
    else:
        say(shown(metrics.report(), 100_000))
    return Exit.COMPLETED


def state_bars(run_id: str, metrics: RunMetrics) -> str:
    """Return the time of each visited state as bars, with visits and tokens, as SVG."""
    rows = []
    for state, found in metrics.of_states().items():
        if found.visit_count:
            tokens = f" · {found.total_tokens:,} tokens" if found.total_tokens else ""
            visits = many(found.visit_count, "visit")
            text = f"{duration(found.total_duration_seconds)} · {visits}{tokens}"
            rows.append((state.value, found.total_duration_seconds, text))
    total = duration(sum(seconds for _, seconds, _ in rows))
    return bars_svg(f"{run_id}: {total} in {many(metrics.iteration_count, 'iteration')}", rows)


async def metrics_of(store: OpenStore, head: RunHead) -> RunMetrics:
    """Return the figures of a stored run. Raises ConfigError for a run of another graph."""
    if head.graph == agent.GRAPH:
        machine = await agent.CheckpointManager(store.journal, head.run_id).load(observers=())
        if machine is not None:
            return machine.metrics
    if head.graph != PIPELINE.name:
        where = store.command("show", head.run_id)
        raise ConfigError(
            f"run {head.run_id} belongs to graph {shown(head.graph)!r}, not of the pipeline: `{where}`"
        )
    records = await store.journal.load(head.run_id)
    limits = StoredRun.of(head.run_id, records).context.get("limits") or {}
    most = limits.get("max_iterations", PipelineLimits().max_iterations)
    path = path_of(head.run_id, PIPELINE.name, records, laps=("plan_ready",))
    return RunMetrics.of(path, most)


async def _newest(store: OpenStore) -> RunHead:
    heads, _ = await store.heads()
    ours = [head for head in heads if head.graph in (PIPELINE.name, agent.GRAPH)]
    if not ours:
        raise ConfigError(
            f"no run of the pipeline in {store.journal.address}: `orchestrator pipeline run --example` makes one"
        )
    return ours[-1]
