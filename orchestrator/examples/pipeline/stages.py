"""The planner and the implementer: functions of the request, their only input."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from orchestrator.examples.pipeline.search import KEEP, shortest

_INCOMPLETE = re.compile(r"^- error: (\w+): \d+ of \d+ examples are not checked$", re.MULTILINE)
_FAILED = re.compile(r"^failed: (\w+): example (\d+)", re.MULTILINE)


def plan(request: Any) -> dict[str, Any]:
    """Plan one check for each function; all examples for the functions that the validator reported."""
    told = "\n".join(feedback.text for feedback in request.feedback)
    wanting = set(_INCOMPLETE.findall(told))
    functions = [
        {
            "name": wanted["name"],
            "takes": wanted["takes"],
            "summary": wanted["summary"],
            "checks": list(range(len(wanted["examples"]) if wanted["name"] in wanting else 1)),
        }
        for wanted in request.spec["functions"]
    ]
    return {"module": request.spec["module"], "functions": functions}


def implement(request: Any) -> str:
    """Write the module: for each function the shortest one that fits its first example and those that failed before."""
    told = "\n".join(feedback.text for feedback in request.feedback)
    failed = {(name, int(number)) for name, number in _FAILED.findall(told)}
    examples = {wanted["name"]: wanted["examples"] for wanted in request.spec["functions"]}
    parts: list[str] = []
    for function in request.plan.content["functions"]:
        name = function["name"]
        shown = [one for number, one in enumerate(examples[name]) if number == 0 or (name, number) in failed]
        chain = shortest([(one["given"], one["gives"]) for one in shown])
        if chain is None:
            raise ValueError(f"no function of a few steps does what the examples of {name} show")
        lines: Iterable[str] = [
            f"def {function['name']}({function['takes']}):",
            f'    """{function["summary"]}"""',
            f"    value = {function['takes']}",
            *(f"    value = {step.line}" for step in chain),
            "    return value",
        ]
        parts.append("\n\n" + "\n".join(lines) + "\n")
    helper = KEEP if any("keep(" in part for part in parts) else ""
    return f'"""Written from examples."""\n{helper}{"".join(parts)}'
