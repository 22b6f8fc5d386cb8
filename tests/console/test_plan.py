"""The plan of an approval run in the inbox: what a person sees, and what their answer does."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from orchestrator import MemoryJournal, Runs
from orchestrator.approval import Approval, FixedPlanner, PlanDraft
from orchestrator.console import console_app
from orchestrator.machines.approval.plan import PlanRequest
from tests.console.client import Answer, Client, readable
from tests.console.stored import TOKEN

HOSTILE = "<script>x\u202e</script>"
FIRST = {"path": "note.txt", "content": f"Be kind.\n{HOSTILE}\n"}
STEPS = [{"id": "1", "kind": "create", "title": "A note", "files": [FIRST]}]
RUN = {"id": "2", "kind": "run", "argv": ["ls", "note.txt"], "depends_on": ["1"]}


class Planner(FixedPlanner):
    """Makes the plan of one step, and adds a command when changes are requested."""

    async def plan(self, request: PlanRequest) -> PlanDraft:
        steps = [*STEPS, RUN] if request.changes else STEPS
        return PlanDraft.read({"goal": "Leave a note", "steps": steps})


def opened(root: Path, journal: MemoryJournal) -> Approval:
    return Approval(root, Planner(PlanDraft.read({"steps": STEPS})), journal=journal, observers=())


async def operator(runs: Runs) -> Client:
    client = Client(console_app(runs, token=TOKEN, operate=True))
    await client.post("/sign-in", {"token": TOKEN})
    return client


def form(page: Answer, kind: str, text: str) -> dict[str, str]:
    """Return a form of the page as a browser sends it."""
    found = dict(re.findall(r'name="(call|digest)" value="([^"]+)"', page.text))
    return {**found, "form_token": page.form_token(), "kind": kind, "text": text}


async def test_a_plan_is_shown_whole_changed_and_approved_from_the_inbox(
    tmp_path: Path, journal: MemoryJournal, runs: Runs
) -> None:
    async with opened(tmp_path, journal) as approval:
        await approval.run("Leave a note.", run_id="tidy")
        waiting = asyncio.create_task(approval.wait())
        client = await operator(runs)
        assert "tidy" in (await client.get("/?show=waiting")).text
        assert 'class="m-over"' not in (await client.get("/runs/tidy")).text, (
            "what must be present is no budget"
        )
        page = await client.get("/inbox?run=tidy")
        plan = (await Approval.look(tmp_path)).plan
        assert "May this plan be carried out?" in page.text
        assert "a cancel restores every file" in page.text
        assert "+Be kind." in page.text
        assert "&lt;script&gt;x\\u202e&lt;/script&gt;" in page.text
        assert "Difference to" not in page.text
        assert "orchestrator approval wait" in page.text
        asked = await client.post("/answer/tidy", form(page, "request_changes", "List the folder too."))
        assert asked.status == 303
        while not await runs.pending("tidy"):  # noqa: ASYNC110 - the planner is asked meanwhile
            await asyncio.sleep(0.02)
        late = await client.post("/answer/tidy", form(page, "approve", ""))
        assert late.status == 409, "the digest is that of the first version"
        page = await client.get("/inbox?run=tidy")
        assert "Difference to plan-1 version 1" in page.text
        assert "+$ ls note.txt" in page.text
        assert "has commands, which cannot be undone" in page.text
        assert (await client.post("/answer/tidy", form(page, "reject", ""))).status == 409, "no reason"
        assert (await client.post("/answer/tidy", form(page, "approve", "fine"))).status == 303
        status = await waiting
    assert plan is None, "the journal of this project lies elsewhere"
    assert (status.state, status.plan_status) == ("Idle", "completed")
    assert (tmp_path / "note.txt").read_text().startswith("Be kind.")
    people = (await client.get("/runs/tidy")).text
    assert "requested changes to plan-1.1" in people
    assert "approved plan-1.2" in people
    assert "List the folder too." in people


async def test_a_reader_sees_the_plan_only_where_content_is_shown(
    tmp_path: Path, journal: MemoryJournal, runs: Runs
) -> None:
    async with opened(tmp_path, journal) as approval:
        await approval.run("Leave a note.", run_id="tidy")
    for content, shown in (("ask", True), ("never", False)):
        page = (await Client(readable(runs, content=content)).get("/inbox")).text
        assert ("Be kind." in page) is shown
        assert ("Leave a note." in page) is shown
        assert "Approve the plan" not in page
