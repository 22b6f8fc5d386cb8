"""`orchestrator runs show --timeline`: the timeline of a run as a drawing."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.picture import check_picture, save_picture
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.drawing.timeline import MOST_TURNS, timeline_svg
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.machines.timeline import Timeline

_TURNS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def draw_timeline(
    name: str, file: Path | None, turns: str | None, *, json: bool, journal: Address | None
) -> int:
    """Write the timeline of a run to a file, and print its size."""
    if file is None:
        raise ConfigError("--turns selects a part of a drawing; name its file with --timeline FILE.svg")
    check_picture(file)
    part = None if turns is None else _part(turns)

    async def work(store: OpenStore) -> Timeline:
        return await store.runs.timeline((await store.run(name)).run_id)

    line = at_journal(journal, work, only_reads=True)
    if part is not None:
        line = _between(line, *part)
    save_picture(file, timeline_svg(line))
    if json:
        say_json({"run_id": line.name, "output": str(file.absolute()), "turns": len(line.turns)})
        return Exit.COMPLETED
    columns = ", in columns; --turns N-M draws a part in full" if len(line.turns) > MOST_TURNS else ""
    say(f"{file}: {many(len(line.turns), 'turn')} of run {shown(line.name)}{columns}")
    return Exit.COMPLETED


def _part(turns: str) -> tuple[int, int]:
    found = _TURNS.fullmatch(turns)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise ConfigError(f"--turns {turns!r} is no range of turns; one is N or N-M, from 1, as in 10-20")
    return first, last


def _between(line: Timeline, first: int, last: int) -> Timeline:
    count = line.turns[-1].turn if line.turns else 0
    if first > count:
        raise ConfigError(f"run {line.name!r} has {many(count, 'turn')}; --turns starts at turn {first}")
    return line.between(first, last)
