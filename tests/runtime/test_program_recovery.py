"""Programs that a dead owner left: what a resume does about each, and when it asks a person. The programs are real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.pipeline.spec import CommandStage
from orchestrator.engines import orphan_recovery
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import RunUnknown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import RunParked, RunRecovered
from orchestrator.kernel.journal import Draft, Posted
from orchestrator.machines.pipeline.model import OrchestrationState, Rubric
from orchestrator.runtime.pipeline.pipeline import Pipeline
from orchestrator.runtime.service import program
from orchestrator.runtime.service.program import PROGRAMS_REASON, ProgramsUnknown, run_program
from tests.runtime.pipeline_stage import Stages
from tests.runtime.stage import Facts, until

linux = pytest.mark.skipif(not program.can_find(), reason="only Linux shows whose process it is")

HERE = program.host_name()


async def left(journal: MemoryJournal, *programs: Mapping[str, Any]) -> Stages:
    """Leave run `r` in the middle of its planner, as an owner does that died with these programs under way."""
    stages, began = Stages(), asyncio.Event()

    async def stuck(request: Any) -> None:
        stages.planner.requests.append(request)
        began.set()
        await asyncio.Event().wait()

    pipeline = Pipeline(
        stuck, stages.validator, stages.implementer, stages.judge, journal=journal, observers=()
    )
    running = asyncio.create_task(pipeline.run("x", run_id="r"))
    await began.wait()
    lease = await journal.claim("r", "other:1:0", steal=True)
    running.cancel()
    with contextlib.suppress(BaseException):
        await running
    for one in programs:
        journal.append(lease, [Draft("program", one)])
    journal.bury("other:1:0")
    return stages


MARK = f"m{os.getpid()}"
"""Of this process: the same tests in another clone must not end its programs."""


def recorded_program(mark: str = MARK, host: str = HERE, name: str = "coder") -> dict[str, str]:
    return {"mark": mark, "call": "r:planning:1", "name": name, "host": host}


@pytest.fixture
def survivor() -> Iterator[subprocess.Popen[str]]:
    """A program with the mark that ignores SIGTERM."""
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('up', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, **program.mark_variable(MARK)}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", deaf], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


@linux
async def test_a_survivor_of_this_host_is_ended_before_its_work_is_repeated_though_it_ignores_sigterm(
    survivor: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(program.end_processes, "__defaults__", (0.1,))
    journal = MemoryJournal()
    stages = await left(journal, recorded_program())
    alive: list[int | None] = []
    stages.planner.__class__ = type(
        "Looking", (type(stages.planner),), {"__call__": _looking(alive, survivor)}
    )
    result = await stages.pipeline(journal=journal).resume("r")
    assert (result.outcome, alive) == ("completed", [-signal.SIGKILL])
    resumed = next(one for one in await journal.load("r") if one.kind == "resumed")
    assert resumed.body["ended"] == ["coder"]
    assert "coder was still running and was ended before its work is repeated" in caplog.text


def _looking(alive: list[int | None], survivor: subprocess.Popen[str]) -> Any:
    async def called(_: Any, request: Any) -> Any:
        alive.append(survivor.poll())
        return {"steps": 1}

    return called


@linux
async def test_a_program_that_ended_by_itself_meanwhile_is_no_question() -> None:
    journal = MemoryJournal()
    stages = await left(journal, recorded_program("gone"))
    assert (await stages.pipeline(journal=journal).resume("r")).outcome == "completed"
    resumed = next(one for one in await journal.load("r") if one.kind == "resumed")
    assert "ended" not in resumed.body


async def test_a_program_of_another_host_parks_the_run_and_asks_a_person() -> None:
    journal, facts = MemoryJournal(), Facts()
    stages = await left(journal, recorded_program(host="build-7"))
    pipeline = stages.pipeline(journal=journal, observers=(facts,))
    with pytest.raises(ProgramsUnknown) as error:
        await pipeline.resume("r")
    assert str(error.value) == (
        "run 'r' waits for a person: the program 'coder' (call r:planning:1) was started on host 'build-7' and may "
        f"still run there, which cannot be seen from this host ({HERE!r}): check there and end it, then resume with "
        "again=True (`--again`)"
    )
    head = await journal.head("r")
    assert (head.status, head.reason, head.owner) == ("parked", PROGRAMS_REASON, None)
    assert [fact.reason for fact in facts.of(RunParked)] == [PROGRAMS_REASON]
    assert not facts.of(RunRecovered)
    (described,) = await pipeline.hosting.open_runs()
    assert (described.unattended, described.will) == (False, f"waits for a person: {error.value.reason}")
    assert stages.calls[OrchestrationState.PLANNING] == 1


async def test_a_run_that_asks_about_its_programs_is_no_poison_however_often_it_is_resumed() -> None:
    journal = MemoryJournal()
    stages = await left(journal, recorded_program(host="build-7"))
    length = None
    for _ in range(10):
        with pytest.raises(ProgramsUnknown, match="build-7"):
            await stages.pipeline(journal=journal).resume("r")
        head = await journal.head("r")
        assert length in {None, head.seq}
        length = head.seq
    result = await stages.pipeline(journal=journal).resume("r", again=True, by="Ada")
    assert (result.outcome, stages.calls[OrchestrationState.PLANNING]) == ("completed", 2)
    records = await journal.load("r")
    assert [one.body["by"] for one in records if one.kind == "resumed"] == ["Ada"]
    assert not StoredRun.of("r", records).programs


async def test_a_person_may_say_so_at_once() -> None:
    journal = MemoryJournal()
    stages = await left(journal, recorded_program(host="build-7"))
    assert (await stages.pipeline(journal=journal).resume("r", again=True)).outcome == "completed"


async def test_a_run_that_is_cancelled_repeats_nothing_and_asks_nobody() -> None:
    journal = MemoryJournal()
    stages = await left(journal, recorded_program(host="build-7"))
    await journal.post("r", Posted("1", "cancel", {}, "Ada"))
    assert (await stages.pipeline(journal=journal).resume("r")).outcome == "cancelled"
    assert stages.calls[OrchestrationState.PLANNING] == 1


async def test_only_a_resume_that_is_posted_after_the_question_answers_it() -> None:
    journal = MemoryJournal()
    stages = await left(journal, recorded_program(host="build-7"))
    await journal.post("r", Posted("early", "resume", {}, "Ada"))
    with pytest.raises(ProgramsUnknown):
        await stages.pipeline(journal=journal).resume("r")
    with pytest.raises(ProgramsUnknown):
        await stages.pipeline(journal=journal).resume("r")
    await journal.post("r", Posted("late", "resume", {}, "Ada"))
    assert (await stages.pipeline(journal=journal).resume("r")).outcome == "completed"


async def test_a_worker_leaves_such_a_run_parked_until_a_person_posts_a_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = MemoryJournal()
    stages = await left(journal, recorded_program(host="build-7"))
    pipeline = stages.pipeline(journal=journal)
    scans = 0

    async def news(since: int) -> tuple[int, list[str]]:
        nonlocal scans
        scans += 1
        return await type(journal).news(journal, since)

    monkeypatch.setattr(journal, "news", news)
    monkeypatch.setattr(orphan_recovery, "POLL", 0.01)

    async def status() -> str:
        return (await journal.head("r")).status

    async def becomes(wanted: str) -> bool:
        return await status() == wanted

    async with LocalEngine(pipeline, recover="resume", rescan=0.01):
        await until(lambda: becomes("parked"))
        epoch, before = (await journal.head("r")).epoch, scans
        await until(lambda: scans > before + 3)
        assert (await journal.head("r")).epoch == epoch  # nobody claimed it again
        await journal.post("r", Posted("1", "resume", {}, "Ada"))
        await until(lambda: becomes("ended"))
    assert stages.calls[OrchestrationState.PLANNING] == 2


@pytest.mark.parametrize("host", [HERE, "build-7"])
async def test_where_the_system_shows_no_processes_the_resume_says_so_and_asks(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "_PROC", tmp_path)
    journal = MemoryJournal()
    stages = await left(journal, recorded_program(host=host))
    said = "only Linux shows which programs a process has started" if host == HERE else "may still run there"
    with pytest.raises(ProgramsUnknown, match=said):
        await stages.pipeline(journal=journal).resume("r")
    assert (await stages.pipeline(journal=journal).resume("r", again=True)).outcome == "completed"


async def test_a_program_that_cannot_be_ended_is_a_question_with_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    immortal = program.ProgramEnd(frozenset((MARK,)), (4711,))
    monkeypatch.setattr(program, "end_processes", lambda _: immortal)
    journal = MemoryJournal()
    stages = await left(journal, recorded_program())
    with pytest.raises(ProgramsUnknown, match=r"cannot be ended by this user \(process 4711\)"):
        await stages.pipeline(journal=journal).resume("r")
    assert stages.calls[OrchestrationState.PLANNING] == 1


async def test_what_a_resume_will_do_with_programs_is_said_before() -> None:
    journal = MemoryJournal()
    stages = await left(journal, recorded_program())
    (run,) = await stages.pipeline(journal=journal).hosting.open_runs()
    assert run.will == f"ends coder if it still runs on {HERE}; continues in planning"


# ---- what is recorded ----

PRINTS = "import os; print(os.environ['ORCHESTRATOR_COMMAND'].split()[-1])"


async def test_a_program_is_recorded_before_it_starts_and_after_it_ended_and_carries_its_mark() -> None:
    journal = MemoryJournal()
    stages = Stages()
    planner = CommandStage(OrchestrationState.PLANNING, [sys.executable, "-I", "-c", PRINTS], rubric=Rubric())
    pipeline = Pipeline(
        planner, stages.validator, stages.implementer, stages.judge, journal=journal, observers=()
    )
    result = await pipeline.run("x", run_id="r")
    records = await journal.load("r")
    begun, ended, stage = records[2:5]
    assert [one.kind for one in (begun, ended, stage)] == ["program", "program_ended", "stage"]
    assert result.plan is not None
    assert begun.body == recorded_program(mark=str(result.plan.content), name=Path(sys.executable).name)
    assert ended.body == {"mark": result.plan.content}
    assert not StoredRun.of("r", records).programs


async def test_a_program_that_fails_or_never_started_is_recorded_as_ended() -> None:
    for argv in ([sys.executable, "-I", "-c", "exit(3)"], ["no-such-program-anywhere"]):
        journal, stages = MemoryJournal(), Stages()
        planner = CommandStage(OrchestrationState.PLANNING, argv, rubric=Rubric())
        pipeline = Pipeline(
            planner, stages.validator, stages.implementer, stages.judge, journal=journal, observers=()
        )
        assert (await pipeline.run("x", run_id="r")).outcome == "failed"
        assert not StoredRun.of("r", await journal.load("r")).programs


async def test_a_program_whose_caller_is_cancelled_is_killed_and_recorded_as_ended() -> None:
    journal, stages = MemoryJournal(), Stages()
    planner = CommandStage(
        OrchestrationState.PLANNING, [sys.executable, "-I", "-c", "input()\ninput()"], rubric=Rubric()
    )
    pipeline = Pipeline(
        planner, stages.validator, stages.implementer, stages.judge, journal=journal, observers=()
    )
    running = asyncio.create_task(pipeline.run("x", run_id="r"))
    await until(lambda: _kinds(journal, "program"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    records = await journal.load("r")
    assert records[-1].kind == "parked"
    assert not StoredRun.of("r", records).programs


async def _kinds(journal: MemoryJournal, kind: str) -> bool:
    try:
        return any(one.kind == kind for one in await journal.load("r"))
    except RunUnknown:
        return False


async def test_a_program_is_looked_up_on_the_path_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "coder").write_text(f"#!{sys.executable} -I\n{PRINTS}\n")
    (tmp_path / "coder").chmod(0o755)
    ended = await run_program(
        ["coder"], b"", environment={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    )
    assert (ended.code, len(ended.out.strip())) == (0, 32)
    with pytest.raises(FileNotFoundError):
        await run_program(["coder"], b"")


async def test_a_stage_with_an_event_loop_of_its_own_records_its_programs_too() -> None:
    journal, stages = MemoryJournal(), Stages()

    def planner(request: Any) -> str:  # called in a thread, as every synchronous stage
        assert threading.current_thread() is not threading.main_thread()
        return asyncio.run(
            run_program([sys.executable, "-I", "-c", PRINTS], b"", call=request.key)
        ).out.decode()

    pipeline = Pipeline(
        planner, stages.validator, stages.implementer, stages.judge, journal=journal, observers=()
    )
    result = await pipeline.run("x", run_id="r")
    assert result.outcome == "completed", result
    assert result.plan is not None
    records = await journal.load("r")
    marks = [one.body["mark"] for one in records if one.kind in {"program", "program_ended"}]
    assert marks == [result.plan.content.strip()] * 2


async def test_outside_of_a_run_a_program_is_marked_and_recorded_nowhere() -> None:
    ended = await run_program([sys.executable, "-I", "-c", PRINTS], b"")
    assert len(ended.out.strip()) == 32
