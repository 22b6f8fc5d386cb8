"""Answers of people to tool calls of runs and their child runs."""

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
        """Approve a call that waits for a person.

        Await this: the answer is in the journal then. A journal in memory has it when this returns. The journal
        stores the first valid answer to a question, from any process. The same answer of the same person returns
        normally, also after the run has ended.

        Args:
            run_id: Id of the run.
            call: Key of the call as in `pending`; required if several calls wait.
            digest: If given, the answer counts only for exactly these arguments.
            arguments: JSON text that replaces the model's arguments.
            by: Who answers; the current user by default.
            why: The reason.

        Raises:
            AnswerRefused: The answer does not count. `earlier` is the answer that counts, if any.
            RunUnknown: The run does not exist.
            StoreDown: The store is unavailable.
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
        """Reject a call: the model reads that and the reason. With `end` the run ends as `rejected`. As `approve`."""
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
        """Return the unanswered questions of a run in this or another process. Raises RunUnknown.

        A question is listed as soon as it is durable, until the journal stores an answer to it.
        """
        return await self._control.pending(run_id)
