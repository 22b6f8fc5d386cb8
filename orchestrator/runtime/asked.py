"""Runs in which calls of tools wait for people, their own or those of runs below: what people say to them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from orchestrator.machines.llm_loop.model import Question
from orchestrator.runtime.carrier import Carrier

R = TypeVar("R")


class Asked(Carrier[R]):
    """A Carrier of runs that ask people about calls; R is what each run gives in the end."""

    def approve(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        arguments: str | None = None,
        by: str = "",
        why: str = "",
    ) -> Awaitable[None]:
        """Let a call run that waits for a person; `arguments` (JSON text) replace the model's. As `cancel`.

        `call` is its key as in `pending`, needed where several wait; with `digest` the answer counts for exactly
        those arguments. Raises AnswerRefused where it would not count.
        """
        return self._control.answer(run_id, "approve", by, why, call=call, digest=digest, arguments=arguments)

    def reject(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
        end: bool = False,
    ) -> Awaitable[None]:
        """Let a call not run: the model reads that, and why. With `end` the run ends as `rejected`. As `approve`."""
        return self._control.answer(run_id, "reject", by, why, call=call, digest=digest, end=end or None)

    def respond(
        self,
        run_id: str,
        content: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
    ) -> Awaitable[None]:
        """Answer a call in place of its tool: the model reads `content` as its result. As `approve`."""
        return self._control.answer(run_id, "respond", by, why, call=call, digest=digest, content=content)

    async def pending(self, run_id: str) -> list[Question]:
        """Return what people are asked about a run, here or in another process. Raises RunUnknown."""
        return await self._control.pending(run_id)
