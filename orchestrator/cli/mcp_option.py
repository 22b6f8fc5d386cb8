"""Options about the MCP servers whose tools a run may call."""

from __future__ import annotations

from typing import Annotated

import typer

Mcp = Annotated[
    tuple[str, ...],
    typer.Option(
        "--mcp",
        metavar="[NAME=]COMMAND",
        help="An MCP server whose tools the model may call: a command line, or the URL of one; with NAME=, its tools "
        "are offered as NAME_tool. A JSON file with `mcpServers` names several. Repeatable.",
    ),
]
McpOption = Annotated[
    tuple[str, ...],
    typer.Option(
        "--mcp-option",
        metavar="NAME.OPTION=VALUE",
        help="An option of the MCP server NAME: include=TOOL,…, exclude=TOOL,…, effect=EFFECT (of all its tools) or "
        "effect=TOOL:EFFECT,…, timeout=SECONDS, max_questions=N, sampling=deny|allow|ask, max_sampling=N. Repeatable.",
    ),
]
McpEnv = Annotated[
    tuple[str, ...],
    typer.Option(
        "--mcp-env",
        metavar="NAME",
        help="An environment variable that is passed to MCP servers that are commands; only its name is stored with "
        "the run. Repeatable. Those with a URL get the headers of ORCHESTRATOR_MCP_HEADERS__NAME.",
    ),
]
OtherMcp = Annotated[
    tuple[str, ...],
    typer.Option(
        "--mcp",
        metavar="[NAME=]COMMAND",
        help="An MCP server, in place of all that it was started with; repeatable.",
    ),
]
OtherMcpEnv = Annotated[
    tuple[str, ...],
    typer.Option(
        "--mcp-env",
        metavar="NAME",
        help="An environment variable for MCP servers, in place of all that were named; repeatable.",
    ),
]
OtherMcpOption = Annotated[
    tuple[str, ...],
    typer.Option(
        "--mcp-option",
        metavar="NAME.OPTION=VALUE",
        help="An option of an MCP server, in place of all that were given; repeatable.",
    ),
]
ServerPrompt = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="[SERVER/]NAME",
        help="A prompt of an MCP server that --mcp names; PROMPT is a further message after it.",
    ),
]
PromptArguments = Annotated[
    tuple[str, ...],
    typer.Option("--prompt-arg", metavar="NAME=VALUE", help="An argument of --prompt; repeatable."),
]
