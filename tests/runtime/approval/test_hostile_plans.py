"""Hostile plans: each is refused with its code, and nothing of the project or beside it is touched."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.machines.approval.fault import RULES, ApprovalError, Fault
from orchestrator.machines.approval.plan import ApprovalPlan, PlanDraft
from orchestrator.runtime.approval.plan_file import read_plans
from orchestrator.runtime.approval.workspace import Workspace
from tests.runtime.approval.hostile import HOSTILE, Hostile, project


def everything(root: Path) -> dict[str, object]:
    """Everything below a folder, with its bytes and what it is."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_ino, content)
    return found


async def planned(hostile: Hostile, root: Path) -> ApprovalPlan:
    draft = PlanDraft.read(hostile.plain)
    return await Workspace(root).validated(draft, plan_id="plan-1", version=1)


def draft_or_faults(read: Callable[[], PlanDraft]) -> PlanDraft | tuple[Fault, ...]:
    try:
        return read()
    except ApprovalError as error:
        return error.faults


@pytest.mark.parametrize("hostile", [pytest.param(one, id=one.name) for one in HOSTILE])
async def test_a_hostile_plan_is_refused_with_its_code_and_nothing_is_touched(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project(tmp_path)
    monkeypatch.chdir(root)
    hostile.setting(root)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(hostile.plain))
    before = everything(tmp_path)
    with pytest.raises(ApprovalError) as refused:
        await planned(hostile, root)
    codes = {fault.code for fault in refused.value.faults}
    assert hostile.code in codes
    assert codes <= RULES.keys()
    assert all(0 < len(fault.message) < 500 for fault in refused.value.faults)
    assert everything(tmp_path) == before
    if hostile.document is None:  # from a file it is the same draft, so it is refused alike
        from_file = draft_or_faults(lambda: read_plans(file)[0][0])
        assert from_file == draft_or_faults(lambda: PlanDraft.read(hostile.plain))


def test_there_are_at_least_sixty_of_them_in_every_class_the_specification_names() -> None:
    assert len(HOSTILE) >= 60
    assert len({one.name for one in HOSTILE}) == len(HOSTILE)
    counted = Counter(one.code for one in HOSTILE)
    named = {f"SEC-{number:03}" for number in (*range(1, 11), 12, 13)} | {
        f"VAL-{number:03}" for number in range(2, 19)
    }
    assert named - {"VAL-004"} <= counted.keys()
    assert counted["SEC-001"] >= 5
    assert counted["SEC-003"] >= 5


async def test_every_fault_of_a_plan_is_told_not_only_the_first(tmp_path: Path) -> None:
    root = project(tmp_path)
    steps = [
        {
            "id": "1",
            "kind": "create",
            "files": [{"path": "../x", "content": "x"}, {"path": ".git/x", "content": "x"}],
        },
        {"id": "2", "kind": "run", "argv": ["sh", "-c", "x"]},
    ]
    with pytest.raises(ApprovalError) as refused:
        await Workspace(root).validated(PlanDraft.read({"steps": steps}), plan_id="p", version=1)
    told = [(fault.step, fault.code) for fault in refused.value.faults]
    assert told == [("1", "SEC-001"), ("1", "SEC-004"), ("2", "SEC-012")]
    assert refused.value.code == "VAL-004"
    assert refused.value.fault.code == "VAL-004"
    assert "SEC-012" in refused.value.fault.technical_detail


async def test_a_plan_that_is_wrong_in_a_thousand_ways_is_refused_in_few_words(tmp_path: Path) -> None:
    root = project(tmp_path)
    steps = [{"id": "x" * 5_000, "kind": "create", "files": [{"path": "../x", "content": "x"}] * 9}] * 500
    with pytest.raises(ApprovalError) as refused:
        await Workspace(root).validated(PlanDraft.read({"steps": steps}), plan_id="p", version=1)
    assert refused.value.faults[0].code == "VAL-007"
    assert len(refused.value.faults) == 50
    assert len(json.dumps(refused.value.fault.plain())) < 20_000
