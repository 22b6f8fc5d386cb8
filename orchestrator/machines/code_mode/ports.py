"""What code mode runs its code in, and who answers that code's questions. `orchestrator.repl` is the real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

RESULT_CHARS = 20_000
"""Characters of one block's result that go into the history (systems.md 7.2)."""

Answer: TypeAlias = str | Exception
"""What a question of the code got: text, or an error that is raised in the code with the same words."""

Broker: TypeAlias = Callable[[tuple[str, ...]], Awaitable[Sequence[Answer]]]
"""Answers the prompts of one llm_query (one) or llm_query_batched (any number): as many answers, in the same order.

One that raises an Exception fails all prompts of that call with it; cancellation goes through."""


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What came of one block."""

    stdout: str = ""
    """What the code printed, on either stream, in order; the end is missing where `dropped` says so."""
    error: str | None = None
    """The traceback of what the code raised, or what became of the worker, in words for the model."""
    final: str | None = None
    """What the code gave FINAL_VAR; None where it gave nothing, or raised."""
    seconds: float = 0.0
    """Wall time of the code without what it waited for answers."""
    lost: str | None = None
    """Why the worker is gone, and all names with it: "wall time", "CPU time", "memory", "disk", "exit", "protocol"."""
    dropped: int = 0
    """Characters of the output that were not kept."""
    queries: int = 0
    """Prompts that the code sent to a model."""

    @property
    def ok(self) -> bool:
        """The code came to its end."""
        return self.error is None

    def told(self, limit: int = RESULT_CHARS) -> str:
        """Return what the model is told, at most `limit` characters and a line about what was cut.

        Of an error the end is kept, of the output the beginning: that is where each says most.
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
    """Keeps its names from block to block. One block at a time."""

    async def run(self, code: str, *, seconds: float | None = None) -> CodeResult:
        """Run a block; `seconds` of wall time in place of the configured limit. Never raises for what the code does."""
        ...

    async def variable(self, name: str) -> str | None:
        """Return a variable as text (str() of it); None where there is none of that name, or it has no text."""
        ...

    async def close(self) -> None:
        """End the worker; twice does nothing."""
        ...
