"""What `.orchestrator/` holds: each file is what the journal says, anything else is damage, and nothing leaves it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import OtherGraph
from orchestrator.journal.codec import encoded
from orchestrator.journal.redacted import SHOWN, parted
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.project_journal import ProjectLog
from orchestrator.testing.clock import FakeClock
from tests.providers.endpoint import GUARD
from tests.runtime.approval.stand import Script, clock, contents, planted, project, tree, waiting

ROOT = Path(__file__).resolve().parents[3]
TIMES = frozenset(("at", "t", "expires_at"))


async def bodies(approval: Any, run_id: str = "approval-0001") -> list[tuple[str, Any]]:
    """The records of a run without their times."""
    return [(one.kind, timeless(one.body)) for one in await approval._session.journal.load(run_id)]


def timeless(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: timeless(value) for name, value in body.items() if name not in TIMES}
    return [timeless(one) for one in body] if isinstance(body, list) else body


async def worked(root: Path, start: float) -> list[tuple[str, bytes]]:
    """A whole life of two requests, with a pause, a part of a plan and a rollback; its records as bytes, untimed."""
    hands = FakeClock(start, auto=True)

    def on_step(fact: Any) -> None:
        if (fact.index, fact.phase) == (2, "begins"):
            approval.ask_pause()

    async with project(root, clock=hands, on_step=on_step) as approval:
        await waiting(approval)
        await approval.changes("Otherwise.")
        await approval.show()
        await approval.approve(steps=[1, 2, 3])
    async with project(root, clock=hands) as approval:
        await approval.resume()
        await approval.run("And now?")
        await approval.shown()
        found = [*await bodies(approval), *await bodies(approval, "approval-0002")]
    return [(kind, encoded(kind, body)) for kind, body in found]


async def test_the_same_inputs_and_answers_give_the_same_records_byte_for_byte_but_for_times(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    first = await worked(planted(one), 1_000.0)
    second = await worked(planted(other), 2_000_000.5)
    assert first == second
    assert len(first) > 40
    assert contents(one) == contents(other)


async def test_every_projection_is_there_and_private(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
        await approval.approve()
    folder = root / ".orchestrator"
    state = json.loads((folder / "state.json").read_text())
    assert {
        name: state[name] for name in ("schema_version", "state", "active_plan_id", "active_execution_id")
    } == {
        "schema_version": 1,
        "state": "Idle",
        "active_plan_id": "plan-1",
        "active_execution_id": None,
    }
    assert state["project_id"] == json.loads((folder / "config.json").read_text())["project_id"]
    assert state["last_updated_at"] > 0
    steps = json.loads((folder / "steps.json").read_text())
    assert [one["status"] for one in steps["steps"]] == ["done"] * 5
    stack = json.loads((folder / "rollback/stack.json").read_text())["changes"]
    assert {one["path"] for one in stack} == {
        "docs/guide/new.md",
        "src/main.py",
        "old.txt",
        "src/util.py",
        "README.md",
    }
    plan = json.loads((folder / "plan/plan-1.v1.json").read_text())
    assert plan["plan"]["targets"] == json.loads((folder / "hashes.json").read_text())["targets"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.rglob("*"):
        assert not stat.S_IMODE(file.stat().st_mode) & 0o077, file


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("state.json", lambda file: file.write_text(file.read_text().replace("AwaitingApproval", "Executing"))),
    ("state.json", lambda file: file.write_text("{")),
    ("state.json", lambda file: file.write_bytes(b"\xff\x00")),
    ("state.json", lambda file: file.unlink()),
    ("state.json", lambda file: file.write_text("[]")),
    ("steps.json", lambda file: file.write_text(file.read_text().replace("pending", "done"))),
    ("hashes.json", lambda file: file.write_text("{}")),
    ("error.json", lambda file: file.unlink()),
    ("plan/plan-1.v1.json", lambda file: file.write_text(file.read_text().replace("print(2)", "print(9)"))),
    ("rollback/stack.json", lambda file: file.write_text("")),
]


@pytest.mark.parametrize(
    ("name", "damage"), DAMAGE, ids=[f"{name}-{n}" for n, (name, _) in enumerate(DAMAGE)]
)
async def test_a_projection_that_is_not_what_the_journal_says_leads_to_failed_with_manual_options(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    root = planted(tmp_path)
    before = tree(root)
    async with project(root) as approval:
        await waiting(approval)
        await approval.approve(start=False)
    damage(root / ".orchestrator" / name)
    async with project(root) as approval:
        assert (approval.recovered.found, approval.recovered.now) == ("corrupt", "Failed")
        assert len(approval.recovered.options) >= 3
        status = await approval.status()
        assert (status.state, status.error["code"]) == ("Failed", "ST-002")
        records = await approval._session.journal.load("approval-0001")
        (audit,) = [one.body for one in records if one.kind == "recovered"]
        assert (audit["from"], audit["to"]) == ("AwaitingApproval", "Failed")
    assert tree(root) == before
    async with project(
        root
    ) as approval:  # the projections are in order again; the error waits for the person
        assert approval.recovered is None
        await approval.shown()
        assert (await approval.acknowledge()).state == "Idle"
        await waiting(approval)


@pytest.mark.parametrize("how", ["garbled", "gone"])
async def test_a_journal_that_cannot_be_read_is_touched_by_nobody_until_a_person_discards_it(
    tmp_path: Path, how: str
) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
    path = root / ".orchestrator/journal.db"
    if how == "gone":
        for each in path.parent.glob("journal.db*"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    else:
        for each in path.parent.glob("journal.db-?al"):
            each.unlink()
        path.write_bytes(os.urandom(8192))
    damaged = path.read_bytes() if path.exists() else b""
    async with project(root) as approval:
        status = await approval.status()
        assert (status.state, status.error["code"], status.actions) == (
            "Failed",
            "ST-002",
            ("acknowledge --discard",),
        )
        assert approval.recovered.found == "corrupt"
        with pytest.raises(Exception, match="acknowledge --discard"):
            await approval.acknowledge()
        assert how == "gone" or path.read_bytes() == damaged
        assert (await approval.acknowledge(discard=True)).state == "Idle"
        await waiting(approval)
    if how == "garbled":
        assert (root / ".orchestrator/damaged-1/journal.db").read_bytes() == damaged


async def test_a_run_of_another_version_of_the_graph_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
    with monkeypatch.context() as patch:
        patch.setitem(vars(approval._session.machine.graph), "fingerprint", "other")
        with pytest.raises(OtherGraph):
            await project(root).__aenter__()
    async with project(root) as approval:
        assert (await approval.status()).state == "AwaitingApproval"


@pytest.mark.parametrize("place", [".orchestrator", ".orchestrator/plan"])
async def test_a_symlink_in_place_of_our_folders_is_refused(tmp_path: Path, place: str) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    planted(root)
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).symlink_to(outside)
    with pytest.raises(ApprovalError, match="CFG-003"):
        async with project(root):
            pass
    assert list(outside.iterdir()) == []


async def test_a_project_whose_journal_is_gone_is_damaged_for_whoever_looks_too(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
    (root / ".orchestrator" / "journal.db").unlink()
    before = contents(root / ".orchestrator")
    seen = await Approval.look(root)
    assert seen.state == "Failed"
    assert seen.error is not None
    assert (seen.error["code"], seen.actions) == ("ST-002", ("acknowledge --discard",))
    assert "its journal is empty" in seen.error["message"]
    assert contents(root / ".orchestrator") == before
    async with project(root) as approval:
        assert (await approval.status()).state == "Failed"
        assert (await approval.acknowledge(discard=True)).state == "Idle"
    assert (await Approval.look(root)).state == "Idle"


async def test_a_project_whose_name_cannot_be_written_down_is_refused_and_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "shop\udcff"
    try:
        root.mkdir()
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    with pytest.raises(ApprovalError, match="not UTF-8; rename it"):
        async with project(root):
            pass
    with pytest.raises(ApprovalError, match="not UTF-8; rename it"):
        await Approval.look(root)
    assert list(root.iterdir()) == []


# ---- what leaves it: nothing ----

KEY = "sk-proj-abcdefghijklmnopqrstuvwx"


async def test_no_key_of_the_environment_is_in_any_file_that_a_run_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ORCHESTRATOR_API_KEY"):
        monkeypatch.setenv(name, KEY)
    root = planted(tmp_path)
    async with project(root, Script([RuntimeError(f"401 with {KEY}")])) as approval:
        await approval.run("Please tidy up.")
        await approval.shown()
        await approval.acknowledge()
    async with project(root) as approval:
        await waiting(approval)
        await approval.approve()
    files = [file for file in root.rglob("*") if file.is_file()]
    assert len(files) > 10
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


async def test_logs_tell_what_happened_without_prompts_or_contents(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await approval.run("A request that nobody else may read.")
        await approval.show()
        await approval.approve()
    (log,) = (root / ".orchestrator/logs").iterdir()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    moves = [(one["source"], one["event"], one["dest"]) for one in lines if one["kind"] == "Transition"]
    assert moves[0] == ("Idle", "submit", "ExtractingIntent")
    assert moves[-1] == ("Completed", "acknowledge", "Idle")
    assert log.name == "2023-11-14.jsonl"
    assert not [word for word in ("nobody else", "print(", "Töpfe", "New text") if word in log.read_text()]


async def test_what_may_be_shown_of_the_records_has_no_request_content_or_plan(tmp_path: Path) -> None:
    async with project(planted(tmp_path)) as approval:
        await waiting(approval, "A request that nobody else may read.")
        await approval.approve()
        await approval.run("Another one.")
        records = await approval._session.journal.load("approval-0001")
    assert {one.kind for one in records} <= set(SHOWN)
    shown = json.dumps([parted(one.kind, one.body).shown for one in records])
    assert not [word for word in ("nobody else", "print(", "# New", "New text", "Tidy up") if word in shown]
    assert '"plan_status": "completed"' in shown
    assert '"step": "plan-1.1/5"' in shown


def test_logs_are_kept_for_their_days_and_in_their_sizes(tmp_path: Path) -> None:
    hands = FakeClock(0.0)
    limits = ApprovalLimits(log_days=3, log_file_bytes=200, log_total_bytes=350)
    for day in range(5):
        diary = ProjectLog(tmp_path, limits, FakeClock(day * 86_400.0))
        for number in range(10):
            diary.write("Note", number=number)
        names = sorted(file.name for file in tmp_path.iterdir())
        assert len(names) <= 3
        assert names[-1] == f"1970-01-0{day + 1}.jsonl"
        assert all(file.stat().st_size <= 200 for file in tmp_path.iterdir())
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 350 + 200
    assert ProjectLog(tmp_path, limits, hands).is_ready()


async def test_no_socket_is_opened_while_a_project_is_worked_on(tmp_path: Path) -> None:
    root = planted(tmp_path)
    with GUARD.watching(local=False):
        async with project(root, clock=clock()) as approval:
            await waiting(approval)
            await approval.approve()


FRESH = """
import asyncio, sys
from pathlib import Path
from tests.runtime.approval.stand import planted, project, waiting

async def main(root):
    async with project(root) as approval:
        await waiting(approval)
        assert (await approval.approve()).plan_status == "completed"

asyncio.run(main(planted(Path(sys.argv[1]))))
loaded = [name for name in sys.modules if "telemetry" in name or name.split(".")[0] == "prometheus_client"]
import orchestrator.runtime.approval.plan_file
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.approval.planner import ModelPlanner

llm = ScriptedLLM(['{"intents": [{"kind": "FixBug", "summary": "two is three", "confidence": 0.9}]}'])
assert asyncio.run(ModelPlanner(llm, sys.argv[1]).extract("x")).intents[0].kind.value == "FixBug"
loaded += [name for name in sys.modules if name == "orchestrator.telemetry.metrics" or "prometheus" in name]
sys.exit(f"loaded: {loaded}" if loaded else 0)
"""


def test_a_fresh_process_that_carries_out_a_plan_has_loaded_no_telemetry_and_no_metrics_with_a_model(
    tmp_path: Path,
) -> None:
    paths = os.pathsep.join(str(ROOT / each) for each in ("", "callbacks", "guards"))
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
