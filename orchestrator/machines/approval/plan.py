"""Intents, drafts and plans, and the port of the planner that makes them. Plain data, stored as JSON.

All answers of a planner are untrusted. A plan is the result of validating a draft on the project: it contains each
target before and after the change, byte for byte, so that the bytes that are shown, approved and written are the same.
It contains no times: the same draft on the same project gives the same plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.machines.approval.fault import ApprovalError, Fault

M = TypeVar("M", bound=BaseModel)


class StepKind(StrEnum):
    """Kind of a step."""

    CREATE = "create"
    EDIT = "edit"
    DELETE = "delete"
    RUN = "run"


class _Data(BaseModel):
    """Immutable data without further keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileChange(_Data):
    """One file of a step: `content` to create, `diff` to edit, neither to delete."""

    path: str
    """Path below the project, with `/`."""
    content: str | None = None
    diff: str | None = None
    """A unified diff of this file with exact context."""
    sha256: str | None = None
    """Digest of the file before the change, if the planner knows it."""


class PlanStep(_Data):
    """One step: files of one kind, or one command."""

    id: str
    kind: StepKind
    title: str = ""
    files: tuple[FileChange, ...] = ()
    argv: tuple[str, ...] = ()
    """A program and its arguments; there is no shell."""
    timeout: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """Maximum seconds of the command."""
    depends_on: tuple[str, ...] = ()
    """Ids of earlier steps."""
    constraints: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that the step changes."""
        return tuple(file.path for file in self.files)


class PlanDraft(_Data):
    """A plan as a planner or a plan file describes it."""

    goal: str = ""
    steps: tuple[PlanStep, ...]

    @classmethod
    def read(cls, plain: Any) -> PlanDraft:
        """Parse a draft. Raises ApprovalError VAL-002."""
        return read_as(cls, plain, "the plan")


class Fingerprint(_Data):
    """The state of a file. `sha256` and `encoding` are None if it does not exist."""

    path: str
    sha256: str | None = None
    size: int = 0
    """Bytes."""
    encoding: str | None = None
    """`utf-8`, `utf-8-sig` or `binary`; or the kind of a non-file: directory, symlink, special, unreachable."""


class StepOutcome(_Data):
    """The files of one step after it has run."""

    step: str
    files: tuple[Fingerprint, ...] = ()


class ApprovalPlan(PlanDraft):
    """A validated draft that can be approved."""

    id: str
    version: int
    intent_digest: str = ""
    caps_digest: str = ""
    """Digest of the caps that it was checked against."""
    targets: tuple[Fingerprint, ...] = ()
    """Every file that the plan changes, before the change, in order of the paths."""
    outcomes: tuple[StepOutcome, ...] = ()
    """The files after each step."""
    derived_from: str = ""
    """Digest of the plan that this plan is an approved part of."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the whole plan as canonical JSON."""
        return digest_of(self.plain())

    def plain(self) -> dict[str, Any]:
        """Return the plan as JSON types."""
        return self.model_dump(mode="json")

    @classmethod
    def read(cls, plain: Any) -> ApprovalPlan:
        """Parse the result of `plain`. Raises ApprovalError VAL-002."""
        return read_as(cls, plain, "the stored plan")

    def step_label(self, step: PlanStep | str) -> str:
        """Return the name of a step that is unique among the steps of all plans."""
        return f"{self.label}{step if isinstance(step, str) else step.id}"

    def expected(self, done: Collection[str] = ()) -> dict[str, Fingerprint]:
        """Return the expected state of every file of the plan after the steps `done`, by path."""
        expected = {target.path: target for target in self.targets}
        for outcome in self.outcomes:
            if outcome.step in done:
                expected |= {file.path: file for file in outcome.files}
        return expected

    @property
    def results(self) -> tuple[Fingerprint, ...]:
        """Every file that the plan changes, after the change."""
        return tuple(self.expected([step.id for step in self.steps]).values())

    @property
    def label(self) -> str:
        """Prefix of the names of its steps."""
        return f"{self.id}.{self.version}/"

    def ids(self, labels: Iterable[str]) -> tuple[str, ...]:
        """Return the ids of steps from their unique names."""
        return tuple(one.removeprefix(self.label) for one in labels)

    def step(self, step_id: str) -> PlanStep:
        """Return one of its steps. Raises ApprovalError VAL-019."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise ApprovalError(_unknown(step_id, self.steps))


def selection(plan: ApprovalPlan, chosen: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the chosen steps and of all steps that they depend on, in the order of the plan.

    A step depends on the steps that it names and on every earlier step that touches one of its files. A command
    depends only on the steps that it names. Raises ApprovalError VAL-019.
    """
    wanted = set(chosen)
    known = [step.id for step in plan.steps]
    if unknown := sorted(wanted - set(known)):
        raise ApprovalError([_unknown(one, plan.steps) for one in unknown])
    if not wanted:
        raise ApprovalError(Fault("VAL-019", f"no step was chosen; there are {', '.join(known)}"))
    for index in reversed(range(len(plan.steps))):
        step = plan.steps[index]
        if step.id in wanted:
            same = {one.id for one in plan.steps[:index] if set(one.paths) & set(step.paths)}
            wanted.update(same | set(step.depends_on))
    return tuple(one for one in known if one in wanted)


def part(plan: ApprovalPlan, chosen: Collection[str]) -> PlanDraft:
    """Return a draft with only the chosen steps, for a new validation. Constraints do not change."""
    return PlanDraft(goal=plan.goal, steps=tuple(step for step in plan.steps if step.id in chosen))


def digest_of(plain: Any) -> str:
    """Return the SHA-256 (hex) of data as canonical JSON."""
    return hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_as(kind: type[M], plain: Any, what: str) -> M:
    """Parse plain data as a model. Raises ApprovalError VAL-002, which names the faults but no content."""
    try:
        return kind.model_validate_json(orjson.dumps(plain))
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, one['loc'])) or what}: {one['msg']}" for one in error.errors()[:5])
        raise ApprovalError(Fault("VAL-002", f"{what} cannot be read: {'; '.join(faults)}")) from None
    except (TypeError, RecursionError) as error:
        raise ApprovalError(Fault("VAL-002", f"{what} is not plain data: {error}")) from None


def _unknown(step_id: str, steps: tuple[PlanStep, ...]) -> Fault:
    return Fault("VAL-019", f"there is no step {step_id!r}; there are {', '.join(one.id for one in steps)}")


# ---- intents ----


LONGEST_REQUEST = 20_000
"""Maximum number of characters of a request."""


def spoken(text: str, what: str) -> str:
    """Return the text of a person if it can be encoded. Raises ApprovalError VAL-001."""
    try:
        text.encode()
    except (
        UnicodeEncodeError
    ):  # command-line bytes that are not UTF-8, or a lone surrogate of another program
        raise ApprovalError(Fault("VAL-001", f"{what} is not valid UTF-8 text")) from None
    return text


class IntentKind(StrEnum):
    """Kind of the requested work."""

    CREATE_PROJECT = "CreateProject"
    ADD_FEATURE = "AddFeature"
    FIX_BUG = "FixBug"
    BUILD_PACKAGE = "BuildPackage"
    UNKNOWN = "Unknown"


class Strength(StrEnum):
    """Strength of a constraint."""

    MUST = "MUST"
    MUST_NOT = "MUST_NOT"
    PREFER = "PREFER"


class Constraint(BaseModel):
    """A condition of the person."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strength: Strength
    text: str


class Intent(BaseModel):
    """One change that the person requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: IntentKind
    summary: str = Field(min_length=1)
    confidence: float = Field(ge=0, le=1, allow_inf_nan=False)
    """How sure the model is, 0 to 1."""
    constraints: tuple[Constraint, ...] = ()
    question: str = ""
    """Question for the person if the model is not sure."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the intent."""
        return digest_of(self.plain())

    def plain(self) -> dict[str, Any]:
        """Return the intent as JSON types."""
        return self.model_dump(mode="json")

    @classmethod
    def read(cls, plain: Any) -> Intent:
        """Parse the result of `plain`. Raises ApprovalError VAL-002."""
        return read_as(cls, plain, "the intent")


class Extraction(BaseModel):
    """All intents of a request, one plan each, in this order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    intents: tuple[Intent, ...] = Field(min_length=1, max_length=10)


ConfidenceDecision: TypeAlias = Literal["proceed", "confirm", "reject"]


def decide_confidence(intent: Intent, *, proceed: float = 0.85, confirm: float = 0.60) -> ConfidenceDecision:
    """Return the action that the confidence of an intent allows: proceed, ask the person to confirm, or reject.

    An intent of unknown kind can be confirmed, but never proceeds without confirmation.
    """
    if intent.confidence < confirm:
        return "reject"
    return "confirm" if intent.confidence < proceed or intent.kind is IntentKind.UNKNOWN else "proceed"


# ---- drift ----


_INSTEAD = {
    "directory": "a folder is there",
    "symlink": "a symlink is there",
    "special": "a device, pipe or socket is there",
    "unreachable": "its folder is no longer a folder",
}


@dataclass(frozen=True, slots=True)
class DriftEntry:
    """One file that differs from its expected state."""

    expected: Fingerprint
    found: Fingerprint

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.expected.path

    @property
    def why(self) -> str:
        """Description of the difference for a person."""
        if self.found.sha256 is None:
            there = _INSTEAD.get(self.found.encoding or "")
            return "was removed outside" if there is None else f"was replaced outside: {there}"
        return "was made outside" if self.expected.sha256 is None else "was changed outside"

    def plain(self) -> dict[str, Any]:
        """Return the entry as JSON types."""
        sides = {"expected": self.expected, "found": self.found}
        return {
            "path": self.path,
            "why": self.why,
            **{name: side.model_dump(mode="json", exclude={"path"}) for name, side in sides.items()},
        }

    def __str__(self) -> str:
        return f"{self.path!r} {self.why}"


@dataclass(frozen=True, slots=True)
class DriftReport:
    """All differences in order of the paths. False if there are none."""

    entries: tuple[DriftEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def plain(self) -> list[dict[str, Any]]:
        """Return the report as JSON types."""
        return [entry.plain() for entry in self.entries]


# ---- the planner port ----


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The input of a plan."""

    intent: Intent
    changes: str = ""
    """Changes to the previous plan that the person requested."""
    previous: ApprovalPlan | None = None
    """The previous plan."""
    faults: tuple[Fault, ...] = ()
    """Faults of the previous answer."""
    tree: tuple[Fingerprint, ...] = ()
    """The files of the project."""


class ApprovalPlanner(Protocol):
    """Makes plans. Raises ApprovalError with a code of the families AI, CFG or VAL."""

    @property
    def regenerates(self) -> bool:
        """Whether another request can give another plan."""
        ...

    async def extract(self, text: str) -> Extraction:
        """Return the intents of a person's text."""
        ...

    async def plan(self, request: PlanRequest) -> PlanDraft:
        """Return the plan for one intent."""
        ...

    async def reachable(self) -> Fault | None:
        """Return the fault that prevents requests now, or None."""
        ...
