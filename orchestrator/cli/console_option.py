"""The command line of `orchestrator console`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from orchestrator.cli import option as given


@dataclass(frozen=True, kw_only=True)
class ConsoleOptions:
    """The command line of `console`."""

    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen at. The default is this machine only.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="N", help="The port; 0 picks a free one.")] = 8484
    operate: Annotated[
        bool, typer.Option("--operate", help="Allow to answer questions and to stop runs.")
    ] = False
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with a token that signs in any number of people, for a service. Default: the "
            "terminal shows an address that signs in one browser, once, within 5 minutes.",
        ),
    ] = None
    content: Annotated[
        Literal["never", "ask", "always"],
        typer.Option(help="Whether messages, arguments and results are shown; `ask`: on request."),
    ] = "ask"
    allow_host: Annotated[
        tuple[str, ...],
        typer.Option(metavar="NAME", help="Another host name that browsers use for the console. Repeatable."),
    ] = ()
    proxy_headers: given.ProxyHeaders = ()
    journal: given.Journal = None
