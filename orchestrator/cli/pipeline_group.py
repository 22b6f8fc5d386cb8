"""The commands of the group `pipeline`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import EPILOG
from orchestrator.cli.spread import spread

group = typer.Typer(help="Plan, validate, implement, judge; show metrics.", rich_markup_mode=None)

_Limits = Annotated[
    tuple[str, ...],
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_iterations=5; 0 is off."),
]
_Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the output to a file instead of printing it.")
]
_AnyRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run id, or its beginning. Default: the newest run.", show_default=False
    ),
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
    limits: _Limits = ()
    output: _Output = None
    run_id: given.NewRunId = None


@dataclass(frozen=True, kw_only=True)
class PipelineResumeOptions(given.ResumeOptions):
    """The command line of `pipeline resume`."""

    spec: Annotated[
        Path | None,
        typer.Option("--spec", metavar="SPEC.toml", help="Stages in place of those it was started with."),
    ] = None
    limits: _Limits = ()
    again: Annotated[
        bool,
        typer.Option("--again", help="Run a stage again that may have run already, or still runs elsewhere."),
    ] = False
    output: _Output = None


@group.callback()
def pipeline_group() -> None:
    """Plan, validate, implement and judge, and repeat, until the result is approved or a limit is reached."""


@group.command(epilog=EPILOG)
@spread
def run(options: PipelineRunOptions) -> int:
    """Run a pipeline and print its output and its metrics.

    --json prints one object instead.

    A stage is a Python callable (`python = "module:function"`), a program (`command = [...]`, started without a
    shell: the request as JSON on standard input, the answer as JSON or text on standard output) or a request to a
    model (`prompt = "..."`, `model = "..."`). Every step is in the journal before it counts: if the process is
    killed, `orchestrator pipeline resume` continues the run.
    """
    from orchestrator.cli.pipeline.run import run_spec

    return run_spec(options)


@group.command()
@spread
def report(
    run: _AnyRun = None,
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
    from orchestrator.cli.pipeline.report import report_run

    return report_run(run, plot=plot, **vars(at))


@group.command(epilog=EPILOG)
@spread
def resume(options: PipelineResumeOptions) -> int:
    """Resume a run as it was started, or print the result of its end."""
    from orchestrator.cli.pipeline.resume import resume_run

    return resume_run(options)
