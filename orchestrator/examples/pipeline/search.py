"""Find the shortest chain of small steps that converts each given value to its expected value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
