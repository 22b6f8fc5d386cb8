"""Requests and responses of the service."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.runtime.service.arguments import IfExists

MAX_PROMPT = 100_000
"""Characters of a prompt."""


class StartRequest(BaseModel):
    """A run to start. A client that repeats a request after a lost response gives its own `run_id`."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    run_id: str | None = Field(None, pattern=r"^[A-Za-z0-9._~-]{1,64}$")
    if_exists: IfExists = Field(
        "raise",
        description="For a run_id that exists: 409 with `raise`; `resume` continues the run, unless it has ended "
        "or waits for a person; `return` leaves it alone. With the last two, the answer has `repeated`: true.",
    )
    conversation_id: str | None = None
    tags: dict[str, str] = {}
    metadata: dict[str, Any] = {}


Digest: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""The whole digest of a question."""


class AnswerRequest(BaseModel):
    """An answer to a question. With `digest` it counts only for exactly the arguments that the person saw."""

    model_config = ConfigDict(extra="forbid")
    call: str | None = None
    digest: Digest | None = None
    why: str = ""


class ApproveRequest(AnswerRequest):
    """An approval, for exactly the call with this digest; `arguments` (JSON text) replace those of the model."""

    digest: Digest
    arguments: str | None = None


class RejectRequest(AnswerRequest):
    """A rejection; with `end` the run ends as `rejected`."""

    end: bool = False


class RespondRequest(AnswerRequest):
    """An answer in place of the tool."""

    content: str = Field(max_length=MAX_PROMPT)


class CancelRequest(BaseModel):
    """A request that the run stops."""

    model_config = ConfigDict(extra="forbid")
    why: str = ""


class RunInfo(BaseModel):
    """A run in a listing."""

    model_config = ConfigDict(from_attributes=True)
    run_id: str
    agent: str
    status: str
    state: str
    outcome: str
    reason: str
    waiting: str
    tokens: int | None
    tags: dict[str, str]
    created_at: float
    updated_at: float


class RunListing(BaseModel):
    """A page of a listing. `after` of the next page is the last run of this one."""

    runs: list[RunInfo]
    more: bool


class QuestionInfo(BaseModel):
    """A question to a person."""

    model_config = ConfigDict(from_attributes=True)
    key: str
    tool: str
    arguments: str
    digest: str
    why: str
    expires_at: float


class ResultInfo(BaseModel):
    """The end of a run."""

    run_id: str
    outcome: str
    reason: str
    output: Any
    tokens: int
    error: str | None


class Accepted(BaseModel):
    """A request that the journal has stored."""

    run_id: str
    repeated: bool = False
    """It was stored before."""
