"""Every decision of a guard in the journal follows again from its recorded inputs, for the runs of every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import orjson
import pytest

from orchestrator import Agent, Limits, LLMError, MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import GuardCheck, check_decisions, guard_decisions
from orchestrator.kernel.journal import Record
from orchestrator.llm.message import Response, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.pipeline.model import PipelineLimits
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator.providers.price import price_table
from orchestrator.providers.scripted import call
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.testing import ScriptedLLM
from tests.runtime.approval.stand import planted, project
from tests.runtime.pipeline_stage import BAD, HARD, PASS, SOFT, Stages
from tests.runtime.ralph_stage import NOT_QUALIFIED, World
from tests.runtime.recorded_conversations import played
from tests.with_runtime import with_runtime

COPIES = Path(__file__).parents[1] / "data/trajectories"
CORPUS = Path(__file__).parents[3] / "shared/data/trajectories"
NO_WAIT = RetryPolicy(base=0.0, max_delay=0.0, jitter=0.0)
WIDE: dict[str, Any] = {
    "max_input_tokens": 10**9,
    "max_output_tokens": 10**9,
    "max_seconds": 1e9,
    "max_tool_calls": 10**6,
    "max_iterations": 10**6,
    "max_repeated_success": 4,
    "max_no_progress": 3,
}
TIGHT: dict[str, Any] = {"max_iterations": 6, "max_tool_calls": 9, "max_no_progress": 2, "wrap_up_turns": 1}


async def records_of(journal: MemoryJournal) -> dict[str, Sequence[Record]]:
    return {head.run_id: await journal.load(head.run_id) async for head in journal.runs()}


async def checked(journal: MemoryJournal) -> tuple[GuardCheck, Counter[str]]:
    """Check every run of a journal, and count its decisions by guard function."""
    whole, found = GuardCheck(), Counter[str]()
    for run_id, records in (await records_of(journal)).items():
        check = check_decisions(run_id, records)
        whole.confirmed += check.confirmed
        whole.unknown += check.unknown
        whole.different += check.different
        found.update(one.evaluation.function for one in guard_decisions(run_id, records))
    return whole, found


@pytest.mark.parametrize("limits", [WIDE, TIGHT], ids=["wide", "tight"])
@pytest.mark.parametrize(
    ("corpus", "least"),
    [pytest.param(COPIES, 60, id="copies"), pytest.param(CORPUS, 900, id="all", marks=pytest.mark.campaign)],
)
async def test_each_decision_on_the_recorded_conversations_is_made_again(
    corpus: Path, least: int, limits: dict[str, Any], absent: Callable[[str], NoReturn]
) -> None:
    if not corpus.is_dir():
        absent("no corpus of conversations beside the repository (../shared/data/trajectories)")
    journal, runs = await played(corpus, limits)
    whole, found = await checked(journal)
    assert whole.different == []
    assert whole.unknown == 0
    assert whole.confirmed == found.total()
    assert runs >= least
    assert found["iterations"] >= runs
    turns = sum(
        record.kind == "transition" and record.body["event"] == "tools_executed"
        for records in (await records_of(journal)).values()
        for record in records
    )
    assert found["progress"] >= turns, "each turn with tools asks the progress guard"


# ---- every guard of the loop ----


def step(n: int) -> str:
    return f"step {n}"


def fails(n: int) -> str:
    raise ValueError(f"no {n}")


STEPS = [call("step", n=n) for n in range(4)]
SAME = [call("step", n=1)] * 4
FAULT = '{"error": "not found"}'
PRICED: dict[str, Any] = {"price": price_table({"scripted": (1.0, 1.0)}), "params": {"max_tokens": 10}}


def used(*answers: Any) -> list[Response]:
    """Return answers, each a text, a call or a response, with their usage."""
    whole = [Response(one) if isinstance(one, str) else one for one in answers]
    return [
        replace(one if isinstance(one, Response) else Response(None, (one,)), usage=Usage(100, 50))
        for one in whole
    ]


CASES: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any], set[str]]] = {
    "budgets": (
        [*STEPS, "done"],
        {"max_input_tokens": 10**6, "max_output_tokens": 10**6, "max_seconds": 1e6},
        {},
        {"input_tokens", "output_tokens", "elapsed", "iterations", "progress"},
    ),
    "iterations": ([*STEPS, "done"], {"max_iterations": 2}, {}, {"iterations"}),
    "wrap up": ([*STEPS[:1], "done"], {"max_iterations": 2, "wrap_up_turns": 1}, {}, {"iterations"}),
    "tools": (
        [*STEPS, "done"],
        {"max_tool_calls": 3, "tool_caps": {"step": 2}},
        {},
        {"tool_calls", "tool_cap"},
    ),
    "tool errors": ([call("fails", n=n) for n in range(4)], {"max_tool_errors": 2}, {}, {"tool_errors"}),
    "repeated success": (SAME, {"max_repeated_success": 2, "max_no_progress": 0}, {}, {"repeated_success"}),
    "no progress": (SAME, {"max_repeated_success": 0}, {}, {"progress"}),
    "restart": (
        [*SAME[:2], "done"],
        {"max_restarts": 1, "restart_stall_threshold": 1, "max_repeated_success": 0},
        {},
        {"restarts", "progress", "iterations"},
    ),
    "completion": ([FAULT, FAULT], {"completion_retries": 1}, {}, {"completion_retries", "progress"}),
    "retries": (
        [LLMError("busy", kind="server_error")] * 3,
        {"max_retries": 1},
        {},
        {"retries"},
    ),
    "cost": (used(*STEPS, "done"), {"max_cost": 0.0007}, PRICED, {"cost", "request_cost"}),
    "cost, wrap up": (
        used(*STEPS, "done"),
        {"max_cost": 0.0009, "wrap_up_turns": 1, "wrap_up_share": 0.5},
        PRICED,
        {"cost", "request_cost", "iterations"},
    ),
    "cost of the next request, wrap up": (
        used(*(call("step", n=n) for n in range(9)), "done"),
        {"max_cost": 0.0028, "wrap_up_turns": 1, "wrap_up_share": 0.5},
        PRICED,
        {"cost", "request_cost", "iterations"},
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_each_guard_of_the_loop_is_recorded_with_its_inputs(case: str) -> None:
    answers, limits, options, expected = CASES[case]
    journal = MemoryJournal()
    agent = Agent(
        ScriptedLLM(answers),
        tools=[step, fails],
        limits=Limits(**limits),
        retry=NO_WAIT,
        **with_runtime(journal=journal, observers=(), **options),
    )
    result = await agent.run("go")
    whole, found = await checked(journal)
    assert whole.different == []
    assert whole.unknown == 0
    assert expected <= found.keys(), (result.outcome, result.reason, found)
    if result.outcome in {"budget_exceeded", "no_progress", "partial"}:
        assert any(
            not one.evaluation.verdict.ok
            for run_id, records in (await records_of(journal)).items()
            for one in guard_decisions(run_id, records)
        ), "the refusal that ended the run is among them"


async def test_each_restart_keeps_the_window_that_the_context_loses() -> None:
    journal = MemoryJournal()
    limits = Limits(max_restarts=1, restart_stall_threshold=1, max_repeated_success=0)
    await Agent(
        ScriptedLLM([*SAME[:2], "done"]), tools=[step], limits=limits, journal=journal, observers=()
    ).run("go", run_id="r")
    [restart] = [one for one in guard_decisions("r", await journal.load("r")) if one.event == "restart_loop"][
        :1
    ]
    assert restart.evaluation.function == "progress"
    assert len(restart.evaluation.inputs[0]) == 2


# ---- the check can fail ----


def spoilt(records: Iterable[Record], number: int, body: dict[str, Any]) -> Sequence[Record]:
    return [one._replace(body=body) if one.seq == number else one for one in records]


async def test_one_corrupt_input_is_found() -> None:
    journal = MemoryJournal()
    limits = Limits(max_iterations=6, max_repeated_success=0, max_no_progress=3)
    agent = Agent(ScriptedLLM(SAME), tools=[step], limits=limits, journal=journal, observers=())
    await agent.run("go", run_id="r")
    records = await journal.load("r")
    assert check_decisions("r", records).different == []

    corrupted = 0
    for record in records:
        for at, row in enumerate(record.body.get("guards", ())):
            if row[1] != "iterations":
                continue
            body = orjson.loads(orjson.dumps(record.body))
            body["guards"][at][2] = row[2] + 10 if row[0] else 0
            [found] = check_decisions("r", spoilt(records, record.seq, body)).different
            assert (found.seq, found.evaluation.function) == (record.seq, "iterations")
            corrupted += 1
    assert corrupted > 3

    last = [one for one in records if one.kind == "context" and "turns" in one.body][-1]
    body = orjson.loads(orjson.dumps(last.body))
    body["turns"]["add"][-1][1] = ["0" * 16]
    found_ = check_decisions("r", spoilt(records, last.seq, body)).different
    assert [one.evaluation.function for one in found_] == ["progress"]


async def test_a_guard_of_the_host_is_recorded_and_can_be_given_for_the_check() -> None:
    from orchestrator.kernel.graph import Edge, bounding
    from orchestrator.machines.llm_loop.graph import may_continue
    from orchestrator_guards import Verdict
    from orchestrator_guards.evaluation import FUNCTIONS

    def few(observed: float, limit: float) -> Verdict:
        return Verdict(observed < limit, "few", observed, limit)

    @bounding
    def may_talk_on(ctx: Any) -> Verdict:
        return few(len(ctx.messages), 5) if may_continue(ctx) else may_continue(ctx)

    table = LLM_LOOP.extend(
        name="short",
        without=[("update_budgets", "budget_ok")],
        edges=[Edge("budget_ok", ("update_budgets",), "await_llm", may_talk_on)],
    )
    journal = MemoryJournal()
    agent = Agent(ScriptedLLM(STEPS), tools=[step], graph=table, journal=journal, observers=())
    result = await agent.run("go", run_id="r")
    assert result.reason == "policy_stop"
    records = await journal.load("r")
    decisions = [one for one in guard_decisions("r", records) if one.evaluation.function == "few"]
    assert [one.evaluation.verdict.ok for one in decisions] == [True, False]
    assert check_decisions("r", records).unknown == 2
    given = check_decisions("r", records, {**FUNCTIONS, "few": few})
    assert (given.unknown, given.different) == (0, [])


# ---- the other machines ----


async def test_the_decisions_of_a_pipeline_are_made_again() -> None:
    journal = MemoryJournal()
    limits = PipelineLimits(token_budget=10**6, max_iterations=3, max_refinements=1)
    stages = Stages(valid=(BAD, []), judged=(SOFT, HARD, PASS))
    result = await stages.pipeline(journal=journal, observers=(), limits=limits).run("build")
    whole, found = await checked(journal)
    assert result.transitions
    assert (whole.different, whole.unknown) == ([], 0)
    assert {"tokens", "affordable", "iterations", "refinements"} <= found.keys()


async def test_the_decisions_of_tools_mode_are_made_again() -> None:
    journal = MemoryJournal()
    rlm = Rlm(
        ScriptedLLM(used(call("step", n=1), call("step", n=2), "done")),
        mode="tools",
        tools=[step],
        limits=RlmLimits(max_iterations=5, max_input_tokens=10**6, max_output_tokens=10**6),
        journal=journal,
        observers=(),
    )
    await rlm.run("go")
    whole, found = await checked(journal)
    assert (whole.different, whole.unknown) == ([], 0)
    assert {"iterations", "input_tokens", "output_tokens"} <= found.keys()


async def test_the_decisions_of_code_mode_are_made_again() -> None:
    journal = MemoryJournal()
    code = "```repl\nprint(llm_query('one'), llm_query('two'))\n```"
    rlm = Rlm(
        ScriptedLLM(used(Response(code), Response("first"), Response("second"), Response("FINAL(3)"))),
        limits=RlmLimits(max_iterations=5, max_sub_calls=9, max_cost=100.0),
        params=PRICED["params"],
        runtime=Runtime(journal=journal, observers=(), price=PRICED["price"]),
    )
    await rlm.run("go", "some text")
    whole, found = await checked(journal)
    assert (whole.different, whole.unknown) == ([], 0)
    assert {"iterations", "sub_calls", "cost", "request_cost"} <= found.keys()


async def test_the_decisions_of_ralph_are_made_again(tmp_path: Path) -> None:
    journal = MemoryJournal()
    world = World(
        tmp_path, {(Role.REVIEWER, "task-1"): [NOT_QUALIFIED], Role.EXECUTOR: [{"status": "novel"}]}
    )
    await world.ralph(journal=journal).run("build it")
    whole, found = await checked(journal)
    assert (whole.different, whole.unknown) == ([], 0)
    assert {"iterations", "task_attempts", "structured_retries"} <= found.keys()
    rows = [
        row
        for records in (await records_of(journal)).values()
        for one in records
        for row in one.body.get("attempts", ())
    ]
    assert len(rows) == len(world.calls)


async def test_the_decisions_of_approval_are_made_again(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await approval.run("Please tidy up.")
        await approval.show()
        await approval.approve(start=False)
    async with project(root) as approval:
        await approval.execute()
    async with SqliteJournal(root / ".orchestrator/journal.db") as journal:
        heads = [head.run_id async for head in journal.runs()]
        checks = [check_decisions(run_id, await journal.load(run_id)) for run_id in heads]
        found = [
            one.evaluation.function
            for run_id in heads
            for one in guard_decisions(run_id, await journal.load(run_id))
        ]
    assert [(check.different, check.unknown) for check in checks] == [([], 0)]
    assert found.count("present") >= 2
