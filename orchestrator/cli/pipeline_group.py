"""The commands of the group `pipeline`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import table
from orchestrator.cli.spread import spread

group = typer.Typer(
    help="Plan, validate, implement, judge: run a pipeline and see its metrics.", rich_markup_mode=None
)

_EXIT_CODES = "Exit codes, one for each outcome:\n\n\b\n" + table()

SpecFile = Annotated[
    Path | None,
    typer.Argument(metavar="SPEC.toml", help="What is wanted, the four stages, limits.", show_default=False),
]
Example = Annotated[
    bool,
    typer.Option("--example", help="The spec that comes with the library: needs no model and no network."),
]
Requirements = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What is wanted, in place of what the spec says: TOML, JSON, or text."),
]
PipelineLimit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_iterations=5; 0 is off."),
]
Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the output to a file instead of printing it.")
]
OtherSpec = Annotated[
    Path | None,
    typer.Option("--spec", metavar="SPEC.toml", help="Stages in place of those it was started with."),
]
Again = Annotated[
    bool,
    typer.Option("--again", help="Run a stage again that may have run already, or still runs elsewhere."),
]
AnyRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run id, or its beginning. Default: the newest run.", show_default=False
    ),
]


@group.callback()
def pipeline_group() -> None:
    """Plan, validate, implement and judge, again where that is needed, until it is good or a limit ends it."""


@group.command(epilog=_EXIT_CODES)
@spread
def run(
    spec: SpecFile = None,
    *,
    example: Example = False,
    requirements: Requirements = None,
    limit: PipelineLimit = None,
    output: Output = None,
    run_id: given.NewRunId = None,
    shown: given.DisplayOptions,
) -> None:
    """Run a pipeline to its end and print its output and its metrics; --json prints one object instead.

    A stage is a Python callable (`python = "module:function"`), a program (`command = [...]`, started without a
    shell: the request as JSON on standard input, the answer as JSON or text on standard output) or a request to a
    model (`prompt = "..."`, `model = "..."`). Every step is in the journal before it counts: a run whose process is
    killed goes on with `orchestrator pipeline resume`.
    """
    from orchestrator.cli.pipeline.run import PipelineRunOptions, run_spec

    asked = PipelineRunOptions(
        spec=spec,
        example=example,
        requirements=requirements,
        limits=tuple(limit or ()),
        output=output,
        run_id=run_id,
        **vars(shown),
    )
    raise typer.Exit(run_spec(asked))


@group.command()
@spread
def report(run: AnyRun = None, *, at: given.JournalOptions) -> None:
    """Print the metrics of a run: states, times, tokens, bottlenecks, the commonest transition."""
    from orchestrator.cli.pipeline.report import report_run

    raise typer.Exit(report_run(run, json=at.json, journal=at.journal))


@group.command(epilog=_EXIT_CODES)
@spread
def resume(
    run: given.RunId,
    *,
    spec: OtherSpec = None,
    limit: PipelineLimit = None,
    again: Again = False,
    by: given.By = None,
    output: Output = None,
    shown: given.DisplayOptions,
) -> None:
    """Go on with a run where it stands, as it was started; one that has ended is only told."""
    from orchestrator.cli.pipeline.resume import PipelineResumeOptions, resume_run

    options = PipelineResumeOptions(
        run=run,
        spec=spec,
        limits=tuple(limit or ()),
        again=again,
        by=by,
        output=output,
        **vars(shown),
    )
    raise typer.Exit(resume_run(options))
