"""A plan as a person reviews it without the project: each step complete, and the difference to the plan before. Pure.

`preview` compares the plan with the files of the project. This module needs only the records of the run, so that
another process or host can show what an approval covers.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from orchestrator.machines.approval import patch

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
        before = _previous(plan, context.get("versions") or ())
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


def _previous(plan: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the version before, or the plan of which this one is a part; None for the first."""
    source = plan.get("derived_from")
    for one in reversed(versions):
        known: Mapping[str, Any] = one.get("plan") or {}
        is_before = known.get("id") == plan.get("id") and known.get("version", 0) < plan.get("version", 0)
        if is_before or (source and one.get("digest") == source):
            return known
    return None


def _steps(plan: Mapping[str, Any]) -> Iterator[ReviewedStep]:
    targets = {target.get("path"): target for target in plan.get("targets") or ()}
    seen: set[str] = set()
    for step in plan.get("steps") or ():
        files = []
        for file in step.get("files") or ():
            path = str(file.get("path", ""))
            before = "as the steps before leave it" if path in seen else _before(targets.get(path))
            files.append(ReviewedFile(path, _change(path, file), before))
            seen.add(path)
        argv = [str(part) for part in step.get("argv") or ()]
        name, kind, title = (str(step.get(key, "")) for key in ("id", "kind", "title"))
        yield ReviewedStep(name, kind, title, tuple(files), shlex.join(argv), tuple(_facts(step)))


def _change(path: str, file: Mapping[str, Any]) -> str:
    if file.get("diff") is not None:
        return str(file["diff"])
    return "" if file.get("content") is None else patch.make(path, None, str(file["content"]))


def _before(target: Mapping[str, Any] | None) -> str:
    if target is None:
        return "unknown"
    if target.get("sha256") is None:
        return "does not exist" if target.get("encoding") is None else str(target["encoding"])
    return f"{target.get('size', 0):,} bytes, SHA-256 {target['sha256']}"


def _facts(step: Mapping[str, Any]) -> Iterator[str]:
    if step.get("argv"):
        yield f"at most {step.get('timeout', 0):g} s"
        yield NO_UNDO
    if step.get("depends_on"):
        yield f"after step {', '.join(map(str, step['depends_on']))}"
    yield from map(str, step.get("constraints") or ())


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
