"""Options that several commands take together, declared once as a dataclass; and `--trust`, which all of these take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from orchestrator.cli.trust_option import Trust


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take the members of each parameter that is a dataclass as options of its own.

    The members are declared as typer declares parameters, `Annotated` and with a default; the command gets them
    back as the dataclass. A command that is spread works in a project: it takes `--trust`, which holds while it runs.
    """
    groups: dict[str, Any] = {}
    taken: list[inspect.Parameter] = []
    for one in inspect.signature(command, eval_str=True).parameters.values():
        kind: Any = one.annotation
        if not is_dataclass(kind):
            taken.append(one)
            continue
        groups[one.name] = kind
        hints = get_type_hints(kind, include_extras=True)
        taken += [
            one.replace(name=it.name, default=it.default, annotation=hints[it.name]) for it in fields(kind)
        ]

    taken.append(inspect.Parameter("trust", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Trust))

    @functools.wraps(command)
    def spread_out(*, trust: bool, **options: Any) -> None:
        from orchestrator.cli.trust.decision import command_trust

        for name, kind in groups.items():
            options[name] = kind(**{it.name: options.pop(it.name) for it in fields(kind)})
        with command_trust(allowed=trust):
            command(**options)

    spread_out.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {one.name: one.annotation for one in taken}
    return spread_out
