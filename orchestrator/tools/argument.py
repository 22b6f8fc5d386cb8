"""Convert the text of a call to arguments: check it, refuse bad text, and write one canonical form.

The canonical form is JSON text: the arguments after checking and coercion, with defaults, in the order of the schema.
A person reads it, a digest covers it, the journal stores it, and the tool receives it after it is parsed once more.
So a text without such a form is refused: two values under one name, or a value that changes each time it is read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from pydantic_core import ValidationError

Read: TypeAlias = Callable[[str], dict[str, Any]]
"""Converts the text of an object to checked keyword arguments."""
Dump: TypeAlias = Callable[[dict[str, Any]], Any]
"""Converts checked arguments back to JSON data, in the order of the schema and with defaults."""

_SHOWN_FAULTS = 8
_SHOWN_NAME = 60
_FENCED = re.compile(r"```\w*+(.*)```", re.DOTALL)


class BadArguments(ValueError):
    """The text of a call is not valid arguments of its tool. The message tells the model how to correct it."""


class DuplicateKeys(BadArguments):
    """The text gives one name twice in one object, so the intended value is unknown."""


class UnstableArguments(BadArguments):
    """The arguments change when they are written as JSON and read again, so no approval covers the real call."""


def _encoder() -> Callable[[Any, int], Iterable[str]]:
    """Return the encoder in C of a JSONEncoder. Its `encode` makes one for each call, at several times its own cost."""
    plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without json's extension module
        return lambda data, _: (plain.encode(data),)
    separators = (plain.key_separator, plain.item_separator)
    text: Any = json.encoder.encode_basestring
    pieces: Callable[[Any, int], Iterable[str]] = make(
        None, plain.default, text, None, *separators, plain.sort_keys, plain.skipkeys, plain.allow_nan
    )
    return pieces


_pieces = _encoder()


def encode(data: Any) -> str:
    """Return the canonical text of JSON data. Raises ValueError for a number that JSON does not have."""
    return "".join(_pieces(data, 0))


def canonical_form(text: str, read: Read, dump: Dump | None) -> tuple[str, dict[str, Any] | None]:
    """Return the canonical form of the text of a call, and the arguments as read from that form.

    The arguments are None if they have to be read again, because they may be used up. Empty text and `null` mean no
    arguments; a Markdown fence around the object is dropped. With `dump` None the text is its own canonical form.
    Raises BadArguments, and any error of a validator that is not a ValueError.
    """
    if dump is None:
        _refuse_duplicates(text)
        return text, None
    try:
        if text[:1] != "{":
            text = _object_text(text)
        try:
            value = read(text)
            data = dump(value)
            written = _written(data)
        except Exception:
            _scanned(text)  # report a duplicate name before any other fault
            raise
        if written == text:  # so the text is JSON and gives no name twice
            return text, value if _is_unused(value) else None
        given, fault = _scanned(text)
        if fault is not None:
            raise BadArguments(f"the arguments are not one complete JSON object ({fault})") from fault
        if faults := listed(_numbers_from_bools(given, data, ())):
            raise BadArguments(faults)
        again = _read_again(value, written, read, dump)
        return written, again if _is_unused(again) else None
    except ValidationError as error:
        raise BadArguments(_sentence(error)) from error
    except RecursionError as error:
        raise BadArguments(_TOO_DEEP) from error


def _read_again(value: dict[str, Any], written: str, read: Read, dump: Dump) -> dict[str, Any]:
    """Read written arguments again. Raises UnstableArguments if that changes them."""
    try:
        again = read(written)
        same = _written(dump(again)) == written
        # Types without an equality of their own differ each time, so their written form is compared too.
        if same and not _equal(value, {name: again[name] for name in value}):
            same = not _equal(again, read(written))
    except Exception as error:
        raise UnstableArguments(_UNSTABLE) from error
    if not same:
        raise UnstableArguments(_UNSTABLE)
    return again


_UNSTABLE = (
    "not run: the arguments change when they are read a second time, so what was checked would not be what runs; "
    "give the values in another form, or report that a type of this tool does not survive being written as JSON"
)


def exact_arguments(text: str, read: Read, dump: Dump | None) -> dict[str, Any]:
    """Return the arguments of a canonical text. Raises UnstableArguments if reading it changes it.

    Raises BadArguments, and any error of a validator that is not a ValueError.
    """
    if dump is None:
        _refuse_duplicates(text)
        return read(text)
    try:
        value = read(text)
        written = _written(dump(value))
    except ValidationError as error:
        raise BadArguments(_sentence(error)) from error
    if text != written:
        raise UnstableArguments(_UNSTABLE)
    return value if _is_unused(value) else read(text)


def _is_unused(value: object) -> bool:
    """Return whether arguments that were written can still be given to the tool: writing them uses up an iterator."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is dict:
        for one in value.values():  # type: ignore[attr-defined]  # noqa: SIM110 - a generator costs a frame
            if type(one) not in _ATOMS and not _is_unused(one):
                return False
        return True
    return kind is list and all(map(_is_unused, value))  # type: ignore[call-overload]


_ATOMS = frozenset((str, int, float, bool, type(None)))


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - a type whose comparison fails has none
        return False


def _written(data: object) -> str:
    try:
        return "".join(_pieces(data, 0))
    except ValueError as error:
        raise BadArguments(f"a number has no JSON form ({error}); give a finite number") from error
    except TypeError as error:
        raise UnstableArguments(_UNSTABLE) from error


# ---- duplicates ----


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        shown = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…"
        raise DuplicateKeys(f"not run: {shown!r} is given twice in one object; give each name once")
    return found


def _no_constant(name: str) -> None:
    raise BadArguments(f"{name} is not JSON; give a finite number")


def _finite(digits: str) -> str:
    if math.isinf(float(digits)):
        raise BadArguments(f"the number {digits[:_SHOWN_NAME]} is too large; give a finite number")
    return digits


# Numbers stay text: this scan ignores them, and they may have more digits than Python converts.
json_data = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=str, parse_float=_finite, parse_constant=_no_constant
).decode
"""Parses JSON text, with numbers as text. Raises DuplicateKeys, BadArguments for NaN, and the errors of `json`."""


def _scanned(text: str) -> tuple[Any, ValueError | None]:
    """Return the parsed JSON text, or its fault. Raises DuplicateKeys, and BadArguments for NaN."""
    try:
        return json_data(text), None
    except BadArguments:
        raise
    except ValueError as error:
        return None, error


def _refuse_duplicates(text: str) -> None:
    """Raise DuplicateKeys; accept any other text, even if it is not JSON."""
    try:
        json_data(text)
    except DuplicateKeys:
        raise
    except (ValueError, RecursionError):
        pass


# ---- numbers ----


def _numbers_from_bools(
    given: Any, data: Any, path: tuple[object, ...]
) -> Iterator[tuple[tuple[object, ...], str]]:
    """Yield each place where `true` or `false` was read as a number."""
    if isinstance(given, bool):
        if isinstance(data, int | float) and not isinstance(data, bool):
            yield path, f"{encode(given)} is not a number"
    elif isinstance(given, dict) and isinstance(data, dict):
        for name in given.keys() & data.keys():
            yield from _numbers_from_bools(given[name], data[name], (*path, name))
    elif isinstance(given, list) and isinstance(data, list):
        for place, (one, other) in enumerate(zip(given, data, strict=False)):
            yield from _numbers_from_bools(one, other, (*path, place))


# ---- messages ----


def _object_text(text: str) -> str:
    """Return the part of `text` that should be an object."""
    body = text.strip()
    if fenced := _FENCED.fullmatch(body):
        body = fenced[1].strip()
    return "{}" if body in {"", "null"} else body


def is_complete(text: str) -> bool:
    """Return whether the text of a call is JSON up to its end, as far as it can be read."""
    try:
        json_data(_object_text(text))
    except json.JSONDecodeError:
        return False
    except (BadArguments, RecursionError):
        pass
    return True


_TOO_DEEP = "the arguments are nested too deeply; send a flatter object"


def _sentence(error: ValidationError) -> str:
    """Describe the faults of the arguments in one sentence, without their values."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    if not faults[0]["loc"]:
        if "recursion limit" in faults[0]["msg"]:
            return _TOO_DEEP
        return f"the arguments are not one complete JSON object ({faults[0]['msg']})"
    return listed((fault["loc"], fault["msg"]) for fault in faults)


def listed(faults: Iterable[tuple[Iterable[object], str]]) -> str:
    """Join the first faults, each as `path: message`."""
    shown = itertools.islice(faults, _SHOWN_FAULTS)
    return "; ".join(": ".join(filter(None, (".".join(map(str, path)), message))) for path, message in shown)


# ---- order ----


def ordered(value: Any, schema: object) -> Any:
    """Return JSON data with the members of objects in the order of a JSON schema; other members follow unchanged."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, list):
        return [ordered(one, schema.get("items")) for one in value]
    named = schema.get("properties")
    if not isinstance(value, dict) or not isinstance(named, Mapping):
        return value
    names = [name for name in named if name in value]
    names += [name for name in value if name not in named]
    return {name: ordered(value[name], named.get(name)) for name in names}


# ---- tools from a JSON schema ----


def schema_dump(schema: Mapping[str, Any], read: Read) -> Dump:
    """Return the dump of arguments that a raw JSON schema describes, with the defaults that the schema allows."""
    named = schema.get("properties")
    fields = named.items() if isinstance(named, Mapping) else ()
    defaults = {name: one["default"] for name, one in fields if isinstance(one, Mapping) and "default" in one}

    def dump(value: dict[str, Any]) -> Any:
        filled = defaults | value
        if len(filled) > len(value):
            with contextlib.suppress(ValueError):
                value = read(encode(filled))
        return ordered(value, schema)

    return dump
