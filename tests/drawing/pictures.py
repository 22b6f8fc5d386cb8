"""One drawing of each kind, as a user makes it: what the pictures of the guide show, and what a browser checks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator import SqliteJournal
from orchestrator.drawing.svg import svg
from orchestrator.drawing.timeline import timeline_svg
from orchestrator.examples.console_demo import agents, fill
from orchestrator.runtime.runs.timeline import read_timeline
from tests.drawing.recording import Recording, many_turns, support
from tests.drawing.test_notebook import CELLS, executed
from tests.drawing.test_svg import made

COMMANDS = {
    "graph": ("graph", "llm_loop"),
    "heat": ("graph", "llm_loop", "--heat", "time"),
    "run": ("graph", "llm_loop", "--run", "lost-bag-17"),
    "stages": ("pipeline", "report", "plan-7"),
    "backtest": ("backtest", "--sweep", "max_iterations=1..6"),
}
"""Name of a picture -> the command that draws it."""
OPTIONS = {"stages": "--plot", "backtest": "--plot"}
NAMES = (*COMMANDS, "timeline", "turns", "notebook", "states")
_PAGE = (
    "<!doctype html><meta charset='utf-8'><title>Notebook</title><style>:root{{color-scheme:light dark}}"
    "body{{font:14px system-ui,sans-serif;margin:16px}}pre{{margin:2px 0}}th{{text-align:left}}</style>{}"
)


def drawings(folder: Path) -> Iterator[tuple[str, Path]]:
    """Make each drawing in a folder; yield its name and its file."""
    asyncio.run(_fill(folder / "journal.db"))
    _command(folder, "pipeline", "run", "--example", "--run-id", "plan-7")
    for name, arguments in COMMANDS.items():
        _command(folder, *arguments, OPTIONS.get(name, "-o"), f"{name}.svg")
        yield name, folder / f"{name}.svg"
    texts = {
        "timeline.svg": _timeline(support(), "parked"),
        "turns.svg": _timeline(many_turns(2_000), "ended"),
        "notebook.html": _notebook(folder),
        "states.svg": _states(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        yield Path(name).stem, folder / name


async def _fill(file: Path) -> None:
    async with SqliteJournal(file) as journal:
        await fill(agents(journal))


def _command(folder: Path, *arguments: str) -> None:
    journal = ("--journal", "journal.db")
    command = [sys.executable, "-m", "orchestrator", *arguments, *journal]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _timeline(run: Recording, status: str) -> str:
    return timeline_svg(read_timeline(run.records, head=run.head(status, None), now=run.at))


def _notebook(folder: Path) -> str:
    shown = [output["data"] for cell in reversed(executed(CELLS, folder)) for output in cell]
    parts = [one.get("text/html") or one["image/svg+xml"] for one in shown]
    return _PAGE.format("".join(f"<div>{part}</div>" for part in parts))


def _states() -> str:
    """Return a graph of 200 states and the failure state, in some columns."""
    tree = [((at * 7) // 9 if at % 3 else at - 1, at) for at in range(1, 200)]
    back = [(at, at * 5 // 6) for at in range(30, 200, 11)]
    return svg(made([*tree, *back], failure=True))
