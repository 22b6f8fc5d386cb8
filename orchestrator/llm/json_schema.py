"""Check values against JSON schemas from outside, in time that is linear in the value for every schema.

The author of a schema controls each `pattern` in it. A regular expression engine that backtracks needs longer than
the universe lasts for `^(a+)+$` and forty characters, and no deadline interrupts it. `jsonschema-rs` has a linear
engine. It supports neither look-around nor back-references, so a schema that uses them is refused. Nothing is
fetched: a reference to another document, in the network or in a file, is refused too.

The package is imported for the first schema, so that `import orchestrator` stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias
from urllib.parse import unquote

from orchestrator.llm.message import encodable

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

_DEEPEST = 250
"""Maximum nesting of a value in levels; the checker recurses for each level."""
_LONGEST = 300
_DEFINITIONS = frozenset(("$defs", "definitions"))
_HEAVIEST = 100_000
"""Maximum number of subschemas, each counted once per reference to it: a value may be checked against all of them."""


class SchemaFault(NamedTuple):
    """A fault at one place of a value; the path is empty for the value itself."""

    path: tuple[str | int, ...]
    message: str


class UnusableSchema(ValueError):
    """No value can be checked against the schema; the message is a clause that gives the reason."""


class UnusablePattern(UnusableSchema):
    """A text is not a regular expression, or it cannot be matched in linear time."""


Check: TypeAlias = Callable[[Any], list[SchemaFault]]


def checker(schema: Mapping[str, Any]) -> Check:
    """Return a function that lists the faults of a value. Raises UnusableSchema."""
    try:
        _check_weight(schema)
        validator = _validator(dict(schema))
    except UnusableSchema:
        raise
    except (ValueError, RecursionError) as error:  # too deep, a number that is too long, or a lone surrogate
        raise UnusableSchema(f"it cannot be read ({_shortened(str(error))})") from error

    def check(value: Any) -> list[SchemaFault]:
        if _is_deep(value):
            return [SchemaFault((), f"the value is nested more than {_DEEPEST} levels deep")]
        try:
            errors = validator.iter_errors(encodable(value))
            return [SchemaFault(tuple(error.instance_path), _shortened(error.message)) for error in errors]
        except ValueError as error:  # a number that is too long, or a key that is not text
            return [SchemaFault((), f"the value cannot be checked ({_shortened(str(error))})")]

    return check


def _validator(schema: dict[str, Any]) -> Validator:
    from jsonschema_rs import RegexOptions, ValidationError, ValidationErrorKind, validator_for

    try:
        return validator_for(
            schema, validate_formats=False, retriever=_refuse, pattern_options=RegexOptions()
        )
    except ValidationError as error:
        if not isinstance(error.kind, ValidationErrorKind.Referencing):
            raise _unusable(error, is_pattern=isinstance(error.kind, ValidationErrorKind.Format)) from error
        if "$schema" in schema and "meta-schema" in error.message:
            # An unknown dialect is read as the newest one, because most servers mean that one.
            return _validator({name: part for name, part in schema.items() if name != "$schema"})
        problem = error.message.partition(" and retrieving")[0]
        if problem.startswith(("Pointer ", "Anchor ")):
            raise UnusableSchema(f"a $ref has no target in its document ({problem})") from error
        raise UnusableSchema(
            f"a reference leads to another document, and nothing is fetched ({problem})"
        ) from error


def _check_weight(schema: Mapping[str, Any]) -> None:
    """Raise UnusableSchema for references that multiply, because a check would take exponential time."""
    if _weight(schema) > _HEAVIEST:
        text = f"it has more than {_HEAVIEST:,} subschemas, each counted as often as $ref leads to it"
        raise UnusableSchema(text)


def _weight(schema: Mapping[str, Any]) -> int:
    """Return the number of subschemas after every local reference is replaced; a recursive one counts once."""
    weights: dict[int, int] = {}

    def weigh(part: Any) -> int:
        if not isinstance(part, Mapping | list):
            return 0
        if id(part) in weights:
            return weights[id(part)]
        weights[id(part)] = 1  # a reference back to itself
        inner = (
            [part[name] for name in part if name not in _DEFINITIONS] if isinstance(part, Mapping) else part
        )
        total = 1 + sum(map(weigh, inner))
        if isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
            total += weigh(_at(schema, part["$ref"]))
        weights[id(part)] = total
        return total

    return weigh(schema)


def _at(schema: Mapping[str, Any], reference: str) -> Any:
    """Return the target of a JSON pointer in the same document, or None if it has no target."""
    found: Any = schema
    for escaped in unquote(reference).removeprefix("#").split("/")[1:]:
        name = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is another document")


def _unusable(error: ValidationError, *, is_pattern: bool) -> UnusableSchema:
    where = ".".join(map(str, error.instance_path))
    if is_pattern:
        shown = _shortened(repr(error.instance))
        return UnusablePattern(
            f"the regular expression {shown} at {where} uses look-around or back-references, is too large or invalid; "
            "only expressions that match in linear time are allowed"
        )
    return UnusableSchema(f"{where}: {_shortened(error.message)}" if where else _shortened(error.message))


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _shortened(message: str) -> str:
    """Cut the middle out of a message that quotes a long value; the fault is named at its end."""
    return (
        message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
    )
