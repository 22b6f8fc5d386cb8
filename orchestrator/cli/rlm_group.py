"""The commands of the group `rlm`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import table
from orchestrator.cli.spread import spread

group = typer.Typer(
    help="Long contexts: a model that writes code, or calls tools, to look at what it is asked about.",
    rich_markup_mode=None,
)

_EXIT_CODES = "Exit codes, one for each outcome:\n\n\b\n" + table()

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="What is asked about, as UTF-8 text; - reads standard input.")
]
Prompt = Annotated[str, typer.Option("--prompt", metavar="TEXT", help="What is asked about the file.")]
Mode = Annotated[
    Literal["code", "tools"],
    typer.Option("--mode", help="code: the model writes Python for a REPL. tools: it calls tools."),
]
SubModel = Annotated[
    str | None,
    typer.Option("--sub-model", metavar="SPEC", help="For questions of the code. Default: the same model."),
]
Tool = Annotated[
    list[str] | None,
    typer.Option("--tool", metavar="MODULE:FUNCTION", help="A further tool for --mode tools; repeatable."),
]
RlmLimit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit, e.g. max_iterations=10; 0 is off."),
]
ReplLimit = Annotated[
    list[str] | None,
    typer.Option(
        "--repl-limit", metavar="NAME=VALUE", help="A limit of the REPL, e.g. memory_bytes=1000000000."
    ),
]
Least = Annotated[
    Literal["limits", "partial", "full"] | None,
    typer.Option("--least", help="The level of isolation below which no code is run. Default: limits."),
]
AsJson = Annotated[
    bool, typer.Option("--as-json", help="FILE holds JSON: the code gets the data instead of the text.")
]
Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the answer to a file instead of printing it.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Call tools again that are irreversible and may have run already.")
]


@dataclass(frozen=True, kw_only=True)
class RlmOptions:
    """What an Rlm is made of."""

    mode: Mode = "code"
    model: given.Model = None
    sub_model: SubModel = None
    base_url: given.BaseUrl = None
    tool: Tool = None
    instructions: given.Instructions = None
    param: given.Param = None
    limit: RlmLimit = None
    repl_limit: ReplLimit = None
    least: Least = None

    def plain(self) -> dict[str, Any]:
        """Return it as members of `Asked`. Raises ConfigError for a parameter that is not name=value."""
        from orchestrator.cli.load import params_from

        as_they_are = ("mode", "model", "sub_model", "base_url", "instructions", "least")
        return {name: getattr(self, name) for name in as_they_are} | {
            "tools": tuple(self.tool or ()),
            "params": params_from(self.param or ()),
            "limits": tuple(self.limit or ()),
            "repl_limits": tuple(self.repl_limit or ()),
        }


@group.callback()
def rlm_group() -> None:
    """Ask about a text that is too long for a prompt: it is a variable in a REPL, not a message."""


@group.command(epilog=_EXIT_CODES)
@spread
def run(
    file: File,
    *,
    prompt: Prompt,
    built: RlmOptions,
    as_json: AsJson = False,
    output: Output = None,
    run_id: given.NewRunId = None,
    conversation: given.Conversation = None,
    shown: given.DisplayOptions,
) -> None:
    """Answer a prompt about a file of any length, and print the answer; --json prints the whole result instead.

    In mode code the text is the variable `context` of a REPL: the model is shown its length, writes Python to look at
    it, and asks models about parts of it (`llm_query`). The code runs in a process of its own that the kernel locks
    up (`orchestrator rlm isolation`). In mode tools it reads and searches the text with tools. Every step is in the
    journal before it counts: a run whose process is killed goes on with `orchestrator rlm resume`.
    """
    from orchestrator.cli.rlm.run import RlmRunOptions, run_file

    asked = RlmRunOptions(
        file=file,
        prompt=prompt,
        as_json=as_json,
        output=output,
        run_id=run_id,
        conversation=conversation,
        **built.plain(),
        **vars(shown),
    )
    raise typer.Exit(run_file(asked))


@group.command(epilog=_EXIT_CODES)
@spread
def resume(
    run: given.RunId,
    *,
    model: given.OtherModel = None,
    limit: RlmLimit = None,
    again: Again = False,
    by: given.By = None,
    output: Output = None,
    shown: given.DisplayOptions,
) -> None:
    """Go on with a run where it stands, as it was started; one that has ended is only told.

    Code starts in a new REPL: the model is told that its variables are gone.
    """
    from orchestrator.cli.rlm.resume import RlmResumeOptions, resume_run

    options = RlmResumeOptions(
        run=run,
        model=model,
        limits=tuple(limit or ()),
        again=again,
        by=by,
        output=output,
        **vars(shown),
    )
    raise typer.Exit(resume_run(options))


@group.command()
def isolation(*, least: Least = None, json: given.Json = False) -> None:
    """Say how far code of models is locked up on this machine, and by what; exit code 1 below --least."""
    from orchestrator.cli.rlm.isolation import show_isolation

    raise typer.Exit(show_isolation(json=json, least=least))
