"""The port for the context of runs in records: the whole context once, and then its changes, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from orchestrator.kernel.run import Run


class Codec(Protocol):
    """Converts `run.ctx` to record bodies. Without a codec a run is journalled but cannot be resumed."""

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the codec's part of the `created` record: the whole context."""
        ...

    def changes(self, run: Run[Any, Any]) -> dict[str, Any]:
        """Return, in a new dict, the changes of the context since the last call or since the opening."""
        ...

    def closing(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the codec's part of the `ended` record: the output."""
        ...
