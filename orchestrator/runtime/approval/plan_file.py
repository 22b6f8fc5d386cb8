"""Plans in files of a person or of another program: JSON or TOML. As untrusted as the plans of a model.

    goal = "Greet by name"
    [intent]                                  # optional
    kind = "AddFeature"
    confidence = 1.0
    [[steps]]
    id = "1"
    kind = "create"                           # create, edit, delete, run
    files = [{path = "greet.py", content = "..."}]

A list `plans` of such tables contains several plans, executed one after the other.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.intent import Constraint, Extraction, Intent, IntentKind
from orchestrator.machines.approval.plan import PlanDraft, read_as
from orchestrator.machines.approval.ports import PlanRequest
from orchestrator.runtime.approval.file_inspection import fault_of

MOST_BYTES = 4_194_304
"""Maximum bytes of a plan file."""


class _PlanModel(BaseModel):
    """The table `intent` of a plan file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: IntentKind = IntentKind.ADD_FEATURE
    confidence: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    constraints: tuple[Constraint, ...] = ()
    question: str = ""


class FixedPlanner:
    """A planner with existing plans, one for each intent. A repeated request gives the same plan."""

    regenerates = False

    def __init__(self, *drafts: PlanDraft, intents: tuple[Intent, ...] = ()) -> None:
        self._drafts = drafts
        self._intents = intents or tuple(
            Intent(kind=IntentKind.ADD_FEATURE, summary=draft.goal or "the plan as given", confidence=1.0)
            for draft in drafts
        )

    async def extract(self, text: str) -> Extraction:  # noqa: ARG002 - the plan states its intent
        """Return the intents of the plans."""
        return Extraction(intents=self._intents)

    async def plan(self, request: PlanRequest) -> PlanDraft:
        """Return the plan for an intent. Raises ApprovalError AI-008 if the person requested changes."""
        if request.changes:
            said = "the plan comes from a file; change that file, then submit it again"
            raise ApprovalError(Fault("AI-008", said))
        for intent, draft in zip(self._intents, self._drafts, strict=True):
            if intent.digest == request.intent.digest:
                return draft
        raise ApprovalError(Fault("AI-008", f"no plan is for {request.intent.summary!r}"))

    async def reachable(self) -> Fault | None:
        """Return None: no provider is needed."""
        return None


class PlanFile:
    """A planner with the plans of a file, which is read for each request because it may have changed."""

    regenerates = False

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    async def extract(self, text: str) -> Extraction:
        """Return the intents of the plans. Raises ApprovalError VAL-002."""
        return await (await self._read()).extract(text)

    async def plan(self, request: PlanRequest) -> PlanDraft:
        """Return the plan for an intent; with a single plan, that one. Raises ApprovalError VAL-002, AI-008."""
        drafts, intents = await asyncio.to_thread(read_plans, self.path)
        if len(drafts) == 1:
            return drafts[0]
        return await FixedPlanner(*drafts, intents=intents).plan(request)

    async def reachable(self) -> Fault | None:
        """Return None: no provider is needed."""
        return None

    async def _read(self) -> FixedPlanner:
        drafts, intents = await asyncio.to_thread(read_plans, self.path)
        return FixedPlanner(*drafts, intents=intents)


def read_plans(path: Path | str) -> tuple[tuple[PlanDraft, ...], tuple[Intent, ...]]:
    """Return the plans of a file with their intents. Blocks. Raises ApprovalError VAL-002, or of the family FS."""
    plain = _document(Path(path))
    several = plain.get("plans") if isinstance(plain, dict) else None
    tables = several if isinstance(several, list) and set(plain) == {"plans"} else [plain]
    if not tables or not all(isinstance(one, dict) for one in tables):
        raise ApprovalError(
            Fault("VAL-002", f"{str(path)!r} is not a plan; it must be a table with `goal` and `steps`")
        )
    drafts: list[PlanDraft] = []
    intents: list[Intent] = []
    for table in tables:
        draft = PlanDraft.read({name: value for name, value in table.items() if name != "intent"})
        wanted = read_as(_PlanModel, table.get("intent", {}), "the intent")
        said = {name: getattr(wanted, name) for name in _PlanModel.model_fields}
        drafts.append(draft)
        intents.append(Intent(summary=draft.goal or "the plan as given", **said))
    return tuple(drafts), tuple(intents)


def _document(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ApprovalError(fault_of(error, str(path))) from None
    if len(content) > MOST_BYTES:
        raise ApprovalError(Fault("VAL-002", f"{str(path)!r} is larger than {MOST_BYTES} bytes"))
    reads = tomllib.loads if path.suffix.casefold() == ".toml" else json.loads
    try:
        return reads(content.decode())
    except (ValueError, RecursionError) as error:
        form = "TOML" if reads is tomllib.loads else "JSON"
        raise ApprovalError(Fault("VAL-002", f"{str(path)!r} is not {form}: {error}")) from None
