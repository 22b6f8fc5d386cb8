"""Commands of a plan, as real processes: no shell, few variables, a time limit, and what a crash leaves unknown."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.runtime.approval import workspace
from orchestrator.runtime.approval.plan_executor import step_progress
from orchestrator.runtime.approval.project_journal import StepLog
from orchestrator.runtime.service import program
from orchestrator.runtime.service.program import ProgramEnd
from tests.passing_time import pass_time
from tests.runtime.approval.work_stage import Crash, Stage, project, refused
from tests.runtime.stage import until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `python3` of a plan is the one that runs here, not a script that looks for one."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def python(code: str, **more: Any) -> dict[str, Any]:
    return {"id": "1", "kind": "run", "argv": ["python3", "-c", code], **more}


async def test_a_command_runs_in_the_project_with_few_variables_and_in_a_group_of_its_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    code = (
        "import json, os, sys; print(json.dumps([os.getcwd(), dict(os.environ), os.getpgid(0) == os.getpid(), "
        "sys.stdin.read()]))"
    )
    stage = Stage(root, python(code))
    work = await stage.begin()
    report = await work.perform(stage.plan.steps[0])
    where, variables, leads, heard = json.loads(report.output)
    assert (where, leads, heard, report.exit_code) == (str(root.resolve()), True, "", 0)
    assert set(variables) <= {*workspace.KEPT, "LC_CTYPE", program.MARK}
    records = json.dumps(await stage.bodies())
    assert "sk-secret" not in records
    assert [kind for kind, _ in await stage.bodies()] == ["intent", "done", "done"]


async def test_no_shell_reads_an_argument(root: Path) -> None:
    stage = Stage(root, {"id": "1", "kind": "run", "argv": ["echo", "$HOME; touch x", "`id`", "*"]})
    work = await stage.begin()
    report = await work.perform(stage.plan.steps[0])
    assert report.output == "$HOME; touch x `id` *\n"
    assert not (root / "x").exists()


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("b'%PDF\\xff'", "%PDF\ufffd"),
        ("b'\\xed\\xb3\\xa9'", "\ufffd\ufffd\ufffd"),  # a lone surrogate
        ("b'\\0'", "\0"),
        ("b'x' * 10_000_000", "xxx"),
    ],
    ids=["bytes", "surrogate", "zero", "10 MB"],
)
async def test_a_command_has_run_whatever_it_prints(root: Path, printed: str, shown: str) -> None:
    code = f"import sys; open('made', 'a').write('x'); sys.stdout.buffer.write({printed})"
    stage = Stage(root, python(code))
    work = await stage.begin()
    report = await work.perform(stage.plan.steps[0])
    assert report.output.endswith(shown)
    assert [kind for kind, _ in await stage.bodies()] == ["intent", "done", "done"]
    again = await stage.again()
    assert (again.done, again.unknown) == (("1",), {})
    assert (root / "made").read_text() == "x"


async def test_a_command_that_fails_is_told_and_what_files_it_made_stays(root: Path) -> None:
    stage = Stage(root, python("open('made', 'w').close(); raise SystemExit(3)"))
    work = await stage.begin()
    error = await refused(work, stage.plan, "1")
    assert (error.code, error.fault.message) == ("BLD-002", "'python3' ended with 3")
    assert (work.commands_run, work.unknown, work.done) == (("1",), {"1": "command-0"}, ())
    assert (root / "made").exists()
    assert [body.get("exit") for _, body in await stage.bodies()] == [None, 3]


async def test_a_command_that_lasts_too_long_is_ended_with_all_it_started(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(600)']); "
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}'); time.sleep(600)"
    )
    stage = Stage(root, python(code, timeout=300))
    work = await stage.begin()
    monkeypatch.setattr(workspace, "GRACE", 0.2)
    lasting = asyncio.create_task(refused(work, stage.plan, "1"))
    pids = root / "pids"
    await until(lambda: pids.exists() and pids.read_text())
    pass_time(monkeypatch, 300)
    assert (await lasting).code == "BLD-003"
    for pid in map(int, pids.read_text().split()):
        await gone(pid)


async def test_a_command_that_leaves_something_behind_does_not_hold_the_step(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_LINGERING", 0.1)
    code = (
        f"import subprocess; child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(600)']); "
        "open('pid', 'w').write(str(child.pid)); print('over')"
    )
    stage = Stage(root, python(code))
    work = await stage.begin()
    report = await work.perform(stage.plan.steps[0])
    assert (report.exit_code, report.output) == (0, "over\n")
    await gone(int((root / "pid").read_text()))


async def test_the_output_of_a_command_is_told_though_a_program_outside_of_its_group_holds_it_open(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_LINGERING", 0.3)
    code = (
        f"import subprocess; child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True); print('over', flush=True); open('pid', 'w').write(str(child.pid))"
    )
    stage = Stage(root, python(code))
    work = await stage.begin()
    report = await work.perform(stage.plan.steps[0])
    os.kill(int((root / "pid").read_text()), signal.SIGKILL)
    assert (report.exit_code, report.output) == (0, "over\n")


async def gone(pid: int) -> None:
    """Wait until a process has ended; a zombie has."""
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        await asyncio.sleep(0.01)


async def test_much_output_is_cut_to_its_end(root: Path) -> None:
    stage = Stage(root, python("print('x' * 1_000_000); print('end')"))
    work = await stage.begin()
    report = await work.perform(stage.plan.steps[0])
    assert len(report.output) == workspace.OUTPUT_BYTES
    assert report.output.endswith("x\nend\n")


async def test_a_command_cut_short_by_a_crash_is_unknown_until_it_ran_again(root: Path) -> None:
    def hook(name: str) -> None:
        if name == "command ended":
            raise Crash

    stage = Stage(root, python("open('made', 'a').write('x')"))
    work = await stage.begin(hook=hook)
    with suppress(Crash):
        await work.perform(stage.plan.steps[0])
    recovered = await stage.again()
    assert (recovered.unknown, recovered.commands_run) == ({"1": "command-0"}, ())
    assert (await recovered.undo_open()).changes == ()
    await recovered.perform(stage.plan.steps[0])
    assert (root / "made").read_text() == "xx"
    assert (recovered.unknown, recovered.done) == ({}, ("1",))
    told = step_progress(await stage.journal.load("run"), stage.plan)
    assert (told.unknown, told.completed, told.begun) == ({}, ("1",), 2)


async def test_a_command_that_a_crash_cut_short_twice_is_unknown_by_another_key(root: Path) -> None:
    def hook(name: str) -> None:
        if name == "command begins":
            raise Crash

    stage = Stage(root, python("pass"))
    work = await stage.begin(hook=hook)
    with suppress(Crash):
        await work.perform(stage.plan.steps[0])
    again = await stage.again(hook=hook)
    with suppress(Crash):
        await again.perform(stage.plan.steps[0])
    assert (again.unknown, (await stage.again()).unknown) == ({"1": "command-1"}, {"1": "command-1"})


async def test_a_command_that_ended_well_is_complete_in_the_same_record_as_its_end(root: Path) -> None:
    appended: list[int] = []
    stage = Stage(root, python("pass"))
    work = await stage.begin()
    append = stage.journal.append

    def counted(lease: Any, drafts: Any, blobs: Any = None) -> Any:
        appended.append(len(drafts))
        return append(lease, drafts, blobs)

    stage.journal.append = counted  # type: ignore[method-assign]
    await work.perform(stage.plan.steps[0])
    assert appended == [1, 2]


async def test_a_program_that_cannot_be_started_just_now_is_tried_once_more(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "busytool"
    tool.write_bytes(Path("/bin/true").read_bytes())
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    stage = Stage(root, {"id": "1", "kind": "run", "argv": ["busytool"]})
    work = await stage.begin()
    with tool.open("ab"):  # a program that somebody writes to cannot be started: ETXTBSY
        error = await refused(work, stage.plan, "1")
    assert error.code == "BLD-004"
    kinds = [(kind, body.get("outcome")) for kind, body in await stage.bodies()]
    assert kinds == [("intent", None), ("rolled_back", "not started")] * 2
    assert work.unknown == {}
    await work.perform(stage.plan.steps[0])
    assert work.done == ("1",)


async def test_a_program_in_a_hidden_folder_of_the_project_may_run_for_no_plan_can_write_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (".venv/bin", "tools"):
        (root / folder).mkdir(parents=True)
        (root / folder / f"in{Path(folder).name}").symlink_to("/bin/true")
        monkeypatch.setenv("PATH", f"{root / folder}{os.pathsep}{os.environ['PATH']}")
    stage = Stage(root, {"id": "1", "kind": "run", "argv": ["inbin"]})
    assert (await (await stage.begin()).perform(stage.plan.steps[0])).exit_code == 0
    with pytest.raises(ApprovalError, match="SEC-012"):
        await Stage(root, {"id": "1", "kind": "run", "argv": ["intools"]}).begin()


async def test_a_shell_under_another_name_is_a_shell(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "harmless").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ApprovalError, match="SEC-012"):
        await Stage(root, {"id": "1", "kind": "run", "argv": ["harmless", "-c", "x"]}).begin()


async def test_a_program_that_a_signal_ended_says_which(root: Path) -> None:
    stage = Stage(root, python("import os; os.kill(os.getpid(), 9)"))
    error = await refused(await stage.begin(), stage.plan, "1")
    assert error.fault.message == f"'python3' was stopped by signal {int(signal.SIGKILL)}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells whose process it is")
async def test_what_was_left_running_is_ended_by_its_mark_also_where_it_will_not_and_nothing_else_is(
    root: Path,
) -> None:
    stays = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    marks = [program.mark_of(str(root), "run", f"command-{number}") for number in range(2)]
    left = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", stays, env={program.MARK: mark}, stdout=asyncio.subprocess.PIPE
        )
        for mark in marks
    ]
    for each in left:
        assert each.stdout is not None
        await each.stdout.readline()
    assert await asyncio.to_thread(program.end_processes, marks[:1], 0.05) == ProgramEnd(
        frozenset(marks[:1]), ()
    )
    assert await left[0].wait() == -signal.SIGKILL
    assert left[1].returncode is None
    left[1].kill()
    await left[1].wait()
    assert program.end_processes(marks, 0.05) == ProgramEnd(frozenset(), ())


def test_a_command_that_was_cut_short_is_in_doubt_and_does_not_run_once_its_plan_is_taken_back() -> None:
    log = StepLog()
    plan = {"id": "plan-1", "version": 1, "steps": [{"id": "1"}, {"id": "2"}]}
    log.fold("step", {"step": "plan-1.1/1", "status": "running"})
    log.fold("step", {"step": "plan-1.1/2", "status": "running"})
    log.fold("intent", {"effect": "command", "key": "command-0", "step": "plan-1.1/2"})
    log.fold("transition", {"dest": "Cancelling"})
    assert dict(log.of(plan)) == {"1": "running", "2": "running"}
    log.fold("transition", {"dest": "Idle"})
    assert dict(log.of(plan)) == {"1": "pending", "2": "unknown"}


@pytest.mark.parametrize(
    ("records", "status"),
    [
        ([("intent", {"effect": "command", "key": "c"})], "running"),
        (
            [
                ("intent", {"effect": "command", "key": "c"}),
                ("done", {"effect": "command", "key": "c", "exit": 0}),
            ],
            "running",
        ),
        (
            [
                ("intent", {"effect": "command", "key": "c"}),
                ("done", {"effect": "command", "key": "c", "exit": 1}),
            ],
            "failed",
        ),
        (
            [("intent", {"effect": "command", "key": "c"}), ("done", {"effect": "command", "key": "c"})],
            "failed",
        ),
        ([("step", {"status": "failed"})], "failed"),
        ([("step", {"status": "failed"}), ("step", {"status": "running"})], "running"),
        ([("intent", {"effect": "write", "key": "w"}), ("done", {"effect": "step"})], "done"),
        ([("intent", {"effect": "write", "key": "w"}), ("rolled_back", {"key": "w"})], "undone"),
        ([("intent", {"effect": "command", "key": "c"}), ("recovered", {})], "unknown"),
        ([("intent", {"effect": "write", "key": "w"}), ("recovered", {})], "pending"),
        ([("step", {"status": "failed"}), ("recovered", {})], "failed"),
    ],
)
def test_the_status_of_a_step_is_right_after_each_of_its_records(
    records: list[tuple[str, dict[str, Any]]], status: str
) -> None:
    log = StepLog()
    plan = {"id": "plan-1", "version": 1, "steps": [{"id": "1"}]}
    log.fold("step", {"step": "plan-1.1/1", "status": "running"})
    for kind, body in records:
        log.fold(kind, {"step": "plan-1.1/1", **body})
    assert dict(log.of(plan)) == {"1": status}
