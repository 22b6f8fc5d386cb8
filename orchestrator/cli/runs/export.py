"""`orchestrator runs export`: a run as a file, as a test or as cases of an evaluation set."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.events import as_json
from orchestrator.cli.runs.phrase import many, words
from orchestrator.cli.runs.store import OpenStore, at_journal, head_json
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.llm.message import Usage
from orchestrator.runtime.backtest.trace import trace_of
from orchestrator.runtime.evaluation.case_file import cases_text, recorded_case
from orchestrator.runtime.run_replay import archive_of, journal_of, replay_run
from orchestrator.runtime.runs.story import Story, TranscriptEntry

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
