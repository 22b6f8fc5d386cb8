"""`orchestrator pipeline run`: run one spec as one run, in the journal from its first record on."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.launch import print_dropped_variables
from orchestrator.cli.load import params_from
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import complain, json_text, say, say_json, shown
from orchestrator.cli.pipeline.command import CommandStage, evaluation_json, validation_json
from orchestrator.cli.pipeline.spec import PipelineSpec
from orchestrator.cli.pipeline_group import PipelineRunOptions
from orchestrator.cli.run import RunView, error_json, logging_to, new_id, transition_json
from orchestrator.cli.runs.phrase import words
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.screen import Screen
from orchestrator.cli.trust.consent import project_settings
from orchestrator.cli.trust.signature import signed
from orchestrator.errors import ConfigError
from orchestrator.examples.pipeline import SPEC
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.runtime.llm_loop.result import ended_as
from orchestrator.runtime.pipeline.orchestration.machine import RunMetrics
from orchestrator.runtime.pipeline.pipeline import Pipeline, PipelineResult


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


def run_spec(options: PipelineRunOptions) -> int:
    """Run a spec, show it or print it as JSON, and return the exit code of its outcome."""
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


def check_output(file: Path | None) -> None:
    """Raise ConfigError for a file that could not be written at the end of the run."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise ConfigError(f"--output {file}: there is no folder {file.parent}")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"--output {file} cannot be written")


Going = Callable[[Pipeline], Awaitable[PipelineResult]]


def conducted(
    view: PipelineViewOptions,
    spec: PipelineSpec,
    launch: Mapping[str, Any],
    limits: PipelineLimits,
    go: Going,
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
    return print_result(result, view, RunMetrics.of(result.transitions, limits.max_iterations))


# ---- output ----


def print_result(result: PipelineResult, view: PipelineViewOptions, metrics: RunMetrics) -> int:
    """Print the result of a run, and return the exit code; the reason of a failure is printed on stderr."""
    if view.output is not None and result.output is not None:
        view.output.write_text(_text(result.output), encoding="utf-8")
    if view.json:
        say_json(as_json(result, metrics))
    else:
        _print_end(result, view, metrics)
    if result.outcome is not Outcome.COMPLETED:
        complain(sentence(result))
    return EXIT_CODES[result.outcome]


def _print_end(result: PipelineResult, view: PipelineViewOptions, metrics: RunMetrics) -> None:
    if result.output is not None and view.output is None:
        say(f"\n{shown(_text(result.output), 100_000)}")
    say(f"\n{shown(metrics.report())}")
    reason = "" if result.reason == "none" else f" ({result.reason})"
    journal = () if view.journal is None else ("--journal", str(view.journal))
    say(f"\noutcome: {result.outcome}{reason}; again: {words('pipeline', 'report', result.run_id, *journal)}")


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
