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

`preview` compares the plan with the files of the project. This module needs only the records of the run, so that
another process or host can show what an approval covers.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.machines.approval import patch
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.plan import (
    Constraint,
    Extraction,
    Intent,
    IntentKind,
    PlanDraft,
    PlanRequest,
    read_as,
)
from orchestrator.runtime.approval.workspace import fault_of

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


NO_UNDO = "a command cannot be undone"


@dataclass(frozen=True, slots=True)
class ReviewedFile:
    """A file of a step."""

    path: str
    text: str
    """The change as a unified diff; empty for a file that is deleted."""
    before: str
    """The file for which the plan was made: its size and SHA-256, or that it does not exist."""


@dataclass(frozen=True, slots=True)
class ReviewedStep:
    """A step of a plan."""

    id: str
    kind: str
    title: str
    files: tuple[ReviewedFile, ...]
    command: str
    """The command line of a step that runs a program, else ""."""
    facts: tuple[str, ...]
    """Its time limit, the steps before it, and its constraints, as short texts."""


@dataclass(frozen=True, slots=True)
class PlanReview:
    """A plan with all that its approval covers."""

    label: str
    """Id and version."""
    goal: str
    steps: tuple[ReviewedStep, ...]
    previous: str
    """The plan that it replaces, or of which it is a part; "" for none."""
    difference: str
    """Unified diff of both plans as text."""

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> Self:
        """Read the present plan of a context of approval."""
        plan: Mapping[str, Any] = context.get("plan") or {}
        source, before = plan.get("derived_from"), None
        for one in reversed(context.get("versions") or ()):  # the version before, or the plan it is a part of
            known: Mapping[str, Any] = one.get("plan") or {}
            is_before = known.get("id") == plan.get("id") and known.get("version", 0) < plan.get("version", 0)
            if is_before or (source and one.get("digest") == source):
                before = known
                break
        difference = "" if before is None else patch.make("plan", _text(before), _text(plan))
        return cls(
            _label(plan),
            str(plan.get("goal") or ""),
            tuple(_steps(plan)),
            "" if before is None else _label(before),
            difference,
        )


def _label(plan: Mapping[str, Any]) -> str:
    return f"{plan.get('id', '')} version {plan.get('version', '')}"


def _steps(plan: Mapping[str, Any]) -> Iterator[ReviewedStep]:
    targets = {target.get("path"): target for target in plan.get("targets") or ()}
    seen: set[str] = set()
    for step in plan.get("steps") or ():
        files = []
        for file in step.get("files") or ():
            path = str(file.get("path", ""))
            target, before = targets.get(path), "unknown"
            if path in seen:
                before = "as the steps before leave it"
            elif target is not None and target.get("sha256") is not None:
                before = f"{target.get('size', 0):,} bytes, SHA-256 {target['sha256']}"
            elif target is not None:
                before = "does not exist" if target.get("encoding") is None else str(target["encoding"])
            change = file.get("diff")
            if change is None and file.get("content") is not None:
                change = patch.make(path, None, str(file["content"]))
            files.append(ReviewedFile(path, str(change or ""), before))
            seen.add(path)
        argv = [str(part) for part in step.get("argv") or ()]
        name, kind, title = (str(step.get(key, "")) for key in ("id", "kind", "title"))
        facts = [f"at most {step.get('timeout', 0):g} s", NO_UNDO] if step.get("argv") else []
        if step.get("depends_on"):
            facts.append(f"after step {', '.join(map(str, step['depends_on']))}")
        facts += map(str, step.get("constraints") or ())
        yield ReviewedStep(name, kind, title, tuple(files), shlex.join(argv), tuple(facts))


def _text(plan: Mapping[str, Any]) -> str:
    """Return a plan as lines, for the difference between two plans."""
    lines = [f"goal: {plan.get('goal') or ''}"]
    for step in _steps(plan):
        lines += ["", f"step {step.id}: {step.kind} {step.title}".rstrip(), *step.facts]
        if step.command:
            lines.append(f"$ {step.command}")
        for file in step.files:
            lines += [f"file {file.path}", f"before: {file.before}", *patch.split(file.text)]
    return "\n".join(line.rstrip("\n") for line in lines) + "\n"
