"""Derive schema, check and canonical form of a tool's arguments from the types of its parameters.

It is loaded with the first tool that is made from a function: it imports pydantic, which takes longer than the rest of
an agent.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, with_config
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from orchestrator.errors import ConfigError
from orchestrator.tools.argument import Dump, Read, encode


class _Untitled(GenerateJsonSchema):
    """A schema without the titles that pydantic derives from names: every request would pay tokens for them."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002  pydantic's signature
        return False


def typed_reader(
    name: str, parameters: Sequence[inspect.Parameter], described: Mapping[str, str]
) -> tuple[dict[str, Any], Read, Dump]:
    """Build schema, check and dump of typed parameters. A TypedDict allows any name and keeps absent members absent."""
    fields = {p.name: _field(p, described.get(p.name)) for p in parameters}
    given = {p.name: p.default for p in parameters if p.default is not p.empty}
    try:
        adapter = _adapter(fields)
        schema = adapter.json_schema(schema_generator=_Untitled)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"tool {name!r}: its parameters have no JSON schema: {reason}") from error
    schema.pop("title", None)
    read = functools.partial(adapter.validator.validate_json, by_alias=True, by_name=True)

    @functools.cache
    def defaults() -> dict[str, Any]:
        return _json_defaults(_adapter({name: fields[name] for name in given}), given) if given else {}

    return schema, read, _typed_dump(adapter, tuple(fields), defaults)


def _adapter(fields: Mapping[str, object]) -> TypeAdapter[Any]:
    make: Any = TypedDict
    config = with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
    return TypeAdapter(config(make("Arguments", dict(fields))))


def _field(parameter: inspect.Parameter, text: str | None) -> object:
    """Return the TypedDict field of one parameter: its hint, description and default."""
    annotated: Any = Annotated
    hint = parameter.annotation
    metadata: list[FieldInfo] = [Field(description=text)] if text else []
    optional = parameter.default is not parameter.empty
    if optional:
        # A default without a JSON form stays out of the schema; the function still has it.
        with contextlib.suppress(Exception):
            metadata.append(Field(json_schema_extra={"default": to_jsonable_python(parameter.default)}))
    inner = getattr(hint, "__metadata__", ())
    # The annotation's own metadata comes last, so it overrides the docstring.
    typed = annotated[(hint.__origin__ if inner else hint, *metadata, *inner)] if metadata else hint
    return NotRequired[typed] if optional else typed


def _typed_dump(
    adapter: TypeAdapter[Any], names: Sequence[str], defaults: Callable[[], dict[str, Any]]
) -> Dump:
    """Return the dump of typed parameters. `names` are in schema order; `defaults` returns JSON data."""
    plain, names = _plain(adapter), tuple(names)

    def dump(value: dict[str, Any]) -> dict[str, Any]:
        data, filled = plain(value), defaults()
        if not filled or tuple(data) == names:
            return data
        known = filled | data
        return {name: known[name] for name in names if name in known}

    return dump


def _json_defaults(adapter: TypeAdapter[Any], defaults: Mapping[str, object]) -> dict[str, Any]:
    """Return the defaults that keep their value when they are written as JSON and read, as JSON data.

    The other parameters stay absent from a call, and the function uses its own defaults.
    """
    plain = _plain(adapter)
    found: dict[str, Any] = {}
    for name, default in defaults.items():
        # a default that cannot be written, read or compared has no JSON form
        with contextlib.suppress(Exception):
            data = plain({name: default})
            again = adapter.validator.validate_json(encode(data))[name]
            if type(again) is type(default) and again == default:
                found |= data
    return found


def _plain(adapter: TypeAdapter[Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    write = functools.partial(adapter.serializer.to_python, mode="json", by_alias=True, warnings=False)
    if "set'" not in str(adapter.core_schema):
        return write
    return lambda value: with_sorted_sets(value, write(value))


def with_sorted_sets(value: object, data: Any) -> Any:
    """Return the JSON data of a value with each set in a fixed order: Python's order differs between processes."""
    if isinstance(data, list) and isinstance(value, Iterable):
        if isinstance(value, set | frozenset):
            return sorted(data, key=encode)
        return [with_sorted_sets(one, plain) for one, plain in zip(value, data, strict=False)]
    if not isinstance(data, dict):
        return data
    if isinstance(value, Mapping):
        inner = dict(zip(data, value.values(), strict=False))
    else:
        inner = {name: getattr(value, name, None) for name in data}
    return {name: with_sorted_sets(inner.get(name), plain) for name, plain in data.items()}
