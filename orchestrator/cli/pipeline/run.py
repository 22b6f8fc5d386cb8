"""`pipeline run` and `resume`: one spec as one run, in the journal from its first record on; and `report`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli import resumption
from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import in_folder, print_dropped_variables
from orchestrator.cli.load import actor_name, params_from
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import check_picture, complain, json_text, save_picture, say, say_json, shown
from orchestrator.cli.pipeline.spec import CommandStage, PipelineSpec, evaluation_json, validation_json
from orchestrator.cli.resumption import ResumeOptions, check_output
from orchestrator.cli.run import RunView, complain_of_tools, error_json, logging_to, new_id, transition_json
from orchestrator.cli.runs.phrase import many, words
from orchestrator.cli.runs.request import post_resume
from orchestrator.cli.runs.store import OpenStore, at_journal, confirm_take_over, journal_file
from orchestrator.cli.screen import Screen
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import project_settings, refuse_untrusted_run
from orchestrator.cli.trust.signature import signed
from orchestrator.drawing.element import duration
from orchestrator.drawing.plot import bars_svg
from orchestrator.errors import ConfigError
from orchestrator.examples.pipeline import SPEC
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.model import PipelineLimits
from orchestrator.runtime.llm_loop.result import ended_as
from orchestrator.runtime.pipeline import orchestration
from orchestrator.runtime.pipeline.orchestration import RunMetrics
from orchestrator.runtime.pipeline.pipeline import Pipeline, PipelineResult
from orchestrator.runtime.service.restored_run import path_of
from orchestrator.settings import build


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineViewOptions:
    """How a run is shown, and where it is stored."""

    run_id: str
    address: Address
    """The journal."""
    journal: Address | None = None
    """The journal as the command line names it, for the commands that are printed."""
    log: Path | None = None
    json: bool = False
    output: Path | None = None


LimitsOption = Annotated[
    tuple[str, ...],
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_iterations=5; 0 is off."),
]
OutputOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the output to a file instead of printing it.")
]


@dataclass(frozen=True, kw_only=True)
class PipelineRunOptions(given.DisplayOptions):
    """The command line of `pipeline run`."""

    spec: Annotated[
        Path | None,
        typer.Argument(
            metavar="SPEC.toml", help="The request, the four stages and the limits.", show_default=False
        ),
    ] = None
    example: Annotated[
        bool,
        typer.Option(
            "--example", help="The spec that comes with the library: needs no model and no network."
        ),
    ] = False
    requirements: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The request, in place of that of the spec: TOML, JSON, or text."),
    ] = None
    limits: LimitsOption = ()
    output: OutputOption = None
    run_id: given.NewRunId = None


@spread
def run(options: PipelineRunOptions) -> int:
    """Run a pipeline and print its output and its metrics.

    --json prints one object instead.

    A stage is a Python callable (`python = "module:function"`), a program (`command = [...]`, started without a
    shell: the request as JSON on standard input, the answer as JSON or text on standard output) or a request to a
    model (`prompt = "..."`, `model = "..."`). Every step is in the journal before it counts: if the process is
    killed, `orchestrator pipeline resume` continues the run.
    """
    if (options.spec is None) == (not options.example):
        raise ConfigError("give a spec file, or --example for the one that comes with the library")
    check_output(options.output)
    spec = PipelineSpec.read(SPEC if options.spec is None else options.spec, options.requirements)
    limits = spec.pipeline_limits(params_from(options.limits))
    run_id = new_id(options.run_id)
    view = PipelineViewOptions(
        run_id=run_id,
        address=journal_file(options.journal),
        journal=options.journal,
        log=options.log,
        json=options.json,
        output=options.output,
    )
    launch = signed({"pipeline": asdict(spec), "cwd": str(Path.cwd())})
    return conducted(view, spec, launch, limits, lambda pipeline: pipeline.run(spec.spec, run_id=run_id))


@dataclass(frozen=True, kw_only=True)
class PipelineResumeOptions(ResumeOptions):
    """The command line of `pipeline resume`."""

    spec: Annotated[
        Path | None,
        typer.Option("--spec", metavar="SPEC.toml", help="Stages in place of those it was started with."),
    ] = None
    limits: LimitsOption = ()
    again: Annotated[
        bool,
        typer.Option("--again", help="Run a stage again that may have run already, or still runs elsewhere."),
    ] = False
    output: OutputOption = None


@spread
def resume(options: PipelineResumeOptions) -> int:
    """Resume a run as it was started, or print the result of its end."""
    head, created, stored, waits = at_journal(
        options.journal, lambda store: resumption.found(store, options.run, PIPELINE.name)
    )
    changes = params_from(options.limits)
    address = journal_file(options.journal)
    view = PipelineViewOptions(run_id=head.run_id, address=address, **resumption.shown(options))
    if head.owner is not None:
        return resumption.left_to_owner(options, head, changed=options.spec is not None)
    confirm_take_over(head, take_over=options.take_over)
    if waits and options.again and not (options.limits or options.spec):
        return post_resume(head.run_id, options.by, options)
    launch = created.get("launch") or {}
    refuse_untrusted_run(launch, f"run {head.run_id}", address)
    if options.spec is not None:  # other stages, with the run's own requirements
        spec = PipelineSpec.read(options.spec)
    elif isinstance(kept := launch.get("pipeline"), Mapping):
        known = {name: value for name, value in kept.items() if value is not None}
        spec = PipelineSpec.of(known, f"run {head.run_id}")
    else:
        raise ConfigError(
            f"run {head.run_id} was not started by the command line, so its stages are not known: "
            "give --spec SPEC.toml"
        )
    limits = build(PipelineLimits, {**stored, **changes}, "limits")
    changed, by = limits if changes else None, actor_name(options.by)

    def go_on(pipeline: Pipeline) -> Awaitable[PipelineResult]:
        return pipeline.resume(head.run_id, limits=changed, by=by, again=options.again)

    with in_folder(launch.get("cwd")):
        return conducted(view, spec, launch, limits, go_on)


# ---- at work ----


def conducted(
    view: PipelineViewOptions,
    spec: PipelineSpec,
    launch: Mapping[str, Any],
    limits: PipelineLimits,
    go: Callable[[Pipeline], Awaitable[PipelineResult]],
) -> int:
    """Run one pipeline to completion, show its progress, and return the exit code of its outcome."""
    ports = spec.ports()
    print_dropped_variables(
        [port.env for port in ports.values() if isinstance(port, CommandStage)], spec.folder
    )
    journal = journal_at(view.address)
    screen = None if view.json else functools.partial(Screen, PIPELINE)
    watched: RunView[Pipeline, PipelineResult] = RunView(PIPELINE, view.run_id, view.address, screen)
    with logging_to(view.log, project_settings().log_level) as logs:
        pipeline = Pipeline(
            **ports,
            limits=limits,
            rubric=spec.pipeline_rubric(),
            journal=journal,
            observers=[*watched.observers, *logs],
            launch=dict(launch),
        )
        result = run_async(watched.run(pipeline, journal, go))
    if watched.lost:
        return Exit.PIPE
    code = print_result(result, view, RunMetrics.of(result.transitions, limits.max_iterations))
    complain_of_tools(watched.tool_errors)
    return code


# ---- output ----


def print_result(result: PipelineResult, view: PipelineViewOptions, metrics: RunMetrics) -> int:
    """Print the result of a run, and return the exit code; the reason of a failure is printed on stderr."""
    if view.output is not None and result.output is not None:
        view.output.write_text(_text(result.output), encoding="utf-8")
    if view.json:
        say_json(as_json(result, metrics))
    else:
        if result.output is not None and view.output is None:
            say(f"\n{shown(_text(result.output), 100_000)}")
        say(f"\n{shown(metrics.report())}")
        reason = "" if result.reason == "none" else f" ({result.reason})"
        journal = () if view.journal is None else ("--journal", str(view.journal))
        again = words("pipeline", "report", result.run_id, *journal)
        say(f"\noutcome: {result.outcome}{reason}; again: {again}")
    if result.outcome is not Outcome.COMPLETED:
        complain(sentence(result))
    return EXIT_CODES[result.outcome]


def sentence(result: PipelineResult) -> str:
    """Return one sentence about the end of a run that did not complete."""
    best = "" if result.best is None else f"; the best attempt scored {result.best.score:g}"
    return shown(f"the run {ended_as(result)}{best}", 4_000)


def as_json(result: PipelineResult, metrics: RunMetrics) -> dict[str, Any]:
    """Return the whole result as plain data."""
    verdict, best = result.verdict, result.best
    return {
        "run_id": result.run_id,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "state": result.state.value,
        "output": result.output,
        "best": best
        and {
            "score": best.score,
            "iteration": best.iteration,
            "refinement": best.refinement,
            "plan": _content(best.plan),
            "implementation": _content(best.implementation),
        },
        "plan": _content(result.plan),
        "validation": validation_json(result.validation),
        "evaluation": evaluation_json(result.evaluation),
        "feedback": [
            {"kind": one.kind.value, "text": one.text, "iteration": one.iteration} for one in result.feedback
        ],
        "iterations": result.iterations,
        "refinements": result.refinements,
        "tokens": result.tokens,
        "verdict": None if verdict is None else verdict._asdict(),
        "error": error_json(result.error),
        "report": metrics.as_json(),
        "transitions": [transition_json(one) for one in result.transitions],
    }


def _content(made: Any) -> Any:
    return getattr(made, "content", made)


def _text(output: Any) -> str:
    return output if isinstance(output, str) else json_text(output, indent=2)


# ---- report ----


@spread
def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="A run id, or its beginning. Default: the newest run.", show_default=False
        ),
    ] = None,
    *,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw the time of each state, into FILE.svg or FILE.png.",
            show_default=False,
        ),
    ] = None,
    at: given.JournalOptions,
) -> int:
    """Print the metrics of a run.

    They are states, times, tokens, bottlenecks, and the most frequent transition.
    """
    if plot is not None:
        check_picture(plot)

    async def work(store: OpenStore) -> tuple[str, RunMetrics]:
        if run is not None:
            head = await store.run(run)
            return head.run_id, await metrics_of(store, head)
        heads, _ = await store.heads()
        ours = [head for head in heads if head.graph in (PIPELINE.name, orchestration.GRAPH)]
        if not ours:
            raise ConfigError(
                f"no run of the pipeline in {store.journal.address}: "
                "`orchestrator pipeline run --example` makes one"
            )
        return ours[-1].run_id, await metrics_of(store, ours[-1])

    run_id, metrics = at_journal(at.journal, work, only_reads=True)
    if plot is not None:
        save_picture(plot, state_bars(run_id, metrics))
    if at.json:
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
    if head.graph == orchestration.GRAPH:
        machine = await orchestration.CheckpointManager(store.journal, head.run_id).load(observers=())
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
