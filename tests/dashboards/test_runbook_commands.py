"""Every command of every runbook is executed in the situation that its alert describes, and stops the guilty run.

The full disk of OrchestratorJournalWritesFailing needs a disk of its own: tests/crash/test_full_disk.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.cli import main
from orchestrator.engines import engine_directory
from orchestrator.examples.ralph import REQUEST
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.ops.alert import NAMES
from orchestrator.testing.journal_contract import ENDED, write
from tests.cli import test_ralph as ralph
from tests.cli.recorded import JOURNAL
from tests.crash.test_disk import ROOT
from tests.dashboards.incident import SLOTS, Incident, by_command_line, mitigations, read, typed

WORDS = {
    "AGENT": "support",
    "MODEL": "m",
    "TOOL": "look",
    "MACHINE": "llm_loop",
    "TAG": "tenant=acme",
    "copy.db": "other/copy.db",
}
"""Words in capital letters, as the labels of the alert and the listing have them."""
BURNT = 4
"""Tokens that a run without calls never uses here."""
FIRST_TURN = 7
"""More records than a run has before its first call."""
FULL_DISK = "OrchestratorJournalWritesFailing"


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Said]
Words = Mapping[str, str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(engine_directory, "ANSWERS_WITHIN", 30.0)
    (tmp_path / "other").mkdir()
    return tmp_path


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`orchestrator …` on the journal of the folder."""
    monkeypatch.setenv("ORCHESTRATOR_JOURNAL", str(folder / JOURNAL))

    def ran(*words: str) -> Said:
        sys.modules.pop("agents", None)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        said = capsys.readouterr()
        return Said(int(end.value.code or 0), said.out, said.err)

    return ran


@pytest.fixture
def live(folder: Path) -> Iterator[Incident]:
    with Incident(folder) as incident:
        yield incident


def follow(
    name: str, command: Command, words: Words, *, fails: Mapping[str, int] | None = None
) -> dict[str, Said]:
    """Execute a runbook in its order; return what each command said. `fails` has the exit codes that are not 0."""
    words = {**WORDS, **words}
    told = {}
    for line in mitigations(name):
        said = told[line] = command(*typed(line, words))
        assert (said.code, said.err) == ((fails or {}).get(line, 0), ""), (line, said)
    return told


def first_run(listing: str) -> str:
    """Return the run in the first row of a listing."""
    return listing.splitlines()[1].split()[0]


# ---- alert, runbook, guilty run, stopped: five alerts ----

GUILTY = {
    "OrchestratorRunStuck": (("waits-guilty", "waits-2", "looks-3"), {"STATE": "await_llm"}),
    "OrchestratorRunOverdue": (("waits-guilty", "looks-2", "waits-3"), {}),
    "OrchestratorLLMLatencyHigh": (("waits-guilty", "waits-2", "looks-3"), {}),
    "OrchestratorTokenBurnAnomaly": (("waits-1", "burns-guilty", "looks-3"), {}),
    "OrchestratorEventLoopLagHigh": (("waits-1", "looks-2", "blocks-guilty"), {}),
}
"""Alert -> runs of its situation, one of which is guilty, and further words of its commands."""


@pytest.mark.campaign
@pytest.mark.canary("OrchestratorRunStuck")
@pytest.mark.parametrize("name", GUILTY)
def test_a_runbook_leads_to_the_guilty_run_and_stops_it(name: str, live: Incident, command: Command) -> None:
    runs, more = GUILTY[name]
    guilty = next(run for run in runs if run.endswith("guilty"))
    for run in runs:
        live.start(run)
        live.reaches(run, "process_tools" if run.startswith("looks") else "await_llm")
    if name == "OrchestratorTokenBurnAnomaly":
        live.until(guilty, lambda head: (head.tokens or 0) > BURNT)
    began = time.monotonic()
    lines = mitigations(name)
    assert first_run(command(*typed(lines[0], {**WORDS, **more})).out) == guilty
    told = follow(name, command, {"RUN": guilty, **more})
    assert live.ended(guilty) == "cancelled"
    print(f"{name}: from the runbook to a stopped run in {time.monotonic() - began:.1f} s")  # noqa: T201 - a figure for people
    assert guilty in told[lines[0]].out


# ---- the others ----


def waits(live: Incident) -> Words:
    live.start("waits-1", "looks-2", "fails-3")
    assert live.ended("fails-3") == "failed"
    live.reaches("waits-1", "await_llm")
    return {"RUN": "waits-1", "STATE": "await_llm"}


def blocks(live: Incident) -> Words:
    live.start("blocks-1")
    live.reaches("blocks-1", "await_llm")
    return {"RUN": "blocks-1"}


def asks(live: Incident) -> Words:
    live.start("asks-1", "asks-2", "asks-3")
    for run in ("asks-1", "asks-2", "asks-3"):
        live.until(run, lambda head: head.waiting == "pay")

    async def digest() -> str:
        async with SqliteJournal(live.path, only_reads=True) as journal:
            return next(
                str(record.body["digest"])
                for record in await journal.load("asks-1")
                if record.kind == "asked"
            )

    return {
        "RUN": "asks-1",
        "DIGEST": asyncio.run(digest()),
        "answer RUN": planner_asks(live.path.parent),
        "reject RUN": "asks-2",
        "respond RUN": "asks-3",
        "TEXT": "paid",
    }


def planner_asks(folder: Path) -> str:
    """Start a run of the planner, whose questions wait for a person; return its id."""
    ralph.agents(folder)
    words = ["ralph", "run", REQUEST, "--trust", "--journal", str(folder / JOURNAL)]
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 question waits for a person" in done.stderr, done
    return ralph.session(folder).name


def invents(live: Incident) -> Words:
    live.start("invents-1")
    live.until("invents-1", lambda head: head.state == "await_llm" and head.seq > FIRST_TURN)
    return {"RUN": "invents-1"}


def crowded(live: Incident) -> Words:
    live.start(*(f"waits-{number}" for number in range(SLOTS + 4)))
    for number in range(SLOTS):
        live.reaches(f"waits-{number}", "await_llm")
    return {"RUN": "waits-1"}


def failing(run: str, reason: str, agent: str) -> Callable[[Incident], Words]:
    """Return a situation with a run that ends as failed with a reason."""

    def of(live: Incident) -> Words:
        live.start(run)
        live.until(run, lambda head: (head.outcome, head.reason) == ("failed", reason))
        return {"RUN": run, "AGENT": agent}

    return of


def kills_its_process(live: Incident) -> Words:
    """Start a run that ends its process, and each process that resumes it."""
    with Incident(live.path.parent) as first:
        first.start("dies-1")
        first.dies()
    for _ in range(2):
        with contextlib.closing(Incident(live.path.parent, recover="resume")) as mortal:
            mortal.dies()  # perhaps before it has said that it is ready
    live.until("dies-1", lambda head: head.owner is None)
    return {"RUN": "dies-1"}


def undo_failed(live: Incident) -> Words:
    """Kill a process in the middle of a booking; its undo fails in the next process."""
    with Incident(live.path.parent) as killed:
        killed.start("books-1")
        killed.calls("books-1")
    with Incident(live.path.parent, recover="resume") as after:
        after.until("books-1", lambda head: head.reason == "undo_failed")
    return {"RUN": "books-1", "OTHER": waits(live)["RUN"]}


def grown(live: Incident) -> Words:
    """Runs that ended long ago."""
    live.start("waits-1")

    async def old() -> None:
        async with SqliteJournal(live.path, now=lambda: time.time() - 40 * 86_400) as journal:
            for number in range(30):
                lease = await journal.create(f"old{number}", "me", {"graph": "g", "fingerprint": "f"})
                await write(journal, lease, ENDED)
                await journal.release(lease)

    asyncio.run(old())
    return {"RUN": "waits-1"}


SITUATIONS: dict[str, Callable[[Incident], Words]] = {
    "OrchestratorApprovalWaiting": asks,
    "OrchestratorEngineStalled": blocks,
    "OrchestratorEventLoopBlocked": blocks,
    "OrchestratorGuardErrors": failing("doubts-1", "guard_error", "doubting"),
    "OrchestratorJournalGrowing": grown,
    "OrchestratorJournalSlow": grown,
    "OrchestratorQueueSaturated": crowded,
    "OrchestratorQueueWaitHigh": crowded,
    "OrchestratorRecoveryLoop": kills_its_process,
    "OrchestratorRollbackFailed": undo_failed,
    "OrchestratorTransitionFailureRatioHigh": failing("breaks-1", "callback_error", "broken"),
    "OrchestratorUndeclaredTransition": failing("strays-1", "invalid_transition", "straying"),
    "OrchestratorUnregisteredToolCalls": invents,
}
"""Alert -> its situation; `waits` if it is not here."""
BY_COMMAND_LINE = {
    "OrchestratorBudgetExceededHigh",
    "OrchestratorBudgetHeadroomLow",
    "OrchestratorRetriesExhausted",
    "OrchestratorRunsOrphaned",
    "OrchestratorTargetDown",
}
"""Alerts whose commands continue a run: it is one of the command line, which knows its model."""
POSTED = {"OrchestratorRecoveryLoop": {'orchestrator runs cancel RUN --why "kills its process"': 1}}
"""Commands that leave a request to the next process, with exit code 1."""


@pytest.mark.campaign
@pytest.mark.parametrize("name", sorted(set(NAMES) - GUILTY.keys() - BY_COMMAND_LINE - {FULL_DISK}))
def test_the_commands_of_a_runbook_work_in_its_situation(name: str, live: Incident, command: Command) -> None:
    words = SITUATIONS.get(name, waits)(live)
    told = follow(name, command, words, fails=POSTED.get(name))
    match name:
        case "OrchestratorApprovalWaiting":
            assert {live.ended(f"asks-{number}") for number in (1, 2, 3)} == {"completed"}
            assert "To how many decimals are results rounded?" in told["orchestrator ralph answer RUN"].out
        case "OrchestratorQueueSaturated":
            assert {live.ended(f"waits-{number}") for number in range(3)} == {"cancelled"}
            assert "admits no runs with tenant=acme" in command("operate", "status").out
        case "OrchestratorJournalGrowing":
            assert "removed 30 runs" in told[mitigations(name)[-1]].out
        case "OrchestratorRecoveryLoop":
            assert "claimed 2 times without progress" in told[mitigations(name)[0]].out


def killed(folder: Path, run: str) -> None:
    """Start a run by the command line, and kill its process in the middle."""
    process = by_command_line(folder, run, "hangs")
    ends = time.monotonic() + 60
    while True:
        assert time.monotonic() < ends
        try:
            if read(folder / JOURNAL, run).state == "await_llm":
                break
        except Exception:  # noqa: BLE001 - the journal or the run is not there yet
            assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.kill()
    process.communicate()


def ended(folder: Path, run: str, prompt: str, *options: str) -> str:
    """Run a prompt by the command line."""
    process = by_command_line(folder, run, prompt, *options)
    process.communicate(timeout=60)
    return read(folder / JOURNAL, run).outcome


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["OrchestratorBudgetExceededHigh", "OrchestratorBudgetHeadroomLow"])
def test_a_run_that_was_cut_off_is_found_and_continued_with_a_higher_limit(
    name: str, folder: Path, command: Command
) -> None:
    assert ended(folder, "round", "circle", "--limit", "max_iterations=2") == "budget_exceeded"
    told = follow(name, command, {"RUN": "round", "AGENT": read(folder / JOURNAL, "round").agent})
    assert first_run(told[mitigations(name)[0]].out) == "round"


@pytest.mark.campaign
def test_a_run_that_failed_with_its_backend_is_forked_when_that_works_again(
    folder: Path, live: Incident, command: Command
) -> None:
    assert ended(folder, "failed-run", "broken") == "failed"
    (folder / "repaired").touch()
    told = follow("OrchestratorRetriesExhausted", command, {"RUN": "failed-run"})
    assert "done" in told["orchestrator runs fork RUN"].out


@pytest.mark.campaign
def test_orphaned_runs_are_resumed_or_cancelled(folder: Path, command: Command) -> None:
    for run in ("orphan", "second"):
        killed(folder, run)
    (folder / "repaired").touch()
    cancels = 'orchestrator runs cancel RUN --why "no longer wanted"'
    name = "OrchestratorRunsOrphaned"
    follow(name, command, {"RUN": "orphan", "cancel RUN": "second"}, fails={cancels: 1})
    assert read(folder / JOURNAL, "orphan").outcome == "completed"
    assert "cancelled" in json.dumps(command("runs", "resume", "second").out)


@pytest.mark.campaign
def test_what_a_target_that_is_down_leaves_is_shown_and_resumed(folder: Path, command: Command) -> None:
    killed(folder, "orphan")
    (folder / "repaired").touch()
    engine = subprocess.Popen(
        [sys.executable, "-m", "tests.engines.worker", str(folder), "{}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    assert engine.stdout.readline().startswith("ready")
    engine.kill()
    engine.communicate()
    told = follow("OrchestratorTargetDown", command, {"RUN": "orphan"})
    assert "is dead: its process is gone" in told["orchestrator operate status"].out
    assert read(folder / JOURNAL, "orphan").outcome == "completed"
