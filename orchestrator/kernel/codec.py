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

    def changes(self, run: Run[Any, Any], seen: Any = None) -> Mapping[str, Any]:
        """Return what changed of the context since the last call, or the opening; empty for nothing.

        `seen` is the context as `look` returned it; without one, it is read now.
        """
        ...

    def look(self, run: Run[Any, Any], before: Any = None) -> Any:
        """Return a copy of the context, for `changes` later; None if its changes must be taken now.

        `before` is the copy that was returned last, if its changes were not taken yet.
        """
        ...

    def closing(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return what the `ended` record has besides the driver's own: the output."""
        ...
