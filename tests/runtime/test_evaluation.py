"""Evaluation sets as a library: verdicts, questions, repetitions, budgets, continuation, comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, Limits, MemoryJournal, Response, Runs, ToolCall, Usage, tool
from orchestrator.evaluation import (
    CaseRun,
    CaseSelection,
    EvaluationBudget,
    EvaluationCase,
    EvaluationReport,
    Judgement,
    evaluate,
)
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.evaluation.case import OutputExpectation
from orchestrator.runtime.evaluation.check import _output
from orchestrator.runtime.evaluation.report import junit_xml
from orchestrator.testing import ScriptedLLM
from orchestrator_guards import Verdict

PRICE = Usage(90, 10, cost=0.25)


@tool(effect="irreversible", approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool(effect="pure")
def search(query: str) -> str:
    """Search the catalogue."""
    return f"nothing about {query}"


def answer(request: Any) -> Response:
    """Refund what is asked for, search for what is not known, and say what came of it."""
    said = request.messages[-1]
    if said.role == "tool":
        return Response(f"So: {said.content}", usage=PRICE)
    if "refund" in said.text:
        return Response(None, (ToolCall("1", "refund", '{"order": 7}'),), usage=PRICE)
    if "search" in said.text:
        return Response(None, (ToolCall("1", "search", '{"query": "moon"}'),), usage=PRICE)
    return Response(f"Echo: {said.text}", usage=PRICE)


def support(journal: Journal, model: Callable[[Any], Any] = answer, **options: Any) -> Agent[Any, Any]:
    arguments: dict[str, Any] = {"name": "support", "tools": [refund, search], "observers": (), **options}
    return Agent(FunctionLLM(model), journal=journal, **arguments)


def case(name: str, said: str = "hello", **members: Any) -> EvaluationCase:
    return EvaluationCase(name=name, input=said, **members)


def run(agent: Agent[Any, Any], *cases: EvaluationCase, **options: Any) -> EvaluationReport:
    return asyncio.run(evaluate(agent, cases, **options))


def faults(report: EvaluationReport, name: str) -> dict[str, str]:
    return {check.name: check.why for check in report.cases[name].results[0].faults}


def test_each_expectation_that_does_not_hold_is_a_fault_with_what_was_found() -> None:
    wrong = {
        "outcome": "partial",
        "reason": "stalled",
        "output": {
            "equals": "no",
            "contains": ["Echo", "Moon"],
            "excludes": "hello",
            "matches": "^Moon",
            "schema": {"type": "object"},
            "fields": {"a.0": 1},
        },
        "transitions": {
            "visited": "process_tools",
            "not_visited": "await_llm",
            "order": ["finalize", "await_llm"],
            "path": ["init", "finalize"],
        },
        "tools": {"called": "search", "order": ["search"], "asked": "refund"},
        "at_most": {"cost": 0.1, "tokens": 50, "requests": 0, "seconds": 0},
    }
    found = faults(run(support(MemoryJournal()), case("wrong", expect=wrong)), "wrong")
    assert found.pop("at_most.seconds").startswith("it used")
    assert found == {
        "outcome": "expected partial, the run has completed: none",
        "reason": "expected stalled, the run has none",
        "output.equals": "expected 'no', got 'Echo: hello'",
        "output.contains": "'Moon' is not in 'Echo: hello'",
        "output.excludes": "'hello' is in 'Echo: hello'",
        "output.matches": "'^Moon' does not fit 'Echo: hello'",
        "output.schema": 'the output: "Echo: hello" is not of type "object"',
        "output.fields.a.0": "expected 1, it has no such member",
        "transitions.visited": "'process_tools' is not visited; the run took "
        "init → await_llm → evaluate_response → handle_completion → finalize",
        "transitions.not_visited": "'await_llm' is visited",
        "transitions.order": "expected finalize → await_llm in this order; the run took "
        "init → await_llm → evaluate_response → handle_completion → finalize",
        "transitions.path": "expected init → finalize; the run took "
        "init → await_llm → evaluate_response → handle_completion → finalize",
        "tools.called.search": "it is not called; the run called no tool",
        "tools.order": "expected search in this order; the run called no tool",
        "tools.asked": "no person is asked about 'refund'",
        "at_most.cost": "it used 0.25, the limit is 0.1",
        "at_most.tokens": "it used 100, the limit is 50",
        "at_most.requests": "it used 1, the limit is 0",
    }


def test_expectations_that_hold_make_a_passed_case() -> None:
    expect = {
        "reason": "none",
        "output": {"contains": "moon", "excludes": "error", "matches": r"^So: .+moon$"},
        "transitions": {"visited": "process_tools", "order": ["await_llm", "process_tools", "finalize"]},
        "tools": {
            "called": ["search", {"tool": "search", "arguments": {"query": "moon"}, "times": 1}],
            "not_called": "refund",
        },
        "at_most": {"cost": 0.5, "tokens": 200, "requests": 2, "tool_calls": 1, "seconds": 60},
    }
    report = run(support(MemoryJournal()), case("finds", "search", expect=expect))
    assert report.passed, faults(report, "finds")
    named = OutputExpectation(contains=("moon",))
    outputs = ({"text": "a moon"}, {"moon": 1}, None)
    assert [one.passed for output in outputs for one in _output(named, output)] == [True, True, False]
    (result,) = report.results
    assert (result.outcome, result.usage.requests, result.usage.tokens, result.usage.cost) == (
        "completed",
        2,
        200,
        0.5,
    )


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ({"times": 2}, 'expected 2 times, found 1 among its calls: {"query": "moon"}'),
        (
            {"arguments": {"query": "sun"}},
            'expected once or more with {"query": "sun"}, found 0 among its calls: {"query": "moon"}',
        ),
    ],
)
def test_a_call_is_compared_by_number_and_arguments(expected: dict[str, Any], why: str) -> None:
    expect = {"tools": {"called": {"tool": "search", **expected}}}
    report = run(support(MemoryJournal()), case("finds", "search", expect=expect))
    assert faults(report, "finds") == {"tools.called.search": why}


def test_a_structured_output_is_compared_as_json() -> None:
    agent = Agent(
        ScriptedLLM(['{"city": "Paris", "sights": [{"name": "Louvre", "open": true}]}']),
        name="guide",
        output_type={"type": "object", "properties": {"city": {"type": "string"}}},
        journal=MemoryJournal(),
        observers=(),
    )
    output = {
        "fields": {"city": "Paris", "sights.0.open": True},
        "schema": {"required": ["city"]},
        "equals": {"city": "Paris", "sights": [{"name": "Louvre", "open": True}]},
    }
    assert run(agent, case("paris", expect={"output": output})).passed


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ([1, {"a": [2]}], (1.0, {"a": [2]}), True),
        ([1, 2], [1, 3], False),
        ([1, 2], [1], False),
        ([1], [1, 2], False),
        ([{"a": 1}], [{"a": 2}], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1], [True], False),
        ([0], [False], False),
    ],
)
def test_json_values_are_the_same_in_all_their_members(expected: Any, output: Any, same: bool) -> None:
    (check,) = _output(OutputExpectation(equals=expected), output)
    assert check.passed is same


def test_the_answers_of_a_case_decide_calls_and_a_question_without_one_ends_it_as_waiting() -> None:
    ran, rejected = {"called": "refund", "asked": "refund"}, {"not_called": "refund", "asked": "refund"}
    edited = {"called": {"tool": "refund", "arguments": {"order": 8}}}
    journal = MemoryJournal()
    report = run(
        support(journal),
        case("approved", "refund", answers={"refund": "approve"}, expect={"tools": ran}),
        case("edited", "refund", answers={"refund": {"approve": {"order": 8}}}, expect={"tools": edited}),
        case("rejected", "refund", answers={"refund": {"reject": "too late"}}, expect={"tools": rejected}),
        case(
            "responded",
            "refund",
            answers={"refund": {"respond": "by a clerk"}},
            expect={"output": "So: by a clerk"},
        ),
        case("waits", "refund", expect={"outcome": "waiting", "tools": {"asked": "refund"}}),
        case("stuck", "refund"),
    )
    assert report.failing == ["stuck"]
    assert faults(report, "stuck") == {
        "outcome": "expected completed, the run has waiting: "
        "it waits for a person: the case has no answer about 'refund'"
    }
    assert asyncio.run(Runs(journal).list(waiting=True)) == []


def test_a_refused_answer_ends_the_case_with_the_reason() -> None:
    report = run(
        support(MemoryJournal()), case("bad", "refund", answers={"refund": {"approve": {"order": "x"}}})
    )
    (why,) = faults(report, "bad").values()
    assert "the answer about 'refund' is refused" in why


def test_a_question_of_a_child_run_is_answered_too() -> None:
    journal = MemoryJournal()
    clerk = support(journal, name="clerk", tools=[refund])
    boss = Agent(
        ScriptedLLM([ToolCall("1", "ask_clerk", '{"task": "refund"}'), "Done."] * 2),
        name="boss",
        tools=[clerk.as_tool("ask_clerk", "Ask the clerk.")],
        journal=journal,
        observers=(),
    )
    report = run(
        boss,
        case("answered", answers={"refund": "approve"}, expect={"output": "Done."}),
        case("not answered", expect={"outcome": "waiting"}),
        concurrency=1,
    )
    assert report.passed, [faults(report, name) for name in report.failing]


async def polite(seen: CaseRun) -> Judgement:
    return Judgement(score=0.75, reason=f"{seen.case.name}: {seen.output}")


def brief(seen: CaseRun) -> float:
    return 0.2


def fair(seen: CaseRun) -> Verdict:
    return Verdict(seen.requests < 1, "fair", seen.requests, 1)


def broken(seen: CaseRun) -> bool:
    raise KeyError(seen.case.name)


def mute(seen: CaseRun) -> Any:
    return None


def test_judges_give_bools_scores_and_verdicts_and_one_that_raises_is_an_error_of_its_case() -> None:
    report = run(
        support(MemoryJournal()),
        case("kind", judges="polite"),
        case("strict", judges="polite", threshold=0.8),
        case("short", judges=["brief", "fair"]),
        case("raises", judges="broken"),
        case("mute", judges=["mute"]),
        case("none", judges=[]),
        judges=[polite, brief, fair, broken, mute],
    )
    assert {name: one.status for name, one in report.cases.items()} == {
        "kind": "passed",
        "strict": "failed",
        "short": "failed",
        "raises": "error",
        "mute": "error",
        "none": "passed",
    }
    (kind,) = [check for check in report.cases["kind"].results[0].checks if check.name == "judge polite"]
    assert (kind.score, kind.why) == (0.75, "kind: Echo: hello")
    assert faults(report, "short")["judge brief"] == "the score is 0.2, the least that passes is 0.5"
    assert faults(report, "raises") == {"judge broken": "KeyError: 'raises'"}
    assert "must return a bool" in faults(report, "mute")["judge mute"]


def test_a_case_that_cannot_run_is_an_error_and_the_others_continue() -> None:
    tags: dict[str, Any] = {}

    def factory(context: Any) -> Any:
        tags[context.tags["case"]] = context.tags
        if context.tags["case"] == "bad":
            raise OSError("no database")
        return context.metadata["user"]

    agent = support(MemoryJournal(), deps=factory)
    report = run(agent, case("bad"), case("good", metadata={"user": "ann"}))
    assert {name: one.status for name, one in report.cases.items()} == {"bad": "error", "good": "passed"}
    assert "no database" in report.cases["bad"].results[0].error
    shared = {"evaluation": report.name, "evaluation_run": report.evaluation_id, "repetition": "1"}
    assert tags == {name: {**shared, "case": name} for name in ("bad", "good")}


def test_a_case_with_a_conversation_counts_only_its_own_calls() -> None:
    said = [
        {"role": "user", "content": "search"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "search", "arguments": '{"query": "sun"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "a star"},
        {"role": "assistant", "content": "A star."},
        {"role": "user", "content": "thanks"},
    ]
    expect = {"tools": {"not_called": "search"}, "output": "Echo: thanks"}
    assert run(support(MemoryJournal()), EvaluationCase(name="thanks", messages=said, expect=expect)).passed


def test_repetitions_give_a_pass_rate() -> None:
    times = iter(range(10))

    def moody(request: Any) -> str:
        return "good" if next(times) % 2 else "bad"

    report = run(
        support(MemoryJournal(), moody),
        case("mood", expect={"output": "good"}),
        selection=CaseSelection(repeat=4),
        concurrency=1,
    )
    assert (report.cases["mood"].passed, report.cases["mood"].pass_rate, report.cases["mood"].status) == (
        2,
        0.5,
        "failed",
    )
    assert [one.repetition for one in report.results] == [1, 2, 3, 4]
    assert len({one.run_id for one in report.results}) == 4


def test_a_budget_stops_new_cases_and_the_next_call_runs_only_the_rest() -> None:
    journal, asked = MemoryJournal(), []

    def counting(request: Any) -> Response:
        asked.append(request.messages[-1].text)
        return answer(request)

    cases = [case(name, name) for name in "abcd"]
    agent = support(journal, counting)
    first = run(agent, *cases, budget=EvaluationBudget(cost=0.5), concurrency=1)
    assert (first.not_run, first.passed, asked) == (("c", "d"), False, ["a", "b"])
    assert first.stopped == "the cost budget of 0.5 is used up (0.5)"
    again = run(agent, *cases, budget=EvaluationBudget(cost=0.5), concurrency=1)
    assert (again.not_run, asked) == (("c", "d"), ["a", "b"])  # the budget is that of the whole evaluation
    rest = run(agent, *cases, budget=EvaluationBudget(tokens=300), concurrency=1)
    assert (rest.not_run, asked) == (("d",), ["a", "b", "c"])
    whole = run(agent, *cases)
    assert (whole.passed, whole.evaluation_id, asked) == (True, first.evaluation_id, ["a", "b", "c", "d"])
    assert [one.earlier for one in whole.results] == [True, True, True, False]


def test_a_cost_budget_without_prices_is_refused_after_the_first_run() -> None:
    report = run(
        support(MemoryJournal(), lambda _: "free"),
        case("a"),
        case("b"),
        budget=EvaluationBudget(cost=1),
        concurrency=1,
    )
    assert (report.not_run, "prices" in report.stopped) == (("b",), True)


async def _interrupted(agent: Agent[Any, Any], cases: list[EvaluationCase], reached: asyncio.Event) -> None:
    task = asyncio.ensure_future(evaluate(agent, cases, concurrency=1))
    await asyncio.wait_for(reached.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_interrupted_evaluation_is_continued_and_a_changed_case_is_run_again(tmp_path: Path) -> None:
    asked: list[str] = []
    reached = asyncio.Event()
    stopping = True

    async def model(request: Any) -> Response:
        said = request.messages[-1].text
        asked.append(said)
        if said == "second" and stopping:
            reached.set()
            await asyncio.sleep(600)
        return answer(request)

    async def work() -> EvaluationReport:
        nonlocal stopping
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            agent = support(journal, model)
            cases = [case("a", "first"), case("b", "second"), case("c", "third")]
            await _interrupted(agent, cases, reached)
            stopping = False
            changed = [case("a", "first, changed"), *cases[1:]]
            return await evaluate(agent, changed, concurrency=1)

    report = asyncio.run(work())
    assert asked == ["first", "second", "first, changed", "second", "third"]
    assert report.passed
    assert [one.earlier for one in report.results] == [False, False, False]


def test_another_expectation_is_checked_on_the_recorded_run_and_another_agent_runs_it_again() -> None:
    journal, asked = MemoryJournal(), []

    def model(request: Any) -> str:
        asked.append(request.messages[0].text)
        return "yes"

    stop = EvaluationBudget(tokens=1)  # leaves the evaluation open
    first = run(support(journal, model), case("a"), case("b"), budget=stop, concurrency=1)
    assert (first.not_run, len(asked)) == (("b",), 1)
    wrong = case("a", expect={"output": "no"})
    second = run(support(journal, model), wrong, case("b"), budget=stop, concurrency=1)
    assert (second.failing, second.not_run, len(asked)) == (["a"], ("b",), 1)
    third = run(support(journal, model, version="2"), case("a"), case("b"), concurrency=1)
    assert (third.passed, third.evaluation_id, len(asked)) == (True, first.evaluation_id, 3)


def test_new_starts_again_and_ends_the_open_evaluation() -> None:
    journal = MemoryJournal()
    agent = support(journal)
    first = run(agent, case("a"), case("b"), budget=EvaluationBudget(tokens=1), concurrency=1)
    second = run(agent, case("a"), case("b"), new=True)
    assert second.evaluation_id != first.evaluation_id
    heads = asyncio.run(Runs(journal).list(machine="evaluation"))
    assert {head.run_id: head.outcome for head in heads} == {
        first.evaluation_id: "cancelled",
        second.evaluation_id: "completed",
    }


def test_a_request_to_cancel_stops_new_cases_and_the_next_call_starts_another_evaluation() -> None:
    journal = MemoryJournal()

    async def work() -> None:
        async def model(_: Any) -> str:
            (head,) = await Runs(journal).list(machine="evaluation", status="open")
            await Runs(journal).cancel(head.run_id, by="ann")
            return "done"

        agent, cases = support(journal, model), [case("a"), case("b")]
        report = await evaluate(agent, cases, concurrency=1)
        assert (report.cancelled, report.not_run, report.passed) == (True, ("b",), False)
        assert (await Runs(journal).head(report.evaluation_id)).outcome == "cancelled"
        left = await evaluate(agent, cases, concurrency=1, budget=EvaluationBudget(tokens=1))
        assert left.evaluation_id != report.evaluation_id

    asyncio.run(work())


def test_a_request_to_cancel_an_interrupted_evaluation_ends_it_at_the_next_call() -> None:
    journal = MemoryJournal()

    async def work() -> None:
        agent, cases = support(journal), [case("a"), case("b")]
        left = await evaluate(agent, cases, concurrency=1, budget=EvaluationBudget(tokens=1))
        await Runs(journal).cancel(left.evaluation_id, by="ann")
        report = await evaluate(agent, cases)
        assert report.passed
        assert (await Runs(journal).head(left.evaluation_id)).outcome == "cancelled"

    asyncio.run(work())


def test_an_evaluation_in_postgresql_answers_questions_and_is_continued(database: str) -> None:
    from orchestrator.journal.postgres import PostgresJournal

    async def work() -> None:
        async with PostgresJournal(database) as journal:
            agent = support(journal)
            cases = [
                case("pays", "refund", answers={"refund": "approve"}),
                case("asks", "refund", expect={"outcome": "waiting"}),
            ]
            first = await evaluate(agent, cases, concurrency=1, budget=EvaluationBudget(tokens=1))
            assert first.not_run == ("asks",)
            report = await evaluate(agent, cases)
            assert (report.passed, report.evaluation_id) == (True, first.evaluation_id)
            assert [one.earlier for one in report.results] == [True, False]

    asyncio.run(work())


async def test_the_console_shows_an_evaluation_and_its_runs() -> None:
    from tests.console.client import Client, readable

    journal = MemoryJournal()
    report = await evaluate(support(journal), [case("a")])
    client = Client(readable(Runs(journal)))
    for page in ("/", f"/runs/{report.evaluation_id}", f"/runs/{report.results[0].run_id}", "/machines"):
        assert (await client.get(page)).status == 200, page


def test_two_processes_never_work_on_one_evaluation() -> None:
    journal = MemoryJournal()

    async def work() -> None:
        reached, release = asyncio.Event(), asyncio.Event()

        async def model(_: Any) -> str:
            reached.set()
            await release.wait()
            return "done"

        agent = support(journal, model)
        first = asyncio.ensure_future(evaluate(agent, [case("a")]))
        await asyncio.wait_for(reached.wait(), 30)
        for new in (False, True):
            with pytest.raises(ConfigError, match=r"another process works on .* give this one another name"):
                await evaluate(agent, [case("a")], new=new)
        other = asyncio.ensure_future(evaluate(agent, [case("a")], name="other"))
        release.set()
        assert (await first).passed
        assert (await other).passed

    asyncio.run(work())


def test_an_ended_evaluation_is_the_baseline_of_the_next_one() -> None:
    journal = MemoryJournal()
    wise = support(journal, lambda request: "4" if "2+2" in request.messages[-1].text else "?")
    sums = [case("two", "2+2", expect={"output": "4"}), case("three", "3+3", expect={"output": "6"})]
    first = run(wise, *sums, case("gone", expect={"output": "?"}))
    assert (first.baseline, first.failing) == (None, ["three"])
    other = support(journal, lambda _: Response("6", usage=Usage(5, 5)), version="2")
    changes = run(other, *sums, case("new", expect={"output": "6"})).changes
    assert changes is not None
    assert (changes.newly_failing, changes.newly_passing) == (("two",), ("three",))
    assert (changes.new, changes.gone, changes.evaluation_id) == (("new",), ("gone",), first.evaluation_id)
    assert (changes.requests, changes.tokens, changes.cost) == (0, 16, None)


def test_a_report_survives_json_and_a_damaged_one_is_refused() -> None:
    report = run(support(MemoryJournal()), case("a", judges=["fair"]), case("b"), judges=[fair])
    assert EvaluationReport.from_json(report.as_json()) == report
    assert report.as_json()["format"] == "orchestrator-evaluation/1"
    damaged: list[Any] = [[], {"format": "x"}, {**report.as_json(), "results": [{}]}]
    for data in damaged:
        with pytest.raises(ConfigError):
            EvaluationReport.from_json(data)


def test_junit_names_failures_errors_and_skipped_cases_without_control_characters() -> None:
    from xml.etree.ElementTree import fromstring

    hostile = "\x1b[31m\x00]]><evil/>&\ud800"
    report = run(
        support(MemoryJournal(), lambda _: Response(hostile, usage=PRICE)),
        case("fails", expect={"output": "x"}, judges=[]),
        case("raises", judges="broken"),
        case("fine", judges=[]),
        case("left"),
        judges=[broken],
        budget=EvaluationBudget(cost=0.75),
        concurrency=1,
    )
    root = fromstring(junit_xml(report))  # noqa: S314 - our own
    assert {name: root.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
    }
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert {one.attrib["classname"] for one in suite.iter("testcase")} == {report.name}
    by_name = {one.attrib["name"]: one for one in root.iter("testcase")}
    about = {one.attrib["name"]: one.attrib["value"] for one in by_name["fine"].iter("property")}
    (result,) = report.cases["fine"].results
    assert about == {
        "run": result.run_id,
        "outcome": "completed",
        "requests": "1",
        "tokens": str(PRICE.input_tokens + PRICE.output_tokens),
        "cost": f"{PRICE.cost:g}",
    }
    (failure,) = by_name["fails"].iter("failure")
    assert failure.attrib["message"].startswith("output.equals: expected 'x', got ")
    assert [one.tag for one in by_name["raises"]] == ["properties", "error"]
    assert [one.tag for one in by_name["fine"]] == ["properties"]
    assert by_name["left"].find("skipped") is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0; it must be 1 or more"),
        ({"selection": CaseSelection(repeat=0)}, "repeat is 0"),
        ({"selection": CaseSelection(names=["z"])}, "there is no case 'z'; the cases: a"),
        ({"selection": CaseSelection(tags=["z"])}, "no case is selected; the tags of the cases: none"),
        ({"judges": [3]}, "judge 'int' is 3; give a function"),
        ({"judges": [fair, fair]}, "two judges have one name"),
        ({"name": "a\nb"}, "printable text"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_runs(options: dict[str, Any], said: str) -> None:
    journal = MemoryJournal()
    with pytest.raises(ConfigError, match=said):
        run(support(journal), case("a"), **options)
    assert asyncio.run(Runs(journal).list()) == []


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"expect": {"tools": {"not_called": "serch"}}}, "there is no tool 'serch'; did you mean 'search'"),
        (
            {"expect": {"transitions": {"not_visited": "await_lm"}}},
            "there is no state 'await_lm'; did you mean 'await_llm'",
        ),
        ({"judges": "polite"}, "there is no judge 'polite'; there are: none"),
        ({"answers": {"pay": "approve"}}, "there is no tool 'pay'"),
    ],
)
def test_an_expectation_about_something_that_does_not_exist_is_refused(
    members: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run(support(MemoryJournal()), case("a", **members))


def test_limits_of_the_agent_end_a_run_and_the_outcome_can_be_expected() -> None:
    agent = support(MemoryJournal(), limits=Limits(max_iterations=1))
    expect = {"outcome": "budget_exceeded", "reason": "max_iterations"}
    report = run(agent, case("short", "search", expect=expect), case("long", "search"))
    assert (report.cases["short"].status, report.failing) == ("passed", ["long"])
    assert "iterations" in faults(report, "long")["outcome"]
