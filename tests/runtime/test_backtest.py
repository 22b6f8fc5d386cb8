"""A backtest: the recorded policy is proved first, and each claim holds when the run is executed again."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson
import pytest

from orchestrator import Agent, ConfigError, Limits, MemoryJournal, Response, Result, Usage
from orchestrator.backtest import Policy, RunComparison, RunTrace, backtest, sweep, trace_of
from orchestrator.kernel.journal import Record
from orchestrator.providers.scripted import FunctionLLM, ScriptExhausted, call
from orchestrator.runtime.backtest.report import backtest_svg
from orchestrator.runtime.runs.runs import Runs
from orchestrator.testing import FakeClock, ScriptedLLM
from orchestrator_guards import TurnFingerprint, Verdict
from tests.runtime.recorded_conversations import played
from tests.runtime.test_guard_decisions import CASES, NO_WAIT, PRICED, TIGHT, WIDE, fails, spoilt, step, used
from tests.with_runtime import with_runtime

REPOSITORY = Path(__file__).parents[2]
COPIES = REPOSITORY / "tests/data/trajectories"
CORPUS = REPOSITORY.parent / "shared/data/trajectories"


async def traces_of(journal: MemoryJournal) -> list[RunTrace]:
    return [trace_of(head.run_id, await journal.load(head.run_id)) async for head in journal.runs()]


def carried(trace: RunTrace) -> RunTrace:
    """The trace after its export to a file."""
    return RunTrace.from_json(orjson.loads(orjson.dumps(trace.as_json())))


# ---- identity ----


@pytest.mark.parametrize("limits", [WIDE, TIGHT], ids=["wide", "tight"])
@pytest.mark.parametrize(
    ("corpus", "least"),
    [pytest.param(COPIES, 60, id="copies"), pytest.param(CORPUS, 900, id="all", marks=pytest.mark.campaign)],
)
async def test_each_recorded_conversation_is_the_same_under_its_own_policy(
    corpus: Path, least: int, limits: dict[str, Any], absent: Callable[[str], NoReturn]
) -> None:
    if not corpus.is_dir():
        absent("no corpus of conversations beside the repository (../shared/data/trajectories)")
    journal, _ = await played(corpus, limits)
    report = await backtest(Runs(journal), Policy(limits))
    assert report.runs >= least
    assert (report.unchanged, report.left_out) == (report.runs, {})
    report = await backtest(map(carried, await traces_of(journal)), Policy(limits))
    assert (report.unchanged, report.left_out) == (report.runs, {})


@pytest.mark.parametrize("case", CASES)
async def test_each_decision_of_the_loop_is_proved(case: str) -> None:
    answers, limits, options, _ = CASES[case]
    journal = MemoryJournal()
    agent = Agent(
        ScriptedLLM(answers),
        tools=[step, fails],
        limits=Limits(**limits),
        retry=NO_WAIT,
        **with_runtime(journal=journal, observers=(), **options),
    )
    await agent.run("go")
    for traces in (await traces_of(journal), map(carried, await traces_of(journal))):
        report = await backtest(traces, Policy())
        assert (report.unchanged, report.left_out) == (1, {})


@pytest.mark.parametrize(
    "repeated",
    [[call("step", n=1), call("fails", n=1)], [call("fails", n=1), call("fails", n=2)]],
    ids=["a cycle of two tools", "errors that differ"],
)
async def test_a_run_that_restarts_because_of_its_repetitions_is_proved(repeated: list[Any]) -> None:
    limits: dict[str, Any] = {"max_no_progress": 50, "max_restarts": 1, "max_iterations": 20}
    journal = MemoryJournal()
    agent = Agent(
        ScriptedLLM([*repeated * 3, "done"]),
        tools=[step, fails],
        limits=Limits(**limits),
        retry=NO_WAIT,
        **with_runtime(journal=journal, observers=()),
    )
    await agent.run("go")
    for traces in (await traces_of(journal), map(carried, await traces_of(journal))):
        found: list[RunComparison] = []
        report = await backtest(traces, Policy(), each=found.append)
        assert (report.unchanged, report.left_out) == (1, {})
        [trace] = await traces_of(journal)
        assert [one.event for one in trace.points].count("restart_loop") == 1


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_input_tokens": 5_000, "max_output_tokens": 5_000}, ""),
        ({"max_input_tokens": 250}, "input_tokens"),
        ({"max_cost": 0.01}, ""),
        ({"max_cost": 0.0022, "wrap_up_turns": 1, "wrap_up_share": 0.3}, "cost"),
    ],
    ids=["tokens", "tokens used up", "cost", "cost used up"],
)
async def test_a_child_run_is_proved_whose_requests_the_limits_of_its_parent_decide(
    limits: dict[str, Any], reason: str
) -> None:
    journal = MemoryJournal()
    options = with_runtime(journal=journal, observers=(), **PRICED)
    answers = used(*[call("step", n=n) for n in range(12)], "found")
    child = Agent(ScriptedLLM(answers), name="digger", tools=[step], limits=Limits(max_cost=1.0), **options)
    parent = Agent(
        ScriptedLLM(used(call("dig", task="a"), "done")),
        name="asker",
        tools=[child.as_tool("dig", "Dig.")],
        limits=Limits(**limits),
        **options,
    )
    await parent.run("go", run_id="p")
    for traces in (await traces_of(journal), map(carried, await traces_of(journal))):
        found: list[RunComparison] = []
        report = await backtest(traces, Policy(), each=found.append)
        assert (report.unchanged, report.left_out) == (2, {})
        assert [one.reason for one in found if one.run_id == "p:1:0"] == [reason or "none"]


async def test_a_segment_that_handed_over_decided_nothing_in_its_last_turn() -> None:
    journal = MemoryJournal()
    billing = Agent(ScriptedLLM([call("step"), "paid"]), name="billing", tools=[step], observers=())
    to_billing, to_refunds = call("transfer_to_billing"), call("transfer_to_refunds")
    refunds = Agent(ScriptedLLM([]), name="refunds", observers=())
    script = [call("step"), [to_billing, to_refunds], [call("step"), to_billing]]
    triage = Agent(
        ScriptedLLM(script),
        name="triage",
        tools=[step],
        handoffs=[billing, refunds],
        journal=journal,
        observers=(),
    )
    await triage.run("go", run_id="p")
    for traces in (await traces_of(journal), map(carried, await traces_of(journal))):
        segments = [trace for trace in traces if trace.graph == "llm_loop"]
        assert [trace.run_id for trace in segments] == ["p:s1", "p:s2"]
        report = await backtest(segments, Policy())
        assert (report.unchanged, report.left_out) == (2, {})
        report = await backtest(segments, Policy({"max_iterations": 2}))
        assert (report.stops["harm"].runs, report.unchanged) == (1, 1), "triage had decided on its third turn"
        report = await backtest(segments, Policy(output_guards=[short]))
        (left,) = report.left_out.items()
        assert "no inputs of output_guards" in left[0]
        assert left[1].runs == 1, "billing has an output without its inputs; triage has no output"


def in_a_circle(journal: MemoryJournal, **limits: Any) -> Agent[Any, Any]:
    """Two agents that hand over to each other five times before the second one answers."""
    answers = [call("transfer_to_triage"), call("transfer_to_triage"), "paid"]
    billing = Agent(ScriptedLLM(used(*answers)), name="billing", handoffs=["triage"], observers=())
    script = used(*[call("transfer_to_billing")] * 3)
    options: dict[str, Any] = {"handoffs": [billing], "limits": Limits(**limits), "journal": journal}
    return Agent(ScriptedLLM(script), name="triage", observers=(), **options)


async def test_another_max_handoffs_is_tested_on_the_runs_of_teams() -> None:
    journal = MemoryJournal()
    assert (await in_a_circle(journal).run("go", run_id="p")).outcome == "completed"
    for traces in (await traces_of(journal), [carried(trace) for trace in await traces_of(journal)]):
        for most, changes in ((2, {"stop": 1}), (4, {"stop": 1}), (5, {}), (0, {})):
            found: list[RunComparison] = []
            report = await backtest(traces, Policy({"max_handoffs": most}), each=found.append)
            assert report.left_out == {}
            assert Counter(one.change for one in found if one.change != "none") == changes
            for one in found:
                if one.change == "stop":
                    assert one.difference is not None
                    assert (one.run_id, one.effect, one.saved.requests) == ("p", "harm", 6 - most - 1)
                    assert (one.difference.guard, one.difference.observed) == ("handoffs", most)
                    assert one.saved.tokens == 150 * (6 - most - 1)
    runs = Runs(journal)
    assert (await backtest(runs, Policy())).runs == 6, "the segments"
    assert (await backtest(runs, Policy({"max_handoffs": 3}))).harm == 1
    assert (await backtest(runs, Policy({"max_iterations": 4}), machine="team")).harm == 1
    reports = await sweep(runs, {str(most): Policy({"max_handoffs": most}) for most in range(1, 7)})
    assert [report.harm for report in reports] == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("limits", [{"max_handoffs": 3}, {"max_no_progress": 2}, {"max_iterations": 4}])
async def test_a_backtest_of_a_team_decides_as_the_run_did(limits: dict[str, Any]) -> None:
    journal, other = MemoryJournal(), MemoryJournal()
    ended = await in_a_circle(journal, **limits).run("go", run_id="p")
    await in_a_circle(other).run("go", run_id="p")
    assert ended.verdict is not None
    found: list[RunComparison] = []
    assert (await backtest(Runs(journal), Policy(), machine="team")).unchanged == 1
    await backtest(Runs(other), Policy(limits), machine="team", each=found.append)
    (one,) = found
    assert one.difference is not None
    assert (one.difference.guard, one.difference.observed) == (ended.verdict.guard, ended.verdict.observed)
    await backtest(Runs(journal), Policy(dict.fromkeys(limits, 50)), machine="team", each=found.append)
    assert found[-1].change == "open_end", "what the agents would have done is not known"


def short(chars: int) -> Verdict:
    return Verdict(chars <= 20, "short", chars, 20)


async def test_a_run_that_its_time_limit_interrupts_in_a_request_is_proved() -> None:
    clock, journal = FakeClock(auto=True), MemoryJournal()
    model = FunctionLLM(lambda _: "late", latency=50, clock=clock)
    options = with_runtime(journal=journal, observers=(), clock=clock)
    result = await Agent(model, limits=Limits(max_seconds=40), **options).run("go")
    assert result.reason == "time"
    report = await backtest(await traces_of(journal), Policy())
    assert (report.unchanged, report.left_out) == (1, {})


# ---- agreement with execution ----


class Play:
    """A run of a random script, repeatable under other limits."""

    def __init__(self, seed: int) -> None:
        random_ = random.Random(seed)
        self.recorded = self._limits(random_)
        self.changed = self._changes(random_)
        self.answers = self._answers(random_)

    @staticmethod
    def _limits(random_: random.Random) -> dict[str, Any]:
        choose = random_.choice
        return {
            "max_iterations": choose([6, 12, 30]),
            "max_no_progress": choose([2, 3, 4, 50]),
            "max_repeated_success": choose([2, 3, 40]),
            "max_tool_errors": choose([2, 4, 10]),
            "max_tool_calls": choose([0, 8, 20]),
            "max_input_tokens": choose([0, 900]),
            "max_restarts": choose([0, 0, 1]),
            "wrap_up_turns": choose([0, 0, 1]),
            "completion_retries": choose([1, 2]),
            "guidance": choose([0, 0, 2]),
        }

    @staticmethod
    def _changes(random_: random.Random) -> dict[str, Any]:
        changes: dict[str, Sequence[Any]] = {
            "max_iterations": [1, 3, 5, 9, 0],
            "max_no_progress": [1, 2, 3, 5, 8, 0],
            "max_repeated_success": [1, 2, 5, 0],
            "max_tool_errors": [1, 2, 3, 0],
            "max_tool_calls": [1, 3, 6, 0],
            "tool_caps": [{"Step": 2}, {"fails": 1}],
            "max_input_tokens": [150, 500, 0],
            "max_restarts": [0, 1, 2],
            "wrap_up_turns": [0, 1],
            "completion_retries": [1, 3],
            "guidance": [0, 1, 3],
        }
        names = random_.sample(sorted(changes), random_.choice([1, 1, 1, 2]))
        return {name: random_.choice(changes[name]) for name in names}

    @staticmethod
    def _answers(random_: random.Random) -> list[Any]:
        def one() -> Any:
            kind = random_.random()
            if kind < 0.55:
                return call("step", n=random_.choice([1, 1, 1, 2, random_.randrange(99)]))
            if kind < 0.75:
                return call("fails", n=random_.choice([1, 1, random_.randrange(9)]))
            return [call("step", n=random_.choice([1, 2])), call("step", n=3)]

        answers = [one() for _ in range(random_.randrange(1, 14))]
        end = random_.choice([["done"], ["done"], ['{"error": "no"}', "done"], ['{"error": "no"}'] * 4])
        said = [*answers, *end]
        return [
            Response(
                one if isinstance(one, str) else None,
                () if isinstance(one, str) else tuple(one) if isinstance(one, list) else (one,),
                usage=Usage(random_.randrange(20, 120), 5),
            )
            for one in said
        ]

    async def run(self, limits: dict[str, Any]) -> tuple[ScriptedLLM, Result, MemoryJournal]:
        journal, model = MemoryJournal(), ScriptedLLM(self.answers)
        agent = Agent(
            model, tools=[step, fails], limits=Limits(**limits), journal=journal, observers=(), retry=NO_WAIT
        )
        return model, await agent.run("go", run_id="r"), journal


def sent(model: ScriptedLLM) -> list[list[Any]]:
    return [[message.to_openai() for message in request.messages] for request in model.requests]


def first_other(ours: Sequence[Any], theirs: Sequence[Any]) -> int | None:
    """The index of the first request that differs; None if one list begins the other."""
    return next((at for at, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two), None)


def check_stop(done: RunComparison, before: list[Any], after: list[Any], result: Result) -> None:
    assert done.difference is not None
    wrapped = result.outcome == "partial" or len(after) > done.difference.turn
    assert result.verdict is not None
    assert result.verdict.guard == done.difference.guard
    assert len(after) == done.difference.turn + wrapped
    assert first_other(before, after) in ({None, done.difference.turn} if wrapped else {None})
    assert done.saved.requests == len(before) - done.difference.turn


async def restarts(journal: MemoryJournal) -> set[int]:
    """The turns whose messages a restart discarded."""
    events = [one.body["event"] for one in await journal.load("r") if one.kind == "transition"]
    return {events[:at].count("llm_response") for at, one in enumerate(events) if one == "restart_loop"}


def check_message(
    done: RunComparison, before: list[Any], after: list[Any], result: Result, discarded: set[int]
) -> None:
    assert done.difference is not None
    other = first_other(before, after)
    first = min(len(before), len(after)) if other is None else other  # a further request differs too
    turn = done.difference.turn
    # A restart under both policies discards the result of a call that ran under one of them only.
    assert first == turn or (first > turn and turn in discarded), "the first message that differs"
    if done.assumed is not None and result.verdict is not None:
        # Several limits may be reached in one turn; which of them is named first is no claim.
        assert result.verdict.guard == done.assumed.guard or len(after) == done.assumed.turn
        assert len(after) >= done.assumed.turn


async def agrees(seed: int) -> RunComparison:
    """Compare the claim about one run with its execution under the new limits."""
    one = Play(seed)
    model, recorded, journal = await one.run(one.recorded)
    found: list[RunComparison] = []
    await backtest(Runs(journal), Policy(one.changed), each=found.append)
    [done] = found
    if done.left_out:  # its proof failed, so nothing is claimed
        return done
    again, result, repeated = await one.run({**one.recorded, **one.changed})
    before, after = sent(model), sent(again)
    match done.change:
        case "none":
            assert before == after
            assert (result.outcome, result.reason) == (recorded.outcome, recorded.reason)
        case "stop":
            check_stop(done, before, after, result)
        case "other_message":
            check_message(done, before, after, result, await restarts(journal) & await restarts(repeated))
        case "other_reason":
            assert before == after
            assert result.verdict is not None
            assert done.difference is not None
            assert result.verdict.guard == done.difference.guard
        case _:
            went_on = isinstance(result.error, ScriptExhausted) or after != before
            assert went_on or result.reason != recorded.reason, "another limit ends the run before a request"
            assert first_other(before, after) in {None, len(before) - 1}
    return done


@pytest.mark.parametrize("plays", [10, pytest.param(500, marks=pytest.mark.campaign)])
async def test_each_claim_agrees_with_the_execution_under_the_new_limits(
    seed: int, plays: int, campaign: Callable[[int, int], int]
) -> None:
    changes = Counter[str]()
    for number in range(campaign(plays, 5_000)):
        play_seed = seed + number
        try:
            done = await agrees(play_seed)
        except AssertionError as error:
            error.add_note(f"seed of the run: {play_seed}, {Play(play_seed).__dict__}")
            raise
        changes["left_out" if done.left_out else done.change] += 1
    if plays >= 500:  # fewer miss one at times
        assert changes.keys() >= {"none", "stop", "other_message", "open_end"}
    assert changes["left_out"] <= max(2, changes.total() // 100), changes


# ---- proof before use ----


async def recorded(limits: dict[str, Any], *, answers: Sequence[Any] = ()) -> Sequence[Record]:
    journal = MemoryJournal()
    script = answers or [*[call("step", n=n) for n in range(5)], "done"]
    agent = Agent(
        ScriptedLLM(script), tools=[step, fails], limits=Limits(**limits), journal=journal, observers=()
    )
    await agent.run("go", run_id="r")
    return await journal.load("r")


def corrupted(records: Sequence[Record], kind: str, change: Callable[[Any], None]) -> list[Sequence[Record]]:
    """Return the records once for each record of the kind that the change applies to."""
    found = []
    for record in records:
        body = orjson.loads(orjson.dumps(record.body))
        if record.kind == kind:
            try:
                change(body)
            except (KeyError, IndexError):
                continue
            found.append(spoilt(list(records), record.seq, body))
    return found


def _one_row_more(body: Any) -> None:
    body["guards"][0][2] += 1


def _other_verdict(body: Any) -> None:
    body["guards"][0][0] = not body["guards"][0][0]


def _other_turn(body: Any) -> None:
    body["turns"]["add"][0][0] = ["0" * 16]


def _another_turn(body: Any) -> None:
    body["turns"]["add"] *= 2


def _other_tokens(body: Any) -> None:
    body["spent.usage"]["input_tokens"] += 7


def _other_count(body: Any) -> None:
    body["spent.tool_calls"] += 1


def _no_tokens(body: Any) -> None:
    body["spent.usage"] = "none"


def _no_count(body: Any) -> None:
    body["spent.by_tool"] = {"step": "x"}


NOT_PROVED = "its recorded decisions do not follow from its inputs: record "


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("transition", _one_row_more, NOT_PROVED),
        ("transition", _other_verdict, NOT_PROVED),
        ("context", _other_turn, NOT_PROVED),
        ("context", _another_turn, NOT_PROVED),
        ("context", _other_tokens, NOT_PROVED),
        ("context", _other_count, NOT_PROVED),
        ("context", _no_tokens, "its records have another form (ValueError)"),
    ],
)
async def test_a_run_with_a_corrupt_input_is_left_out(
    kind: str, change: Callable[[Any], None], said: str
) -> None:
    limits = {
        "max_tool_calls": 50,
        "max_input_tokens": 10_000,
        "max_iterations": 9,
        "max_repeated_success": 0,
    }
    records = await recorded(limits, answers=[call("step", n=1)] * 5)
    spoilt_runs = corrupted(records, kind, change)
    assert len(spoilt_runs) >= 3
    proved = await backtest([trace_of("r", records)], Policy())
    assert proved.unchanged == 1
    report = await backtest([trace_of("r", one) for one in spoilt_runs[:-1]], Policy())
    assert report.runs == 0, "each of them is found"
    assert all(reason.startswith(said) for reason in report.left_out)


async def test_a_run_without_the_inputs_that_a_policy_needs_is_left_out() -> None:
    records = await recorded({"max_no_progress": 0, "max_iterations": 9})
    policies: list[tuple[dict[str, Any], str]] = [
        ({"max_no_progress": 3}, "no fingerprints: it was recorded with max_no_progress 0"),
        ({"max_cost": 1.0}, "the cost of its answers is unknown"),
    ]
    for limits, reason in policies:
        report = await backtest([trace_of("r", records)], Policy(limits))
        assert report.runs == 0
        assert [reason in one for one in report.left_out] == [True]
    assert (await backtest([trace_of("r", records)], Policy({"max_iterations": 2}))).harm == 1
    without_count = corrupted(records, "context", _no_count)[0]
    report = await backtest([trace_of("r", without_count)], Policy())
    assert list(report.left_out) == ["its records have another form (TypeError)"]


# ---- what a report says ----


async def test_stops_are_benefit_or_harm_by_the_recorded_outcome_and_save_the_rest() -> None:
    same = [call("step", n=1)] * 9
    completes = await recorded({"max_iterations": 9})
    stalls = await recorded({"max_repeated_success": 0, "max_no_progress": 4}, answers=same)
    found: list[RunComparison] = []
    report = await backtest(
        [trace_of("a", completes), trace_of("b", stalls)], Policy({"max_iterations": 3}), each=found.append
    )
    assert (report.harm, report.benefit, report.runs) == (1, 1, 2)
    assert [(one.change, one.effect) for one in found] == [("stop", "harm"), ("stop", "benefit")]
    assert [(one.difference.guard, one.difference.turn) for one in found if one.difference] == [
        ("iterations", 3),
        ("iterations", 3),
    ]
    assert report.stops["harm"].saved.requests == 3
    assert report.stops["harm"].saved.tokens == 6
    assert {*report.stops} == {*report.assumed} == {"benefit", "harm", "undecided"}
    assert report.guards == {("iterations", "stop"): 2}


async def test_nothing_is_claimed_behind_another_message() -> None:
    stalls = await recorded(
        {"max_repeated_success": 0, "max_no_progress": 50}, answers=[*[call("step", n=1)] * 9, "done"]
    )
    found: list[RunComparison] = []
    report = await backtest([trace_of("r", stalls)], Policy({"max_no_progress": 3}), each=found.append)
    assert (report.harm, report.other_message) == (0, 1)
    assert found[0].difference is not None
    assert (found[0].difference.guard, found[0].difference.turn) == ("no_progress", 2), "the first warning"
    assert found[0].assumed is not None
    assert (found[0].assumed.turn, found[0].assumed_effect) == (4, "harm")
    assert report.assumed["harm"].runs == 1
    assert report.as_json()["assumed_stops"]["harm"]["runs"] == 1
    unchanged = await backtest([trace_of("r", stalls)], Policy({"max_no_progress": 50}))
    drawn = backtest_svg([report, unchanged])
    assert "also behind another message, if the model answers as recorded" in drawn
    assert "also behind another message" not in backtest_svg([unchanged, unchanged])


async def test_behind_a_restart_of_one_policy_no_stop_is_assumed() -> None:
    calls = [call("step", n=n) for n in (2, 1, 1, 3, 3, 3, 4)]
    records = await recorded(
        {"max_no_progress": 2, "max_restarts": 1, "max_tool_calls": 5}, answers=[*calls, "done"]
    )
    found: list[RunComparison] = []
    await backtest([trace_of("r", records)], Policy({"max_no_progress": 1}), each=found.append)
    [done] = found
    assert done.difference is not None
    assert (done.change, done.difference.turn) == ("other_message", 1)
    assert done.assumed is None, "the run would have started again after the third turn"


async def test_a_sweep_proves_each_run_once_and_reports_each_value() -> None:
    records = await recorded({"max_iterations": 9})
    reports = await sweep(
        [trace_of("r", records)] * 2, {str(most): Policy({"max_iterations": most}) for most in (2, 4, 6, 9)}
    )
    assert [(one.label, one.harm, one.unchanged) for one in reports] == [
        ("2", 2, 0),
        ("4", 2, 0),
        ("6", 0, 2),
        ("9", 0, 2),
    ]


async def three_runs() -> MemoryJournal:
    journal = MemoryJournal()
    for run_id in ("old", "middle", "new"):
        agent = Agent(ScriptedLLM([call("step", n=1), "done"]), tools=[step], journal=journal, observers=())
        await agent.run("go", run_id=run_id)
    return journal


async def test_a_bound_reads_the_newest_runs_and_the_report_says_that_more_match() -> None:
    runs = Runs(await three_runs())
    found: list[RunComparison] = []
    report = await backtest(runs, Policy({"max_iterations": 1}), limit=2, each=found.append)
    assert ([one.run_id for one in found], report.harm) == (["new", "middle"], 2)
    assert report.incomplete == "the bound of 2 runs was reached, so older runs were not read"
    for limit in (3, None):
        report = await backtest(runs, Policy({"max_iterations": 1}), limit=limit)
        assert (report.runs, report.incomplete) == (3, "")
    report = await backtest(runs, Policy({"max_iterations": 1}), seconds=0)
    assert report.runs == 0
    assert report.incomplete == "the bound of 0 s was reached after 0 runs, so older runs were not read"
    with pytest.raises(ConfigError, match="limit is 0; it must be 1 or more"):
        await backtest(runs, Policy({"max_iterations": 1}), limit=0)


async def test_a_backtest_leaves_the_event_loop_to_others_and_ends_when_it_is_cancelled() -> None:
    runs = Runs(await three_runs())
    at_work, go_on = threading.Event(), threading.Event()
    asked: list[int] = []

    def slow(iteration: int) -> bool:
        asked.append(iteration)
        at_work.set()
        return go_on.wait(30)

    working = asyncio.create_task(backtest(runs, Policy(guards=[slow])))
    await asyncio.to_thread(at_work.wait, 30)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    go_on.set()
    assert asked == [1], "no further run is evaluated"


# ---- guards of the host ----


def thrifty(input_tokens: int, iteration: int) -> Verdict:
    return Verdict(iteration < 2, "thrifty", input_tokens, 2)


def seen_before(window: Sequence[TurnFingerprint]) -> bool:
    return len({turn.calls for turn in window}) == len(window)


async def test_a_guard_of_the_host_reads_recorded_inputs_and_stops_a_run() -> None:
    trace = trace_of("r", await recorded({"max_iterations": 9}))
    found: list[RunComparison] = []
    await backtest([trace], Policy(guards=[thrifty]), each=found.append)
    assert found[0].difference is not None
    assert (found[0].change, found[0].difference.guard, found[0].difference.turn) == ("stop", "thrifty", 2)
    again = trace_of("r", await recorded({"max_no_progress": 50}, answers=[*[call("step", n=1)] * 3, "done"]))
    await backtest([again], Policy(guards=[seen_before]), each=found.append)
    assert found[1].difference is not None
    assert (found[1].difference.guard, found[1].difference.turn) == ("seen_before", 2)


def raises(iteration: int) -> bool:
    raise OSError(f"no disk {iteration}")


def mutates(calls_by_tool: dict[str, int]) -> bool:
    calls_by_tool["step"] = 0
    return True


def returns_text(iteration: int) -> str:
    return f"{iteration}"


COUNT: list[int] = []


def counts(iteration: int) -> bool:
    COUNT.append(iteration)
    return len(COUNT) > 3


def reads_the_clock(clock: float) -> bool:
    return clock > 1


@pytest.mark.parametrize(
    ("guard", "sentence"),
    [
        (raises, "guard raises raised OSError: no disk 1;"),
        (mutates, "guard mutates raised TypeError"),
        (returns_text, "guard returns_text returned str; it must return a Verdict or a bool"),
        (counts, "guard counts gave two answers to the same inputs"),
        (
            reads_the_clock,
            "guard reads_the_clock has a parameter 'clock'; a guard of a backtest takes some of",
        ),
        ("thrifty", "a guard must be a function, not str"),
    ],
)
async def test_a_guard_that_is_not_a_pure_function_of_its_inputs_is_refused(
    guard: Any, sentence: str
) -> None:
    trace = trace_of("r", await recorded({"max_iterations": 9}))
    with pytest.raises(ConfigError, match=sentence):
        await backtest([trace], Policy(guards=[guard]))


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"max_iteration": 3}, "did you mean 'max_iterations'"),
        ({"max_iterations": -1}, "it must be 0 .off. or more"),
        ({"completion_retries": 0}, "give 1 or more"),
    ],
)
def test_an_invalid_limit_is_refused_before_any_run_is_read(limits: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Policy(limits)
