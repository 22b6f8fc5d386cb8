"""`orchestrator console`: the web pages of a journal's runs, on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.console_option import ConsoleOptions
from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import say, shown
from orchestrator.cli.runs.store import existing
from orchestrator.cli.shipped import SHIPPED
from orchestrator.engines.garbage_collection import tune_garbage_collection
from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.runtime.runs.runs import Runs
from orchestrator.web.access import LOOPBACK

if TYPE_CHECKING:
    from orchestrator.console.access import SignInCode

_THRESHOLDS = (10_000, 20, 50)


def serve_console(options: ConsoleOptions) -> int:
    """Serve the pages until a signal. Raises ConfigError, MissingExtra."""
    address = existing(options.journal)
    token = _token(options)
    asyncio.run(_serve(options, address, token))
    return Exit.COMPLETED


def _token(options: ConsoleOptions) -> str | None:
    """Return the token of the environment, if one is named. Raises ConfigError."""
    if options.token_env is None:
        return None
    token = os.environ.get(options.token_env, "").strip()
    if not token:
        raise ConfigError(f"the environment variable {options.token_env} is empty; put the token into it")
    return token


async def _serve(options: ConsoleOptions, address: Address, token: str | None) -> None:
    try:
        from orchestrator.console.access import SignInCode
        from orchestrator.console.app import console_app
        from orchestrator.web.server import serve
    except ImportError as error:
        raise MissingExtra(error.name or "starlette", "console") from error
    code = SignInCode() if token is None else None
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
            title=str(options.journal or _near(address)),
        )
        stopped = asyncio.Event()
        with on_signal(stopped.set):
            await serve(
                app,
                options.host,
                options.port,
                stopped,
                lambda url: _started(url, address, code, options),
                proxies=options.proxy_headers,
            )


def _near(address: Address) -> Address:
    """Return a path below the working directory relative to it."""
    here = Path.cwd()
    return (
        address.relative_to(here) if isinstance(address, Path) and address.is_relative_to(here) else address
    )


def _started(url: str, address: Address, code: SignInCode | None, options: ConsoleOptions) -> None:
    """Print the address.

    A page reads thousands of records, which are no garbage before its end. A connection leaves garbage that is not
    collected before the threshold: with that of a worker it would be 30 MB.
    """
    tune_garbage_collection(_THRESHOLDS)
    for line in _lines(url, address, code, options):
        say(line)


def _lines(url: str, address: Address, code: SignInCode | None, options: ConsoleOptions) -> Iterator[str]:
    if code is None:
        yield f"console of {shown(str(address))}: {url}"
        yield f"the token in {options.token_env} signs in"
    else:
        yield f"console of {shown(str(address))}: {url}sign-in#{code.value}"
        yield "the address signs in one browser, once, within 5 minutes; the part after # is not sent in it"
    yield (
        "read-only; --operate allows to answer and stop runs"
        if not options.operate
        else "actions are allowed"
    )
    yield "Ctrl-C stops the console; the runs continue"
