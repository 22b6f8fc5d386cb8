"""Times, amounts, usage, tables and commands as text for a person."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import TextColor, coloured, joined, painted, shown
from orchestrator.errors import ConfigError
from orchestrator.llm.usage import Usage
from orchestrator_guards.money import amount

if TYPE_CHECKING:
    from orchestrator.machines.ralph.model import RoleCall

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_KILO = 1_024


def seconds_in(text: str) -> float:
    """Return the seconds of a duration like 90s, 15m, 12h or 30d. Raises ConfigError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is no duration; one is a number and s, m, h or d, as in 90s, 12h or 30d")
    return float(found[1]) * _UNITS[found[2]]


def span(seconds: float) -> str:
    """Return a length of time, with a suitable precision."""
    if seconds < 10:  # noqa: PLR2004
        return f"{max(seconds, 0.0):.3f} s"
    if seconds < _UNITS["m"]:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24:02d}h"  # noqa: PLR2004


def roughly(seconds: float) -> str:
    """Return a length of time in its largest unit."""
    seconds = max(seconds, 0.0)
    unit = next(unit for unit in "dhms" if seconds >= 2 * _UNITS[unit] or unit == "s")
    return f"{seconds / _UNITS[unit]:.0f}{unit}"


def moment(at: float) -> str:
    """Return a point in time (epoch seconds) in local time, to the second."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{at:.0f}"


def size(count: float) -> str:
    """Return a number of bytes."""
    unit = 0
    while count >= _KILO and unit < len(_SIZES) - 1:
        count, unit = count / _KILO, unit + 1
    return f"{count:.0f} {_SIZES[unit]}" if unit == 0 else f"{count:.1f} {_SIZES[unit]}"


def many(count: int, what: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def heading(text: str) -> str:
    """Return a heading, bold on a terminal."""
    return painted(text, TextColor.HEAD, colour=coloured())


def of_status(name: str) -> str:
    """Return the code of the terminal for a status of runs, as drawings colour it; "" without colour."""
    if not coloured():
        return ""
    from rich.color import Color  # it takes a tenth of `runs list`

    from orchestrator.drawing.stylesheet import STATUSES

    return ";".join(Color.parse(STATUSES[name].terminal).get_ansi_codes())


def words(*parts: str) -> str:
    """Return a command as it can be typed into a shell; escaped control characters cannot be typed."""
    return shown(shlex.join(["orchestrator", *parts]), 10_000)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    paints: Sequence[str] = (),
    painted_heads: Iterable[str] = (),
) -> list[str]:
    """Return the lines of a table; columns named in `right` are numbers.

    On a terminal the columns `painted_heads` have the colours `paints`, one for each row.
    """
    safe = [[shown(cell, 120, keep="") for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *safe, strict=True)]
    numeric = [head in set(right) for head in heads]
    takes_colour = [head in set(painted_heads) for head in heads]

    def line(cells: Sequence[str], paint: str = "") -> str:
        padded = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, numeric, strict=True)
        ]
        padded[-1] = padded[-1].rstrip()
        if not paint:
            return f"  {'  '.join(padded)}".rstrip()
        parts = (painted(cell, paint, colour=one) for cell, one in zip(padded, takes_colour, strict=True))
        return joined(*(part for cell in parts for part in ("  ", cell)))

    return [line(heads), *map(line, safe, paints or [""] * len(safe))]


def tags_of(tags: Mapping[str, str]) -> str:
    """Return the tags of a run as text: `team=ops env=test`."""
    return " ".join(f"{name}={value}" for name, value in tags.items())


def tags_in(texts: Iterable[str]) -> dict[str, str]:
    """Return the tags of texts of the form NAME=VALUE. Raises ConfigError for another one."""
    tags: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"tag {text!r} is not of the form NAME=VALUE")
        tags[name] = value
    return tags


def stored_calls(context: Mapping[str, Any]) -> list[RoleCall]:
    """Return the calls in a stored context; none for a graph without coding agents."""
    if not (stored := context.get("agent_calls")):
        return []
    # Here, because the module builds schemas: an eighth of the instructions of `runs show`.
    from orchestrator.machines.ralph.contract import Role
    from orchestrator.machines.ralph.model import RoleCall

    return [
        RoleCall(**{**one, "role": Role(one["role"]), "usage": Usage.of(one.get("usage") or {})})
        for one in stored
    ]


def call_table(calls: Sequence[RoleCall]) -> list[str]:
    """Return the calls as a table, with their sessions."""
    rows = [
        (
            one.role.value,
            one.task_id or "-",
            shown(one.agent or one.child_run_id or "-", 60),
            shown(one.model or "-", 40),
            shown(one.session or "-", 60),
            tokens_phrase(one.usage),
            cost_phrase(one.usage).removeprefix("cost "),
        )
        for one in calls
    ]
    return table(("role", "task", "agent", "model", "session", "tokens", "cost"), rows) if rows else []


def usage_phrase(usage: Usage, calls: Sequence[RoleCall]) -> str:
    """Return the usage of a run in one line; estimates and unknown costs are named."""
    unknown = sum(1 for one in calls if one.usage.cost_micros is None)
    parts = [many(len(calls), "agent call"), tokens_phrase(usage), cost_phrase(usage)]
    if unknown and usage.cost_micros is not None:
        parts.append(f"cost of {many(unknown, 'call')} unknown")
    return ", ".join(parts)


def token_counts(usage: Usage) -> str:
    """Return the tokens of a usage."""
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"


def tokens_phrase(usage: Usage) -> str:
    """Return the tokens, and the part of them that is an estimate."""
    estimate = usage.estimated_input_tokens + usage.estimated_output_tokens
    return token_counts(usage) + (f" ({estimate:,} estimated)" if estimate else "")


def cost_phrase(usage: Usage) -> str:
    """Return the cost, or that it is unknown, and the part of it that is an estimate."""
    if usage.cost_micros is None:
        return "cost unknown"
    estimate = f" ({amount(usage.estimated_cost_micros)} estimated)" if usage.estimated_cost_micros else ""
    most = "" if usage.cost_max_micros is None else f" to {amount(usage.cost_max_micros)}"
    return f"cost {amount(usage.cost_micros)}{most}{estimate}"


def call_json(call: RoleCall) -> dict[str, Any]:
    """Return one call as plain data."""
    return {**asdict(call), "role": call.role.value, "usage": call.usage.as_json()}
