"""`orchestrator replay`: play recorded conversations, one after the other."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.cli.exit import Exit
from orchestrator.cli.load import limits_from, members_of
from orchestrator.cli.loop import on_signal
from orchestrator.cli.option import ReplayOptions
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.reproduction import CANCELLED, DIVERGED, ConversationPlayer, ReplayStage, Reproduction
from orchestrator.cli.run import logging_to
from orchestrator.errors import ConfigError
from orchestrator.examples import bundled
from orchestrator.kernel.record import Observer
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.providers.recording import INDEX_FILE
from orchestrator.providers.replay import (
    IRREGULAR,
    OPEN_END,
    REPRODUCED,
    UNUSABLE,
    ProviderRecord,
    ReplayError,
    scan,
)

_ALWAYS_COUNTED = (REPRODUCED, OPEN_END, IRREGULAR, UNUSABLE)
_FAULTS = {UNUSABLE: Exit.USAGE, DIVERGED: Exit.FAILED}


@dataclass(slots=True)
class ReplayCounts:
    """Counts of results, and the first fault of each kind."""

    results: Counter[str] = field(default_factory=Counter)
    first: dict[str, Reproduction] = field(default_factory=dict)

    def add(self, done: Reproduction) -> None:
        """Count one result."""
        self.results[done.result] += 1
        self.first.setdefault(done.result, done)

    def summary(self) -> str:
        """Return the counts in one line."""
        kinds = [*_ALWAYS_COUNTED, *(kind for kind in (DIVERGED, CANCELLED) if self.results[kind])]
        counts = ", ".join(f"{self.results[kind]} {kind}" for kind in kinds)
        return f"{self.results.total()} conversations: {counts}"


Show = Callable[[Reproduction], None]
Found = Iterable[ProviderRecord | ReplayError]


def replay_conversations(options: ReplayOptions) -> int:
    """Replay every conversation, print the results, and return the exit code of the worst."""
    paths = _checked(options)
    limits = limits_from(options.limits, members_of(OFF))
    with logging_to(options.log) as logs:
        if options.live:
            account, stopped = _watch(_found(paths), limits, options.speed, logs)
        else:
            player = ConversationPlayer(
                limits, stage=ReplayStage(), observers=logs, speed=options.speed or 0.0
            )
            account = asyncio.run(_play(player, _found(paths), _print_json if options.json else _print_line))
            stopped = player.stopped
    if not options.json and not options.live:
        say(account.summary())
    return _status(account, stopped=stopped)


def _checked(options: ReplayOptions) -> list[Path]:
    """Return the files and folders to replay. Raises, before anything runs, if a path cannot be read."""
    paths = [*options.paths, *(bundled() if options.bundled else ())]
    if not paths:
        raise ConfigError("nothing to replay: give a PATH, or --bundled")
    if options.json and options.live:
        raise ConfigError("--live is for watching and --json prints data; give one of them")
    if options.speed is not None and not 0 <= options.speed < math.inf:
        raise ConfigError(f"speed is {options.speed:g}; it must be 0 (do not wait) or more")
    for path in paths:
        if not path.is_dir():
            path.open("rb").close()
        elif not any(file.name != INDEX_FILE for file in path.glob("*.jsonl")):
            raise ConfigError(f"{path}: no conversations here (*.jsonl, {INDEX_FILE} left out)")
    return paths


def _found(paths: Iterable[Path]) -> Iterator[ProviderRecord | ReplayError]:
    for path in paths:
        yield from scan(path)


def _watch(
    found: Found, limits: Limits, speed: float | None, logs: Iterable[Observer]
) -> tuple[ReplayCounts, bool]:
    from orchestrator.cli.live import LiveStage, pace

    records, factor = pace(found, speed)
    stage = LiveStage(len(records))
    player = ConversationPlayer(limits, stage=stage, observers=logs, speed=factor)
    account = asyncio.run(_play(player, records, lambda _: None))
    stage.close(account.summary())
    return account, player.stopped


async def _play(player: ConversationPlayer, found: Found, show: Show) -> ReplayCounts:
    account = ReplayCounts()
    with on_signal(player.stop):
        for one in found:
            if player.stopped:
                break
            done = await player.play(one)
            account.add(done)
            show(done)
    return account


def _print_json(done: Reproduction) -> None:
    say_json(done.as_json())


def _print_line(done: Reproduction) -> None:
    why = ", ".join(done.irregular) or done.reason
    runs = f"{len(done.runs)} run{'' if len(done.runs) == 1 else 's'}"
    say(f"{done.result:<22}  {runs:>8}  {shown(done.id)}" + (f"  ({shown(why)})" if why else ""))


def _status(account: ReplayCounts, *, stopped: bool) -> int:
    """Return the exit code of the worst result, after printing it in one sentence on stderr."""
    if stopped:
        complain("cancelled by a signal")
        return Exit.CANCELLED
    for kind, code in _FAULTS.items():
        if count := account.results[kind]:
            worst = account.first[kind]
            total = account.results.total()
            complain(f"{count} of {total} conversations {kind}; the first, {worst.id}: {worst.reason}")
            return code
    return Exit.COMPLETED
