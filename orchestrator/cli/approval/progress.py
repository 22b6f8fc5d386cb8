"""The steps of a plan during its execution: a progress bar on a terminal, one line for each step elsewhere."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from orchestrator.cli.output import escape_streams, is_terminal, say, visible
from orchestrator.cli.runs.phrase import many, span
from orchestrator.cli.screen import console
from orchestrator.machines.approval.plan import PlanStep
from orchestrator.runtime.approval.status import StepFact

_LONGEST = 60
"""Most characters of a step beside the bar."""
_BAR = 24
_MOST = 20
"""Most lines of a command's output."""
_WIDEST = 500
"""Most characters of one of these lines."""


class Steps:
    """Shows each step when it starts and when it has ended; the executor gets it as `on_step`.

    With `pace` (seconds) each step is shown and then waits that long before it changes anything, so that a person can
    stop it. `lost` is called once when the reader of the output is gone. With `quiet` nothing is shown.
    """

    def __init__(self, lost: Callable[[], None], *, pace: float = 0.0, quiet: bool = False) -> None:
        self._lost: Callable[[], None] | None = lost
        self._pace = pace
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._hurry = asyncio.Event()
        self._waited = 0.0
        """Seconds that the current step waited only because of the pace."""

    async def __call__(self, fact: StepFact) -> None:
        """Show a step."""
        if fact.phase == "ends":
            fact = replace(fact, seconds=fact.seconds - self._waited)
        if not self._quiet:
            self._show(fact)
        if fact.phase == "begins" and self._pace:
            began = time.perf_counter()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._pace)
            self._waited = time.perf_counter() - began

    def hurry(self) -> None:
        """End the wait: a request to stop has arrived."""
        self._hurry.set()

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the steps inside the block; the last state of the bar stays on the screen."""
        if self._quiet or not is_terminal():
            yield
            return
        about = TextColumn("{task.description}", markup=False)
        columns = (TextColumn(" "), BarColumn(_BAR), MofNCompleteColumn(), about)
        with Progress(*columns, console=console(), refresh_per_second=10) as self._bar:
            escape_streams()  # rich has replaced the streams by its own
            yield
        self._bar = None

    def _show(self, fact: StepFact) -> None:
        said = "\n".join((f"  {line(fact)}", *output_lines(fact)))
        if self._bar is None:
            self._say(said)
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=fact.of)
        done = fact.index if fact.status == "done" else fact.index - 1
        self._bar.update(self._task, completed=done, description=what(fact.step)[:_LONGEST])
        if fact.phase == "ends":
            self._bar.console.print(Text(said), soft_wrap=True)

    def _say(self, text: str) -> None:
        if self._lost is None:
            return
        try:
            say(text)
        except BrokenPipeError:
            lost, self._lost = self._lost, None
            lost()


def line(fact: StepFact) -> str:
    """Return the line for a step that starts or has ended: its number, its action, its result."""
    head = f"step {fact.index} of {fact.of}  {what(fact.step)}"
    if fact.phase == "begins":
        return f"{head} …"
    return f"{head}: {fact.status}, {span(fact.seconds)}"


def output_lines(fact: StepFact) -> list[str]:
    """Return the end of a command's output. It is shown here and not stored."""
    lines = fact.output.rstrip().splitlines()
    left_out = [f"    | … {many(len(lines) - _MOST, 'line')} before"] if len(lines) > _MOST else []
    return [*left_out, *(f"    | {visible(one)[:_WIDEST]}" for one in lines[-_MOST:])]


def what(step: PlanStep) -> str:
    """Return a step in a few words."""
    return visible(f"{step.kind} {shlex.join(step.argv) if step.argv else ', '.join(step.paths)}")
