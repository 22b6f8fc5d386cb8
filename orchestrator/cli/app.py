"""The commands and their options. Each has its body in a module of its own, imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from orchestrator.cli import MissingExtra, Options
from orchestrator.cli.exit import table

try:
    import typer
except ModuleNotFoundError as error:
    raise MissingExtra("typer", "cli") from error
if find_spec("rich") is None:
    raise MissingExtra("rich", "cli")

_EXIT_CODES = "Exit codes, one for each outcome:\n\n\b\n" + table()

app = typer.Typer(
    name="orchestrator",
    help="Run LLM agents as an explicit finite state machine: run, watch, replay, draw, check.",
    epilog=_EXIT_CODES,
    add_completion=False,
    rich_markup_mode=None,  # plain help: quick, and the same in a pipe
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print data, as JSON.")]
LimitPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", metavar="NAME=VALUE", help="A member of Limits, e.g. max_iterations=20; 0 is off."
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log", metavar="FILE", help="Append JSON log lines, as `orchestrator report` reads them."),
]


def execute(arguments: Sequence[str], options: Options) -> int:
    """Carry out one command line and return its exit code. Errors pass through to `main`."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("orchestrator", list(arguments) or ["--help"], obj=options) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("fsm-orchestrator")
    except PackageNotFoundError:
        number = "(run from source, not installed)"
    typer.echo(f"orchestrator {number}")
    raise typer.Exit


@app.callback()
def options_of_all(
    context: typer.Context,
    *,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from instead of one sentence.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keep what is said before the command's name."""
    del version
    context.ensure_object(Options).traceback = traceback


@app.command(epilog=_EXIT_CODES)
def run(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What to ask; - reads it from standard input.")
    ],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="SPEC",
            help="python:MODULE:ATTRIBUTE (an object with `async complete(request)`, a function of the "
            "request, or a factory without arguments) or replay:FILE[#ID] (the answers of a recorded "
            "conversation, in order; its tools too, unless --tool is given). Default: ORCHESTRATOR_MODEL.",
        ),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            "--tool", metavar="MODULE:FUNCTION", help="A tool the model may call; as often as needed."
        ),
    ] = None,
    instructions: Annotated[str | None, typer.Option(help="System message.")] = None,
    output_schema: Annotated[
        Path | None,
        typer.Option("--output-schema", metavar="FILE", help="JSON schema that the final answer has to fit."),
    ] = None,
    limit: LimitPairs = None,
    log: LogFile = None,
    json: Json = False,
) -> None:
    """Run one prompt to its end, showing the state machine as it goes.

    A table that moves on a terminal, plain lines elsewhere; then the answer and the outcome. --json prints
    one object instead: run_id, outcome, reason, output, usage, verdict, error, messages (OpenAI form) and
    transitions. The exit code is that of the outcome.
    """
    from orchestrator.cli.run import Asked, run_prompt

    tools, limits = tuple(tool or ()), tuple(limit or ())
    asked = Asked(prompt, model, tools, instructions, output_schema, limits, log, json)
    raise typer.Exit(run_prompt(asked))


@app.command(epilog=_EXIT_CODES)
def replay(
    path: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...", help="Files or folders of conversations as JSON lines; index.jsonl is skipped."
        ),
    ] = None,
    *,
    bundled: Annotated[
        bool, typer.Option("--bundled", help="The conversations that come with the library.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Show each state as it passes, at a watchable pace.")
    ] = False,
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed",
            metavar="FACTOR",
            help="Wait this share of the recorded times: 1 as long as it took, 0 not at all. Default: 0; "
            "with --live at most 1, and less where that would take over ten seconds.",
        ),
    ] = None,
    limit: LimitPairs = None,
    log: LogFile = None,
    json: Json = False,
) -> None:
    """Replay recorded conversations through the real state machine.

    Models and tools say what they said then. One run for each turn of the user, with our own history carried
    on. No limit applies unless given. The result of a conversation is one of:

    \b
    reproduced              our messages equal the recorded ones
                            (role, content, calls, ids, arguments, order)
    reproduced_to_open_end  so up to where the recording stops
                            without the model's answer
    irregular               recorded is what no loop produces, `irregular`
                            names it; followed while our messages equal
                            the recorded ones
    unusable                no conversation, `reason` says why;
                            the rest goes on; exit code 2
    diverged                ours differ, `reason` says where; exit code 1
    cancelled               the replay was stopped here; exit code 6

    --json prints one object a line: id, file, result, irregular, runs, messages (OpenAI form; ours, up to
    where the recording ends), and reason where there is one. Each of runs has outcome, reason, error,
    transitions (how many) and states (visits of each).
    """  # noqa: D301 - click's mark for a block that is not refilled
    from orchestrator.cli.replay import Wanted, replay_conversations

    wanted = Wanted(tuple(path or ()), bundled, live, speed, tuple(limit or ()), log, json)
    raise typer.Exit(replay_conversations(wanted))


@app.command()
def graph(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A shipped graph, or MODULE:ATTRIBUTE of your own.")
    ] = "llm_loop",
    *,
    format_: Annotated[
        str, typer.Option("--format", "-f", metavar="FORMAT", help="mermaid, dot, table or json.")
    ] = "mermaid",
) -> None:
    """Draw a state machine from its table."""
    from orchestrator.cli.graph import draw

    typer.echo(draw(name, format_), nl=False)


@app.command()
def lint(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A shipped graph, or MODULE:ATTRIBUTE of your own. Default: all shipped."
        ),
    ] = None,
    *,
    json: Json = False,
) -> None:
    """Check a state machine, and for shipped ones their hooks. Exit code 1 when there are problems."""
    from orchestrator.cli.lint import lint_graphs

    raise typer.Exit(lint_graphs(name, as_json=json))


@app.command()
def report(
    logfile: Annotated[
        list[Path],
        typer.Argument(metavar="LOGFILE...", help="JSON log lines, as TransitionLog or --log write them."),
    ],
    *,
    json: Json = False,
) -> None:
    """Say where runs spent their time: visits and times of each state, bottleneck, outcomes, lost lines."""
    from orchestrator.cli.report import report_logs

    raise typer.Exit(report_logs(logfile, as_json=json))


config = typer.Typer(help="Settings of this process.", rich_markup_mode=None)
app.add_typer(config, name="config")


@config.callback()
def config_group() -> None:
    """Look at the settings of this process."""


@config.command("show")
def config_show(*, json: Json = False) -> None:
    """Print the effective settings and where each comes from; secrets are redacted."""
    from orchestrator.cli.config import show_settings

    raise typer.Exit(show_settings(as_json=json))
