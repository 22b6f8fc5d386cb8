"""`orchestrator console`: the web pages of a journal's runs, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from orchestrator.cli.console_option import ConsoleOptions
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, shown
from orchestrator.cli.runs.store import existing
from orchestrator.cli.shipped import SHIPPED
from orchestrator.cli.stop import on_signal
from orchestrator.engines.garbage_collection import tune_garbage_collection
from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.runtime.runs.runs import Runs


def serve_console(options: ConsoleOptions) -> int:
    """Serve the pages until a signal. Raises ConfigError, MissingExtra."""
    address = existing(options.journal)
    token = _token(options)
    asyncio.run(_serve(options, address, token))
    return Exit.COMPLETED


def _token(options: ConsoleOptions) -> str | None:
    """Return the token of the environment, or a new one if one is needed. Raises ConfigError."""
    if options.token_env is not None:
        token = os.environ.get(options.token_env, "").strip()
        if not token:
            raise ConfigError(f"the environment variable {options.token_env} is empty; put the token into it")
        return token
    return secrets.token_urlsafe(32) if options.operate or not is_loopback(options.host) else None


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


async def _serve(options: ConsoleOptions, address: Address, token: str | None) -> None:
    try:
        from orchestrator.console.app import console_app
        from orchestrator.console.server import serve
    except ImportError as error:
        raise MissingExtra(error.name or "starlette", "console") from error
    async with journal_at(address, only_reads=not options.operate, create=False) as journal:
        app = console_app(
            Runs(journal),
            token=token,
            operate=options.operate,
            content=options.content,
            graphs=SHIPPED,
            hosts=[*_HOSTS, options.host, *options.allow_host],
            title=str(options.journal or _near(address)),
        )
        stopped = asyncio.Event()
        with on_signal(stopped.set):
            await serve(
                app, options.host, options.port, stopped, lambda url: _started(url, address, token, options)
            )


def _near(address: Address) -> Address:
    """Return a path below the working directory relative to it."""
    here = Path.cwd()
    return (
        address.relative_to(here) if isinstance(address, Path) and address.is_relative_to(here) else address
    )


_HOSTS = ("127.0.0.1", "localhost", "::1")


def _started(url: str, address: Address, token: str | None, options: ConsoleOptions) -> None:
    """Print the address. A page reads thousands of records, which are no garbage before its end."""
    tune_garbage_collection()
    for line in _lines(url, address, token, options):
        say(line)


def _lines(url: str, address: Address, token: str | None, options: ConsoleOptions) -> Iterator[str]:
    if token is None or options.token_env is not None:
        yield f"console of {shown(str(address))}: {url}"
    else:
        yield f"console of {shown(str(address))}: {url}sign-in#{token}"
        yield "the part after # is the token; it is not sent in the address"
    yield (
        "read-only; --operate allows to answer and stop runs"
        if not options.operate
        else "actions are allowed"
    )
    yield "Ctrl-C stops the console; the runs continue"
