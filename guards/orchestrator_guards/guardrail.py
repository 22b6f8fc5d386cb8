"""Guardrails: checks of an agent's input and output, on numbers and digests that are taken from the text.

A check is a guard like every other: a pure function of numbers and digests that returns a `Verdict`. The inputs are
taken from the text beforehand and are recorded with the verdict, so a backtest evaluates another check on them, and no
text enters the record. A check that awaits or calls a model is a hook, not a guardrail.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from orchestrator_guards.evaluation import is_storable
from orchestrator_guards.progress import digest
from orchestrator_guards.verdict import GUARD_NAMES, Verdict

Action: TypeAlias = Literal["end", "refuse", "retry"]
Extract: TypeAlias = str | re.Pattern[str] | Callable[[Any], float | str]
"""A regular expression, whose matches are counted, or a function that returns a number, a closed word or a digest."""


class CheckedText(NamedTuple):
    """What a guardrail reads."""

    value: Any
    """The text of the input, or the output in its type."""
    text: str
    """The same as text; an output of another type is JSON."""
    attachments: int = 0
    """Parts of the input that are no text: images, files."""


_INPUTS: Final[Mapping[str, Callable[[CheckedText], float | str]]] = {
    "chars": lambda checked: len(checked.text),
    "words": lambda checked: len(checked.text.split()),
    "digest": lambda checked: digest(checked.text),
    "attachments": lambda checked: checked.attachments,
}
"""Inputs that every check may have as parameters."""


class GuardrailVerdict(NamedTuple):
    """The verdict of a guardrail, with the inputs of its check."""

    guardrail: Guardrail
    verdict: Verdict
    inputs: Mapping[str, float | str]

    @property
    def row(self) -> tuple[Any, ...]:
        """The evaluation as a journal keeps it: as for every guard, then the inputs by name, and the action."""
        return *self.verdict[:4], self.guardrail.name, dict(self.inputs), self.guardrail.on_refusal


@dataclass(frozen=True, slots=True)
class Guardrail:
    r"""A check of the input or the output of an agent, and what its refusal does.

    Args:
        check: A pure function that returns a Verdict, or True to allow. Its parameters are `chars`, `words`, `digest`
            (16 hexadecimal digits that identify the text), `attachments` (parts of the input that are no text), and
            the names in `inputs`. A parameter with a default may be none of them.
        inputs: Name of a parameter -> a regular expression, whose matches in the text are counted, or a function of
            the text (of the output in its type) that returns a number, a closed word or a digest.
        on_refusal: `end`: the run ends as failed (guardrail). `refuse`: it ends as rejected (guardrail), because a
            refusal is an ordinary answer to that input. `retry`, for outputs: the model reads the verdict and answers
            again while completion retries are left, then the run ends as failed (guardrail).
        name: Name in metrics and records; that of the function by default.

    Raises:
        ValueError: A parameter of the check is no input, an input is not used, or the name is taken by another guard.

    Example:
        >>> def no_cards(cards: int) -> Verdict:
        ...     return Verdict(cards == 0, "no_cards", cards, detail="card numbers")
        >>> guardrail = Guardrail(no_cards, {"cards": r"\b(?:\d[ -]?){13,16}\b"}, on_refusal="retry")
        >>> guardrail.evaluate(CheckedText("4111 1111 1111 1111", "4111 1111 1111 1111")).verdict.ok
        False
    """

    check: Callable[..., Any]
    inputs: Mapping[str, Extract] = field(default_factory=dict)
    on_refusal: Action = "end"
    name: str = ""

    def __post_init__(self) -> None:
        check: object = self.check
        if not callable(check) or inspect.isclass(check):
            raise ValueError(f"a guardrail is {check!r:.80}; give a function that returns a Verdict")
        name = self.name or getattr(self.check, "__name__", "")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"the name of guardrail {name!r} is no label of a metric; give name= with letters, digits and _"
            )
        if name in GUARD_NAMES:
            raise ValueError(f"guardrail {name!r} has the name of another guard; give another name=")
        if self.on_refusal not in get_args(Action):
            actions = ", ".join(map(repr, get_args(Action)))
            raise ValueError(f"on_refusal of guardrail {name!r} is {self.on_refusal!r}; possible: {actions}")
        object.__setattr__(self, "name", name)
        object.__setattr__(
            self, "inputs", {key: _extract(name, key, one) for key, one in self.inputs.items()}
        )
        taken = self.parameters
        if unused := [key for key in self.inputs if key not in taken]:
            raise ValueError(f"guardrail {name!r} has an input {unused[0]!r} that its check does not take")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The inputs that the check takes. Raises ValueError for a parameter that is none."""
        known = (*_INPUTS, *self.inputs)
        found: list[str] = []
        for parameter in inspect.signature(self.check).parameters.values():
            if parameter.name in known and parameter.kind in _NAMED:
                found.append(parameter.name)
            elif parameter.default is parameter.empty:
                raise ValueError(
                    f"the check of guardrail {self.name!r} has a parameter {parameter.name!r}; it takes some of: "
                    f"{', '.join(known)}. Add others with inputs="
                )
        return tuple(found)

    def evaluate(self, checked: CheckedText) -> GuardrailVerdict:
        """Take the inputs from a text and evaluate the check.

        Raises:
            ValueError: The check or a function of an input raised, or returned something else. A guardrail that cannot
                be evaluated allows nothing.
        """
        given = {name: self._input(name, checked) for name in self.parameters}
        return GuardrailVerdict(self, self.decide(given), given)

    def decide(self, given: Mapping[str, float | str]) -> Verdict:
        """Evaluate the check on inputs that were taken before, as those of a record. Raises as `evaluate`."""
        try:
            verdict = self.check(**{name: given[name] for name in self.parameters})
        except Exception as error:
            raise ValueError(f"guardrail {self.name!r} raised {type(error).__name__}: {error}") from error
        if isinstance(verdict, bool):
            return Verdict(verdict, self.name)
        if not isinstance(verdict, Verdict) or not all(map(is_storable, verdict[2:4])):
            if inspect.iscoroutine(verdict):
                verdict.close()
            raise ValueError(
                f"guardrail {self.name!r} returned {type(verdict).__name__}; it must return a Verdict with finite "
                "numbers or a bool. Put a check that awaits or calls a model into a hook or an output validator"
            )
        return verdict._replace(ok=bool(verdict.ok), guard=self.name)

    def _input(self, name: str, checked: CheckedText) -> float | str:
        extract = self.inputs.get(name)
        if extract is None:
            return _INPUTS[name](checked)
        if isinstance(extract, re.Pattern):
            return sum(1 for _ in extract.finditer(checked.text))
        assert not isinstance(extract, str)  # noqa: S101 - compiled by the constructor
        try:
            taken = extract(checked.value)
        except Exception as error:
            raise ValueError(
                f"input {name!r} of guardrail {self.name!r} raised {type(error).__name__}: {error}"
            ) from error
        if not is_storable(taken) and not (isinstance(taken, str) and _WORD.fullmatch(taken)):
            raise ValueError(
                f"input {name!r} of guardrail {self.name!r} is {type(taken).__name__}; return a finite number, a word "
                "of at most 64 letters and digits, or a digest: records and metrics have no texts"
            )
        return taken


def guardrails_of(given: Iterable[Guardrail | Callable[..., Any]]) -> tuple[Guardrail, ...]:
    """Return checks as guardrails; a plain function ends the run. Raises ValueError, also for two of one name."""
    found = tuple(one if isinstance(one, Guardrail) else Guardrail(one) for one in given)
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two guardrails have the name {twice[0]!r}; give one of them another name=")
    return found


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORD: Final = re.compile(r"[A-Za-z0-9_.:+-]{1,64}")


def _extract(guardrail: str, name: str, given: object) -> object:
    if name in _INPUTS or not name.isidentifier():
        raise ValueError(
            f"input {name!r} of guardrail {guardrail!r} cannot be defined; give another name of a parameter, not one "
            f"of: {', '.join(_INPUTS)}"
        )
    if isinstance(given, str):
        try:
            return re.compile(given)
        except re.error as error:
            raise ValueError(
                f"input {name!r} of guardrail {guardrail!r} is no regular expression: {error}"
            ) from error
    if isinstance(given, re.Pattern) or callable(given):
        return given
    raise ValueError(
        f"input {name!r} of guardrail {guardrail!r} is {given!r:.80}; give a regular expression or a function"
    )
