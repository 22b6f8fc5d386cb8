"""Answer the questions of the runs of an evaluation, in place of a person.

One watcher serves all runs and their child runs: it reads the journal after each change. A question that the case has
no answer to ends the run: it is cancelled, so that no call of a test waits for the approval of a real person.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

from orchestrator.errors import AnswerRefused, RunOver, RunUnknown
from orchestrator.machines.question import Question
from orchestrator.runtime.evaluation.case import CaseAnswer, EvaluationCase
from orchestrator.runtime.evaluation.case_run import ACTOR
from orchestrator.runtime.llm_loop.agent_tool import open_root
from orchestrator.runtime.runs.runs import Runs

RUN_TAG: Final = "evaluation_run"
"""Tag of the runs of cases: run id of the evaluation."""
_POLL: Final = 0.05
"""Seconds between two looks at the version of the journal."""


class CasePerson:
    """The person who answers for the cases of one evaluation."""

    def __init__(self, runs: Runs, evaluation_id: str) -> None:
        self._runs = runs
        self._evaluation_id = evaluation_id
        self.cases: dict[str, EvaluationCase] = {}
        """Run id -> case, of the runs that are active."""
        self._handled: set[tuple[str, str, str]] = set()

    async def watch(self) -> None:
        """Answer until cancelled. Raises StoreDown."""
        seen = ""
        while True:
            version = await self._runs.version()
            if version != seen:
                await self._look()
            seen = version
            await asyncio.sleep(_POLL)

    async def _look(self) -> None:
        waiting = self._runs.journal.runs(status="parked", waiting=True, tags={RUN_TAG: self._evaluation_id})
        for head in [head async for head in waiting]:
            root = await open_root(self._runs.journal, head)
            if root is not None and root in self.cases:
                for question in await self._runs.pending(head.run_id):
                    await self._answer(head.run_id, root, question)

    async def _answer(self, run_id: str, root: str, question: Question) -> None:
        if (run_id, question.key, question.digest) in self._handled:
            return
        self._handled.add((run_id, question.key, question.digest))
        answer = self.cases[root].answers.get(question.tool)
        why = f"it waits for a person: the case has no answer about {question.tool!r}"
        try:
            if answer is not None:
                await self._post(run_id, question, answer)
                return
        except AnswerRefused as error:
            if error.earlier is not None:  # another process has answered
                return
            why = f"it waits for a person: the answer about {question.tool!r} is refused: {error}"
        except (RunOver, RunUnknown):
            return
        await self._give_up(root, why)

    async def _post(self, run_id: str, question: Question, answer: CaseAnswer) -> None:
        key, digest = question.key, question.digest
        if answer.decision == "approve":
            edited = None if answer.arguments is None else json.dumps(dict(answer.arguments))
            await self._runs.approve(run_id, key, digest=digest, arguments=edited, by=ACTOR)
        elif answer.decision == "reject":
            await self._runs.reject(run_id, key, digest=digest, why=answer.text, by=ACTOR)
        else:
            await self._runs.respond(run_id, answer.text, key, digest=digest, by=ACTOR)

    async def _give_up(self, run_id: str, why: str) -> None:
        try:
            await self._runs.cancel(run_id, by=ACTOR, why=why)
        except (RunOver, RunUnknown):
            return
