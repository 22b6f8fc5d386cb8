"""Options of an agent in tests, with those of its Runtime beside the others."""

from __future__ import annotations

from typing import Any

from orchestrator.runtime.service.runtime import Runtime

_ONLY = ("clock", "migrations", "price", "evict_after")
_SHORT = ("journal", "observers")


def with_runtime(**options: Any) -> dict[str, Any]:
    """Return the options with a Runtime made of those that only a Runtime takes."""
    if not any(name in options for name in _ONLY):
        return options
    given = {name: options.pop(name) for name in (*_ONLY, *_SHORT) if name in options}
    return {**options, "runtime": Runtime(**given)}
