"""The lives of one run, seen from the tests: each in a process of its own, with a proof and a person in between."""

from __future__ import annotations

import asyncio

from orchestrator.errors import AnswerRefused, RunUnknown
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.machines.question import Question
from orchestrator.runtime.llm_loop.agent import Agent
from tests.crash.invariants import Ran, check_run
from tests.crash.life import Life
from tests.crash.mortal import RUN
from tests.crash.outside import CALLS, SCRIPT, Line, Outside, agent, happened, said_by
from tests.crash.place import journal_of, left

MOST_LIVES = 12
"""A run that needs more than this is not getting on."""


class Lives(Life):
    """A run of the loop."""

    @property
    def lines(self) -> list[Line]:
        """What happened outside so far."""
        outside = Outside(self.folder / "outside")
        outside.close()
        return outside.lines

    def said(self, what: str) -> list[Line]:
        return [line for line in self.lines if line["what"] == what]

    def prove(self, *, answer: bool = True) -> Ran | None:
        """Check every invariant, and answer as a person what is asked. None where the run was never begun."""
        return asyncio.run(self._prove(answer=answer))

    async def _prove(self, *, answer: bool) -> Ran | None:
        outside = Outside(self.folder / "outside")
        async with journal_of(self.folder) as journal:
            await left(journal, RUN)
            one = agent(outside, journal, observers=())
            try:
                ran = await check_run(journal, RUN, outside.history, agent=one)
            except RunUnknown:
                ran = None
            if ran is not None and answer:
                for question in await one.pending(RUN):
                    await answered(one, journal, question, outside.lines)
        outside.close()
        return ran

    def to_the_end(self, *, person: str = "leave") -> Ran:
        """Resume, answer and resume until it has ended; return how."""
        for _ in range(MOST_LIVES):
            ran = self.prove()
            if ran is not None and ran.state.ended is not None:
                return ran
            status = self.live("run" if ran is None else "resume", person=person)
            assert status == 0 or person == "die", self.errors()
        raise AssertionError(f"not at its end after {MOST_LIVES} lives: {self.lines[-5:]}")

    def result(self) -> Line:
        """Return the Result that a process was told, asking once more where none lived to hear it."""
        if not self.said("result"):
            assert self.live("resume") == 0, self.errors()
        return self.said("result")[-1]


async def answered(one: Agent, journal: Journal, question: Question, lines: list[Line]) -> None:
    """Be the person who looks outside: what happened is told, what did not is let run. By turns of either way."""
    run, key = RUN, question.key
    it_did = question.why != "approval" and happened(lines, question.tool, f"{run}:{key}")
    content = said_by(question.tool, int(key.partition(":")[0]))
    if len(lines) % 2:
        body = {"call": key, "digest": question.digest} | ({"content": content} if it_did else {})
        kind = "respond" if it_did else "approve"
        await journal.post(run, Posted(f"{key} {question.digest}", kind, body, "ann"))
        return
    try:
        if it_did:
            await one.respond(run, content, key, digest=question.digest, by="ann")
        else:
            await one.approve(run, key, digest=question.digest, by="ann")
    except AnswerRefused as error:
        assert "before" in str(error), error  # noqa: PT017


def assert_whole(ended: Line) -> None:
    """Whatever came between, the run said and did what the script says."""
    assert (ended["outcome"], ended["reason"]) == ("completed", "none")
    said = [message for message in ended["messages"] if message["role"] == "assistant"]
    assert len(said) == len(SCRIPT)
    results = [message["content"] for message in ended["messages"] if message["role"] == "tool"]
    assert results == [said_by(tool, turn) for turn, tools in CALLS.items() for tool in tools]


def assert_exact(lives: Lives) -> None:
    """Every call took effect exactly once, with pure ones at least once."""
    outside = Outside(lives.folder / "outside")
    outside.close()
    assert_once(outside.lines)


def assert_once(lines: list[Line]) -> None:
    """Every call took effect exactly once, with pure ones at least once."""
    for turn, tools in CALLS.items():
        for position, tool in enumerate(tools):
            count = happened(lines, tool, f"{RUN}:{turn}:{position}")
            assert count == 1 or (tool == "look" and count > 1), (turn, tool, count)
