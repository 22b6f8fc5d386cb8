"""Find the open span, for exemplars and log lines, by a callable and without a tracing library."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Trace: TypeAlias = Callable[[], Mapping[str, str] | None]
"""Returns trace_id (32 hex digits) and span_id (16) of the present span, None if none is sampled."""

_WIDTH = {"trace_id": 32, "span_id": 16}
_HEX = re.compile(r"[0-9a-f]+")


def span_of(trace: Trace) -> dict[str, str] | None:
    """Return trace_id and span_id, or None if they are invalid.

    Other members are dropped: an exemplar over 128 characters would raise after it was counted.
    """
    told = trace()
    if not told:
        return None
    span = {name: str(told.get(name, "")) for name in _WIDTH}
    fits = all(len(value) == _WIDTH[name] and _HEX.fullmatch(value) for name, value in span.items())
    return span if fits else None
