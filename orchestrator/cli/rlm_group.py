"""The commands of the group `rlm`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import EPILOG
from orchestrator.cli.spread import spread

group = typer.Typer(help="Answer questions about long texts with code or tools.", rich_markup_mode=None)

_Limits = Annotated[
    tuple[str, ...],
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_iterations=10; 0 is off."),
]
_Least = Annotated[
    Literal["limits", "partial", "full"] | None,
    typer.Option("--least", help="The least level of isolation at which code is run. Default: limits."),
]
_Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the answer to a file instead of printing it.")
]


@dataclass(frozen=True, kw_only=True)
class RlmRunOptions(given.DisplayOptions):
    """The command line of `rlm run`."""

    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The text, in UTF-8, that the prompt is about; - reads standard input."
        ),
    ]
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="The question about the file.")]
    mode: Annotated[
        Literal["code", "tools"],
        typer.Option("--mode", help="code: the model writes Python for a REPL. tools: it calls tools."),
    ] = "code"
    model: given.Model = None
    sub_model: Annotated[
        str | None,
        typer.Option(
            "--sub-model", metavar="SPEC", help="For questions of the code. Default: the same model."
        ),
    ] = None
    base_url: given.BaseUrl = None
    tools: Annotated[
        tuple[str, ...],
        typer.Option(
            "--tool", metavar="MODULE:FUNCTION", help="A further tool for --mode tools; repeatable."
        ),
    ] = ()
    instructions: given.Instructions = None
    params: given.Params = ()
    limits: _Limits = ()
    repl_limits: Annotated[
        tuple[str, ...],
        typer.Option(
            "--repl-limit", metavar="NAME=VALUE", help="A limit of the REPL, e.g. memory_bytes=1000000000."
        ),
    ] = ()
    least: _Least = None
    as_json: Annotated[
        bool,
        typer.Option("--as-json", help="FILE contains JSON: the code gets the data instead of the text."),
    ] = False
    output: _Output = None
    run_id: given.NewRunId = None
    conversation: given.Conversation = None


@dataclass(frozen=True, kw_only=True)
class RlmResumeOptions(given.ResumeOptions):
    """The command line of `rlm resume`."""

    model: given.OtherModel = None
    limits: _Limits = ()
    again: Annotated[
        bool,
        typer.Option("--again", help="Call tools again that are irreversible and may have run already."),
    ] = False
    output: _Output = None


@group.callback()
def rlm_group() -> None:
    """Ask about a text that is too long for a prompt: it is a variable in a REPL, not a message."""


@group.command(epilog=EPILOG)
@spread
def run(options: RlmRunOptions) -> int:
    """Answer a prompt about a file of any length.

    --json prints the whole result instead of the answer.

    In mode code the text is the variable `context` of a REPL: the model gets its length, writes Python to read
    it, and asks models about parts of it (`llm_query`). The code runs in a process of its own that the kernel
    restricts (`orchestrator rlm isolation`). In mode tools it reads and searches the text with tools. Every step is
    in the journal before it counts: if the process is killed, `orchestrator rlm resume` continues the run.
    """
    from orchestrator.cli.rlm.run import run_file

    return run_file(options)


@group.command(epilog=EPILOG)
@spread
def resume(options: RlmResumeOptions) -> int:
    """Resume a run as it was started, or print the result of its end.

    Code starts in a new REPL: the model is informed that its variables are gone.
    """
    from orchestrator.cli.rlm.resume import resume_run

    return resume_run(options)


@group.command()
def isolation(*, least: _Least = None, json: given.Json = False) -> None:
    """Show how code of models is isolated on this machine.

    The exit code is 1 if the level is below --least.
    """
    from orchestrator.cli.rlm.isolation import show_isolation

    raise typer.Exit(show_isolation(json=json, least=least))
