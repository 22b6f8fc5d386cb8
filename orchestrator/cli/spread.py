"""Options of a command, declared once as members of a dataclass; and `--trust`, which all these commands take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Trust the configuration files, runs and MCP tools of this project, for this command only.",
    ),
]

_hints: Callable[[Any], dict[str, Any]] = functools.cache(
    functools.partial(get_type_hints, include_extras=True)
)
"""Returns the types of the members of a dataclass, evaluated once."""


def spread_options(command: Callable[..., int | None]) -> Callable[..., None]:
    """Return a command whose options are the members of each parameter that is a dataclass.

    The members are declared as typer declares parameters: `Annotated`, with a default unless they are required. A
    member that is a dataclass is spread in its place. Members of a base class follow those of the class. A
    `tuple[T, ...]` is an option that may be repeated. The return value of the command is the exit code.
    """
    given = inspect.signature(command, eval_str=True).parameters.values()
    taken = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)  # required ones may follow others
        for one in given
        for parameter in _parameters(one)
    ]

    @functools.wraps(command)
    def run(**options: Any) -> None:
        code = command(**{one.name: _value(one.name, one.annotation, options) for one in given})
        if code is not None:
            raise typer.Exit(code)

    return _declared(run, taken)


def spread(command: Callable[..., int | None]) -> Callable[..., None]:
    """Return a command as `spread_options` does, with the additional option `--trust` for the time of its execution."""
    work = spread_options(command)
    trust = inspect.Parameter("trust", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Trust)

    @functools.wraps(work)
    def run(*, trust: bool, **options: Any) -> None:
        from orchestrator.cli.trust.consent import command_trust

        with command_trust(allowed=trust):
            work(**options)

    return _declared(run, [*inspect.signature(work).parameters.values(), trust])


def _declared(run: Callable[..., None], taken: list[inspect.Parameter]) -> Callable[..., None]:
    """Give a command the parameters that typer reads."""
    run.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in taken}
    return run


def _parameters(one: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yield the parameters that typer reads for one of the command: itself, or the members of a dataclass."""
    kind: Any = one.annotation
    if not is_dataclass(kind):
        repeated = _repeated(kind)
        yield one if repeated is None else one.replace(default=one.default or None, annotation=repeated)
        return
    hints = _hints(kind)
    for member in _members(kind):
        default = inspect.Parameter.empty if member.default is MISSING else member.default
        yield from _parameters(one.replace(name=member.name, default=default, annotation=hints[member.name]))


def _members(kind: Any) -> list[Field[Any]]:
    """Return the members of a dataclass, its own before those of its bases."""
    known = {member.name: member for member in fields(kind)}
    named = [name for each in kind.__mro__ for name in vars(each).get("__annotations__", ())]
    return [known[name] for name in dict.fromkeys(named) if name in known]


def _repeated(kind: Any) -> Any:
    """Return the type that typer has for a `tuple[T, ...]`; None for any other type."""
    bare, *about = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if get_origin(bare) is not tuple:
        return None
    several: Any = list[get_args(bare)[0]] | None  # type: ignore[misc]
    for each in about:
        several = Annotated[several, each]
    return several


def _value(name: str, kind: Any, options: dict[str, Any]) -> Any:
    """Return the value of a parameter from the values that typer has read."""
    if not is_dataclass(kind):
        return options[name] if _repeated(kind) is None else tuple(options[name] or ())
    hints = _hints(kind)
    build: Any = kind
    return build(**{each.name: _value(each.name, hints[each.name], options) for each in fields(kind)})
