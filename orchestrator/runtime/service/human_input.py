"""Runs in which calls of tools wait for people, their own or those of runs below: what people say to them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from orchestrator.machines.llm_loop.model import Question
from orchestrator.runtime.service.run_service import RunService

R = TypeVar("R")


class HumanInput(RunService[R]):
    """A RunService for runs that ask people about calls; R is the type of a run's result."""

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
        """Let a call run that waits for a person; `arguments` (JSON text) replace the model's.

        Await this: the answer is in the journal then. A journal in memory has it when this returns.
        `call` is its key as in `pending`, needed where several wait; with `digest` the answer counts for exactly
        those arguments. The journal keeps the first valid answer to a question, from whichever process: a different
        one, or one of another person, raises AnswerRefused, and its `earlier` is the answer that counts. The same
        answer of the same person returns normally, also after the run has ended. Raises AnswerRefused for every answer
        that does not count, RunUnknown, StoreDown.
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
        """Return the questions of a run that have no answer yet, here or in another process. Raises RunUnknown.

        A question is listed once it is durable, and no more once the journal keeps an answer to it.
        """
        return await self._control.pending(run_id)
