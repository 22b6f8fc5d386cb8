"""Conversion of a port's result to the result of its stage. An invalid result fails the stage and the run.

A plan or an implementation without a JSON form is not invalid: the stage has run and must not be repeated, so a notice
takes the place of its content, for the next stages to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.errors import RunError
from orchestrator.llm.message import encodable
from orchestrator.machines.pipeline import progress
from orchestrator.machines.pipeline.model import (
    Evaluation,
    Implementation,
    Issue,
    OrchestrationState,
    Plan,
    Severity,
    Validation,
)
from orchestrator.machines.pipeline.progress import Made
from orchestrator.machines.pipeline.rubric import Rubric
from orchestrator.machines.plain import plain_json
from orchestrator.tools.result import description_of, json_data, no_json_form, unreadable_notice


class UnreadableContent(dict[str, Any]):
    """A notice in place of content without a JSON form, with type and start of the `repr` of the content."""


def read(stage: OrchestrationState, given: Any, rubric: Rubric) -> Made:
    """Return the result of a stage, with its content as plain data. Raises RunError with the fault."""
    found = _READERS[stage](given)
    if _number(found.tokens, "tokens", int) < 0:
        raise RunError(f"{stage.value} gave tokens {found.tokens}; it must be 0 or more")
    if isinstance(found, Evaluation):
        _check(found, rubric)
    if isinstance(found, Plan | Implementation):
        return replace(found, content=_content(stage, found.content, given))
    try:
        plain_json(progress.plain(found))
    except ValueError as error:
        raise RunError(f"{stage.value} returned a value that cannot be stored as JSON: {error}") from None
    return found


def _content(stage: OrchestrationState, content: Any, given: Any) -> Any:
    """Return content as JSON types, which a resumed run has as well; a notice if it has no such form."""
    if content is None:
        raise RunError(f"{stage.value} returned nothing; it must return a result")
    try:
        return plain_json(json_data(_unwrapped(content) if content is given else content))
    except Exception as error:  # noqa: BLE001 - code of the content can raise anything
        notice = unreadable_notice("stage", "stage", no_json_form(content, error))
        return UnreadableContent(notice, returned=description_of(content))


def _unwrapped(given: Any) -> Any:
    """Return a pydantic model as a mapping."""
    dump = getattr(given, "model_dump", None)
    return dump(mode="json") if callable(dump) else given


def _plan(given: Any) -> Plan:
    return given if isinstance(given, Plan) else Plan(given)


def _implementation(given: Any) -> Implementation:
    return given if isinstance(given, Implementation) else Implementation(given)


def _validation(given: Any) -> Validation:
    found: Any = _unwrapped(given)
    tokens = 0
    if isinstance(given, Validation):
        found, tokens = given.issues, given.tokens
    elif isinstance(found, Mapping) and "issues" in found:
        found, tokens = found["issues"], _number(found.get("tokens", 0), "tokens", int)
    if not isinstance(found, list | tuple | set | frozenset | Iterator):
        raise RunError(f"validating gave {_kind(found)}; it must give a Validation or a list of issues")
    return Validation(tuple(map(_issue, found)), tokens)


def _issue(given: Any) -> Issue:
    if isinstance(given, Issue):
        return Issue(_severity(given.severity), _text(given.message), _text(given.where))
    if not isinstance(given, Mapping) or "message" not in given:
        raise RunError(f"validating gave an issue that is {_kind(given)}; it needs severity and message")
    return Issue(
        _severity(given.get("severity", "error")), _text(given["message"]), _text(given.get("where") or "")
    )


def _severity(given: Any) -> Severity:
    try:
        return Severity(given)
    except ValueError:
        known = ", ".join(Severity)
        raise RunError(f"validating gave an issue of severity {given!r}; allowed: {known}") from None


def _text(given: Any) -> str:
    return str(encodable(str(given)))


def _evaluation(given: Any) -> Evaluation:
    given = _unwrapped(given)
    if isinstance(given, Evaluation):
        return Evaluation(
            _number(given.score, "score", float),
            _scores(given.categories),
            _text(given.comments),
            given.tokens,
        )
    if not isinstance(given, Mapping) or "score" not in given:
        raise RunError(f"judging gave {_kind(given)}; it must give an Evaluation or a mapping with a score")
    return Evaluation(
        _number(given["score"], "score", float),
        _scores(given.get("categories") or {}),
        _text(given.get("comments") or ""),
        _number(given.get("tokens", 0), "tokens", int),
    )


def _scores(given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise RunError(f"judging gave categories that are {_kind(given)}; they must map names to scores")
    return {_text(name): _number(value, f"category {name}", float) for name, value in given.items()}


def _check(found: Evaluation, rubric: Rubric) -> None:
    """Reject scores outside the scale, because they must not pass."""
    for name, value in (("score", found.score), *found.categories.items()):
        if not 0 <= value <= rubric.top:
            raise RunError(f"judging gave {name} {value:g}; scores are from 0 to {rubric.top:g}")


def _number(value: Any, name: str, kind: type[Any]) -> Any:
    wanted = int if kind is int else int | float
    if isinstance(value, bool) or not isinstance(value, wanted) or not math.isfinite(value):
        raise RunError(f"a stage gave {name} {value!r}; it must be a number")
    return kind(value)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


_READERS: Mapping[OrchestrationState, Callable[[Any], Made]] = {
    OrchestrationState.PLANNING: _plan,
    OrchestrationState.VALIDATING: _validation,
    OrchestrationState.IMPLEMENTING: _implementation,
    OrchestrationState.JUDGING: _evaluation,
}
