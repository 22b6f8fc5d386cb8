"""Options and arguments, declared once, as the types of the commands' parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print data, as JSON.")]
Limit = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A member of Limits, e.g. max_iterations=20; 0 is off."),
]
Log = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Append JSON log lines, as `orchestrator report` reads them."),
]
Traceback = Annotated[
    bool, typer.Option("--traceback", help="Show where an error came from instead of one sentence.")
]

Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask; - reads it from standard input.")]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="python:MODULE:ATTRIBUTE (an object with `async complete(request)`, a function of the request, "
        "or a factory without arguments) or replay:FILE[#ID] (the answers of a recorded conversation, in "
        "order; its tools too, unless --tool is given). Default: ORCHESTRATOR_MODEL.",
    ),
]
Tool = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE:FUNCTION", help="A tool the model may call; as often as needed."),
]
Instructions = Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")]
OutputSchema = Annotated[
    Path | None, typer.Option(metavar="FILE", help="JSON schema that the final answer has to fit.")
]

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="PATH", help="Files or folders of conversations as JSON lines; index.jsonl is skipped."
    ),
]
Bundled = Annotated[bool, typer.Option("--bundled", help="The conversations that come with the library.")]
Live = Annotated[bool, typer.Option("--live", help="Show each state as it passes, at a watchable pace.")]
Speed = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        help="Wait this share of the recorded times: 1 as long as it took, 0 not at all. Default: 0; with "
        "--live at most 1, and less where that would take over ten seconds.",
    ),
]

_GRAPH = "A shipped graph, or MODULE:ATTRIBUTE of your own."
GraphName = Annotated[str, typer.Argument(metavar="NAME", help=_GRAPH)]
AnyGraphName = Annotated[
    str | None, typer.Argument(metavar="NAME", help=f"{_GRAPH} Default: all shipped.", show_default=False)
]
Format = Annotated[str, typer.Option("--format", "-f", metavar="FORMAT", help="mermaid, dot, table or json.")]
LogFiles = Annotated[
    list[Path],
    typer.Argument(metavar="LOGFILE", help="JSON log lines, as TransitionLog or --log write them."),
]
