"""`runs approve`, `reject`, `respond`, `cancel`, `pause`: what is posted, and what is refused."""

from __future__ import annotations

import asyncio
import getpass
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from orchestrator.cli.runs import request as requests
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Lease, Posted, write_records
from tests.cli.recorded import JOURNAL, Call, Tape, inbox, play, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


def asking(*tools: str, **options: Any) -> Tape:
    return Tape("run-1").begin().asks(*(Call(tool) for tool in tools or ("pay",)), **options)


def posted(run_id: str = "run-1") -> list[tuple[str, Mapping[str, Any], str]]:
    return [(one.kind, one.body, one.by) for one in inbox(run_id)]


# ---- what is posted ----

ANSWERS = [
    (("approve", "run-1"), "approve", {}),
    (
        ("approve", "run-1", "--arguments", '{"sum": 2}', "--why", "less"),
        "approve",
        {"arguments": '{"sum": 2}', "why": "less"},
    ),
    (("reject", "run-1", "--why", "no"), "reject", {"why": "no"}),
    (("reject", "run-1", "--end"), "reject", {"end": True}),
    (("respond", "run-1", "paid by hand"), "respond", {"content": "paid by hand"}),
]


@pytest.mark.parametrize(("command", "kind", "more"), ANSWERS, ids=lambda value: str(value)[:40])
def test_an_answer_is_bound_to_the_call_that_was_asked_about(
    cli: Cli, folder: Path, command: tuple[str, ...], kind: str, more: dict[str, Any]
) -> None:
    tape = asking()
    record(tape)
    done = cli("runs", *command, "--by", "ann", *AT)
    assert (done.code, done.err) == (0, "")
    assert posted() == [(kind, {"call": "1:0", "digest": tape.digest("1:0"), **more}, "ann")]
    end = ", and end the run," if "end" in more else ""
    assert f"posted: {kind} 1:0{end} for run run-1 by ann" in done.out
    assert "the run has no owner" in done.out
    assert "  orchestrator runs resume run-1 --model SPEC --journal journal.db\n" in done.out


def test_who_decides_is_the_login_name_unless_given(cli: Cli, folder: Path) -> None:
    record(asking())
    cli("runs", "approve", "run-1", *AT)
    assert posted()[0][2] == getpass.getuser()


def test_the_commands_that_show_prints_can_be_typed(cli: Cli, folder: Path) -> None:
    record(asking("pay", "mail"))
    waiting = json.loads(cli("runs", "show", "run-1", *AT, "--json").out)["waiting_for"]
    for question, name in zip(waiting, ("approve", "reject"), strict=True):
        (command,) = [one for one in question["commands"] if f"runs {name}" in one]
        assert cli(*command.split()[1:]).code == 0
    assert [(kind, body["call"]) for kind, body, _ in posted()] == [("approve", "1:0"), ("reject", "1:1")]


def test_one_of_several_is_named_by_its_key(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    tape = asking("pay", "mail")
    record(tape)
    done = cli("runs", "approve", "run-1", *AT)
    assert "2 questions are pending; choose one with --call: 1:0 (pay), 1:1 (mail)" in one_sentence(done)
    assert (
        cli("runs", "approve", "run-1", "--call", "1:1", "--digest", tape.digest("1:1")[:8].upper(), *AT).code
        == 0
    )
    assert [body["call"] for _, body, _ in posted()] == ["1:1"]


def test_ending_the_run_needs_no_choice_among_several(cli: Cli, folder: Path) -> None:
    tape = asking("pay", "mail")
    record(tape)
    done = cli("runs", "reject", "run-1", "--end", "--by", "ann", *AT)
    assert "posted: reject 1:0, and end the run, for run run-1 by ann" in done.out
    assert posted() == [("reject", {"call": "1:0", "digest": tape.digest("1:0"), "end": True}, "ann")]


def test_the_same_answer_twice_is_one_and_another_is_refused(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(asking())
    cli("runs", "approve", "run-1", "--by", "ann", "--why", "due", *AT)
    again = cli("runs", "approve", "run-1", "--by", "ann", *AT)
    said = "was posted before, not again: approve 1:0 for run run-1 by ann: due\n"
    assert (again.code, again.out.startswith(said)) == (0, True)
    different = (
        ("reject", "--by", "bob"),
        ("reject", "--by", "ann"),
        ("approve", "--by", "bob"),
        ("approve", "--by", "ann", "--call", "1:0", "--arguments", "{}"),
    )
    for command, *options in different:
        refused = cli("runs", command, "run-1", *options, *AT)
        assert "call 1:0 was answered already: approve by ann at 2" in one_sentence(refused)
        assert refused.code == 2
    assert len(posted()) == 1


def test_an_answer_to_a_run_that_is_over_is_refused_unless_it_is_the_one_that_counted(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(
        Tape("run-1")
        .begin()
        .asks(Call("pay"))
        .decided("1:0", "approve")
        .answered("1:0", Call("pay"))
        .completes()
    )
    again = cli("runs", "approve", "run-1", "--by", "ann", *AT)
    assert "was posted before, not again: approve 1:0 for run run-1 by ann\nthe run ended: " in again.out
    assert again.code == 0
    refused = cli("runs", "reject", "run-1", "--by", "bob", *AT)
    assert "call 1:0 was answered already: approve by ann at 2" in one_sentence(refused)
    assert refused.code == 2
    assert posted() == []


@pytest.mark.parametrize(
    ("kind", "said", "code"),
    [
        (
            "cancel",
            "the process that owned the run is gone: the run is not cancelled until it is resumed by",
            1,
        ),
        (
            "pause",
            "the run has no owner; it stays as it is, and parks at once when it is resumed by",
            0,
        ),
    ],
)
def test_what_is_asked_of_a_run_that_nobody_holds_names_the_command_to_type_next(
    cli: Cli, folder: Path, kind: str, said: str, code: int
) -> None:
    record(Tape("run-1").begin())
    done = cli("runs", kind, "run-1", "--by", "ann", *AT)
    assert done.code == code
    assert done.out == (
        f"posted: {kind} for run run-1 by ann\n{said}\n"
        "  orchestrator runs resume run-1 --model SPEC --journal journal.db\n"
    )
    assert posted() == [(kind, {}, "ann")]


def test_a_cancel_of_a_run_that_waits_or_is_queued_has_no_dead_owner_to_report(
    cli: Cli, folder: Path
) -> None:
    queued = Tape("queued", deposited={"tenant": ""})
    record(asking(), queued)
    for run_id in ("run-1", "queued"):
        done = cli("runs", "cancel", run_id, "--by", "ann", *AT)
        assert (done.code, "the run has no owner; this will be carried out by" in done.out) == (0, True)


def test_an_answer_in_json(cli: Cli, folder: Path) -> None:
    record(asking())
    found = json.loads(cli("runs", "approve", "run-1", "--by", "ann", "--json", *AT).out)
    (request,) = inbox("run-1")
    assert found["request"]["id"] == request.id
    assert (found["owner"], found["carried_out"], found["repeated"]) == (None, "at resume", False)


# ---- what is refused ----

REFUSED = [
    (("approve", "run-1", "--digest", "ffffffffffff"), "it is about other arguments: ffffffff was approved"),
    (("approve", "run-1", "--digest", "ff"), "digest 'ff' is too short: give at least 8 characters"),
    (("approve", "run-1", "--call", "9:9"), "no question is open about call '9:9'; pending: 1:0 (pay)"),
    (("approve", "run-1", "--arguments", "[1]"), "the edited arguments must be the text of one JSON object"),
    (("approve", "run-1", "--arguments", "{"), "the edited arguments are not JSON"),
    (("approve", "run-1", "--by", " "), "it must be known who decides this: give --by NAME"),
    (("respond", "run-1"), "Missing argument 'TEXT'"),
    (("approve", "ended"), "run ended is over (ended: completed, "),
    (("cancel", "ended"), "run ended is over (ended: completed, "),
    (("pause", "ended"), "nothing was posted"),
    (("pause", "paused"), "run 'paused' is paused already: nothing was posted"),
    (("approve", "paused"), "run paused waits for no answer: it is parked (paused) in await_llm"),
    (("reject", "paused", "--end"), "waits for no answer"),
    (("approve", "late"), "and was not posted: it came too late: the question has expired"),
    (("approve", "answered", "--call", "1:0"), "call 1:0 was answered already: approve by ann at "),
]


@pytest.mark.parametrize(("command", "said"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_the_records_contradict_is_one_sentence_and_posts_nothing(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...], said: str
) -> None:
    record(
        asking(),
        Tape("ended").begin().completes(),
        Tape("paused").begin().parks("paused"),
        Tape("late").begin().asks(Call("pay"), expires_in=-10),
        Tape("answered").begin().asks(Call("pay")).decided("1:0", "approve"),
    )
    done = cli("runs", *command, *AT)
    assert said in one_sentence(done)
    assert done.code == 2
    for run_id in ("run-1", "ended", "paused", "late", "answered"):
        assert inbox(run_id) == []


# ---- runs that somebody holds ----


class Owner:
    """Holds a run in a thread of its own; does `on` with what is posted for it."""

    def __init__(self, tape: Tape, on: Callable[[SqliteJournal, Lease, Posted], Any] | None = None) -> None:
        self.tape, self.on = tape, on
        self.ready, self.stop = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._hold()))

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    async def _hold(self) -> None:
        async with SqliteJournal(JOURNAL) as journal:
            lease = await play(self.tape, journal)
            self.ready.set()
            while not self.stop.is_set():
                requests = await journal.inbox(self.tape.run_id)
                if requests and self.on is not None:
                    await self.on(journal, lease, requests[0])
                    self.on = None
                await asyncio.sleep(0.01)


def test_cancelling_a_live_run_waits_for_its_end(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "WAIT", 60.0)

    async def ends(journal: SqliteJournal, lease: Lease, request: Posted) -> None:
        body = {"id": request.id, "kind": "cancel", "by": request.by, "number": request.number}
        end = {"outcome": "cancelled", "reason": "caller", "at": time.time(), "t": 1.0}
        await write_records(journal, lease, Draft("control", body), Draft("ended", end))

    with Owner(Tape("run-1").begin(), ends):
        done = cli("runs", "cancel", "run-1", "--by", "ann", "--why", "too dear", *AT)
    assert done.out == ("posted: cancel for run run-1 by ann: too dear\nthe run ended: cancelled (caller)\n")
    assert done.code == 0


def test_cancelling_names_the_operation_that_goes_on(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "WAIT", 0.1)
    with Owner(Tape("run-1").begin().asked_for(Call("pay"), Call("mail", effect="idempotent"))):
        done = cli("runs", "cancel", "run-1", *AT)
        found = json.loads(cli("runs", "cancel", "run-1", "--json", *AT).out)
    assert re.search(
        r"worker-1 holds the run and carries it out, after process_tools for .*, "
        r"running pay \(1:0, irreversible\), mail \(1:1, idempotent\)\n",
        done.out,
    )
    assert "orchestrator runs events run-1 --follow" in done.out
    assert (found["repeated"], found["state"], found["carried_out"]) == (True, "process_tools", "by owner")
    assert [call["tool"] for call in found["running"]] == ["pay", "mail"]
    assert len(posted()) == 1


def test_answering_a_live_run_does_not_wait(cli: Cli, folder: Path) -> None:
    with Owner(asking()):
        done = cli("runs", "approve", "run-1", *AT)
    assert "worker-1 holds the run and carries it out\n" in done.out


def test_a_request_that_was_taken_may_be_made_again(cli: Cli, folder: Path) -> None:
    tape = (
        Tape("run-1")
        .begin()
        .add(Draft("control", {"id": "first", "kind": "pause", "by": "ann", "number": 1}))
    )
    record(tape, posts={"run-1": [Posted("first", "pause", {}, "ann")]})
    cli("runs", "pause", "run-1", "--by", "bob", *AT)
    assert [by for _, _, by in posted()] == ["ann", "bob"]
