"""The cases of an evaluation set: the input of an agent, and what is expected of its run. Checked when made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.json_schema import Check, UnusableSchema, checker

WAITING: Final = "waiting"
"""Outcome of a case whose run asks a person for whom the case has no answer."""
OUTCOMES: Final = (*(outcome.value for outcome in Outcome), WAITING)
REASON_NAMES: Final = tuple(sorted(frozenset().union(*REASONS.values())))
DECISIONS: Final = ("approve", "reject", "respond")
_LONGEST_NAME: Final = 200
_OF_THE_RUN: Final = frozenset(("name", "input", "messages", "metadata", "answers"))


def digest_of(parts: Any, default: Callable[[object], object] | None = None) -> str:
    """Return the SHA-256 (hex) of data as JSON with sorted keys; `default` converts what is no JSON."""
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS, default=default)).hexdigest()


def _listed(value: object) -> object:
    return [value] if isinstance(value, str | Mapping) else value


def _called(value: object) -> object:
    return {"tool": value} if isinstance(value, str) else value


def _name(value: str) -> str:
    if not value.strip() or len(value) > _LONGEST_NAME or not value.isprintable():
        raise ValueError(f"give 1 to {_LONGEST_NAME} printable characters")
    return value


def _exact(value: object) -> object:
    return {"equals": value} if isinstance(value, str) else value


def _answered(value: object) -> object:
    """Return the members of an answer: `approve`, `{reject: why}`, `{respond: text}`, `{approve: arguments}`."""
    if isinstance(value, str):
        return {"decision": value}
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    ((decision, content),) = value.items()
    member = "arguments" if decision == "approve" else "text"
    return value if decision == "decision" else {"decision": decision, member: content}


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False, strict=False
    )


class OutputExpectation(_Part):
    """What the final answer must be. A structured output is compared as JSON; a text that is JSON is parsed."""

    equals: Any = None
    """The exact answer."""
    contains: Texts = ()
    """Texts that the answer has; letters must have the same case."""
    excludes: Texts = ()
    """Texts that the answer does not have."""
    matches: str | None = None
    """A regular expression that fits a part of the answer. It runs in linear time, so it has no look-around."""
    json_schema: Mapping[str, Any] | None = Field(None, alias="schema")
    """A JSON schema that the answer fits."""
    fields: Mapping[str, Any] = Field(default_factory=dict)
    """Path of a member -> its value: `order.items.0.sku: A1`."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        for what, schema in (("schema", self.json_schema), ("matches", _pattern(self.matches))):
            if schema is not None:
                try:
                    checker(schema)
                except UnusableSchema as error:
                    raise ValueError(f"{what} cannot be used: {error}") from None
        return self

    @cached_property
    def fits_pattern(self) -> Check:
        """The check of `matches`."""
        return checker(_pattern(self.matches) or {})

    @cached_property
    def fits_schema(self) -> Check:
        """The check of `schema`."""
        return checker(self.json_schema or {})


def _pattern(matches: str | None) -> Mapping[str, Any] | None:
    return None if matches is None else {"type": "string", "pattern": matches}


class TransitionExpectation(_Part):
    """What the path of the run must be: names of states."""

    visited: Texts = ()
    not_visited: Texts = ()
    order: Texts = ()
    """States that the run enters in this order, with any others between them."""
    path: Texts = ()
    """Every state in order, from the initial to the terminal one; a state that repeats itself counts once."""


class CallExpectation(_Part):
    """One tool that must run: `search`, or `{tool: search, arguments: {query: moon}, times: 2}`."""

    tool: str
    arguments: Mapping[str, Any] | None = None
    """Arguments that the call has; others are free."""
    times: int | None = Field(None, ge=1)
    """Number of such calls; None for one or more."""


class ToolExpectation(_Part):
    """Which tools must run. A call that a person rejects, or that the agent refuses, does not run its tool."""

    called: Annotated[
        tuple[Annotated[CallExpectation, BeforeValidator(_called)], ...], BeforeValidator(_listed)
    ] = ()
    not_called: Texts = ()
    order: Texts = ()
    """Tools that run in this order, with any others between them."""
    asked: Texts = ()
    """Tools about whose calls a person is asked."""


class CaseLimits(_Part):
    """The most that the run may use; it is not stopped there. None is no limit."""

    cost: float | None = Field(None, ge=0)
    """In the currency of the price table."""
    tokens: int | None = Field(None, ge=0)
    requests: int | None = Field(None, ge=0)
    """Answers of the model."""
    tool_calls: int | None = Field(None, ge=0)
    seconds: float | None = Field(None, ge=0)
    """Time of the run, without waiting for people."""


class Expectation(_Part):
    """What is expected of the run of a case."""

    outcome: Literal[OUTCOMES] = Outcome.COMPLETED.value  # type: ignore[valid-type]
    """One outcome, or `waiting`: the run asks a person for whom the case has no answer."""
    reason: Literal[REASON_NAMES] | None = None  # type: ignore[valid-type]
    """Reason of the end of the run."""
    output: Annotated[OutputExpectation | None, BeforeValidator(_exact)] = None
    """Members of OutputExpectation, or a text: the exact answer."""
    transitions: TransitionExpectation = TransitionExpectation()
    tools: ToolExpectation = ToolExpectation()
    at_most: CaseLimits = CaseLimits()


class CaseAnswer(_Part):
    """The answer to every question of the run about one tool: `approve`, `{reject: why}`, `{respond: text}`."""

    decision: Literal[DECISIONS]  # type: ignore[valid-type]
    text: str = ""
    """The reason of a rejection, or the response."""
    arguments: Mapping[str, Any] | None = None
    """Arguments with which an approved call runs instead."""


class EvaluationCase(_Part):
    """One case of an evaluation set.

    Example:
        >>> EvaluationCase(name="capital", input="Capital of France?", expect=Expectation(reason="none")).expect.outcome
        'completed'
    """

    name: Annotated[str, AfterValidator(_name)]
    """Unique in its set."""
    input: str | None = None
    """The prompt."""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """A conversation in OpenAI form instead of the prompt; its last message is what the agent answers."""
    metadata: Mapping[str, Any] | None = None
    """Metadata of the run, as in `Agent.run`."""
    tags: Texts = ()
    """Words by which cases are selected."""
    answers: Mapping[str, Annotated[CaseAnswer, BeforeValidator(_answered)]] = Field(default_factory=dict)
    """Name of a tool -> the answer to questions about its calls."""
    reference: Any = None
    """A good answer, for judges; it is not compared."""
    expect: Expectation = Expectation()
    judges: Texts | None = None
    """Names of the judges; None for all of the evaluation."""
    threshold: float = Field(0.5, ge=0, le=1)
    """The least score of a judge that passes."""

    @model_validator(mode="after")
    def _has_one_input(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise ValueError("give either input (a text) or messages (a conversation)")
        if not (self.input or "x").strip() or self.messages == ():
            raise ValueError("the input is empty")
        return self

    @property
    def prompt(self) -> Any:
        """The input of `Agent.run`."""
        return self.input if self.messages is None else [dict(one) for one in self.messages]

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the parts that the run depends on; expectations and judges are not among them."""
        return self._digest(include=_OF_THE_RUN)

    @cached_property
    def checks_digest(self) -> str:
        """SHA-256 (hex) of the parts that only the verdict depends on."""
        return self._digest(exclude=_OF_THE_RUN)

    def _digest(self, **parts: Any) -> str:
        return digest_of(self.model_dump(mode="json", **parts))
