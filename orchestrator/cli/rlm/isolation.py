"""The isolation of a model's code on this machine: `orchestrator rlm isolation`, and the lines of `doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli import option as given
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.phrase import heading, table
from orchestrator.cli.spread import spread_options
from orchestrator.errors import ConfigError
from orchestrator.repl import Isolation, Level, ReplError, WorkerRepl
from orchestrator.repl.isolation import LOCKS

_GIVES = {
    Level.FULL: "no files but its folder, no network, no further process, no sight of other programs",
    Level.LIMITS: "time, memory and output are bounded, nothing else: run only code here that a person has read",
}


LeastOption = Annotated[
    Literal["limits", "partial", "full"] | None,
    typer.Option("--least", help="The least level of isolation at which code is run. Default: limits."),
]


@spread_options
def isolation(*, least: LeastOption = None, json: given.Json = False) -> int:
    """Show how code of models is isolated on this machine.

    The exit code is 1 if the level is below --least.
    """
    wanted = level_of(least)
    found = examined()
    if isinstance(found, str):
        raise ConfigError(found)
    if json:
        say_json(found.to_dict())
        return int(found.level < wanted)
    for line in (heading("code of models"), *lines(found)):
        say(line)
    say("")
    rows = []
    for lock in found.locks:
        about = lock.detail
        if lock.holds:
            about = LOCKS[lock.name] + (f" ({lock.detail})" if lock.detail not in ("own", "") else "")
        rows.append((lock.name, "yes" if lock.holds else "no", shown(str(about))))
    for line in table(("lock", "holds", "what it gives, or why it does not hold"), rows):
        say(line)
    return int(found.level < wanted)


def level_of(name: str | None) -> Level:
    """Return the level of that name; the lowest by default."""
    return Level.LIMITS if name is None else Level[name.upper()]


def examined() -> Isolation | str:
    """Return the isolation of a worker that is started here, or one sentence why no worker starts."""
    return asyncio.run(probed())


async def probed() -> Isolation | str:
    """Return the same on a running event loop."""
    try:
        async with WorkerRepl() as repl:
            return await repl.isolation()
    except (ReplError, OSError) as error:
        return f"no code of models can be run here: {error}"


def plain(found: Isolation | str) -> dict[str, Any]:
    """Return the isolation as data for `doctor --json`."""
    return {"level": None, "problem": found} if isinstance(found, str) else found.to_dict()


def lines(found: Isolation | str) -> Iterator[str]:
    """Yield the lines of `doctor`."""
    if isinstance(found, str):
        yield f"  isolation none: {shown(found, 600)}"
        return
    open_ = [name for name, stopped in found.stops.items() if not stopped]
    partly = f"not out of reach: {', '.join(open_)}"
    yield f"  isolation {found.level.name.lower()}: {_GIVES.get(found.level, partly)}"
    yield f"  locks     {', '.join(lock.name for lock in found.locks if lock.holds)}"
    missing = [lock.name for lock in found.locks if not lock.holds]
    if missing:
        yield f"  not held  {', '.join(missing)}; why: orchestrator rlm isolation"
