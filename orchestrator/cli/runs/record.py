"""`orchestrator runs events` and `runs export`: the records of a run as lines, and a run as a file."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import complain, reader_is_gone, say, say_json, shown
from orchestrator.cli.runs.phrase import many, moment, span, tags_of, words
from orchestrator.cli.runs.run_service import going_on
from orchestrator.cli.runs.store import OpenStore, at_journal, head_json
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError
from orchestrator.journal.redacted import parted
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.llm.attempt import ATTEMPTS
from orchestrator.llm.message import Usage
from orchestrator.runtime.backtest.trace import trace_of
from orchestrator.runtime.evaluation.case_file import cases_text, recorded_case
from orchestrator.runtime.run_replay import archive_of, journal_of, replay_run
from orchestrator.runtime.runs.story import Story, TranscriptEntry
from orchestrator_guards.evaluation import GUARDS, read_row

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
    since: Annotated[int, typer.Option(metavar="N", help="Records from this number on.")] = 0
    content: given.WithContent = False


@spread
def events(options: EventsOptions) -> int:
    """Print the records of a run, one a line.

    Messages, arguments, results and texts are printed with --content only.
    """
    if options.since < 0:
        raise ConfigError(f"since is {options.since}; it must be the number of a record, 0 or more")

    async def work(store: OpenStore) -> int:
        head = await store.run(options.run)
        seen = await _print_since(store, head.run_id, options.since, options)
        return await _follow(store, head.run_id, seen, options) if options.follow else Exit.COMPLETED

    return at_journal(options.journal, work, only_reads=True)


async def _print_since(store: OpenStore, run_id: str, since: int, options: EventsOptions) -> int:
    """Print the records from a number on; return the number of the next one."""
    for record in await store.journal.load(run_id, since):
        if options.json:
            say_json(as_json(record, content=options.content))
        else:
            for text in lines(record, content=options.content):
                say(text)
        since = record.seq + 1
    return since


async def _follow(store: OpenStore, run_id: str, since: int, options: EventsOptions) -> int:
    """Print new records until the run ends, Ctrl-C is pressed, or the reader of the output is gone."""
    stopped = asyncio.Event()
    idle = ""
    with on_signal(stopped.set):
        while not stopped.is_set():
            head = await store.journal.head(run_id)
            if head.seq >= since:
                since = await _print_since(store, run_id, since, options)
            if head.status == "ended" and head.seq < since:
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
    cost = "" if used.cost is None else f", ${used.cost:.4f}"
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
    "parked": _parked,
    "ended": _ended,
}


FORMAT = "orchestrator-run/1"
"""The format of an export without content."""


@spread
def export(
    run: given.RunId,
    others: Annotated[
        tuple[str, ...],
        typer.Argument(metavar="OTHER", help="Further runs, with --as-case.", show_default=False),
    ] = (),
    *,
    content: given.WithContent = False,
    as_test: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a test that replays the run, and its records, secrets removed, into DIR.",
        ),
    ] = None,
    as_case: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the runs as cases of `orchestrator eval`, secrets removed, to a new *.yaml or *.jsonl.",
        ),
    ] = None,
    output: given.Output = None,
    at: given.JournalOptions,
) -> int:
    """Print a run as JSON, without the content of messages.

    With --content it is a conversation that `orchestrator replay` reads. Review what --as-test and --as-case write
    before you share it: it has messages and arguments, and only text that looks like a secret is replaced.
    """
    if as_case is not None:
        if content or output is not None or as_test is not None:
            raise ConfigError("--as-case writes its own file: leave out --content, --output and --as-test")
        return export_cases((run, *others), as_case, at)
    if others:
        raise ConfigError("one run can be exported at a time, several only with --as-case")
    if as_test is not None:
        if content or output is not None:
            raise ConfigError("--as-test writes its own files: leave out --content and --output")
        return export_test(run, as_test, at)

    async def work(store: OpenStore) -> tuple[str, dict[str, Any]]:
        head = await store.run(run)
        records = await store.journal.load(head.run_id)
        return head.run_id, conversation(head, Story.of(head.run_id, records)) if content else metadata(
            head, records
        )

    run_id, data = at_journal(at.journal, work, only_reads=True)
    if output is None:
        say_json(data)
        return Exit.COMPLETED
    write_new(output, json.dumps(data))
    what = "messages" if content else "records"
    if at.json:
        say_json({"run_id": run_id, "output": str(output.absolute()), what: len(data[what])})
    elif content:
        say(f"{output}: {many(len(data[what]), 'message')} of run {shown(run_id)}; to see them happen again:")
        say(f"  {words('replay', str(output), '--live')}")
    else:
        say(f"{output}: {many(len(data[what]), 'record')} of run {shown(run_id)}, without any texts")
    return Exit.COMPLETED


def metadata(head: RunHead, records: Sequence[Record]) -> dict[str, Any]:
    """Return data that may be shared: names, numbers and times, no texts. `orchestrator backtest` reads the trace."""
    return {
        "format": FORMAT,
        "run": head_json(head),
        "records": [as_json(record, content=False) for record in records],
        "trace": trace_of(head.run_id, records).as_json(),
    }


def conversation(head: RunHead, story: Story) -> dict[str, Any]:
    """Return a run as a recorded conversation (see `providers.replay`). Raises ConfigError for an empty run."""
    spoken = story.conversation
    if not spoken:
        raise ConfigError(f"run {head.run_id!r} has no messages yet: there is no conversation to export")
    seconds = {
        str(one.message["tool_call_id"]): float(one.done.get("seconds") or 0.0)
        for one in spoken
        if one.done is not None and one.message.get("tool_call_id")
    }
    ended = story.ended or {}
    return {
        "id": head.run_id,
        "model": next(iter(story.models), None),
        "messages": [dict(one.message) for one in spoken],
        "turns": [_turn(index, one) for index, one in enumerate(spoken) if one.answer is not None],
        "tool_seconds": seconds,
        "run": {
            **head_json(head),
            "state": story.state,
            "outcome": ended.get("outcome"),
            "output": ended.get("output"),
        },
    }


def _turn(index: int, spoken: TranscriptEntry) -> dict[str, Any]:
    """Return the record of one reply without its message."""
    answer: Mapping[str, Any] = spoken.answer or {}
    usage = Usage.of(answer.get("usage") or {})
    return {
        "message": index,
        "finish_reason": answer.get("finish_reason"),
        "latency_s": float(answer.get("seconds") or 0.0),
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
            "reasoning_tokens": usage.reasoning_tokens,
            **({} if usage.cost is None else {"cost": usage.cost}),
        },
    }


def write_new(file: Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises ConfigError when it exists, or OSError."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(f"{file} exists and was not overwritten") from None
    with open(descriptor, "w", encoding="utf-8") as out:  # noqa: PTH123 - a descriptor, for its mode
        out.write(f"{text}\n")


_TEST = '''"""Run {run_id}: it takes its recorded transitions again."""

import asyncio
from pathlib import Path

from orchestrator.testing import assert_replays


def test_run_{name}_takes_its_recorded_transitions() -> None:
    asyncio.run(assert_replays(Path(__file__).with_suffix(".json"), {quoted}))
'''


def export_test(name: str, folder: Path, at: given.JournalOptions) -> int:
    """Write a test and its records into a folder. Raises ConfigError, before anything is written, if it would fail."""

    async def work(store: OpenStore) -> tuple[str, dict[str, Any]]:
        head = await store.run(name)
        data = archive_of(head.run_id, await store.journal.load(head.run_id))
        copy = await journal_of(data)
        replay = await replay_run(head.run_id, await copy.load(head.run_id))
        if replay.difference is not None:
            raise ConfigError(
                f"run {head.run_id} does not replay, so a test of it would fail: {replay.difference}"
            )
        return head.run_id, data

    run_id, data = at_journal(at.journal, work, only_reads=True)
    word = re.sub(r"\W", "_", run_id, flags=re.ASCII)
    test, records = folder / f"test_run_{word}.py", folder / f"test_run_{word}.json"
    if test.exists():
        raise ConfigError(f"{test} exists and was not overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    write_new(records, json.dumps(data))
    write_new(
        test, _TEST.format(run_id=shown(run_id, keep=""), name=word, quoted=json.dumps(run_id)).rstrip("\n")
    )
    if at.json:
        say_json({"run_id": run_id, "test": str(test.absolute()), "records": str(records.absolute())})
    else:
        say(
            f"{test}: a test of run {shown(run_id)}; its records are in {records}. Review them before you share them"
        )
    return Exit.COMPLETED


def export_cases(names: Sequence[str], file: Path, at: given.JournalOptions) -> int:
    """Write runs as cases to a new file. Raises ConfigError, before anything is written."""
    cases_text((), file.suffix)  # an unknown format is refused before a run is read

    async def work(store: OpenStore) -> list[dict[str, Any]]:
        heads = {head.run_id: head for head in [await store.run(name) for name in names]}
        return [await recorded_case(run_id, await store.journal.load(run_id)) for run_id in heads]

    cases = at_journal(at.journal, work, only_reads=True)
    write_new(file, cases_text(cases, file.suffix).rstrip("\n"))
    if at.json:
        say_json({"cases": [case["name"] for case in cases], "output": str(file.absolute())})
    else:
        say(
            f"{file}: {many(len(cases), 'case')}. Review what they expect, and their texts, before you share them"
        )
    return Exit.COMPLETED
