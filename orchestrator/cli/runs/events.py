"""`orchestrator runs events`: the records of a run, or of its tree, as lines."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import complain, reader_is_gone, say, say_json, shown
from orchestrator.cli.runs.phrase import moment, span, tags_of
from orchestrator.cli.runs.run_service import going_on
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError
from orchestrator.journal.redacted import parted
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.llm.attempt import ATTEMPTS
from orchestrator.llm.message import Usage
from orchestrator.runtime.service.descendant import descendants
from orchestrator_guards.evaluation import GUARDS, read_row
from orchestrator_guards.money import amount

POLL = 0.1
"""Seconds between two reads of a run that is followed."""

_LONGEST = 4_000


@dataclass(frozen=True, kw_only=True)
class EventsOptions(given.JournalOptions):
    """The command line of `runs events`."""

    run: given.RunId
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new records until the run ends, or Ctrl-C.")
    ] = False
    tree: Annotated[
        bool, typer.Option("--tree", help="Print the records of its child runs, at any depth, too.")
    ] = False
    since: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[RUN=]N",
            help="Records from this number on; with --tree RUN=N for a child run, repeatable.",
            show_default=False,
        ),
    ] = None
    content: given.WithContent = False


@spread
def events(options: EventsOptions) -> int:
    """Print the records of a run, one a line.

    Messages, arguments, results and texts are printed with --content only. With --tree each line starts with the id
    of its run, and what is printed at once is in the order of time.
    """
    since = [_start(text, options) for text in options.since or ()]

    async def work(store: OpenStore) -> int:
        head = await store.run(options.run)
        starts = {(await store.run(name)).run_id if name else head.run_id: number for name, number in since}
        printer = RecordPrinter(store, head.run_id, starts, options)
        await printer.print_new()
        return await _follow(store, printer) if options.follow else Exit.COMPLETED

    return at_journal(options.journal, work, only_reads=True)


def _start(text: str, options: EventsOptions) -> tuple[str, int]:
    """Return the run, "" for the one at the top, and the number of the first record that is printed."""
    name, _, number = text.rpartition("=")
    if not number.isdecimal():
        raise ConfigError(
            f"since is {text}; it must be the number of a record, 0 or more, or RUN=NUMBER with --tree"
        )
    if name and not options.tree:
        raise ConfigError(f"since is {text}; a number without a run is allowed, or add --tree")
    return name, int(number)


class RecordPrinter:
    """Prints the records of a run, and with --tree of its descendants, each once."""

    def __init__(self, store: OpenStore, run_id: str, starts: dict[str, int], options: EventsOptions) -> None:
        self._store = store
        self._run_id = run_id
        self._options = options
        self._next = starts
        """Run -> number of the record that is printed next."""
        self._version = ""
        """Of the journal when the descendants were read."""

    def has_ended(self, root: RunHead) -> bool:
        """Return whether the run at the top has ended and all its records were printed."""
        return root.status == "ended" and root.seq < self._next.get(root.run_id, 0)

    async def print_new(self) -> RunHead:
        """Print the records that are new; return the head of the run at the top."""
        journal = self._store.journal
        heads = [root := await journal.head(self._run_id)]
        if self._options.tree and (version := await journal.version()) != self._version:
            self._version = version
            heads += [head async for head, _ in descendants(journal, root, ended=True)]
        found = []
        for head in heads:
            if head.seq >= (since := self._next.get(head.run_id, 0)):
                found.append((head.run_id, records := await journal.load(head.run_id, since)))
                self._next[head.run_id] = records[-1].seq + 1
        width = max(len(shown(head.run_id)) for head in heads)
        for _, run_id, record in heapq.merge(*(_timed(*each) for each in found), key=lambda timed: timed[0]):
            self._print(run_id, record, width)
        return root

    def _print(self, run_id: str, record: Record, width: int) -> None:
        tree, content = self._options.tree, self._options.content
        if self._options.json:
            say_json(({"run_id": run_id} if tree else {}) | as_json(record, content=content))
            return
        for text in lines(record, content=content):
            say(f"{shown(run_id):<{width}}  {text}" if tree else text)


def _timed(run_id: str, records: Sequence[Record]) -> Iterator[tuple[float, str, Record]]:
    """Yield the records of a run, each with its time; that of the one before if it has none."""
    last = 0.0
    for record in records:
        at = record.body.get("at")
        last = max(last, float(at)) if isinstance(at, int | float) else last
        yield last, run_id, record


async def _follow(store: OpenStore, printer: RecordPrinter) -> int:
    """Print new records until the run ends, Ctrl-C is pressed, or the reader of the output is gone."""
    stopped = asyncio.Event()
    idle = ""
    with on_signal(stopped.set):
        while not stopped.is_set():
            head = await printer.print_new()
            if printer.has_ended(head):
                return Exit.COMPLETED
            if reader_is_gone():
                return Exit.PIPE
            waits = head.status if head.owner is None else ""
            if waits and waits != idle:
                complain(f"the run has no owner; {await going_on(store, head)}")
            idle = waits
            try:
                await asyncio.wait_for(stopped.wait(), POLL)
            except TimeoutError:
                continue
    return Exit.COMPLETED


def as_json(record: Record, *, content: bool) -> dict[str, Any]:
    """Return a record as plain data. The hash needs `content`: short content could be guessed from the hash."""
    named = {"seq": record.seq, "epoch": record.epoch, "kind": record.kind}
    if content:
        return {**named, "body": dict(record.body), "hash": record.hash}
    parts = parted(record.kind, record.body)
    return {**named, "body": parts.shown} | ({"left_out": parts.left_out} if parts.content else {})


def lines(record: Record, *, content: bool) -> list[str]:
    """Return a record as a line of text, and with `content` its content below."""
    at = record.body.get("at")
    when = moment(float(at)) if isinstance(at, int | float) else " " * 19
    body = record.body if content else {**record.body, **parted(record.kind, record.body).shown}
    about = _ABOUT.get(record.kind, _anything)(body)
    found = [shown(f"{record.seq:>6}  {when}  {record.kind:<11}  {about}", 600, keep="")]
    if content:
        for name, value in parted(record.kind, record.body).content.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found.append(f"{'':>29}{shown(name, 40)}: {shown(text, _LONGEST)}")
    return found


# ---- one line for each kind, without any content ----

Body = Mapping[str, Any]


def _created(body: Body) -> str:
    parent = f", parent {body['parent_run_id']}" if body.get("parent_run_id") else ""
    talk = f", conversation {body['conversation_id']}" if body.get("conversation_id") else ""
    agent = f", agent {body['agent']}" if body.get("agent") else ""
    version = f" {body['agent_version']}" if body.get("agent_version") else ""
    tags = f", {tags_of(body['tags'])}" if body.get("tags") else ""
    about = f"{agent}{version}{tags}{parent}{talk}"
    return f"{body.get('graph', '')}, fingerprint {str(body.get('fingerprint', ''))[:12]}{about}"


def _guards(body: Body) -> str:
    """Return the guards that led to a record: those that refused, and the number of all."""
    found = [read_row(row).verdict for row in body.get(GUARDS) or ()]
    refused = [f"{one.guard} refused ({one.observed:g} of {one.limit:g})" for one in found if not one.ok]
    count = [f"{len(found)} guards asked"] if found else []
    return "".join(f", {text}" for text in (*count, *refused))


def _attempts(body: Body) -> str:
    """Return the attempts of a request if there was more than the one that succeeded."""
    rows = body.get(ATTEMPTS) or ()
    kinds = ", ".join(str(row[2]) for row in rows if len(row) > 2 and row[2])  # noqa: PLR2004 - start, seconds, kind
    return f", {len(rows)} attempts ({kinds})" if kinds else ""


def _transition(body: Body) -> str:
    error = body.get("error") or {}
    why = f", {error.get('type')} ({error.get('reason')})" if error else ""
    t = f", at {span(float(body['t']))} of the run" if "t" in body else ""
    used = f", {int(body['tokens']):,} tokens" if body.get("tokens") else ""
    why = why or (f", {body['reason']}" if body.get("reason") else "")
    asked = _guards(body) + _attempts(body)
    return f"{body.get('source')} -> {body.get('dest')}  {body.get('event')}{t}{used}{asked}{why}"


def _context(body: Body) -> str:
    messages = body.get("messages") or {}
    count = len(messages if isinstance(messages, list) else messages.get("add") or ())
    added = f", {count} messages more" if count else ""
    next_ = f"next event {body['next']}" if body.get("next") else "enters its state"
    turn = f", turn {body['iteration']}" if "iteration" in body else ""
    return f"{next_}{turn}{added}"


def _answer(body: Body) -> str:
    usage = body.get("usage") or {}
    tokens = f"{usage.get('input_tokens') or 0:,} tokens in, {usage.get('output_tokens') or 0:,} out"
    retries = f", {body['retries']} retried" if body.get("retries") else ""
    estimated = ", estimated" if any(usage[name] for name in usage if name.startswith("estimated")) else ""
    if body.get("unreported"):
        tokens = f"tokens not reported{estimated and f' ({tokens}{estimated})'}"
    else:
        tokens += estimated
    took = f", {span(float(body['seconds']))}" if "seconds" in body else ""
    about = f"{tokens}{took}{retries}{_attempts(body)}"
    return f"turn {body.get('iteration')}, {body.get('model')}, {body.get('finish_reason')}, {about}"


def _intent(body: Body) -> str:
    if body.get("effect") == "file":
        return f"file {body.get('change')} {body.get('path')}, {body.get('key')}"
    calls = [f"{one.get('key')} {one.get('tool')} ({one.get('effect')})" for one in body.get("calls") or ()]
    return ", ".join(calls)


def _done(body: Body) -> str:
    if body.get("effect") == "file":
        return f"file {body.get('key')}"
    took = span(float(body.get("seconds") or 0))
    cut = ", result cut" if body.get("cut") else ""
    return f"{body.get('key')} {body.get('tool')}: {body.get('outcome')}, {took}{cut}"


def _stage(body: Body) -> str:
    score = (body.get("made") or {}).get("score")
    came = (
        f"failed: {body['error']}" if body.get("error") else "ended" if score is None else f"scored {score:g}"
    )
    return f"{body.get('state')} {came}, {int(body.get('tokens') or 0):,} tokens"


def _program(body: Body) -> str:
    return f"{body.get('name')} on {body.get('host')}, call {body.get('call') or '-'}"


def _coding_agent(body: Body) -> str:
    used = Usage.of(body.get("usage") or {})
    cost = "" if used.cost_micros is None else f", {amount(used.cost_micros, 'USD')}"
    said = f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out{cost}"
    return (
        f"{body.get('agent')}, call {body.get('call') or '-'}, session {body.get('session') or '-'}: {said}"
    )


def _question(body: Body) -> str:
    expires = f", expires {moment(float(body['expires_at']))}" if body.get("expires_at") else ""
    return f"{body.get('key')} {body.get('tool')}: {body.get('why')}, digest {str(body.get('digest'))[:12]}{expires}"


def _decision(body: Body) -> str:
    what = " ".join(str(body[name]) for name in ("decision", "kind", "key") if body.get(name))
    why = f": {body['why']}" if body.get("why") else ""
    refused = f" (refused: {body['refused']})" if body.get("refused") else ""
    return f"{what} by {body.get('by') or 'unknown'}{why}{refused}"


def _started(body: Body) -> str:
    refused = f" (refused: {body['refused']})" if body.get("refused") else ""
    return f"run {body.get('run_id')} of agent {body.get('agent')} by {body.get('by') or 'unknown'}{refused}"


def _parked(body: Body) -> str:
    calls = body.get("calls") or ()
    return f"{body.get('reason')}{', calls ' if calls else ''}{', '.join(map(str, calls))}"


def _ended(body: Body) -> str:
    return f"{body.get('outcome')} ({body.get('reason')}) after {span(float(body.get('t') or 0))}"


def _anything(body: Body) -> str:
    return ", ".join(
        f"{name} {body[name]}" for name in ("effect", "key", "by", "from", "to") if body.get(name)
    )


_ABOUT: Mapping[str, Callable[[Body], str]] = {
    "created": _created,
    "transition": _transition,
    "context": _context,
    "answer": _answer,
    "intent": _intent,
    "done": _done,
    "program": _program,
    "coding_agent": _coding_agent,
    "stage": _stage,
    "asked": _question,
    "approval": _decision,
    "control": _decision,
    "started": _started,
    "parked": _parked,
    "ended": _ended,
}
