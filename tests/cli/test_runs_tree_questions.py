"""`runs show`, `approve`, `reject` and `respond` of a run whose child run waits for a person."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, SqliteJournal, tool
from orchestrator.providers.scripted import FunctionLLM, call
from tests.cli.recorded import JOURNAL, inbox

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


@tool(effect="irreversible", approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


@pytest.fixture
def digest(folder: Path) -> str:
    """Leave the run `p`, whose child run `p:1:0` asks; return the digest of the question."""

    async def leave() -> str:
        async with SqliteJournal(JOURNAL) as journal:
            child = Agent(
                FunctionLLM(lambda _: call("pay", euros=7)), name="billing", tools=[pay], observers=()
            )
            front = Agent(
                FunctionLLM(lambda _: call("bill", task="seven")),
                name="front",
                tools=[child.as_tool("bill", "Bill.")],
                journal=journal,
                observers=(),
            )
            left = await front.run("go", run_id="p", wait="never")
            return str(left.questions[0].digest)

    with contextlib.chdir(folder):
        return asyncio.run(leave())


def test_show_has_the_question_of_the_child_run_and_answers_that_work(cli: Cli, digest: str) -> None:
    done = cli("runs", "show", "p", *AT)
    assert "child runs that wait for an answer\n" in done.out
    assert "run p:1:0, front > billing:\n" in done.out
    assert "euros = 7" in done.out
    at = f"--journal {JOURNAL}"
    assert f"orchestrator runs approve p:1:0 --call 1:0 --digest {digest[:12]} {at}\n" in done.out
    assert "answer as above, then: orchestrator runs resume p " in done.out
    child = cli("runs", "show", "p:1:0", *AT)
    assert "answer as above, then: orchestrator runs resume p " in child.out, "its root resumes it"
    plain = json.loads(cli("runs", "show", "p", "--json", *AT).out)
    assert plain["waiting_for"] == []
    (one,) = plain["child_runs_waiting_for"]
    assert (one["run_id"], one["agents"], one["digest"]) == ("p:1:0", ["front", "billing"], digest)


@pytest.mark.parametrize("verb", ["approve", "reject", "respond"])
def test_an_answer_through_the_parent_needs_the_whole_digest(cli: Cli, digest: str, verb: str) -> None:
    text = ("by hand",) if verb == "respond" else ()
    for which in ((), ("--call", "1:0"), ("--digest", digest[:12])):
        refused = cli("runs", verb, "p", *text, *which, "--by", "ann", *AT)
        assert refused.code == 2
        says = f"run p:1:0 (front > billing) waits about call 1:0: `orchestrator runs show p:1:0 --journal {JOURNAL}`"
        assert says in refused.err
        assert (inbox("p"), inbox("p:1:0")) == ([], [])
    done = cli("runs", verb, "p", *text, "--digest", digest, "--by", "ann", *AT)
    assert (done.code, done.err) == (0, "")
    assert f"posted: {verb} 1:0 for run p:1:0 by ann" in done.out
    assert "orchestrator runs resume p " in done.out
    assert [(one.kind, one.body["digest"], one.by) for one in inbox("p:1:0")] == [(verb, digest, "ann")]
    assert inbox("p") == []
