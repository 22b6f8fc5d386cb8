"""The person's intent as a model understood it, and the action that its confidence allows."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.plan import digest_of, read_as

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
