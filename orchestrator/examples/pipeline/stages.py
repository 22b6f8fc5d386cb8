"""The planner and the implementer: functions of the request, their only input.

The implementer finds the shortest chain of small steps that converts each given value to its expected value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

LONGEST = 6
"""Maximum steps of a chain."""


class Step(NamedTuple):
    """One line of a function: the statement `value = …`, and the same as a function."""

    takes: type
    line: str
    apply: Callable[[Any], Any]


STEPS = (
    Step(str, "value.strip()", str.strip),
    Step(str, "value.lower()", str.lower),
    Step(str, "value.upper()", str.upper),
    Step(
        str,
        'keep(value, " ")',
        lambda value: "".join(one for one in value if one.isalnum() or one == " "),
    ),
    Step(str, 'keep(value, "")', lambda value: "".join(one for one in value if one.isalnum())),
    Step(str, "value.split()", str.split),
    Step(str, "len(value)", len),
    Step(str, "value == value[::-1]", lambda value: value == value[::-1]),
    Step(list, "[word[0] for word in value]", lambda value: [word[0] for word in value]),
    Step(list, "list(dict.fromkeys(value))", lambda value: list(dict.fromkeys(value))),
    Step(list, "sorted(value)", sorted),
    Step(list, "max(value, key=len)", lambda value: max(value, key=len)),
    Step(list, "value[0]", lambda value: value[0]),
    Step(list, "len(value)", len),
    Step(list, '"-".join(value)', "-".join),
    Step(list, '" ".join(value)', " ".join),
    Step(list, '"".join(value)', "".join),
)

KEEP = '''

def keep(value, others):
    """Return the letters and digits of a text, and those of `others`."""
    return "".join(one for one in value if one.isalnum() or one in others)
'''
"""A helper for the lines above."""

Chain = tuple[Step, ...]


def shortest(examples: Sequence[tuple[Any, Any]]) -> Chain | None:
    """Return the shortest chain that fits every (given, gives), the first of several in the order of STEPS.

    Chains with equal results for all given values are followed once, so the search is short and deterministic.
    """
    expected = [gives for _, gives in examples]
    level: list[tuple[Chain, list[Any]]] = [((), [given for given, _ in examples])]
    seen: set[str] = set()
    for _ in range(LONGEST):
        following: list[tuple[Chain, list[Any]]] = []
        for chain, values in level:
            for step, become in _ways(values):
                if all(
                    type(one) is type(other) and one == other
                    for one, other in zip(become, expected, strict=True)
                ):
                    return (*chain, step)
                if (shape := repr(become)) not in seen:
                    seen.add(shape)
                    following.append(((*chain, step), become))
        level = following
    return None


def _ways(values: list[Any]) -> Iterator[tuple[Step, list[Any]]]:
    for step in STEPS:
        if all(type(value) is step.takes for value in values):
            try:
                yield step, [step.apply(value) for value in values]
            except (ValueError, IndexError):  # of an empty text or list
                continue


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
