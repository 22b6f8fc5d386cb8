"""The display of a run: a table that is updated on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from orchestrator.cli.output import escape_streams, is_terminal, say, shown, styled_file
from orchestrator.drawing.stylesheet import STATUSES
from orchestrator.errors import LLMError
from orchestrator.kernel.fact import (
    EventFailed,
    Fact,
    LLMCall,
    RunCompleted,
    RunParked,
    RunStarted,
    ToolError,
    ToolExecution,
    Transition,
)
from orchestrator.kernel.graph import Graph
from orchestrator.llm.live_event import ModelRequestRetried, RunEvent, TextDelta
from orchestrator.llm.run_event import ModelRequestFinished, RunFinished
from orchestrator.telemetry.escape import escape
from orchestrator.telemetry.history import History, StateStats

_BAR = 20
_TAIL_CHARS, _TAIL_LINES = 1_000, 6
"""What is shown of an answer while the model produces it."""
_WIDTH = 160
"""Columns without a terminal: a pipe has no width, and ids must not be cut."""


class _Out(Console):
    """A console that writes only its own control sequences: texts are escaped as they are rendered."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments of a renderable, escaped; those of rich itself are marked as control."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape(text), style, control)

    def on_broken_pipe(self) -> None:
        """Propagate the error: `main` decides how a closed output pipe is handled."""
        raise BrokenPipeError


class _Live(Live):
    def start(self, refresh: bool = False) -> None:  # noqa: FBT001, FBT002 - rich's
        """Start; the streams that rich installs are escaped too."""
        super().start(refresh)
        escape_streams()


def console() -> Console:
    """Return standard output. Texts are printed without markup: recorded ones are full of brackets and colons."""
    width = None if is_terminal() else _WIDTH
    return _Out(file=styled_file(), width=width, markup=False, highlight=False, emoji=False)


class RunTally:
    """An observer that adds up the figures of the display: states, tools, tokens, ends of runs."""

    def __init__(self) -> None:
        self.history = History(limit=0)
        self.tools: Counter[tuple[str, str]] = Counter()
        """(tool, outcome) -> calls."""
        self.tokens_in = self.tokens_out = self.requests = 0
        self.ends: Counter[tuple[str, str]] = Counter()
        """(outcome, reason) -> runs."""
        self.state = ""
        self.entered = time.perf_counter()
        self.parked: tuple[str, float] | None = None
        """(why the run waits for a person, since when): this time is not counted for the state."""

    def observe(self, fact: Fact) -> None:
        """Add a fact."""
        self.history.observe(fact)
        match fact:
            case RunParked():
                self.parked = fact.reason, time.perf_counter()
            case RunStarted() if self.parked is not None:
                self.entered += time.perf_counter() - self.parked[1]
                self.parked = None
            case Transition():
                self.state, self.entered = fact.dest, time.perf_counter()
            case LLMCall():
                self.requests += 1
                self.tokens_in += fact.input_tokens
                self.tokens_out += fact.output_tokens
            case ToolExecution():
                self.tools[fact.tool, fact.outcome] += 1
            case RunCompleted():
                self.ends[fact.outcome, fact.reason] += 1

    def totals(self) -> str:
        """Return requests, tool calls and tokens in one line."""
        calls = sum(self.tools.values())
        tokens = f"{self.tokens_in:,} tokens in, {self.tokens_out:,} out"
        return f"{_many(self.requests, 'request')}, {_many(calls, 'tool call')}, {tokens}"


class StateBoard:
    """The live table: each state with visits, time and a marker at the current state."""

    def __init__(self, graph: Graph, tally: RunTally) -> None:
        self.graph = graph
        self.tally = tally

    def __rich__(self) -> Group:
        """Render the current state; also called from the refreshing thread, so it reads copies."""
        tally, stats = self.tally, dict(self.tally.history.states)
        table = _table("", "state", "visits", "seconds", "")
        spent = {state.value: self._seconds(state.value, stats) for state in self.graph.states}
        longest = max(spent.values()) or 1.0
        present = STATUSES["running" if tally.parked is None else "waiting"].terminal
        for state in self.graph.states:
            one, here = stats.get(state.value), state.value == tally.state
            style = f"bold {present}" if here else "" if one else "dim"
            seconds = spent[state.value]
            bar = "█" * round(_BAR * seconds / longest)
            cells = (state.value, str(one.visits if one else 0), f"{seconds:.3f}", bar.ljust(_BAR))
            table.add_row("▶" if here else "", *cells, style=style)
        tools = ", ".join(f"{tool} {outcome} ×{n}" for (tool, outcome), n in list(tally.tools.items()))
        lines = [f"  tools: {tools or 'none yet'}", f"  {tally.totals()}"]
        if (parked := tally.parked) is not None:
            lines.append(f"  waits: {parked[0]}")
        return Group(table, *map(Text, lines))

    def _seconds(self, state: str, stats: Mapping[str, StateStats]) -> float:
        """Return the time spent in a state, with the current stay."""
        past = stats[state].total if state in stats else 0.0
        running = state == self.tally.state and state not in self.graph.terminal
        now = time.perf_counter() if self.tally.parked is None else self.tally.parked[1]
        return past + (now - self.tally.entered if running else 0.0)


class AnswerTail:
    """The last lines of the text that a model produces, below the table; the whole answer is printed at the end.

    They are drawn with the table, ten times a second: a drawing for each piece would take more time than the model.

    Args:
        run_id: The run; texts of its child runs are not shown.
    """

    answered = False

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._text = ""

    def show(self, event: RunEvent) -> None:
        """Add a piece of text; the end of an answer removes it."""
        if event.run_id != self.run_id:
            return
        if isinstance(event, TextDelta):
            self._text = (self._text + event.text)[-_TAIL_CHARS:]
        elif isinstance(event, ModelRequestFinished | ModelRequestRetried | RunFinished):
            self._text = ""

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> Iterator[Text]:
        width = max(shutil.get_terminal_size().columns - 4, 20)
        lines = [
            f"  {part}"
            for line in shown(self._text, keep="\n").splitlines()
            for part in textwrap.wrap(line, width) or [""]
        ]
        yield from map(Text, lines[-_TAIL_LINES:])


class PlainLines:
    """The plain lines: one for each transition, request and tool call."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost: Callable[[], None] | None = lost

    def observe(self, fact: Fact) -> None:
        """Print the fact."""
        if line := line_of(fact):
            self.say(line)

    def say(self, text: str) -> None:
        """Print a text. Observers cannot fail a run, so `lost` is called once if the pipe is closed."""
        if self._lost is None:
            return
        try:
            say(text)
        except BrokenPipeError:
            lost, self._lost = self._lost, None
            lost()


def line_of(fact: Fact) -> str:
    """Return a fact as a plain line; empty for one that is not shown."""
    match fact:
        case Transition():
            where = f"{fact.source} -> {fact.dest}"
            return f"  {where:<38} {fact.event:<20} {fact.dwell:8.3f} s"
        case LLMCall():
            known = fact.input_tokens or fact.output_tokens
            tokens = f" {fact.input_tokens:,} tokens in, {fact.output_tokens:,} out," if known else ""
            return f"    model {shown(fact.model, keep='')}: {fact.outcome},{tokens} {fact.seconds:.3f} s"
        case ToolExecution():
            cut = ", cut" if fact.cut else ""
            size = f"{fact.result_chars:,} characters{cut}"
            outcome = fact.outcome if fact.error is None else error_of(fact.error)
            return f"    tool {shown(fact.tool, keep='')}: {outcome}, {size}, {fact.seconds:.3f} s"
        case EventFailed():
            kind = f", {fact.error.kind}" if isinstance(fact.error, LLMError) else ""
            why = f"{type(fact.error).__name__}{kind}" if fact.error else fact.reason
            return f"    {_FAILED.get(fact.reason, fact.reason)} in {fact.state}: {why}"
    return _progress_of(fact)


_FAILED = {"callback_error": "failed"}
"""Reason of a failed event -> its word on the screen, if a person without the code would not understand it."""


def error_of(error: ToolError) -> str:
    """Return the outcome of a call that raised, with type, message and place of the exception."""
    at = f" at {error.where}" if error.where else ""
    return shown(f"error {error.type}{at}: {error.message}", 300, keep="")


def _progress_of(fact: Fact) -> str:
    match fact:
        case RunParked():
            return f"    parked in {fact.state}: {fact.reason}"
        case RunStarted(origin="resumed"):
            return "    resumed"
    return ""


class Screen:
    """Shows the progress of runs of one graph. `lost` is called when the reader of the output is gone.

    With `quiet` it only adds up figures and shows notices: the answer is shown in its place. `board` creates another
    picture than the table of states; `tail` is shown below it.
    """

    def __init__(
        self,
        graph: Graph,
        lost: Callable[[], None],
        *,
        quiet: bool = False,
        board: Callable[[Graph, RunTally], RenderableType] | None = None,
        tail: AnswerTail | None = None,
    ) -> None:
        self.graph = graph
        self._board = board or StateBoard
        self._tail = tail
        self.tally = RunTally()
        self._quiet = quiet
        self._lines = None if is_terminal() and not quiet else PlainLines(lost)
        self._live: Live | None = None

    def observe(self, fact: Fact) -> None:
        """Add a fact and show it."""
        self.tally.observe(fact)
        if self._lines is not None and not self._quiet:
            self._lines.observe(fact)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the run inside the block; the last picture of the table stays."""
        if self._lines is not None:
            yield
            return
        self.tally.state, self.tally.entered = self.graph.initial.value, time.perf_counter()
        self._draw()
        try:
            yield
        finally:
            if self._live is not None:
                self._live.stop()
            self._live = None

    def _draw(self) -> None:
        board = self._board(self.graph, self.tally)
        shown = board if self._tail is None else Group(board, self._tail)
        self._live = _Live(shown, console=console(), refresh_per_second=10)
        self._live.start(refresh=True)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Inside the block there is no table: a person types in its place. It is drawn again below the answer."""
        live = self._live
        if live is not None:
            live.transient = True
            live.stop()
        try:
            yield
        finally:
            if live is not None:
                self._draw()

    def notice(self, text: str) -> None:
        """Print a permanent text above the table. Its lines are not broken, so that they can be copied."""
        if self._lines is not None:
            self._lines.say(text)
        elif self._live is not None:
            self._live.console.print(Text(text), soft_wrap=True)


def states_table(history: History) -> Table:
    """Return visits, times and share of the whole for each state visited, in the order of first visits."""
    table = _table("state", "visits", "min s", "mean s", "max s", "total s", "share")
    whole = sum(stats.total for stats in history.states.values()) or 1.0
    for name, stats in history.states.items():
        times = [f"{seconds:.3f}" for seconds in (stats.shortest, stats.mean, stats.longest, stats.total)]
        table.add_row(name, str(stats.visits), *times, f"{stats.total / whole:.1%}")
    return table


def print_report(history: History, ends: Counter[tuple[str, str]]) -> None:
    """Print the states, the bottleneck, the most frequent edge and the ends of the runs."""
    out = console()
    out.print(states_table(history))
    if history.bottleneck is not None:
        say(f"  bottleneck: {history.bottleneck}")
    if history.commonest is not None:
        source, event, dest = history.commonest
        say(f"  commonest edge: {source} -> {dest} ({event}), {history.edges[history.commonest]} times")
    for (outcome, reason), count in ends.most_common():
        say(f"  {_many(count, 'run')} {outcome}" + (f" ({reason})" if reason != "none" else ""))


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=True)
    for head in heads:
        numeric = head in {"visits", "share"} or head.endswith((" s", "seconds"))
        table.add_column(head, justify="right" if numeric else "left", no_wrap=True)
    return table


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
