"""`ToolSet`: one call, and the calls of one turn."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import enum
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from orchestrator.errors import ConfigError, RunError
from orchestrator.llm.message import Message, ToolCall
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.argument import BadArguments
from orchestrator.tools.result import ToolResult, cut
from orchestrator.tools.spec import ToolContext, ToolSpec, tool
from orchestrator.tools.tool_set import ToolSet


def context_for(call: ToolCall, position: int) -> ToolContext:
    return ToolContext("run", f"run:1:{position}")


def call(name: str, arguments: str = "{}", identity: str = "") -> ToolCall:
    return ToolCall(identity, name, arguments)


def named(name: str, handler: Callable[..., Any], **options: Any) -> ToolSpec:
    return tool(name=name, **options)(handler)


async def one(handler: Callable[..., Any], **options: Any) -> ToolResult:
    """The result of one call without arguments of a tool made of `handler`."""
    return await ToolSet([named("it", handler, **options)]).execute(call("it"), 0, context_for)


def outcomes(results: list[ToolResult]) -> list[str]:
    return [result.outcome for result in results]


def error_of(result: ToolResult) -> tuple[str, str]:
    said = json.loads(result.content)
    return said["type"], said["error"]


# ---- names ----


async def nothing() -> None: ...


REMEDY = "; tools of an MCP server get other names by `prefix=`, or `--mcp NAME=COMMAND`"


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a", "a"], "two tools are named 'a'; names that differ only in case count as equal" + REMEDY),
        (
            ["Read", "read"],
            "two tools are named 'read'; names that differ only in case count as equal" + REMEDY,
        ),
        ([""], "tool name ''"),
        (["a b"], "tool name 'a b': possible: 1 to 64 of a-z, A-Z, 0-9, _ and -"),
        (["größe"], "tool name 'größe'"),
        (["a\n"], r"tool name 'a\n'"),
        (["a" * 65], "tool name"),
    ],
)
def test_names_that_are_ambiguous_or_that_no_vendor_takes_are_refused(
    names: list[str], sentence: str
) -> None:
    specs = [ToolSpec(name, "", {}, nothing) for name in names]
    with pytest.raises(ConfigError) as refused:
        ToolSet(specs)
    assert sentence in str(refused.value)


def test_a_tool_is_found_by_its_exact_name_and_in_other_capitals() -> None:
    tools = ToolSet([named("read_file", nothing), named("a" * 64, nothing)])
    assert [spec.name for spec in tools.offers] == ["read_file", "a" * 64]
    assert tools.find("read_file") is tools.find("READ_File") is tools.offers[0]
    assert tools.find("read") is None


async def test_an_unknown_tool_is_an_error_that_names_up_to_three_close_ones() -> None:
    tools = ToolSet(
        [named(name, nothing) for name in ("read_file", "read_files", "Read_Fill", "read_fil", "x")]
    )
    result = await tools.execute(call("raed_file"), 4, context_for)
    kind, why = error_of(result)
    assert (result.outcome, result.position, kind) == ("error", 4, "UnknownTool")
    assert why.count("'read") + why.count("'Read") == 3
    assert error_of(tools.unknown(call("zzz")))[1] == "there is no tool 'zzz'"


# ---- one call ----


class Size(str, enum.Enum):  # noqa: UP042  the older form, whose str() is not its value
    BIG = "big"


class Place(BaseModel):
    city: str


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ("", ""),
        (Size.BIG, "big"),
        (None, "null"),
        (True, "true"),
        ([1, "a", None], '[1,"a",null]'),
        ({"a": Point(1)}, '{"a":{"x":1}}'),
        (Place(city="Ulm"), '{"city":"Ulm"}'),
        ({3}, "[3]"),
        (10**40, "1" + "0" * 40),
        (float("nan"), '"NaN"'),
        ("ä\ud800", "ä?"),
    ],
)
async def test_a_value_becomes_the_text_of_the_result(value: object, content: str) -> None:
    async def give() -> object:
        return value

    for handler in (give, lambda: value):
        result = await one(handler)
        assert (result.content, result.outcome, result.cut) == (content, "ok", False)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (ValueError("no such row"), "ValueError", "no such row"),
        (KeyError(), "KeyError", "KeyError"),
        (asyncio.TimeoutError("of its own"), "TimeoutError", "of its own"),  # noqa: UP041  what older tools say
        (StopIteration(), "RuntimeError", "coroutine raised StopIteration"),
        (Mute(), "Mute", "Mute"),
        (asyncio.CancelledError("of its own"), None, None),
        (
            ExceptionGroup("two", [ValueError("a"), ExceptionGroup("", [KeyError("b")])]),
            "ExceptionGroup",
            "two: ValueError: a; KeyError: 'b'",
        ),
        (BaseExceptionGroup("b", [asyncio.CancelledError()]), None, None),
        (UnicodeError("\ud800"), "UnicodeError", "?"),
    ],
)
async def test_whatever_a_tool_raises_is_an_error_the_model_can_read(
    error: BaseException, kind: str | None, why: str | None
) -> None:
    async def fail() -> None:
        raise error

    def fail_in_thread() -> None:
        raise error

    for handler in (fail, fail_in_thread):
        result = await one(handler)
        told_kind, told_why = error_of(result)
        assert result.outcome == "error"
        if handler is fail and kind:
            assert told_kind == kind
        if why:
            assert told_why == why


async def test_a_tool_that_exits_in_its_thread_does_not_take_the_host_with_it() -> None:
    result = await one(lambda: sys.exit(3))
    assert error_of(result) == ("RuntimeError", "the tool raised SystemExit: 3")


async def test_an_exit_that_an_async_tool_lets_out_in_a_group_is_not_hidden() -> None:
    async def stop() -> None:
        raise BaseExceptionGroup("stop", [KeyboardInterrupt()])

    with pytest.raises(BaseExceptionGroup):
        await one(stop)


async def test_the_text_of_an_error_is_capped() -> None:
    def fail() -> None:
        raise ValueError("x" * 10_000)

    assert len(error_of(await one(fail))[1]) == 2_000


async def test_bad_arguments_are_an_error_the_model_can_act_on_and_the_tool_does_not_run() -> None:
    ran: list[int] = []

    async def count(number: int) -> None:
        ran.append(number)

    tools = ToolSet([count])
    cut_off, wrong, right = [
        call("count", text) for text in ('{"number', '{"number": "x"}', '{"number": "3"}')
    ]
    results = await tools.execute_all([cut_off, wrong, right], context_for)
    assert outcomes(results) == ["invalid_args", "invalid_args", "ok"]
    assert error_of(results[1])[1].startswith("number: Input should be a valid integer")
    assert ran == [3]


async def test_a_tool_may_refuse_its_arguments_itself() -> None:
    def pick() -> None:
        raise BadArguments("row must be below 10")

    result = await one(pick)
    assert (result.outcome, error_of(result)) == ("invalid_args", ("BadArguments", "row must be below 10"))


async def test_a_result_is_the_tool_message_that_answers_its_call() -> None:
    tools = ToolSet([named("ping", lambda: "pong")])
    (result, lost) = await tools.execute_all([call("PING", "", "c1"), call("gone", "", "")], context_for)
    assert result.message() == Message("tool", "pong", tool_call_id="c1", name="PING")
    assert (lost.message().tool_call_id, lost.message().is_error) == ("", True)


async def test_a_sync_tool_runs_in_a_daemon_thread_with_the_callers_context_variables() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    tenant.set("acme")

    def who() -> list[object]:
        thread = threading.current_thread()
        seen = tenant.get()
        tenant.set("changed")
        return [seen, thread is threading.main_thread(), thread.daemon, thread.name]

    assert json.loads((await one(who)).content) == ["acme", False, True, "tool-it"]
    assert tenant.get() == "acme"


async def test_a_sync_wrapper_round_an_async_tool_is_awaited() -> None:
    async def inner() -> str:
        return "inner"

    assert (await one(functools.partial(lambda make: make(), inner))).content == "inner"


# ---- time ----


UNKNOWN = "; whether it took effect is not known"


async def not_needed() -> None:
    """Revert nothing: no call of this file is undone."""


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        ({"effect": "pure"}, ""),
        ({"effect": "idempotent"}, ""),
        ({"effect": "compensable", "undo": not_needed}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
async def test_a_tool_that_lasts_longer_than_its_timeout_is_cancelled_and_the_model_reads_what_is_known(
    options: dict[str, Any], unknown: str
) -> None:
    clock = FakeClock()
    contexts: list[ToolContext] = []
    ended: list[str] = []

    async def slow(ctx: ToolContext) -> None:
        contexts.append(ctx)
        try:
            await clock.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    tools = ToolSet([named("slow", slow, timeout=5, **options)], clock=clock)
    start = clock.monotonic()
    running = asyncio.create_task(tools.execute_all([call("slow")], context_for))
    await clock.advance(4.9)
    assert not running.done()
    assert contexts[0].deadline == start + 5
    await clock.advance(0.1)
    (result,) = await running
    assert (result.outcome, result.seconds, ended) == ("timeout", 5, ["cancelled"])
    assert error_of(result) == ("Timeout", f"the tool gave no answer within 5 s{unknown}")
    assert contexts[0].cancelled.is_set()


async def test_a_thread_that_lasts_longer_than_its_timeout_is_left_alone_and_told_so() -> None:
    clock = FakeClock()
    began, stopped = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(ctx: ToolContext) -> None:
        loop.call_soon_threadsafe(began.set)
        ctx.cancelled.wait(30)
        stopped.set()

    tools = ToolSet([named("slow", slow, timeout=5)], clock=clock)
    running = asyncio.create_task(tools.execute(call("slow"), 0, context_for))
    await began.wait()
    await clock.advance(5)
    assert (await running).outcome == "timeout"
    assert stopped.wait(30)


async def test_a_timeout_error_of_the_tools_own_is_an_error_and_not_a_timeout() -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    assert (await one(impatient, timeout=60)).outcome == "error"


async def test_a_tool_that_answers_its_timeout_with_another_error_has_timed_out() -> None:
    clock = FakeClock()

    async def converts() -> None:
        try:
            await clock.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("interrupted") from None

    tools = ToolSet([named("it", converts, timeout=1)], clock=clock)
    running = asyncio.create_task(tools.execute(call("it"), 0, context_for))
    await clock.advance(1)
    assert (await running).outcome == "timeout"


async def test_the_deadline_of_the_run_wins_over_a_longer_timeout() -> None:
    clock = FakeClock()
    start = clock.monotonic()

    async def look(ctx: ToolContext) -> float | None:
        return ctx.deadline

    tools = ToolSet(
        [named("short", look, timeout=5), named("long", look, timeout=50), named("none", look)], clock=clock
    )
    results = await tools.execute_all(
        [call("short"), call("long"), call("none")],
        lambda _, __: ToolContext("run", "key", deadline=start + 10, clock=clock),
    )
    assert [float(result.content) - start for result in results] == [5, 10, 10]


def test_a_tool_that_never_returns_does_not_keep_the_interpreter_from_exiting() -> None:
    program = """
import asyncio, threading
from orchestrator.llm.message import ToolCall
from orchestrator.tools.spec import ToolContext, tool
from orchestrator.tools.tool_set import ToolSet

@tool(timeout=0.05)
def forever() -> None:
    threading.Event().wait()

calls = [ToolCall("", "forever", "")] * 40
results = asyncio.run(ToolSet([forever]).execute_all(calls, lambda c, p: None, max_concurrent=0))
print({result.outcome for result in results})
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "{'timeout'}\n"


# ---- cutting ----


async def test_a_long_result_is_cut_and_says_so() -> None:
    result = await one(lambda: "x" * 98_765, max_result_chars=12_381)
    assert result.cut
    assert len(result.content) == 12_381
    assert result.content.endswith("x… [cut: 12,345 of 98,765 characters]")


@pytest.mark.parametrize(("size", "was_cut"), [(99, False), (100, False), (101, True)])
async def test_a_result_of_exactly_the_cap_is_whole(size: int, was_cut: bool) -> None:
    assert (await one(lambda: "x" * size, max_result_chars=100)).cut is was_cut


async def test_a_cap_of_zero_is_no_cap() -> None:
    assert len((await one(lambda: "x" * 100_000, max_result_chars=0)).content) == 100_000
    assert len((await one(lambda: "x" * 100_000)).content) == 20_000


@given(st.text(max_size=300) | st.integers(0, 100_000).map(lambda n: "y" * n), st.integers(1, 12_000))
def test_cutting_never_exceeds_the_cap_and_keeps_a_beginning(text: str, limit: int) -> None:
    shown, was_cut = cut(text, limit)
    assert len(shown) <= limit
    assert was_cut is (len(text) > limit)
    kept, mark, _ = shown.rpartition("… [cut: ")
    assert text.startswith(kept if mark else "")
    assert was_cut or shown == text


# ---- a turn ----


class Gauge:
    """A tool that holds until it is let go, and counts how many of it run at once."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.order: list[str] = []
        self.gate = asyncio.Event()
        self.filled = asyncio.Event()  # three at once

    async def hold(self, label: str = "") -> str:
        self.now += 1
        self.peak = max(self.peak, self.now)
        self.order.append(f"+{label}")
        if self.now == 3:
            self.filled.set()
        try:
            await self.gate.wait()
        finally:
            self.now -= 1
            self.order.append(f"-{label}")
        return label


def labelled(name: str, label: str) -> ToolCall:
    return call(name, json.dumps({"label": label}))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_results_come_in_call_order_whatever_ends_first_and_ids_do_not_matter() -> None:
    clock = FakeClock()

    async def wait(seconds: float) -> float:
        await clock.sleep(seconds)
        return seconds

    calls = [
        call("wait", json.dumps({"seconds": n}), identity)
        for n, identity in ((3, "same"), (1, "same"), (2, ""))
    ]
    running = asyncio.create_task(ToolSet([wait], clock=clock).execute_all(calls, context_for))
    await clock.advance(3)
    results = await running
    assert [(r.position, r.content, r.call, r.seconds) for r in results] == [
        (0, "3.0", calls[0], 3),
        (1, "1.0", calls[1], 1),
        (2, "2.0", calls[2], 2),
    ]


async def test_one_failing_tool_never_cancels_its_siblings() -> None:
    gauge = Gauge()

    async def fail() -> None:
        raise ValueError

    tools = ToolSet([gauge.hold, fail])
    calls = [labelled("hold", "a"), call("fail"), call("nowhere"), call("hold", "{"), labelled("hold", "b")]
    running = asyncio.create_task(tools.execute_all(calls, context_for))
    await settle()
    gauge.gate.set()
    assert outcomes(await running) == ["ok", "error", "error", "invalid_args", "ok"]


@pytest.mark.parametrize(("cap", "peak"), [(1, 1), (2, 2), (5, 5), (9, 5), (0, 5)])
async def test_no_more_calls_than_the_cap_run_at_once(cap: int, peak: int) -> None:
    gauge = Gauge()
    calls = [labelled("hold", str(n)) for n in range(5)]
    running = asyncio.create_task(ToolSet([gauge.hold]).execute_all(calls, context_for, max_concurrent=cap))
    await settle()
    assert gauge.now == peak
    gauge.gate.set()
    assert [result.content for result in await running] == list("01234")
    assert gauge.peak == peak


async def test_waiting_for_a_slot_is_queued_time_and_not_seconds() -> None:
    clock = FakeClock()

    async def wait() -> None:
        await clock.sleep(2)

    for options, cap in (({"max_concurrency": 1}, 10), ({}, 1)):
        tools = ToolSet([named("wait", wait, **options)], clock=clock)
        running = asyncio.create_task(tools.execute_all([call("wait")] * 3, context_for, max_concurrent=cap))
        await clock.advance(6)
        assert [(r.queued, r.seconds) for r in await running] == [(0, 2), (2, 2), (4, 2)]


async def test_the_cap_of_a_tool_holds_over_all_runs_that_share_the_set() -> None:
    capped, free = Gauge(), Gauge()
    tools = ToolSet([named("capped", capped.hold, max_concurrency=2), named("free", free.hold)])
    calls = [call("capped"), call("capped"), call("free")]
    runs = [asyncio.create_task(tools.execute_all(calls, context_for)) for _ in range(3)]
    await settle()
    assert (capped.now, free.now) == (2, 3)
    capped.gate.set()
    free.gate.set()
    await asyncio.gather(*runs)
    assert (capped.peak, free.peak) == (2, 3)


def test_one_set_serves_one_event_loop_after_the_other() -> None:
    async def wait() -> None:
        await asyncio.sleep(0)

    tools = ToolSet([named("wait", wait, max_concurrency=1)])
    for _ in range(3):
        assert outcomes(asyncio.run(tools.execute_all([call("wait")] * 3, context_for))) == ["ok"] * 3
    assert len(tools._slots) == 1


async def test_a_sequential_tool_runs_after_all_earlier_calls_and_before_all_later_ones() -> None:
    order: list[str] = []

    async def step(label: str) -> None:
        order.append(f"+{label}")
        await asyncio.sleep(0)
        order.append(f"-{label}")

    tools = ToolSet([named("side", step), named("alone", step, sequential=True)])
    calls = [
        labelled(name, label)
        for name, label in zip(["side", "side", "alone", "alone", "side"], "abcde", strict=True)
    ]
    results = await tools.execute_all(calls, context_for)
    assert outcomes(results) == ["ok"] * 5
    assert order == ["+a", "+b", "-a", "-b", "+c", "-c", "+d", "-d", "+e", "-e"]


async def test_a_single_call_makes_no_task() -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    async def whose() -> None:
        tasks.append(asyncio.current_task())

    await ToolSet([whose]).execute_all([call("whose")], context_for)
    assert tasks == [asyncio.current_task()]


async def test_a_context_variable_set_by_one_parallel_tool_does_not_reach_another() -> None:
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="untouched")

    async def touch(label: str) -> str:
        before = seen.get()
        seen.set(label)
        return before

    calls = [labelled("touch", label) for label in "abc"]
    results = await ToolSet([touch]).execute_all(calls, context_for, max_concurrent=1)
    assert [result.content for result in results] == ["untouched"] * 3


async def test_no_calls_have_no_results() -> None:
    assert await ToolSet().execute_all([], context_for) == []


async def test_d16_a_place_that_is_filled_already_is_kept_and_its_call_not_run() -> None:
    """Caps are checked before execution: what they deny is filled in and never runs."""
    gauge = Gauge()
    gauge.gate.set()
    calls = [labelled("hold", label) for label in "abc"]
    denied = ToolResult.failure(calls[1], 1, "denied", "the cap of 'hold' is 2 calls", "Denied")
    done: list[ToolResult | None] = [None, denied, None]
    results = await ToolSet([gauge.hold]).execute_all(calls, context_for, done=done)
    assert outcomes(results) == ["ok", "denied", "ok"]
    assert gauge.order == ["+a", "-a", "+c", "-c"]
    with pytest.raises(ConfigError, match="done has 3 places for 1 calls"):
        await ToolSet().execute_all(calls[:1], context_for, done=done)


# ---- cancellation ----


async def test_a_cancelled_turn_joins_what_runs_starts_nothing_more_and_keeps_what_is_done() -> None:
    gauge = Gauge()
    calls = [call("quick"), *(labelled("hold", label) for label in "abc"), call("last")]
    tools = ToolSet([gauge.hold, named("quick", lambda: "done"), named("last", nothing, sequential=True)])
    done: list[ToolResult | None] = [None] * 5
    turn = tools.execute_all(calls, context_for, max_concurrent=3, done=done)
    running = asyncio.create_task(turn)
    await gauge.filled.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(gauge.order) == ["+a", "+b", "+c", "-a", "-b", "-c"]
    assert [None if result is None else result.content for result in done] == ["done", None, None, None, None]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_calls_that_wait_for_a_slot_never_start_after_a_cancellation() -> None:
    gauge = Gauge()
    tools = ToolSet([named("hold", gauge.hold, max_concurrency=1)])
    running = asyncio.create_task(
        tools.execute_all([labelled("hold", n) for n in "abcd"], context_for, max_concurrent=2)
    )
    await settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gauge.order == ["+a", "-a"]


async def test_a_cancelled_turn_leaves_its_threads_with_cancelled_set() -> None:
    began, seen = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work(ctx: ToolContext) -> None:
        loop.call_soon_threadsafe(began.set)
        if ctx.cancelled.wait(30):
            seen.set()

    running = asyncio.create_task(ToolSet([work]).execute_all([call("work")], context_for))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen.wait(30)


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_tool_that_swallows_a_cancellation_does_not_keep_the_turn_alive(calls: int) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished anyway"
        raise AssertionError

    done: list[ToolResult | None] = [None] * calls
    tools = ToolSet([stubborn])
    running = asyncio.create_task(tools.execute_all([call("stubborn")] * calls, context_for, done=done))
    await settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [result and result.content for result in done] == ["finished anyway"] * calls


async def test_d12_a_deadline_outside_the_turn_is_not_the_timeout_of_a_tool() -> None:
    """Cancellation is never labelled timeout: who set the deadline gets it, the tool has no result."""
    gauge = Gauge()
    done: list[ToolResult | None] = [None]
    tools = ToolSet([named("hold", gauge.hold, timeout=60)])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tools.execute_all([call("hold")], context_for, done=done)
    assert done == [None]


# ---- middleware ----


async def test_before_can_change_a_call_answer_it_or_let_it_be() -> None:
    gauge = Gauge()
    gauge.gate.set()

    async def before(asked: ToolCall) -> ToolCall | ToolResult | None:
        match json.loads(asked.arguments)["label"]:
            case "a":
                return labelled("hold", "changed")
            case "b":
                return ToolResult.failure(asked, 0, "denied", "not today", "Denied")
            case _:
                return None

    calls = [dataclasses.replace(labelled("hold", label), id=label) for label in "abc"]
    results = await ToolSet([gauge.hold]).execute_all(calls, context_for, before=before)
    assert [(r.call.id, r.position, r.outcome) for r in results] == [
        ("a", 0, "ok"),
        ("b", 1, "denied"),
        ("c", 2, "ok"),
    ]
    assert gauge.order == ["+changed", "-changed", "+c", "-c"]


async def test_after_sees_every_result_and_may_replace_it() -> None:
    async def after(result: ToolResult) -> ToolResult | None:
        return dataclasses.replace(result, content="redacted") if result.content == "secret" else None

    tools = ToolSet([named("a", lambda: "secret"), named("b", lambda: "open")])
    results = await tools.execute_all([call("a"), call("b")], context_for, after=after)
    assert [result.content for result in results] == ["redacted", "open"]


async def test_a_result_is_kept_even_if_the_turn_is_cancelled_while_after_looks_at_it() -> None:
    async def after(result: ToolResult) -> None:
        await asyncio.Event().wait()

    done: list[ToolResult | None] = [None]
    tools = ToolSet([named("send", nothing)])
    running = asyncio.create_task(tools.execute_all([call("send")], context_for, after=after, done=done))
    await settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [result and result.outcome for result in done] == ["ok"]


@pytest.mark.parametrize("names", [["ping"], ["ping", "hold"]])
async def test_an_exception_of_the_middleware_is_raised_itself_once_siblings_have_ended(
    names: list[str],
) -> None:
    gauge = Gauge()
    cause = KeyError("why")

    async def after(result: ToolResult) -> None:
        await settle()
        raise RuntimeError("policy") from cause

    tools = ToolSet([gauge.hold, named("ping", nothing)])
    with pytest.raises(RuntimeError, match="policy") as raised:
        await tools.execute_all([call(name) for name in names], context_for, after=after)
    assert raised.value.__cause__ is cause
    assert gauge.now == 0
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    assert asyncio.all_tasks() == {asyncio.current_task()}


if sys.version_info >= (3, 12):  # where eager tasks came

    async def test_eager_tasks_end_together_too_when_the_middleware_raises() -> None:
        gauge = Gauge()

        async def after(result: ToolResult) -> None:
            raise RuntimeError("policy")

        asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  not in 3.11
        calls = [call(name) for name in ("hold", "nothing", "hold")]
        with pytest.raises(RuntimeError, match="policy"):
            await ToolSet([gauge.hold, nothing]).execute_all(calls, context_for, after=after)
        assert gauge.order == ["+", "-"]


async def test_a_cancellation_wins_over_an_exception_of_the_middleware() -> None:
    gauge = Gauge()

    async def after(result: ToolResult) -> None:
        raise RuntimeError("while ending")

    async def stubborn() -> None:
        try:
            await gauge.hold()
        except asyncio.CancelledError:
            return

    for calls in (1, 2):
        running = asyncio.create_task(
            ToolSet([stubborn]).execute_all([call("stubborn")] * calls, context_for, after=after)
        )
        await settle()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_cancelled_error_that_middleware_invents_does_not_leave_a_hole() -> None:
    async def before(asked: ToolCall) -> None:
        raise asyncio.CancelledError

    with pytest.raises(RunError, match="the turn was not cancelled"):
        await ToolSet([nothing]).execute_all([call("nothing")] * 2, context_for, before=before)


async def test_a_context_that_cannot_be_made_is_a_failure_of_the_run() -> None:
    def broken(call: ToolCall, position: int) -> ToolContext:
        raise LookupError("no run")

    async def look(ctx: ToolContext) -> None: ...

    with pytest.raises(LookupError):
        await ToolSet([look]).execute_all([call("look")], broken)


async def test_contexts_are_made_for_the_position_of_each_call_and_only_for_tools_that_take_one() -> None:
    async def key(ctx: ToolContext) -> str:
        return ctx.idempotency_key

    results = await ToolSet([key, nothing]).execute_all(
        [call("key"), call("nothing"), call("key")], context_for
    )
    assert [result.content for result in results] == ["run:1:0", "null", "run:1:2"]


@given(st.lists(st.sampled_from(["ok", "fail", "alone", "gone", "sync"]), max_size=8), st.integers(0, 4))
async def test_every_call_of_any_turn_has_one_result_in_its_place(names: list[str], cap: int) -> None:
    async def fail() -> None:
        raise ValueError

    expected = {"ok": "ok", "alone": "ok", "sync": "ok", "fail": "error", "gone": "error"}
    handlers: dict[str, Callable[..., Awaitable[None] | None]] = {
        "ok": nothing,
        "fail": fail,
        "sync": lambda: None,
    }
    tools = ToolSet(
        [
            *(named(name, handler) for name, handler in handlers.items()),
            named("alone", nothing, sequential=True),
        ]
    )
    results = await tools.execute_all([call(name) for name in names], context_for, max_concurrent=cap)
    assert [(r.position, r.outcome) for r in results] == [(n, expected[name]) for n, name in enumerate(names)]


async def test_an_error_that_is_no_exception_stops_the_other_calls_of_the_turn_and_reaches_the_caller() -> (
    None
):
    class Death(BaseException):
        pass

    stopped = asyncio.Event()

    @tool(effect="pure")
    async def die() -> None:
        raise Death

    @tool(effect="pure")
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    tools = ToolSet([die, wait])
    calls = [ToolCall("a", "wait", "{}"), ToolCall("b", "die", "{}")]
    with pytest.raises(Death):
        await tools.execute_all(calls, lambda call, position: ToolContext("r", f"{position}"))
    assert stopped.is_set()
