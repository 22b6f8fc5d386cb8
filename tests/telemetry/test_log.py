from __future__ import annotations

import asyncio
import importlib.resources
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import jsonschema
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, JournalError, LLMError, Refused
from orchestrator.kernel.fact import (
    BudgetChecked,
    EventFailed,
    Fact,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    OperationAttempt,
    RunCompleted,
    RunParked,
    RunStarted,
    ToolExecution,
    Transition,
)
from orchestrator.kernel.journal import NO_HASH, Draft, Lease
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.redaction import scrub
from orchestrator.kernel.run import Run
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.log import KEYS, LineWriter, TransitionLog, error_code, fingerprint, stamp
from orchestrator.telemetry.scope import logger_from_context
from orchestrator.tools.spec import tool
from orchestrator_guards import Verdict
from tests.telemetry.loop import CANARY, Context, Deps, Event, Rig

SCHEMA = json.loads(
    importlib.resources.files("orchestrator.telemetry").joinpath("log_schema.json").read_text()
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def lines_of(stream: io.BytesIO) -> list[dict[str, Any]]:
    """Every line, each checked against the schema."""
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    return lines


def told(*facts: Fact, level: str = "debug") -> list[dict[str, Any]]:
    stream = io.BytesIO()
    log = TransitionLog(stream, level=level)
    for fact in facts:
        log.observe(fact)
    return lines_of(stream)


def named(lines: list[dict[str, Any]], msg: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["msg"] == msg]


def edge(**changes: Any) -> Transition:
    values: dict[str, Any] = {
        "graph": "loop",
        "run_id": "r1",
        "seq": 1,
        "event": "go",
        "source": "begin",
        "dest": "think",
        "dwell": 1.5,
        "at": 1_700_000_000.25,
        "iteration": 0,
    }
    return Transition(**values | changes)


# ---- transitions ----


def test_a_transition_is_one_info_line_with_the_words_of_the_metric_labels() -> None:
    assert told(edge(), level="info") == [
        {
            "ts": "2023-11-14T22:13:20.250000Z",
            "level": "info",
            "msg": "fsm.transition",
            "schema": "orchestrator.log/1",
            "service": "orchestrator",
            "pid": os.getpid(),
            "run_id": "r1",
            "machine": "loop",
            "seq": 1,
            "iteration": 0,
            "from_state": "begin",
            "fsm_event": "go",
            "to_state": "think",
            "outcome": "ok",
            "state_duration_s": 1.5,
        }
    ]


def test_a_line_begins_with_time_level_and_message() -> None:
    assert list(told(edge())[0])[:4] == ["ts", "level", "msg", "schema"]


def test_a_guarded_edge_names_its_guard() -> None:
    (line,) = told(edge(guard="turns"))
    assert (line["guard"], line["guard_result"]) == ("turns", "allow")


def test_the_verdict_that_ended_the_run_explains_itself_in_numbers_not_in_words() -> None:
    (line,) = told(edge(guard="turns", verdict=Verdict(False, "tool_errors", 3, 3, CANARY)))
    assert {key: line[key] for key in ("guard", "guard_result", "observed", "limit")} == {
        "guard": "tool_errors",
        "guard_result": "deny",
        "observed": 3,
        "limit": 3,
    }
    assert CANARY not in json.dumps(line)


def test_only_an_internal_edge_says_that_it_is_one() -> None:
    outer, inner = told(edge(), edge(internal=True))
    assert "internal" not in outer
    assert inner["internal"] is True


@given(st.floats(0, 4e9))
def test_times_are_microseconds_in_utc_whatever_came_before(at: float) -> None:
    text = stamp(at)
    assert len(text) == len("2023-11-14T22:13:20.250000Z")
    assert text == stamp(at)
    assert abs(datetime.fromisoformat(text).timestamp() - at) < 1e-5


# ---- conservation ----


async def always_again(run: Run[Context, Deps]) -> Event:
    return Event.AGAIN


async def broken(run: Run[Context, Deps]) -> Event:
    raise RuntimeError(f"no answer with api_key={CANARY}")


async def refusing(run: Run[Context, Deps]) -> Event:
    raise Refused("not today")


async def cancelling(run: Run[Context, Deps]) -> Event:
    run.cancel("caller", CANARY)
    await asyncio.sleep(10)
    return Event.AGAIN


async def waiting(run: Run[Context, Deps]) -> Event:
    return Event.WAIT


ENDS = {
    "well": (None, {"rounds": 2}, "completed"),
    "by a guard": (always_again, {"rounds": 9, "most": 2}, "failed"),
    "by an error": (broken, {}, "failed"),
    "by a refusal": (refusing, {}, "failed"),
    "by cancel": (cancelling, {}, "cancelled"),
}


@pytest.mark.parametrize(("act", "ctx", "outcome"), ENDS.values(), ids=ENDS.keys())
async def test_every_transition_is_one_line_however_the_run_ends(
    act: Any, ctx: dict[str, Any], outcome: str
) -> None:
    stream = io.BytesIO()
    log = TransitionLog(stream)
    run = await Rig([log]).drive(act=act, **ctx)
    lines = lines_of(stream)
    moves = named(lines, "fsm.transition")
    assert [line["seq"] for line in moves] == list(range(1, run.seq + 1))
    assert lines[0]["msg"] == "run.started"
    assert lines[-1]["msg"] == "run.completed"
    assert lines[-1]["outcome"] == outcome
    assert lines[-1]["seq"] == run.seq
    assert lines[-1]["level"] == ("error" if outcome == "failed" else "info")
    assert CANARY not in stream.getvalue().decode()
    assert log._runs == {}


async def test_a_cancelled_task_leaves_a_parked_line_and_no_logger() -> None:
    stream = io.BytesIO()
    log = TransitionLog(stream)
    rig = Rig([log])

    async def stuck(run: Run[Context, Deps]) -> Event:
        await asyncio.Event().wait()
        return Event.AGAIN

    run = rig.run(act=stuck)
    task = asyncio.create_task(rig.driver().drive(run))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lines = lines_of(stream)
    assert len(named(lines, "fsm.transition")) == run.seq == 2
    assert (lines[-1]["msg"], lines[-1]["reason"]) == ("run.parked", "interrupted")
    assert log._runs == {}


async def test_a_run_that_waits_is_parked_and_goes_on_in_the_same_words() -> None:
    stream = io.BytesIO()
    log = TransitionLog(stream)
    rig = Rig([log])
    run = rig.run(act=waiting, rounds=1)
    driver = rig.driver()
    await driver.drive(run)
    run.mailbox.post(Signal(Event.NOTE))
    run.mailbox.post(Signal(Event.ANSWER))
    await driver.drive(run)
    lines = lines_of(stream)
    assert [line["msg"] for line in lines if not line["msg"].startswith("fsm.")] == [
        "run.started",
        "run.parked",
        "run.resumed",
        "run.completed",
    ]
    assert [line["seq"] for line in named(lines, "fsm.transition")] == list(range(1, run.seq + 1))
    assert [line["internal"] for line in lines if line.get("fsm_event") == "note"] == [True]


# ---- the other facts ----


def test_a_resumed_run_says_so() -> None:
    (line,) = told(RunStarted("loop", "r2", 1.0, "resumed", "r1"))
    assert (line["msg"], line["level"], line["parent_run_id"]) == ("run.resumed", "info", "r1")


def test_a_failed_event_has_type_code_and_fingerprint_of_its_error_and_never_its_text() -> None:
    error = LLMError(f"401 for Bearer {CANARY}", kind="auth", status=401)
    (line,) = told(EventFailed("loop", "r1", "think", "go", "callback_error", 2.0, 1, "enter_think", error))
    assert line["level"] == "warning"
    assert (line["error_type"], line["error_code"], line["hook"]) == ("LLMError", "auth", "enter_think")
    assert CANARY not in json.dumps(line)


def test_a_failed_event_says_in_which_line_of_which_file_its_error_was_raised() -> None:
    def hook() -> None:
        raise ValueError(CANARY)

    try:
        hook()
    except ValueError as raised:
        error = raised
    (line,) = told(EventFailed("loop", "r1", "think", "go", "callback_error", 2.0, 1, "enter_think", error))
    assert line["where"] == f"test_log.py:{hook.__code__.co_firstlineno + 1}"
    (line,) = told(EventFailed("loop", "r1", "think", "go", "unknown_event", 2.0, 1, None, ValueError()))
    assert "where" not in line
    (line,) = told(EventFailed("loop", "r1", "think", "go", "unknown_event", 2.0, 1))
    assert "where" not in line


def test_a_failure_of_a_journal_keeps_a_failed_run_apart_from_its_transitions() -> None:
    (line,) = told(JournalWrite("loop", "r1", "sqlite", "append", 3, 0.2, "full", "/srv/journal.db"))
    assert line["journal"] == "/srv/journal.db"
    assert (line["msg"], line["level"], line["reason"]) == ("journal.failed", "error", "full")
    assert told(JournalWrite("loop", "r1", "sqlite", "append", 3, 0.2)) == []


def test_the_line_at_the_end_has_the_totals() -> None:
    summary = {
        "tokens_in": 10,
        "tokens_out": 5,
        "cost": 0.25,
        "tool_calls": 2,
        "restarts": 1,
        "budget_used": {"iterations": 0.5},
        "prompt": CANARY,
    }
    verdict = Verdict(False, "iterations", 5, 5)
    (line,) = told(
        RunCompleted(
            "loop", "r1", "done", "partial", "max_iterations", 9.0, 8.5, 7, 3, summary, None, verdict
        )
    )
    expected = {key: value for key, value in summary.items() if key != "prompt"}
    assert {key: line[key] for key in expected} == expected
    assert (line["run_duration_s"], line["guard"], line["observed"]) == (8.5, "iterations", 5)
    assert CANARY not in json.dumps(line)


@pytest.mark.parametrize("odd", [None, 3, "text", {"tokens_in": "many", "budget_used": 4}, object()])
def test_a_summary_or_verdict_of_another_kind_costs_fields_not_the_line(odd: object) -> None:
    (line,) = told(RunCompleted("loop", "r1", "done", "completed", "none", 9.0, 8.5, 7, 3, odd, None, odd))
    assert line["msg"] == "run.completed"
    assert not {"tokens_in", "budget_used", "guard"} & line.keys()


def test_a_used_up_budget_is_a_warning_with_every_share() -> None:
    verdicts = [
        Verdict(True, "iterations", 5, 10),
        Verdict(False, "cost", 2.0, 2.0),
        Verdict(True, "elapsed", 3),
    ]
    refused = BudgetChecked("loop", "r1", "act", 5, verdicts)
    (line,) = told(refused, BudgetChecked("loop", "r1", "act", 4, verdicts[:1]))
    assert (line["msg"], line["level"], line["guard"]) == ("budget.exceeded", "warning", "cost")
    assert line["budget_used"] == {"iterations": 0.5, "cost": 1.0}


LEVELS: list[tuple[Fact, str, str]] = [
    (OperationAttempt("loop", "r1", "llm", 1, "retry", "rate_limited", 0.5), "retry.scheduled", "warning"),
    (OperationAttempt("loop", "r1", "llm", 3, "exhausted", "timeout"), "retry.exhausted", "warning"),
    (GuardEvaluated("loop", "r1", "act", "again", "iterations", "allow", 1, 3), "fsm.guard", "debug"),
    (GuardEvaluated("loop", "r1", "act", "again", "iterations", "deny", 3, 3), "fsm.guard", "info"),
    (GuardEvaluated("loop", "r1", "act", "again", "iterations", "error", 0, 0), "fsm.guard", "warning"),
    (
        LLMCall("loop", "r1", "think", 1, "gpt", "ok", 0.5, 10, 5, finish_reason="stop"),
        "llm.request",
        "debug",
    ),
    (LLMCall("loop", "r1", "think", 1, "gpt", "timeout", 60.0), "llm.request", "warning"),
    (ToolExecution("loop", "r1", 1, 0, "search", "ok", 0.5, 0.1, 20), "tool.call", "debug"),
    (ToolExecution("loop", "r1", 1, 0, "_unregistered", "error", 0.0), "tool.call", "warning"),
    (RunParked("loop", "r1", "ask", "waiting", 3.0), "run.parked", "info"),
    (edge(), "fsm.transition", "info"),
]


@pytest.mark.parametrize(("fact", "msg", "level"), LEVELS)
@pytest.mark.parametrize("threshold", ["debug", "info", "warning", "error"])
def test_each_line_has_its_level_and_is_left_out_above_it(
    fact: Fact, msg: str, level: str, threshold: str
) -> None:
    order = ["debug", "info", "warning", "error"]
    expected = [(msg, level)] if order.index(level) >= order.index(threshold) else []
    assert [(line["msg"], line["level"]) for line in told(fact, level=threshold)] == expected


def test_an_attempt_that_went_well_is_no_news() -> None:
    assert told(OperationAttempt("loop", "r1", "journal", 1, "ok")) == []


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="debug, info, warning, error, critical"):
        TransitionLog(level="loud")


# ---- the run's logger ----


def test_a_runs_logger_redacts_what_is_not_in_the_schema() -> None:
    stream = io.BytesIO()
    logger = TransitionLog(stream).bound("r1", "loop")
    logger.info("looked it up", tool="search", api_key=CANARY, prompt=CANARY)
    try:
        int(CANARY)
    except ValueError:
        logger.exception("went wrong", reason=RuntimeError(CANARY))
    first, second = lines_of(stream)
    assert (first["run_id"], first["machine"], first["tool"]) == ("r1", "loop", "search")
    assert (first["api_key"], first["prompt"]) == ("[redacted]", "[redacted]")
    assert (second["exc_info"], second["reason"]) == (True, "[RuntimeError]")
    assert CANARY not in stream.getvalue().decode()


def test_two_runs_of_one_name_in_two_machines_have_loggers_of_their_own() -> None:
    log = TransitionLog(io.BytesIO())
    assert log.bound("r1", "a") is log.bound("r1", "a")
    assert log.bound("r1", "a") is not log.bound("r1", "b")


def test_runs_that_never_end_do_not_pile_up_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.telemetry.log._MOST_RUNS", 10)
    log = TransitionLog(io.BytesIO())
    for number in range(100):
        log.bound(str(number), "loop")
    assert [run_id for _, run_id in log._runs] == [str(number) for number in range(90, 100)]


def test_a_late_fact_of_a_run_that_is_over_is_logged_and_keeps_nothing() -> None:
    stream = io.BytesIO()
    log = TransitionLog(stream)
    log.observe(EventFailed("loop", "r1", "done", "go", "undeclared_edge", 1.0, 1))
    assert lines_of(stream)[0]["run_id"] == "r1"
    assert log._runs == {}


def test_a_hosts_own_logger_gets_the_same_fields_through_its_own_chain() -> None:
    capture = structlog.testing.LogCapture()
    host = structlog.wrap_logger(structlog.PrintLogger(), processors=[capture])
    TransitionLog(logger=host).observe(edge())
    (entry,) = capture.entries
    assert (entry["event"], entry["run_id"], entry["to_state"]) == ("fsm.transition", "r1", "think")
    assert (entry["msg"], entry["level"], entry["log_level"]) == ("fsm.transition", "info", "info")


def test_structlog_is_never_configured_globally() -> None:
    told(edge())
    assert structlog.is_configured() is False


# ---- where lines go ----


def text_file(path: Path) -> IO[Any]:
    return path.open("w", encoding="ascii")


def buffered_file(path: Path) -> IO[Any]:
    return path.open("wb")


def raw_file(path: Path) -> IO[Any]:
    return path.open("wb", buffering=0)


@pytest.mark.parametrize("opened", [text_file, buffered_file, raw_file])
def test_a_line_is_in_the_file_before_observe_returns(
    tmp_path: Path, opened: Callable[[Path], IO[Any]]
) -> None:
    path = tmp_path / "log"
    with opened(path) as stream:
        log = TransitionLog(stream)
        log.observe(edge(source="über"))
        assert json.loads(path.read_bytes())["from_state"] == "über"


def test_a_stream_of_text_only_will_do() -> None:
    stream = io.StringIO()
    TransitionLog(stream).observe(edge())
    assert json.loads(stream.getvalue())["seq"] == 1


def test_stdout_is_looked_up_at_each_line_and_order_is_kept(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    log = TransitionLog()
    print("before")  # noqa: T201
    log.observe(edge())
    print("after")  # noqa: T201
    first, line, last = capsysbinary.readouterr().out.splitlines()
    assert (first, json.loads(line)["seq"], last) == (b"before", 1, b"after")


def test_a_process_without_stdout_logs_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    log = TransitionLog()
    monkeypatch.setattr(sys, "stdout", None)
    log.observe(edge())


class Slow(io.RawIOBase):
    """Takes three bytes at a time, then none."""

    def __init__(self, takes: int) -> None:
        self.taken = b""
        self.takes = takes

    def write(self, data: Any, /) -> int | None:
        if len(self.taken) >= self.takes:
            return None
        self.taken += bytes(data[:3])
        return len(bytes(data[:3]))


def test_a_raw_file_that_takes_little_at_a_time_gets_the_whole_line() -> None:
    slow = Slow(1_000)
    LineWriter(slow).info(b"0123456789\n")  # type: ignore[arg-type]
    assert slow.taken == b"0123456789\n"


def test_a_raw_file_that_takes_nothing_is_an_error_for_the_driver_to_count() -> None:
    with pytest.raises(BlockingIOError):
        LineWriter(Slow(6)).info(b"0123456789\n")  # type: ignore[arg-type]


KILLED = """
import os, signal, sys
from orchestrator.kernel.fact import Transition
from orchestrator.telemetry.log import TransitionLog

log = TransitionLog()
for seq in range(1, 51):
    log.observe(Transition("loop", "r1", seq, "go", "begin", "think", 0.0, 0.0, 0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_no_line() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], check=False, capture_output=True)
    assert [json.loads(line)["seq"] for line in done.stdout.splitlines()] == list(range(1, 51))


# ---- driver and log together ----


async def test_an_observer_that_raises_is_counted_and_fails_no_run() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            raise OSError("no space left on device")

    rig = Rig([TransitionLog(Full())])
    driver = rig.driver()
    run = rig.run()
    await driver.drive(run)
    assert run.ended
    assert run.error is None
    assert driver.observer_errors["TransitionLog"] == run.seq + 2


async def test_a_lost_journal_ends_in_a_failed_run_whose_lines_are_the_committed_moves() -> None:
    class Lost:
        backend = "lost"

        async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
            return Lease(run_id, owner, 1, 0, NO_HASH)

        async def release(self, lease: Lease) -> None: ...

        def append(
            self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
        ) -> None:
            if any(draft.body.get("event") == "call" for draft in drafts):
                raise JournalError(f"disk gone at /{CANARY}")

    stream = io.BytesIO()
    rig = Rig([TransitionLog(stream)], journal=Lost())
    run = await rig.drive()
    lines = lines_of(stream)
    assert len(named(lines, "fsm.transition")) == run.seq == 1
    assert named(lines, "fsm.transition_failed")[0]["reason"] == "journal_error"
    assert CANARY not in stream.getvalue().decode()


async def test_outcome_and_reason_are_those_of_the_ending() -> None:
    stream = io.BytesIO()
    rig = Rig([TransitionLog(stream)], ending=lambda _: Ending(Outcome.PARTIAL, "time"))
    await rig.drive()
    last = lines_of(stream)[-1]
    assert (last["outcome"], last["reason"], last["level"]) == ("partial", "time", "info")


# ---- the schema and the scrubber ----


def test_the_keys_in_code_are_those_of_the_schema() -> None:
    assert SCHEMA["properties"].keys() == KEYS
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_refuses_a_line_without_its_seq_and_a_key_with_a_structure() -> None:
    (line,) = told(edge())
    assert VALIDATOR.is_valid(line)
    assert not VALIDATOR.is_valid({key: value for key, value in line.items() if key != "seq"})
    assert not VALIDATOR.is_valid(line | {"prompt": {"text": "hello"}})
    assert not VALIDATOR.is_valid(line | {"level": "debug"})


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}",
        f"api_key={CANARY}",
        f'{{"password": "{CANARY}"}}',
        f"GET https://user:{CANARY}@host/path",
        f"key {CANARY} is invalid",
        "AKIAIOSFODNN7EXAMPLE was refused",
        "0123456789abcdef0123456789abcdef0123 is unknown",
    ],
)
def test_what_looks_like_a_secret_is_scrubbed(text: str) -> None:
    scrubbed = scrub(text)
    assert "[redacted]" in scrubbed
    assert CANARY not in scrubbed
    assert "AKIA" not in scrubbed


def test_errors_that_differ_in_numbers_and_secrets_only_have_one_fingerprint() -> None:
    first = fingerprint(RuntimeError(f"call 17 failed at 0x7f3a with token={CANARY}"))
    assert first == fingerprint(RuntimeError("call 4 failed at 0x1b with token=other"))
    assert first != fingerprint(ValueError("call 4 failed at 0x1b with token=other"))
    assert first != fingerprint(RuntimeError("call 4 was refused"))


def test_an_error_that_cannot_be_printed_has_a_fingerprint_too() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError(CANARY)

    assert len(fingerprint(Mute())) == 12


@pytest.mark.parametrize(
    ("code", "expected"),
    [("insufficient_quota", "insufficient_quota"), (429, "429"), (CANARY, None), ("a b", None)],
)
def test_an_error_code_is_a_plain_word_or_nothing(code: object, expected: str | None) -> None:
    error = RuntimeError("x")
    error.code = code  # type: ignore[attr-defined]
    assert error_code(error) == expected


@pytest.mark.parametrize("stream", ["runs.jsonl", Path("runs.jsonl"), 3])
def test_a_stream_that_is_none_is_refused_at_once(stream: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"stream is .*; give an open file, as in open\('runs.jsonl', 'a'\)"
    ):
        TransitionLog(stream)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_log_on_a_full_disk_fails_no_run_that_says_something() -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        logger_from_context().info("looking", tool="look")
        return "seen"

    with Path("/dev/full").open("ab", buffering=0) as full:
        log = TransitionLog(full)
        llm = ScriptedLLM([call("look"), "done"])
        agent = Agent(llm, tools=[look], runtime=Runtime(observers=[log], price=lambda model, tokens: None))
        result = agent.run_sync("go")  # whose price nobody knows, which is a warning

    assert (result.outcome, result.error) == (Outcome.COMPLETED, None)
    assert "seen" in result.messages[2].text
    assert log.tallies[0].dropped == 2
