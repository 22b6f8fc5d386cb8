"""Options and arguments, declared once, as the types of the commands' parameters.

Options that several commands share are a dataclass, for commands that are decorated with `spread`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address, address_of

if TYPE_CHECKING:
    _Address = Address
else:
    _Address = Path  # typer knows no unions; the converter returns the real type

Json = Annotated[bool, typer.Option("--json", help="Print data, as JSON.")]
Limits = Annotated[
    tuple[str, ...],
    typer.Option(
        "--limit", metavar="NAME=VALUE", help="A member of Limits, e.g. max_iterations=20; 0 is off."
    ),
]
Tags = Annotated[
    tuple[str, ...], typer.Option("--tag", metavar="NAME=VALUE", help="Runs with this tag; repeatable.")
]
Log = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Append JSON log lines, as `orchestrator report` reads them."),
]
ProxyHeaders = Annotated[
    tuple[str, ...],
    typer.Option(
        "--proxy-headers",
        metavar="ADDRESS",
        help="Address or network of a proxy in front, whose X-Forwarded-For and X-Forwarded-Proto are believed; "
        "repeatable.",
    ),
]

Model = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="openai:NAME, openai-responses:NAME or anthropic:NAME (a vendor's model, or one of a server that speaks "
        "its protocol, with --base-url), pydantic-ai:PROVIDER:NAME (any model of that library), "
        "python:MODULE:ATTRIBUTE (an object with `async complete(request)`, a function of the request, or a factory "
        "without arguments), replay:FILE[#ID] (the answers of a recorded conversation, in order; its tools too, "
        "unless --tool is given) or demo (calls each tool once and needs no key). Default: ORCHESTRATOR_MODEL.",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="The server of an openai:, anthropic: or pydantic-ai: model. Default: the vendor's.",
    ),
]
Structured = Annotated[
    Literal["native", "prompt"] | None,
    typer.Option(
        help="How a vendor's model receives --output-schema: by its own mode, or in the prompt for servers without "
        "one. Default: native."
    ),
]
ReasoningField = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The member of a message in which an openai model receives its reasoning back, e.g. reasoning_content. "
        "Default: the one that the vendor requires.",
    ),
]
Params = Annotated[
    tuple[str, ...],
    typer.Option(
        "--param", metavar="NAME=VALUE", help="A parameter of the model, e.g. temperature=0; repeatable."
    ),
]
Instructions = Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")]


def _address(text: str) -> Address:
    try:
        return address_of(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


Journal = Annotated[
    _Address | None,
    typer.Option(
        "--journal",
        "--dsn",
        metavar="PATH|URL",
        parser=_address,
        help="The journal: a file, or postgresql://user@host/database. Default: ORCHESTRATOR_JOURNAL, else "
        ".orchestrator/journal.db.",
    ),
]
BackupToTest = Annotated[
    _Address | None,
    typer.Option(
        "--restore",
        metavar="BACKUP",
        parser=_address,
        help="Test a backup: restore it into a temporary place, check it, and compare it with the live journal. "
        "BACKUP is a file, or the address of a database into which a dump was restored.",
    ),
]
NewRunId = Annotated[
    str | None, typer.Option("--run-id", metavar="ID", help="Of the new run. Default: a fresh one.")
]
Conversation = Annotated[
    str | None,
    typer.Option(metavar="ID", help="The conversation that this run continues; a new id starts one."),
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run id, or at least its first 4 characters.")]
OtherModel = Annotated[
    str | None,
    typer.Option("--model", metavar="SPEC", help="Another model than it was started with, as for `run`."),
]
WithContent = Annotated[bool, typer.Option("--content", help="With messages, arguments, results and texts.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a new file, mode 0600.")]
OlderThan = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Runs not written to for 90s, 15m, 12h, 30d.")
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Resume the run although its process, whose lease has expired, still exists."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Make the change; without it, only show the change.")]
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who decides. Default: the login name.")]
Why = Annotated[str | None, typer.Option(metavar="TEXT", help="The reason; it is recorded in the run.")]

McpEnv = Annotated[
    tuple[str, ...],
    typer.Option(
        "--mcp-env",
        metavar="NAME",
        help="An environment variable that is passed to MCP servers that are commands; only its name is stored with "
        "the run. Repeatable. Those with a URL get the headers of ORCHESTRATOR_MCP_HEADERS__NAME.",
    ),
]


# ---- options that several commands share ----


@dataclass(frozen=True, kw_only=True)
class JournalOptions:
    """The journal, and the format of the output."""

    json: Json = False
    journal: Journal = None


@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """How a run is shown, and where it is stored."""

    log: Log = None
    json: Json = False
    journal: Journal = None


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The parts of an agent."""

    model: Model = None
    base_url: BaseUrl = None
    tools: Annotated[
        tuple[str, ...],
        typer.Option(
            "--tool", metavar="MODULE:FUNCTION", help="A tool the model may call; as often as needed."
        ),
    ] = ()
    mcp: Annotated[
        tuple[str, ...],
        typer.Option(
            "--mcp",
            metavar="[NAME=]COMMAND",
            help="An MCP server whose tools the model may call: a command line, or the URL of one; with NAME=, its "
            "tools are offered as NAME_tool. A JSON file with `mcpServers` names several. Repeatable.",
        ),
    ] = ()
    mcp_env: McpEnv = ()
    mcp_options: Annotated[
        tuple[str, ...],
        typer.Option(
            "--mcp-option",
            metavar="NAME.OPTION=VALUE",
            help="An option of the MCP server NAME: include=TOOL,…, exclude=TOOL,…, effect=EFFECT (of all its tools) "
            "or effect=TOOL:EFFECT,…, timeout=SECONDS, total_timeout=SECONDS, max_questions=N, "
            "sampling=deny|allow|ask, max_sampling=N. Repeatable.",
        ),
    ] = ()
    approve: Annotated[
        bool, typer.Option("--approve", help="Ask a person before each call of a tool that is irreversible.")
    ] = False
    instructions: Instructions = None
    output_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON schema that the final answer has to fit.")
    ] = None
    structured: Structured = None
    reasoning_field: ReasoningField = None
    params: Params = ()


@dataclass(frozen=True, kw_only=True)
class ReplacementOptions:
    """Parts that replace those a run was started with."""

    model: OtherModel = None
    base_url: Annotated[
        str | None,
        typer.Option(
            "--base-url", metavar="URL", help="Another server of the model than it was started with."
        ),
    ] = None
    tools: Annotated[
        tuple[str, ...],
        typer.Option(
            "--tool",
            metavar="MODULE:FUNCTION",
            help="A tool, in place of all that it was started with; repeatable.",
        ),
    ] = ()
    mcp: Annotated[
        tuple[str, ...],
        typer.Option(
            "--mcp",
            metavar="[NAME=]COMMAND",
            help="An MCP server, in place of all that it was started with; repeatable.",
        ),
    ] = ()
    mcp_env: Annotated[
        tuple[str, ...],
        typer.Option(
            "--mcp-env",
            metavar="NAME",
            help="An environment variable for MCP servers, in place of all that were named; repeatable.",
        ),
    ] = ()
    mcp_options: Annotated[
        tuple[str, ...],
        typer.Option(
            "--mcp-option",
            metavar="NAME.OPTION=VALUE",
            help="An option of an MCP server, in place of all that were given; repeatable.",
        ),
    ] = ()
    limits: Annotated[
        tuple[str, ...],
        typer.Option(
            "--limit", metavar="NAME=VALUE", help="Changes one limit of the run, e.g. max_iterations=40."
        ),
    ] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is replaced."""
        return not any(getattr(self, member.name) for member in fields(ReplacementOptions))
