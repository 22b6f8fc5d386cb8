"""A stored plan counts only with the settings that it was made for, and only if it follows the rules."""

from __future__ import annotations

from pathlib import Path

from orchestrator.machines.approval.limits import ApprovalLimits, PlanCaps
from tests.runtime.approval.stand import planted, project, refused, tree, waiting


async def test_a_plan_is_not_executed_with_other_limits_than_it_was_made_for(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
        before = tree(root)
    async with project(root, limits=ApprovalLimits(caps=PlanCaps(steps=7))) as approval:
        assert (await approval.status()).state == "Idle"
        assert "the settings changed since the plan was made" in str(await approval.status())
        await refused(approval.approve(), "state")
        assert tree(root) == before


async def test_a_plan_that_breaks_a_rule_is_not_executed_even_if_it_was_stored(tmp_path: Path) -> None:
    """A project folder can come from another person, with its plan."""
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
        run = approval._session.run
        assert run is not None
        run.ctx.plan["steps"][3]["files"][0]["path"] = "../outside.py"
        before = tree(root)
        found = await refused(approval.approve(), "plan")
        assert found.code.startswith("SEC-")
        assert found.reason.endswith("; the plan has expired")
        assert found.next_steps == ("submit",)
        assert tree(root) == before
        assert not (root.parent / "outside.py").exists()
