"""What a composition says of its runs to the journal: the context as plain data, whole once and then by its changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from orchestrator.kernel.run import Run


class Codec(Protocol):
    """Turns `run.ctx` into record bodies. Without one a run is journalled, but cannot be resumed."""

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return what the `created` record has besides the driver's own: the whole context."""
        ...

    def changes(self, run: Run[Any, Any]) -> dict[str, Any]:
        """Return, in a new dict, what changed of the context since the last call, or the opening; empty for nothing."""
        ...

    def closing(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return what the `ended` record has besides the driver's own: the output."""
        ...
