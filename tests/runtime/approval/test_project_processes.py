"""A project and several processes: one works, the others look, ask it to stop, or are told that they have to wait."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from orchestrator.errors import Held
from orchestrator.files.atomic import stage
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Lease, Posted
from orchestrator.llm.port import SystemClock
from orchestrator.machines.approval.fault import GateRefused
from orchestrator.runtime.approval import project_journal as store
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import StepFact
from orchestrator.runtime.service.runtime import Runtime
from tests.runtime.approval.stand import (
    DONE,
    Script,
    clock,
    contents,
    planted,
    project,
    refused,
    tree,
    waiting,
)
from tests.runtime.stage import until


class AtWork:
    """A project whose second step is in flight until it is let go."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.options = options
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def on_step(self, fact: StepFact) -> None:
        if (fact.index, fact.phase) == (2, "begins"):
            self.begun.set()
            await self.go.wait()

    async def carried_out(self) -> str:
        options = {"on_step": self.on_step, "clock": SystemClock(), **self.options}
        async with project(self.root, **options) as self.approval:
            await waiting(self.approval)
            status = await self.approval.approve()
            return f"{status.state.value} {status.plan_status}"

    async def heard(self) -> None:
        """Wait until it has read all that was posted."""
        async with SqliteJournal(self.root / ".orchestrator/journal.db", only_reads=True) as journal:
            *_, last = await journal.inbox("approval-0001")
        run = self.approval._session.run
        await until(lambda: run.control.inbox >= last.number)


@pytest.mark.parametrize(("wish", "ends"), [("pause", "Paused approved"), ("cancel", "Idle cancelled")])
async def test_another_process_asks_the_one_that_works_to_stop(tmp_path: Path, wish: str, ends: str) -> None:
    root = planted(tmp_path)
    before = tree(root)
    work = AtWork(root)
    task = asyncio.create_task(work.carried_out())
    await work.begun.wait()
    status = await Approval.look(root)
    assert (status.state, status.crashed) == ("Executing", False)
    assert status.owner
    assert set(status.actions) >= {"pause", "cancel"}
    assert [one.status for one in status.steps] == ["done", "running", "pending", "pending", "pending"]
    await Approval.ask(root, wish, by="bob", why="lunch")
    await work.heard()
    with pytest.raises(GateRefused, match="IPC-006"):
        await Approval.ask(root, wish, by="bob")
    work.go.set()
    assert await task == ends
    if wish == "cancel":
        assert tree(root) == before
    async with project(root) as approval:
        records = await approval._session.journal.load("approval-0001")
    (control,) = [one.body for one in records if one.kind == "control"]
    assert (control["kind"], control["by"], control["why"]) == (wish, "bob", "lunch")


class Undoing:
    """Holds the thread that undoes the first file, until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.swept = False

    def __call__(self, boundary: str) -> None:
        self.swept = self.swept or boundary == "swept"
        if self.swept and boundary == "renamed":
            self.begun.set()
            self.go.wait(30)


async def test_who_looks_at_a_cancel_under_way_is_offered_nothing_that_would_be_refused(
    tmp_path: Path,
) -> None:
    root, undoing = planted(tmp_path), Undoing()
    before = tree(root)
    work = AtWork(root, hook=undoing)
    task = asyncio.create_task(work.carried_out())
    await work.begun.wait()
    await Approval.ask(root, "cancel", by="bob")
    await work.heard()
    work.go.set()
    assert await asyncio.to_thread(undoing.begun.wait, 30)
    status = await Approval.look(root)
    assert (status.state, status.actions) == ("Cancelling", ("show", "diff"))
    for wish in ("pause", "cancel"):
        with pytest.raises(GateRefused, match=r"IPC-002.*being cancelled already") as refusal:
            await Approval.ask(root, wish, by="bob")
        assert refusal.value.next_steps == ("status",)
    undoing.go.set()
    assert await task == "Idle cancelled"
    assert tree(root) == before


async def test_a_second_process_cannot_take_a_project_that_is_worked_on(tmp_path: Path) -> None:
    work = AtWork(planted(tmp_path))
    task = asyncio.create_task(work.carried_out())
    await work.begun.wait()
    with pytest.raises(Held):
        async with project(tmp_path):
            pass
    work.go.set()
    assert await task == "Idle completed"
    assert contents(tmp_path) == DONE


async def test_nobody_can_be_asked_to_stop_where_nobody_works(tmp_path: Path) -> None:
    root = planted(tmp_path)
    for wish in ("pause", "cancel"):
        with pytest.raises(GateRefused, match="no process works"):
            await Approval.ask(root, wish)
    assert not (root / ".orchestrator").exists()
    async with project(root) as approval:
        await waiting(approval)
    with pytest.raises(GateRefused, match="no process works"):
        await Approval.ask(root, "pause")
    with pytest.raises(GateRefused, match="allowed: pause, cancel"):
        await Approval.ask(root, "approve")


async def test_a_wish_that_nobody_read_is_refused_by_the_next_process_and_stops_no_later_plan(
    tmp_path: Path,
) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
        await approval._session.journal.post("approval-0001", Posted("late", "cancel", {"why": "x"}, "bob"))
    async with project(root) as approval:
        status = await approval.approve()
        assert status.plan_status == "completed"
        records = await approval._session.journal.load("approval-0001")
    (control,) = [one.body for one in records if one.kind == "control"]
    assert control["refused"] == "not possible in AwaitingApproval"


async def test_a_command_that_is_missing_is_told_and_the_project_can_be_gone_on_with(tmp_path: Path) -> None:
    root = planted(tmp_path)
    before = tree(root)
    async with project(root) as approval:
        await waiting(approval)
        for each in ("first", "second", "third"):
            posted = Posted(each, "cancel", {"why": each}, "bob")
            await approval._session.journal.post("approval-0001", posted)
    with contextlib.closing(apsw.Connection(str(root / ".orchestrator/journal.db"))) as store:
        store.execute("DELETE FROM request WHERE id='second'")
    async with project(root) as approval:
        status = await approval.status()
        assert approval.recovered.found == "corrupt"
        assert (status.state, status.error["code"]) == ("Failed", "IPC-007")
        assert "some are missing" in status.error["message"]
    async with project(root) as approval:
        assert approval.recovered is None
        records = await approval._session.journal.load("approval-0001")
        controls = [one.body for one in records if one.kind == "control"]
        assert [(one["kind"], one["number"]) for one in controls] == [("lost", 2), ("cancel", 3)]
        assert all(one["refused"] for one in controls)
        await approval.shown()
        await approval.acknowledge()
        assert (await waiting(approval)).state == "AwaitingApproval"
    assert tree(root) == before


async def test_looking_writes_nothing_not_even_a_folder(tmp_path: Path) -> None:
    root = planted(tmp_path)
    assert (await Approval.look(root)).state == "Idle"
    assert not (root / ".orchestrator").exists()
    async with project(root) as approval:
        await waiting(approval)
    before = {file: file.read_bytes() for file in (root / ".orchestrator").rglob("*") if file.is_file()}
    status = await Approval.look(root)
    assert (status.state, status.versions) == ("AwaitingApproval", (("plan-1", 1),))
    assert {file: file.read_bytes() for file in before} == before


async def test_a_crash_is_told_by_those_who_only_look(tmp_path: Path) -> None:
    root = planted(tmp_path)
    work = AtWork(root)
    task = asyncio.create_task(work.carried_out())
    await work.begun.wait()
    task.cancel()
    await asyncio.wait((task,))
    status = await Approval.look(root)
    assert (status.state, status.crashed) == ("Executing", True)


async def test_a_planner_is_not_needed_to_go_on_with_a_plan(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root, Script(), launch={"planner": "file"}) as approval:
        await waiting(approval)
    async with Approval(root, by="ann", runtime=Runtime(clock=clock(), observers=())) as approval:
        status = await approval.approve()
        assert (status.plan_status, status.launch) == ("completed", {"planner": "file"})


async def test_a_process_that_comes_while_another_writes_disturbs_no_write(tmp_path: Path) -> None:
    root = planted(tmp_path)
    work = AtWork(root)
    task = asyncio.create_task(work.carried_out())
    await work.begun.wait()
    folder = root / ".orchestrator"
    staged = stage("steps.json", b"{}", root=folder)  # a projection that is just being written
    with pytest.raises(Held):
        async with project(root):
            pass
    staged.commit()
    work.go.set()
    assert await task == "Idle completed"


def test_of_two_processes_that_come_first_at_once_one_gives_the_project_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, drawn = threading.Barrier(2), secrets.token_hex

    def drawing(size: int) -> str:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # for another one that draws, too
        return drawn(size)

    monkeypatch.setattr(secrets, "token_hex", drawing)
    folder = tmp_path / ".orchestrator"
    with ThreadPoolExecutor(2) as threads:
        ids = [made.result() for made in [threads.submit(store.prepare, folder) for _ in range(2)]]
    assert ids == [store.project_id(folder)] * 2


async def test_of_two_processes_that_submit_first_at_once_one_is_told_to_look_again(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as quick, project(root) as slow:
        await waiting(quick)
        refusal = await refused(slow.run("Me too."), "state", "FS-005")
        assert (refusal.reason, refusal.retryable_now) == (
            "another process started to work on this project just now",
            True,
        )
        assert (await quick.approve()).plan_status == "completed"
    async with project(root) as approval:
        assert approval.recovered is None
        assert (await approval.status()).plan_status == "completed"
    assert contents(root) == DONE


class Watched(MemoryJournal):
    """Tells who held the request before when the next one began."""

    held: str | None = None

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        if run_id != "approval-0001":
            self.held = (await self.head("approval-0001")).owner
        return await super().create(run_id, owner, body)


async def test_between_two_requests_nobody_else_can_take_up_the_first(tmp_path: Path) -> None:
    journal = Watched()
    async with project(planted(tmp_path), journal=journal) as approval:
        await waiting(approval)
        await approval.reject()
        await waiting(approval, "Something else.")
        assert journal.held is not None
        assert (await journal.head("approval-0001")).owner is None
