"""Which span is open, for exemplars and log lines. Knows no tracing library: a callable tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Trace: TypeAlias = Callable[[], Mapping[str, str] | None]
"""Returns trace_id (32 hex digits) and span_id (16) of the present span, None where none is sampled."""

_WIDTH = {"trace_id": 32, "span_id": 16}
_HEX = re.compile(r"[0-9a-f]+")


def span_of(trace: Trace) -> dict[str, str] | None:
    """Return trace_id and span_id, or None where they are not what they should be.

    Everything else that is told is left out: an exemplar over 128 characters raises after it was counted.
    """
    told = trace()
    if not told:
        return None
    span = {name: str(told.get(name, "")) for name in _WIDTH}
    fits = all(len(value) == _WIDTH[name] and _HEX.fullmatch(value) for name, value in span.items())
    return span if fits else None
