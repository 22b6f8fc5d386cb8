"""Power loss at any call while files of a project or a session are changed: what the journal says is there."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import StepFact
from orchestrator.runtime.ralph.session import TRANSITIONS
from tests.crash.effect_invariants import check_effects, check_files
from tests.crash.life import begun_by, whole
from tests.crash.power import Disk, Image, laid_out, lay_out
from tests.crash.rollback_worker import opened
from tests.crash.test_power import is_log, recorded
from tests.crash.test_ralph_kill import Life
from tests.crash.test_rollback_kill import RUN, open_step, planted, tree
from tests.runtime.approval.stand import DONE, Script
from tests.runtime.approval.stand import contents as project_files
from tests.runtime.approval.stand import planted as planted_project

pytestmark = [pytest.mark.system("strace"), pytest.mark.timeout(3600)]


def contents(root: Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in tree(root).items() if (root / name).is_file()}


def test_changes_to_files_can_be_undone_after_any_power_loss(
    quick: Path, environment: dict[str, str], seed: int, campaign: Callable[[int, int], int]
) -> None:
    (quick / "store").mkdir()
    planted(quick / "store" / "project")
    before = contents(quick / "store" / "project")
    disk, chance, lines, seen = Disk(laid_out(quick / "store", quick)), random.Random(seed), "", 0
    traced = recorded(quick, environment, "tests.crash.rollback_worker", "{store}", "{log}")
    assert any(call.name == "rename" and call.to.startswith("store/project/") for call in traced)
    stride = campaign(40, 3)
    for number, (call, following) in enumerate(pairwise(traced)):
        if is_log(call):
            lines += call.data.decode()
            continue
        disk.apply(call)
        if (number + seed) % (campaign(7, 1) if following.name == "sync" else stride):
            continue
        for what, image in disk.images(chance, campaign(1, 3)):
            seen += 1
            try:
                asyncio.run(taken_back(image, lines, before, quick / "image"))
            except BaseException as error:
                error.add_note(f"{what} at call {number}")
                raise
    assert lines.count("ACK") == 10
    assert "UNDO" in lines
    assert seen > 40  # 60 or a few more; it depends on the seed at which calls the power is lost
    print(f"{seen} images")  # noqa: T201  captured, for the report


async def taken_back(image: Image, lines: str, before: dict[str, bytes], folder: Path) -> None:
    """Recover what is left: what was acknowledged is there, the open step comes back, then all does."""
    lay_out(image, folder)
    root = folder / "store" / "project"
    async with SqliteJournal(folder / "store" / "journal.db") as journal:
        stack = await opened(journal, root)
        if "UNDO" not in lines:
            assert sum(change.done for change in stack.changes) >= lines.count("ACK")
            step = open_step(stack)
            if step is not None:
                assert not (await stack.undo(step=step)).conflicts
            assert await stack.drift() == ()
            check_files(root, await journal.load(RUN))
        assert not (await stack.undo()).conflicts
        records = await journal.load(RUN)
        check_effects(RUN, records, rest=True)
        check_files(root, records)
    assert contents(root) == before
    shutil.rmtree(folder)


# ---- a project with approval ----


async def approved(root: Path) -> dict[int, dict[str, bytes]]:
    """Prepare a plan in `root`; return the files after so many steps, by carrying it out in a copy."""
    planted_project(root)
    copy = root.with_name("copy")
    states = {0: project_files(root)}

    def on_step(fact: StepFact) -> None:
        if fact.phase == "ends":
            states[fact.index] = project_files(copy)

    async with Approval(root, Script(), observers=(), by="ann") as approval:
        await approval.run("Please tidy up.")
        await approval.show()
        await approval.approve(start=False)
    shutil.copytree(root, copy)
    async with Approval(copy, Script(), observers=(), by="ann", on_step=on_step) as approval:
        await approval.execute()
    shutil.rmtree(copy)
    assert states[5] == DONE
    return states


def test_an_approved_plan_is_recovered_after_any_power_loss(
    quick: Path, environment: dict[str, str], seed: int, campaign: Callable[[int, int], int]
) -> None:
    store = quick / "store"
    store.mkdir()
    states = asyncio.run(approved(store / "project"))
    disk, chance, done, seen = Disk(laid_out(store, quick)), random.Random(seed), 0, 0
    traced = recorded(quick, environment, "tests.crash.approval_worker", "{store}", "{log}")
    named = {Path(call.to).name for call in traced if call.name == "rename"}
    assert {"state.json", "steps.json", "stack.json", "main.py"} <= named
    stride = campaign(len(traced) // 8, 10)
    for number, call in enumerate(traced):
        if is_log(call):
            done += call.data.startswith(b"ACK")
            continue
        disk.apply(call)
        if (number + seed) % stride:
            continue
        for what, image in disk.images(chance, 1):
            seen += 1
            shutil.rmtree(store)
            lay_out({path: content for path, content in image.items() if path != "store"}, quick / "image")
            (quick / "image" / "store").rename(store)  # there, for the journal names the project's folder
            (quick / "image").rmdir()
            try:
                asyncio.run(recovered(store / "project", states, done, back=bool(seen % 2)))
            except BaseException as error:
                error.add_note(f"{what} at call {number}")
                raise
    assert done == 5
    assert seen > 15
    print(f"{seen} images")  # noqa: T201  captured, for the report


async def recovered(
    root: Path, states: dict[int, dict[str, bytes]], acknowledged: int, *, back: bool
) -> None:
    """Open the project: steps that had ended stand, the open one is undone. Then take all back, or go on."""
    async with Approval(root, Script(), observers=(), by="ann") as approval:
        status = await approval.status()
        done = [step.status for step in status.steps].count("done")
        assert done >= acknowledged
        assert project_files(root) == states[done]
        if status.state == "Idle":
            assert (status.plan_status, done) == ("completed", 5)
        elif back:
            status = await approval.cancel()
            assert project_files(root) == states[0]
        else:
            status = await (approval.resume() if status.state == "Paused" else approval.execute())
            assert project_files(root) == DONE
        assert status.state == "Idle"
    left = [path.name for path in root.rglob("*") if ".orch-" in path.name or path.suffix == ".tmp"]
    assert not left


# ---- a session of ralph ----


@pytest.fixture(scope="module")
def begin(environment: dict[str, str]) -> Iterator[Callable[[Path], Life]]:
    """`begin(folder)` is a run of the loop that processes drive, one after the other."""
    with begun_by("tests.crash.ralph_worker", environment, Life) as begin:
        yield begin


def assert_same_end(found: Mapping[str, Any], expected: Mapping[str, Any], *, unmended: bool) -> None:
    """A run that had ended is not resumed: before its log was synced, only a part of that may be readable."""
    log, whole = found["log"], expected["log"]
    assert log == whole[: len(log)]
    assert unmended or log == whole
    assert {**found, "log": ()} == {**expected, "log": ()}


def is_refused(disk: Disk, path: str, content: bytes) -> bool:
    """Tell whether a file that an agent wrote, unsynced, is now refused as binary: a person removes it then."""
    file = disk.names.get(path)
    return file is not None and not file.durable and b"\0" in content


def test_a_ralph_run_comes_to_the_same_end_after_any_power_loss(
    quick: Path,
    environment: dict[str, str],
    seed: int,
    campaign: Callable[[int, int], int],
    begin: Callable[[Path], Life],
) -> None:
    expected, _ = whole(begin, quick / "undisturbed")
    disk, chance, lines, seen = Disk(), random.Random(seed), "", 0
    disk.names["store"] = disk.durable_names["store"] = None
    traced = recorded(quick, environment, "tests.crash.ralph_worker", "{store}")
    assert {"progress.md", "tasks.md"} <= {Path(call.to).name for call in traced if call.name == "rename"}
    stride = campaign(len(traced) // 6, 20)
    for number, call in enumerate(traced):
        if call.path == "store/world":
            lines += call.data.decode()
            continue
        disk.apply(call)
        if (number + seed) % stride and number < len(traced) - campaign(6, 40):
            continue
        for what, image in disk.images(chance, 1):
            seen += 1
            shutil.rmtree(quick / "store")
            life = begin(quick / "store")  # there, for the journal names the session's folder
            for path, content in image.items():
                target = life.folder / Path(path).relative_to("store")
                if content is None:
                    target.mkdir(parents=True, exist_ok=True)
                elif not is_refused(disk, path, content):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
            (life.folder / "world").write_text(lines)
            try:
                ended = any(record.kind == "ended" for record in life.records())
                log = next((file for path, file in disk.names.items() if path.endswith(TRANSITIONS)), None)
                synced = log is not None and not log.waiting
                assert_same_end(life.to_the_end(), expected, unmended=ended and not synced)
            except BaseException as error:
                error.add_note(f"{what} at call {number}")
                raise
    assert seen > 15
    print(f"{seen} images")  # noqa: T201  captured, for the report
