"""The REPL port of code mode, and the broker that answers model queries of the code. See `orchestrator.repl`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

RESULT_CHARS = 20_000
"""Maximum characters of one block's result in the history."""

Answer: TypeAlias = str | Exception
"""The answer to a query of the code: text, or an error that is raised in the code with the same message."""

Broker: TypeAlias = Callable[[tuple[str, ...]], Awaitable[Sequence[Answer]]]
"""Answers the prompts of one llm_query (one) or llm_query_batched (any number): as many answers, in the same order.

If it raises an Exception, all prompts of that call fail with it. Cancellation passes through.
"""


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of one block."""

    stdout: str = ""
    """Output of the code on both streams, in order. The end is missing if `dropped` is not 0."""
    error: str | None = None
    """The traceback of the code, or a description of the lost worker for the model."""
    final: str | None = None
    """The argument of FINAL_VAR; None if the code did not call it, or raised."""
    seconds: float = 0.0
    """Wall time of the code without the time that it waited for answers."""
    lost: str | None = None
    """Why the worker was lost with all its names: "wall time", "CPU time", "memory", "disk", "exit" or "protocol"."""
    dropped: int = 0
    """Characters of output that were not kept."""
    queries: int = 0
    """Prompts that the code sent to a model."""

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.error is None

    def text_for_model(self, limit: int = RESULT_CHARS) -> str:
        """Return the text for the model: at most `limit` characters, and a line about omitted output.

        The end of an error and the start of the output are kept, because they contain the most information.
        """
        error = self.error or ""
        if len(error) > limit // 2:
            error = "…" + error[-(limit // 2) :]
        kept = self.stdout[: max(limit - len(error), 0)]
        cut = self.dropped + len(self.stdout) - len(kept)
        parts = [kept.rstrip("\n")] if kept.strip() else []
        if cut:
            parts.append(
                f"[{cut:,} more characters of output were cut; print less, or keep it in a variable]"
            )
        if error:
            parts.append(error)
        return "\n".join(parts) or "(no output)"


class Repl(Protocol):
    """Keeps its names from block to block. Runs one block at a time."""

    async def run(self, code: str, *, seconds: float | None = None) -> CodeResult:
        """Run a block within `seconds` of wall time (default: the configured limit).

        Errors of the code are not raised.
        """
        ...

    async def variable(self, name: str) -> str | None:
        """Return a variable as text (its str()), or None if the name does not exist or has no text."""
        ...

    async def close(self) -> None:
        """Stop the worker. A second call has no effect."""
        ...
