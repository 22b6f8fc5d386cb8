"""The range of a sweep: a limit and the values that it takes, as `max_no_progress=2..8`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.errors import ConfigError
from orchestrator.runtime.backtest.policy import Policy

_FORM: Final = re.compile(r"(\w+)=(\d{1,18})\.\.(\d{1,18})")
_MOST_VALUES: Final = 100


@dataclass(frozen=True, slots=True)
class SweepRange:
    """A limit, and the whole numbers that a sweep gives it."""

    limit: str
    values: range

    @classmethod
    def of(cls, text: str) -> SweepRange:
        """Read a range. Raises ConfigError.

        Example:
            >>> SweepRange.of("max_no_progress=2..8").values
            range(2, 9)
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ConfigError(
                f"sweep {text!r:.80} is not of the form NAME=A..B with whole numbers, as max_no_progress=2..8"
            )
        first, last = int(found[2]), int(found[3])
        if not first <= last < first + _MOST_VALUES:
            raise ConfigError(
                f"sweep {text!r:.80} must go up, over at most {_MOST_VALUES} values, as max_no_progress=2..8"
            )
        return cls(found[1], range(first, last + 1))

    def policies(self, limits: Mapping[str, Any], guards: Sequence[Any] = ()) -> dict[str, Policy]:
        """Return value -> policy, with these further limits and guards of the host. Raises ConfigError."""
        return {str(value): Policy({**limits, self.limit: value}, guards) for value in self.values}
