"""`metrics serve`: what a journal tells, over HTTP. `metrics batch`: how a command went, for others to read."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.cli.metrics import MOST_READ, JournalWatch
from orchestrator.cli.shipped import SHIPPED
from orchestrator.errors import RunError
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft
from orchestrator.telemetry.exposition.stored import JournalCollector, JournalSnapshot, registry_of
from tests.cli.recorded import JOURNAL, SECRET, Call, Tape, play, record
from tests.ending import rest
from tests.telemetry.serving import TOKEN, Got, ask, bearer
from tests.tiers import SOAK

Start = Callable[..., subprocess.Popen[str]]
Cli = Callable[..., Any]
Sample = tuple[str, tuple[tuple[str, str], ...]]
SERVE = ("metrics", "serve", "--port", "0", "--journal", JOURNAL, "--every", "1", "--alone")
NOW = 1_700_000_000.0


def tapes() -> list[Tape]:
    return [
        Tape("ended-well", began=NOW - 5_000).begin().calls(Call("look", effect="pure")).completes(),
        Tape("over-budget", began=NOW - 4_000).begin().ends("budget_exceeded", "max_iterations"),
        Tape("wrapped-up", began=NOW - 4_000).begin().ends("partial", "max_iterations"),
        Tape("asks", began=NOW - 3_000).begin().asks(Call("pay")),
        Tape("left-behind", began=NOW - 2_000).begin(),
        Tape("just-begun", began=NOW - 1_000),
        Tape("engine-1", began=NOW - 9_000, graph="engine"),
    ]


def samples(text: str) -> dict[Sample, float]:
    return {
        (sample.name.removeprefix("orchestrator_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def named(found: Mapping[Sample, float], name: str) -> dict[tuple[str, ...], float]:
    """Label values, in the order of the labels' names -> value."""
    return {
        tuple(value for label, value in labels if label not in {"agent", "journal"}): one
        for (key, labels), one in found.items()
        if key == name
    }


def shown(picture: JournalSnapshot) -> dict[Sample, float]:
    journal = SqliteJournal(JOURNAL, only_reads=True)
    collector = JournalCollector(journal, {("llm_loop", "await_llm"): 600.0}, alone=True)
    collector.show(picture)
    return samples(generate_latest(registry_of(collector)).decode())


def port_of(running: subprocess.Popen[str]) -> int:
    assert running.stdout is not None
    line = running.stdout.readline()
    found = re.fullmatch(r"serving http://127\.0\.0\.1:(\d+)/metrics from .+\n", line)
    assert found is not None, (line, running.stderr and running.poll())
    return int(found[1])


def until(port: int, wanted: Callable[[dict[Sample, float]], bool], **headers: str) -> dict[Sample, float]:
    end = time.monotonic() + 30
    while True:
        found = samples(ask(port, **headers).text)
        if wanted(found):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.05)


def ready(port: int) -> Got:
    """Return the page that says so: figures that could not be read anew for some seconds are not ready."""
    end = time.monotonic() + 30
    while (page := ask(port, "/readyz")).status != 200:
        assert time.monotonic() < end, page
        time.sleep(0.05)
    return page


def looked(found: dict[Sample, float]) -> bool:
    return bool(named(found, "journal_last_read_timestamp_seconds"))


# ---- serve ----


@pytest.mark.canary
def test_serve_tells_what_is_in_the_journal(folder: Path, start: Start) -> None:
    record(*tapes())
    running = start(*SERVE)
    found = until(port_of(running), looked)
    assert named(found, "runs_active") == {("llm_loop", "await_llm"): 1, ("llm_loop", "init"): 1}
    assert named(found, "journal_runs") == {
        ("llm_loop", "none", "orphaned"): 2,
        ("llm_loop", "approval", "parked"): 1,
    }
    assert named(found, "journal_info") == {("sqlite", str((folder / JOURNAL).resolve())): 1}
    assert named(found, "journal_ended_runs") == {
        ("llm_loop", "completed", "none"): 1,
        ("llm_loop", "budget_exceeded", "max_iterations"): 1,
        ("llm_loop", "partial", "max_iterations"): 1,
    }
    assert named(found, "runs_completed_total") == {}  # none ended since we look
    assert named(found, "oldest_run_started_timestamp_seconds") == {("llm_loop",): NOW - 2_000}
    entered = named(found, "oldest_run_state_entered_timestamp_seconds")
    assert entered[("llm_loop", "await_llm")] == pytest.approx(NOW - 2_000, abs=1)
    assert entered[("llm_loop", "init")] == NOW - 1_000
    assert (
        named(found, "journal_oldest_update_timestamp_seconds").keys() == named(found, "journal_runs").keys()
    )
    (size,) = named(found, "journal_bytes").values()
    assert size >= (folder / JOURNAL).stat().st_size
    limits = {
        (graph.name, state.value): limit[0]
        for graph in (SHIPPED["llm_loop"],)  # the others have no run here
        for state in graph.states
        if (limit := graph.dwell_of(state))
    }
    assert named(found, "state_timeout_seconds") == limits
    assert "build_info" in {name for name, _ in found}
    assert "process_resident_memory_bytes" in {name for name, _ in found}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] if SOAK else [signal.SIGTERM])
def test_serve_stops_at_a_signal_and_says_nothing_of_it(folder: Path, start: Start, number: int) -> None:
    record(*tapes())
    running = start(*SERVE)
    port = port_of(running)
    until(port, looked)
    running.send_signal(number)
    out, err = rest(running)
    assert (running.returncode, out, err) == (0, "", "")


def test_serve_follows_a_run_from_its_start_over_its_holders_death_to_its_end(
    folder: Path, start: Start
) -> None:
    record(*tapes()[:1])
    running = start(*SERVE)
    port = port_of(running)
    before = until(port, looked)
    assert named(before, "journal_runs") == {}

    run = start("run", "hi", "--model", "python:models:hangs", "--journal", JOURNAL, "--run-id", "live-1")
    found = until(port, lambda found: bool(named(found, "journal_runs")))
    until(port, lambda found: named(found, "runs_active") == {("llm_loop", "await_llm"): 1})
    assert named(found, "journal_runs") == {("llm_loop", "none", "running"): 1}

    run.kill()
    run.wait()
    until(port, lambda found: named(found, "journal_runs") == {("llm_loop", "none", "orphaned"): 1})

    done = start(
        "run", "hi", "--model", "python:models:answers", "--journal", JOURNAL, "--tool", "models:look"
    )
    assert done.wait(60) == 0
    found = until(port, lambda found: bool(named(found, "runs_completed_total")))
    assert named(found, "runs_completed_total") == {("llm_loop", "completed", "none"): 1}
    assert named(found, "journal_ended_runs") == {("llm_loop", "completed", "none"): 2}


def test_serve_writes_no_record(folder: Path, start: Start) -> None:
    async def everything() -> list[Any]:
        async with SqliteJournal(JOURNAL) as journal:
            heads = [head async for head in journal.runs()]
            return [(head, await journal.load(head.run_id)) for head in heads]

    record(*tapes())
    before = asyncio.run(everything())
    running = start(*SERVE)
    port = port_of(running)
    until(port, looked)
    running.send_signal(signal.SIGTERM)
    running.wait(60)
    assert asyncio.run(everything()) == before


def test_serve_wants_the_token_that_the_environment_holds(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(*tapes())
    monkeypatch.setenv("SCRAPE_TOKEN", TOKEN)
    port = port_of(start(*SERVE, "--token-env", "SCRAPE_TOKEN"))
    assert ask(port).status == 401
    found = until(port, looked, **bearer())
    assert found
    assert ask(port, "/healthz").status == 200


def test_serve_is_alive_ready_and_shows_no_content_anywhere(folder: Path, start: Start) -> None:
    record(*tapes())
    running = start(*SERVE)
    port = port_of(running)
    until(port, looked)
    assert json.loads(ready(port).text) == {"ready": True, "checks": {"journal": True}}
    assert json.loads(ask(port, "/healthz").text)["alive"] is True
    pages = [ask(port, path).text for path in ("/metrics", "/debug/runs", "/debug/stacks", "/readyz")]
    running.send_signal(signal.SIGTERM)
    assert SECRET not in "".join([*pages, *rest(running)])


def test_serve_keeps_the_last_figures_and_counts_while_the_journal_cannot_be_read_and_finds_it_again(
    folder: Path, start: Start
) -> None:
    path = record(*tapes())
    running = start(*SERVE)
    port = port_of(running)
    until(port, looked)
    moved = path.rename(folder / "moved.db")
    found = until(port, lambda found: named(found, "journal_read_failures_total") != {(): 0})
    assert named(found, "journal_ended_runs") != {}
    end = time.monotonic() + 30
    while ask(port, "/readyz").status == 200:
        assert time.monotonic() < end
        time.sleep(0.1)
    moved.unlink()
    for left in folder.glob("*.db-*"):
        if left.is_file():
            left.unlink()
    record(*tapes()[4:5])
    until(port, lambda found: named(found, "runs_active") == {("llm_loop", "await_llm"): 1})
    ready(port)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--token-env", "NOT_THERE"), "the environment variable NOT_THERE is empty"),
        (("--every", "0"), "every is 0; it must be from 1 to 3600 seconds"),
        (("--every", "nan"), "every is nan; it must be from 1 to 3600 seconds"),
        (("--port", "70000"), "port is 70000; it must be from 0"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1:0"),
        (("--journal", "nowhere.db"), "there is no journal"),
    ],
)
def test_what_serve_cannot_do_is_one_sentence(
    folder: Path, cli: Cli, one_sentence: Callable[[Any], str], options: tuple[str, ...], problem: str
) -> None:
    record(*tapes()[:1])
    done = cli(*SERVE, *options)
    assert problem in one_sentence(done)
    assert done.code == 2


# ---- looking ----


async def test_a_second_look_reads_only_what_is_new(folder: Path) -> None:
    async with SqliteJournal(JOURNAL) as journal:
        for tape in tapes():
            await journal.release(await play(tape, journal))
    watch = JournalWatch(folder / JOURNAL)
    first = await watch.look()
    seen = dict(watch._seen)
    second = await watch.look()
    assert {name: one is seen[name] for name, one in watch._seen.items()} == dict.fromkeys(seen, True)
    assert (second.statuses, second.ended) == (first.statuses, first.ended)
    await watch.close()


async def test_runs_whose_end_must_be_read_are_read_little_by_little(folder: Path) -> None:
    async with SqliteJournal(JOURNAL) as journal:
        for number in range(MOST_READ + 5):
            lease = await journal.create(
                f"run-{number:04}", "w", {"schema": 1, "graph": "llm_loop", "fingerprint": "f", "at": NOW}
            )
            ended = Draft("ended", {"outcome": "partial", "reason": "time", "at": NOW, "t": 0.0})
            waiting = journal.append(lease, [ended])
            assert waiting is not None
            await waiting
            await journal.release(lease)
    watch = JournalWatch(folder / JOURNAL)
    assert (await watch.look()).ended == {
        ("llm_loop", "_none", "partial", "time"): MOST_READ,
        ("llm_loop", "_none", "_unknown", "_unknown"): 5,
    }
    assert (await watch.look()).ended == {("llm_loop", "_none", "partial", "time"): MOST_READ + 5}
    await watch.close()


async def test_an_ended_run_that_is_taken_up_again_is_standing_and_counts_again_when_it_ends(
    folder: Path,
) -> None:
    moment = [NOW]
    journal = SqliteJournal(JOURNAL, now=lambda: moment[0])
    async with journal:
        watch = JournalWatch(folder / JOURNAL, now=lambda: NOW)
        lease = await play(Tape("again", began=NOW).begin().ends("budget_exceeded", "cost"), journal)
        moment[0] = NOW + 1
        assert (await watch.look()).completed == {("llm_loop", "_none", "budget_exceeded", "cost"): 1}
        for drafts in ([Draft("resumed", {"at": NOW + 1, "by": "ann"})], [Draft("control", {"id": "1"})]):
            waiting = journal.append(lease, drafts)
            assert waiting is not None
            await waiting
        picture = await watch.look()
        assert [run.status for run in picture.statuses] == ["running"]
        waiting = journal.append(
            lease, [Draft("ended", {"outcome": "completed", "reason": "none", "at": NOW})]
        )
        assert waiting is not None
        await waiting
        picture = await watch.look()
        assert picture.completed == {
            ("llm_loop", "_none", "budget_exceeded", "cost"): 1,
            ("llm_loop", "_none", "completed", "none"): 1,
        }
        await watch.close()


async def test_names_of_machines_and_reasons_are_bounded(folder: Path) -> None:
    async with SqliteJournal(JOURNAL) as journal:
        for number in range(40):
            tape = Tape(f"run-{number}", graph=f"graph-{number}").parks(f"reason-{number}")
            await journal.release(await play(tape, journal))
        url = Tape("url", graph="https://example.test/?token=1").begin()
        await journal.release(await play(url, journal))
    watch = JournalWatch(folder / JOURNAL)
    found = shown(await watch.look())
    assert len(named(found, "journal_runs")) == 18
    parked = {reason for _, reason, status in named(found, "journal_runs") if status == "parked"}
    assert parked == {"_other"}
    assert "example" not in repr(found)
    await watch.close()


async def test_a_run_that_is_damaged_is_counted_as_unreadable_and_the_others_are_told(folder: Path) -> None:
    async with SqliteJournal(JOURNAL) as journal:
        for tape in tapes()[3:5]:
            await journal.release(await play(tape, journal))
    path = folder / JOURNAL
    content = path.read_bytes()
    at = content.index(b'"dest":"evaluate_response"')
    path.write_bytes(content[:at] + b'"dest":"evaluate_RESPONSE"' + content[at + 26 :])
    watch = JournalWatch(path)
    found = shown(await watch.look())
    assert named(found, "journal_unreadable_runs") == {(): 1}
    assert named(found, "runs_active") == {("llm_loop", "await_llm"): 1}
    await watch.close()


async def test_a_journal_that_is_gone_is_an_error_and_nothing_is_made_in_its_place(folder: Path) -> None:
    with pytest.raises((OSError, RunError)):
        await JournalWatch(folder / JOURNAL).look()
    assert not (folder / JOURNAL).exists()


@pytest.mark.system("promtool")
def test_promtool_has_nothing_to_say_about_these_metrics(
    folder: Path, requires: Callable[[str], Path]
) -> None:
    async def look() -> JournalSnapshot:
        watch = JournalWatch(folder / JOURNAL)
        picture = await watch.look()
        await watch.close()
        return picture

    record(*tapes())
    collector = JournalCollector(SqliteJournal(JOURNAL), {("llm_loop", "init"): 1.0}, alone=True)
    collector.show(asyncio.run(look()))
    text = generate_latest(registry_of(collector))
    command: list[str | Path] = [requires("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ---- batch ----


@pytest.mark.parametrize("code", [0, 3])
def test_batch_runs_a_command_and_its_exit_code_is_the_commands(folder: Path, cli: Cli, code: int) -> None:
    command = (sys.executable, "-c", f"raise SystemExit({code})")
    done = cli("metrics", "batch", "nightly", "--textfile", "nightly.prom", "--", *command)
    assert (done.code, done.out, done.err) == (code, "", "")
    found = {name for name, _ in samples((folder / "nightly.prom").read_text())}
    wanted = {"batch_last_duration_seconds"} | (
        {"batch_last_success_timestamp_seconds"} if code == 0 else set()
    )
    assert found == wanted


def test_batch_of_a_command_that_was_killed_or_is_not_there_is_a_failure(folder: Path, cli: Cli) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert cli("metrics", "batch", "a", "--textfile", "a.prom", "--", sys.executable, "-c", kill).code == 137
    gone = cli("metrics", "batch", "a", "--textfile", "a.prom", "--", "./not-there")
    assert (gone.code, gone.err) == (127, "orchestrator: no program ./not-there\n")
    (folder / "models.py").chmod(0o600)
    assert cli("metrics", "batch", "a", "--textfile", "a.prom", "--", "./models.py").code == 126
    assert "success" not in (folder / "a.prom").read_text()


def test_batch_says_what_could_not_be_told_and_keeps_the_commands_exit_code(folder: Path, cli: Cli) -> None:
    done = cli("metrics", "batch", "a", "--textfile", "gone/a.prom", "--", sys.executable, "-c", "")
    assert done.code == 0
    assert "gone/a.prom did not receive the figures: No such file or directory" in done.err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "there is no place to publish to: give --textfile, --gateway, or both"),
        (("--textfile", "a.txt"), "must end in .prom"),
    ],
)
def test_what_batch_cannot_do_is_one_sentence_and_the_command_does_not_run(
    folder: Path, cli: Cli, one_sentence: Callable[[Any], str], options: tuple[str, ...], problem: str
) -> None:
    done = cli("metrics", "batch", "a", *options, "--", sys.executable, "-c", "open('ran', 'w')")
    assert problem in one_sentence(done)
    assert done.code == 2
    assert not (folder / "ran").exists()
