"""Runs of the modes that are left, by a crash or on purpose, and gone on with: in the same process or the next."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import MemoryJournal, Message, Outcome, Request, RunUnknown, SqliteJournal, tool
from orchestrator.errors import ConfigError, Held, JournalError, OtherGraph, StoreDown, Suspended
from orchestrator.kernel.fact import RunRecovered
from orchestrator.machines.rlm.code_mode import CODE_MODE
from orchestrator.providers.model_guard import refuse_real_models
from orchestrator.providers.scripted import call
from orchestrator.repl import WorkerRepl
from orchestrator.rlm import Rlm, RlmLimits, RlmResult, StopAfter
from orchestrator.testing import CrashingJournal, FakeClock, FunctionLLM
from orchestrator_callbacks.rlm.conversation import AGAIN, LOST
from tests.runtime.stage import Facts, path, until
from tests.with_runtime import with_runtime

TEXT = "nothing\n" * 50 + "needle 42\n"


def block(code: str) -> str:
    return f"```repl\n{code}\n```"


def decides(request: Request) -> str:
    """A model that goes by what it has said: a run that is resumed is given the same."""
    turn = sum(message.role == "assistant" for message in request.messages)
    steps = ["print(len(context))", "print('needle' in context)", "print(context.split()[-1])"]
    return block(steps[turn]) if turn < len(steps) else f"FINAL({request.messages[-1].text.split()[-1]})"


def rlm(journal: Any, model: Any = decides, **options: Any) -> Rlm:
    return Rlm(FunctionLLM(model), **with_runtime(journal=journal, **{"observers": (), **options}))


def told(result: RlmResult) -> tuple[Any, ...]:
    """A result but for its times."""
    moves = [(one.seq, one.event, one.iteration) for one in result.transitions]
    return (result.state, result.outcome, result.reason, result.output, result.iterations, moves)


# ---- crashes ----


async def broken_off(at: int, when: Any) -> RlmResult | None:
    """Run on a journal that breaks at one of its writes, then go on without it; None where it never broke."""
    inner = MemoryJournal()
    journal = CrashingJournal(inner, at=at, when=when)
    with contextlib.suppress(StoreDown, JournalError):
        await rlm(journal).run("What is the needle?", TEXT, run_id="r")
    if not journal.crashed:
        return None
    inner.bury((await inner.head("r")).owner or "")
    return await rlm(inner).resume("r")


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.campaign), "after"])
def test_a_journal_that_breaks_at_any_write_loses_nothing_that_was_durable(
    when: str, campaign: Callable[[int, int], int]
) -> None:
    expected = rlm(None).run_sync("What is the needle?", TEXT)
    assert (expected.outcome, expected.output) == (Outcome.COMPLETED, "42")
    step = campaign(3, 1)
    at = 1
    while (result := asyncio.run(broken_off(at, when))) is not None:
        assert told(result) == told(expected), at
        at += step
    assert at - step == 4 + 8 + 1, "each request to the model, each transition, and the end"


async def left(journal: Any, at: int = 2, **options: Any) -> list[Request]:
    """Leave a run while the model is asked for the `at`-th time; return what it was asked."""
    asked: list[Request] = []
    waits = asyncio.Event()

    async def stuck(request: Request) -> Any:
        asked.append(request)
        if len(asked) == at:
            waits.set()
            await asyncio.Event().wait()
        return options.get("model", decides)(request)

    given = {name: value for name, value in options.items() if name != "model"}
    running = asyncio.create_task(rlm(journal, stuck, **given).run("What?", TEXT, run_id="r"))
    await waits.wait()
    running.cancel()
    await until(running.done)
    return asked


async def test_a_run_that_was_left_goes_on_where_it_stood_and_the_model_is_told_that_names_are_gone() -> None:
    journal, facts, asked = MemoryJournal(), Facts(), list[Request]()
    await left(journal)

    def model(request: Request) -> str:
        asked.append(request)
        return decides(request)

    done = await rlm(journal, model, observers=[facts]).resume("r", by="ann")
    assert (done.outcome, done.output, done.iterations) == (Outcome.COMPLETED, "42", 3)
    first = asked[0].messages[-1].text
    assert first.startswith(LOST)
    assert "Result of your code:\n410" in first, "the code ran again, in a new REPL that has the data"
    assert sum(LOST in message.text for message in done.messages) == 1
    assert [one.outcome for one in facts.of(RunRecovered)] == []


async def test_a_run_that_was_left_before_its_first_answer_begins_again_and_is_told_nothing() -> None:
    journal = MemoryJournal()
    first = (await left(journal, at=1))[0]
    asked: list[Request] = []

    def model(request: Request) -> str:
        asked.append(request)
        return decides(request)

    done = await rlm(journal, model).resume("r")
    assert [message.text for message in asked[0].messages] == [message.text for message in first.messages]
    assert done.output == "42"


def test_another_process_goes_on_with_a_run_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"

    async def one() -> None:
        journal = SqliteJournal(file)
        await left(journal, at=3)
        await journal.close()

    async def other() -> RlmResult:
        journal = SqliteJournal(file)
        try:
            return await rlm(journal).resume("r")
        finally:
            await journal.close()

    asyncio.run(one())
    done = asyncio.run(other())
    assert (done.outcome, done.output, len(done.transitions)) == (Outcome.COMPLETED, "42", 8)
    again = asyncio.run(other())
    assert (told(again), again.messages, again.usage) == (told(done), done.messages, done.usage), "only told"


async def test_what_was_used_before_and_what_was_asked_for_when_it_stopped_counts_after() -> None:
    journal = MemoryJournal()
    await left(journal, at=3, params={"max_tokens": 1})
    done = await rlm(journal).resume("r", limits=RlmLimits(max_output_tokens=3))
    assert (done.outcome, done.reason, done.usage.output_tokens) == (
        Outcome.BUDGET_EXCEEDED,
        "output_tokens",
        3,
    )


def asks_itself(request: Request) -> str:
    """A model whose code asks two questions at once."""
    if request.messages[0].role != "system":
        return "yes"
    turn = sum(message.role == "assistant" for message in request.messages)
    return block("print(llm_query_batched(['a' * 10, 'b' * 20]))") if not turn else "FINAL(done)"


@pytest.mark.parametrize(
    ("at", "lost", "nested"),
    [(2, 2, False), (4, 1, False), (2, 2, True)],
    ids=["questions of the code", "its own", "runs below"],
)
async def test_every_answer_that_was_lost_is_charged_at_its_bound(
    at: int, lost: int, *, nested: bool
) -> None:
    journal = MemoryJournal()
    limits = RlmLimits(max_depth=2 if nested else 1)
    await left(journal, at=at, model=asks_itself, limits=limits, params={"max_tokens": 50})
    before = (await journal.load("r"))[-2:]
    assert [record.kind for record in before] == ["reserved", "parked"]
    done = await rlm(journal, asks_itself, limits=limits, params={"max_tokens": 50}).resume("r")
    assert (done.outcome, done.output) == (Outcome.COMPLETED, "done")
    answered = at - 1  # of the first life
    again = 2 * 4 + 1 if nested else 3  # a run below is a turn, its two questions, its answer
    assert done.usage.output_tokens == lost * 50 + answered + again
    assert done.sub_calls == 2 + (2 * 3 if nested else 2), "asked again, and counted again"


@pytest.mark.parametrize("how", ["cancelled", "out of time"])
async def test_a_question_that_is_cut_off_for_good_counts_at_most_its_output_limit(how: str) -> None:
    asked = asyncio.Event()

    async def hangs(_request: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    clock = FakeClock()
    limits = RlmLimits(max_seconds=60)
    one = rlm(MemoryJournal(), hangs, params={"max_tokens": 50}, limits=limits, clock=clock)
    running = asyncio.create_task(one.run("p", run_id="r"))
    await asked.wait()
    if how == "cancelled":
        await clock.advance(1)
        one.cancel("r")
    else:
        await clock.advance(60)
    done = await running
    assert done.outcome is (Outcome.CANCELLED if how == "cancelled" else Outcome.BUDGET_EXCEEDED)
    assert done.usage.output_tokens == 50


async def test_other_limits_count_from_the_resume_on() -> None:
    journal = MemoryJournal()
    await left(journal, at=2)
    done = await rlm(journal).resume("r", limits=RlmLimits(max_iterations=1))
    assert (done.outcome, done.reason, done.iterations) == (Outcome.PARTIAL, "max_iterations", 1)


async def test_what_policies_keep_is_there_again() -> None:
    journal = MemoryJournal()

    def same(_request: Request) -> str:
        return block("print('same')")

    await left(journal, at=3, model=same, stopping=StopAfter(repeats=4))
    done = await rlm(journal, same, stopping=StopAfter(repeats=4)).resume("r")
    assert (done.outcome, done.reason) == (Outcome.PARTIAL, "policy_stop")
    assert done.iterations == 3


def no_repl(_context: Any, **_names: Any) -> Any:
    raise LookupError("no machine for it")


@pytest.mark.parametrize(
    ("repl", "said"),
    [
        (no_repl, "no machine for it"),
        (lambda _, **names: names, "repl made dict, which has no run, variable"),
    ],
)
async def test_a_repl_that_cannot_be_made_fails_the_run_and_nobody_holds_it(repl: Any, said: str) -> None:
    journal = MemoryJournal()
    await rlm(journal).deposit("What?", TEXT, run_id="r")
    done = await rlm(journal, repl=repl).resume("r")
    assert (done.outcome, done.reason) == (Outcome.FAILED, "callback_error")
    assert said in str(done.error)
    head = await journal.head("r")
    assert (head.status, head.owner) == ("ended", None)
    assert (await rlm(None, repl=repl).run("What?", TEXT)).outcome is Outcome.FAILED


async def test_a_repl_that_cannot_be_closed_takes_no_result_away(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(WorkerRepl):
        async def close(self) -> None:
            await super().close()
            raise OSError("the machine does not answer")

    done = await rlm(MemoryJournal(), repl=Stuck).run("What?", TEXT, run_id="r")
    assert (done.outcome, done.output) == (Outcome.COMPLETED, "42")
    said = [one.getMessage() for one in caplog.records if one.name == "orchestrator"]
    assert said == ["run r: its REPL could not be closed (OSError: the machine does not answer)"]


# ---- tools ----


@pytest.mark.parametrize("effect", ["pure", "idempotent", "irreversible"])
async def test_calls_that_may_have_run_and_must_not_run_twice_wait_for_somebody_to_look(effect: Any) -> None:
    journal, runs = MemoryJournal(), list[str]()
    began = asyncio.Event()

    @tool(effect=effect)
    async def pay(amount: int) -> str:
        """Pay."""
        runs.append(str(amount))
        if len(runs) == 1:
            began.set()
            await asyncio.Event().wait()
        return "paid"

    def model(request: Request) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("pay", amount=5)

    one = rlm(journal, model, mode="tools", tools=[pay])
    running = asyncio.create_task(one.run("p", run_id="r"))
    await began.wait()
    running.cancel()
    await until(running.done)
    other = rlm(journal, model, mode="tools", tools=[pay])
    if effect == "irreversible":
        with pytest.raises(Suspended, match="calls of pay may have run already"):
            await other.resume("r")
        assert runs == ["5"]
    done = await other.resume("r", again=effect == "irreversible")
    assert (done.output, runs) == ("done", ["5", "5"])


# ---- who may ----


async def test_a_run_that_nobody_knows_or_that_is_under_way_is_refused() -> None:
    one = rlm(MemoryJournal())
    with pytest.raises(RunUnknown):
        await one.resume("nobody")
    asked = asyncio.Event()

    async def hangs(_request: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    busy = rlm(MemoryJournal(), hangs)
    running = asyncio.create_task(busy.run("p", run_id="r", conversation_id="c"))
    await asked.wait()
    with pytest.raises(Held):
        await busy.resume("r")
    with pytest.raises(ConfigError, match="has an active run"):
        await busy.run("p", conversation_id="c")
    busy.cancel("r")
    assert (await running).outcome is Outcome.CANCELLED


async def test_a_run_of_the_other_mode_or_of_another_version_is_refused() -> None:
    journal = MemoryJournal()
    await left(journal)
    with pytest.raises(Exception, match="belongs to graph 'code_mode', not to 'tools_mode'"):
        await rlm(journal, mode="tools").resume("r")
    changed = CODE_MODE.extend(dwell={"EXECUTING": (5.0, "Failed")}, edges=(), context=Message)
    with pytest.raises(OtherGraph):
        await rlm(journal, graph=changed).resume("r")


async def test_a_paused_run_waits_and_goes_on_in_the_same_repl() -> None:
    journal, one = MemoryJournal(), list[Rlm]()
    paused = asyncio.Event()

    def model(request: Request) -> str:
        turn = sum(message.role == "assistant" for message in request.messages)
        if turn == 0:
            return block("kept = 'still here'")
        if turn == 1:
            one[0].pause("r", by="ann")
            paused.set()
            return block("print(kept)")
        return f"FINAL({request.messages[-1].text.splitlines()[-1]})"

    one.append(rlm(journal, model))
    running = asyncio.create_task(one[0].run("p", run_id="r"))
    await paused.wait()
    await until(
        lambda: (
            (live := one[0]._service.live.find("r")) is not None and live.control.pause_request is not None
        )
    )
    done = await one[0].resume("r", by="ann")
    assert (done.output, (await running).output) == ("still here", "still here")


async def test_hooks_run_in_the_same_order_and_as_often_in_a_run_that_is_paused_between_two_states() -> None:
    async def hooks_of(*, pause: bool) -> list[str]:
        seen: list[str] = []

        class Hooks:
            async def enter_state(self, run: Any) -> None:
                seen.append(f"enter {run.state}")

            async def after_event(self, run: Any) -> None:
                seen.append(f"after {run.state}")

        def model(request: Request) -> str:
            if any(message.role == "assistant" for message in request.messages):
                return "FINAL(1)"
            if pause:
                one.pause("r", by="ann")
            return block("print(1)")

        one = rlm(MemoryJournal(), model, hooks=[Hooks()])
        running = asyncio.create_task(one.run("p", run_id="r"))
        if pause:
            await until(
                lambda: (
                    (live := one._service.live.find("r")) is not None
                    and live.control.pause_request is not None
                )
            )
            await one.resume("r", by="ann")
        assert (await running).output == "1"
        return seen

    undisturbed = await hooks_of(pause=False)
    assert "after EXECUTING" in undisturbed
    assert await hooks_of(pause=True) == undisturbed


async def paused_at(journal: Any, at: int, model: Any, **options: Any) -> None:
    """Leave a run for another process by pausing it while the model is asked for the `at`-th time."""
    asked = 0

    def pauses(request: Request) -> Any:
        nonlocal asked
        asked += 1
        if asked == at:
            one.pause("r", by="ann")
        return model(request)

    one = rlm(journal, pauses, **options)
    one.parks = True
    with pytest.raises(Suspended):
        await one.run("What?", TEXT, run_id="r")
    assert (await journal.head("r")).reason == "paused"


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_run_that_is_paused_after_a_states_work_and_resumed_elsewhere_does_none_of_it_again(
    at: int,
) -> None:
    journal, asked = MemoryJournal(), list[Request]()
    counts: list[Request] = []

    def model(request: Request) -> str:
        asked.append(request)
        return decides(request).replace("print(", "llm_query('x'); print(")

    async def sub(request: Request) -> str:
        counts.append(request)
        return "y"

    await paused_at(journal, at, model, sub_model=FunctionLLM(sub))
    done = await rlm(journal, model, sub_model=FunctionLLM(sub)).resume("r")
    assert (done.outcome, done.output, done.iterations) == (Outcome.COMPLETED, "42", 3)
    assert (len(asked), len(counts)) == (4, 3), "each turn was asked for once, and its code ran once"
    assert (done.usage.output_tokens, done.sub_calls) == (7, 3)
    assert not any(AGAIN in message.text for message in done.messages)


def paying(runs: list[int]) -> tuple[Any, Callable[[Request], Any]]:
    """An irreversible tool that notes what it paid, and a model that has it pay once."""

    @tool(effect="irreversible")
    async def pay(amount: int) -> str:
        """Pay."""
        runs.append(amount)
        return "paid"

    def model(request: Request) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("pay", amount=5)

    return pay, model


@pytest.mark.parametrize("at", [1, 2])
async def test_calls_before_or_after_a_pause_run_once_and_nobody_is_asked(at: int) -> None:
    journal, runs = MemoryJournal(), list[int]()
    pay, model = paying(runs)
    await paused_at(journal, at, model, mode="tools", tools=[pay])
    done = await rlm(journal, model, mode="tools", tools=[pay]).resume("r")
    assert (done.output, runs) == ("done", [5])


async def test_calls_that_a_pause_kept_from_beginning_run_without_anybodys_word() -> None:
    journal, runs = MemoryJournal(), list[int]()
    pay, model = paying(runs)

    class Pauses:
        async def enter_prompting(self, run: Any) -> None:
            one.pause("r", by="ann")

    one = rlm(journal, model, mode="tools", tools=[pay], hooks=[Pauses()])
    one.parks = True
    with pytest.raises(Suspended):
        await one.run("p", run_id="r")
    assert ((await journal.load("r"))[-1].kind, runs) == ("parked", [])
    done = await rlm(journal, model, mode="tools", tools=[pay]).resume("r")
    assert (done.output, runs) == ("done", [5])


async def test_the_records_of_a_run_tell_each_message_once_and_the_data_once() -> None:
    journal = MemoryJournal()
    done = await rlm(journal).run("What is the needle?", TEXT, run_id="r")
    records = await journal.load("r")
    whole = "".join(str(record.body) for record in records)
    assert whole.count("needle 42") == 1, "the data"
    assert whole.count("print(len(context))") == 1, "what the model said"
    assert [record.kind for record in records].count("transition") == len(path(done.transitions))


async def test_a_real_model_is_not_asked_by_a_resumed_run_either_where_these_are_refused() -> None:
    journal = MemoryJournal()
    await rlm(journal).deposit("Where?", TEXT, run_id="r")

    class Real:
        async def complete(self, request: Request) -> Any:
            raise AssertionError(f"asked with {len(request.messages)} messages")

    with refuse_real_models(), pytest.raises(ConfigError, match="Real is not a test double"):
        await Rlm(Real(), journal=journal, observers=()).resume("r")
    assert (await journal.head("r")).seq == 0
