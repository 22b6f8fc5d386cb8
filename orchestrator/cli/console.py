"""`orchestrator console`: the web pages of a journal's runs, on this machine."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import say, shown
from orchestrator.cli.runs.store import existing
from orchestrator.cli.shipped import SHIPPED
from orchestrator.cli.spread import spread
from orchestrator.engines.process import tune_garbage_collection
from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.runtime.runs.runs import Runs
from orchestrator.web.access import LOOPBACK

_THRESHOLDS = (10_000, 20, 50)
"""Of the garbage collection.

A page reads thousands of records, which are no garbage before its end. A connection leaves garbage that is not
collected before the threshold: with that of a worker it would be 30 MB.
"""


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
        bool, typer.Option("--operate", help="Allow to answer questions, and to start and stop runs.")
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


@spread
def serve_console(options: ConsoleOptions) -> int:
    """Show the runs of a journal in the browser.

    The pages are live: runs with filters, each run with its graph, budgets, transcript and records, and the questions
    that wait for a person. They are read-only unless --operate is given. Nothing is loaded from elsewhere. SIGINT and
    SIGTERM stop the command; the runs continue.
    """
    address = existing(options.journal)
    token = None
    if options.token_env is not None and not (token := os.environ.get(options.token_env, "").strip()):
        raise ConfigError(f"the environment variable {options.token_env} is empty; put the token into it")
    asyncio.run(_serve(options, address, token))
    return Exit.COMPLETED


async def _serve(options: ConsoleOptions, address: Address, token: str | None) -> None:
    try:
        from orchestrator.console.access import SignInCode
        from orchestrator.console.app import console_app
        from orchestrator.web.server import serve
    except ImportError as error:
        raise MissingExtra(error.name or "starlette", "console") from error
    code = SignInCode() if token is None else None
    near, here = address, Path.cwd()
    if isinstance(near, Path) and near.is_relative_to(here):
        near = near.relative_to(here)

    def started(url: str) -> None:
        tune_garbage_collection(_THRESHOLDS)
        if code is None:
            say(f"console of {shown(str(address))}: {url}")
            say(f"the token in {options.token_env} signs in")
        else:
            say(f"console of {shown(str(address))}: {url}sign-in#{code.value}")
            say(
                "the address signs in one browser, once, within 5 minutes; the part after # is not sent in it"
            )
        read_only = "read-only; --operate allows to answer and stop runs"
        say("actions are allowed" if options.operate else read_only)
        say("Ctrl-C stops the console; the runs continue")

    journal = journal_at(address, only_reads=not options.operate, create=False)
    async with AsyncExitStack() as stack:
        with beginning():
            await stack.enter_async_context(journal)
        app = console_app(
            Runs(journal),
            token=token,
            code=code,
            operate=options.operate,
            content=options.content,
            graphs=SHIPPED,
            hosts=[*LOOPBACK, options.host, *options.allow_host],
            title=str(options.journal or near),
        )
        stopped = asyncio.Event()
        with on_signal(stopped.set):
            await serve(
                app,
                options.host,
                options.port,
                stopped,
                started,
                proxies=options.proxy_headers,
            )
