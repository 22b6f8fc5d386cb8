"""Exceptions of tools: what the journal, the log, the result and the command line say, and which of them end a run."""

from __future__ import annotations

import asyncio
import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, Limits, ModelRetry, Runs, SqliteJournal, ToolCall, tool
from orchestrator.errors import LLMError, ToolRaised
from orchestrator.kernel.fact import Fact, ToolExecution
from orchestrator.kernel.outcome import Outcome
from orchestrator.telemetry.log import TransitionLog
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.spec import ToolSpec
from orchestrator.tools.tool_error import BUGS, ENDED, ON_TOOL_ERROR, traceback_of

HERE = Path(__file__).name
LEAKED = "sk-ant-REDACTED"


@pytest.fixture(autouse=True)
def _as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ON_TOOL_ERROR, raising=False)


def line_of(text: str) -> str:
    """Return file and line of the first line of this file that has a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{HERE}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


@tool(effect="pure")
def refund(order: str) -> str:
    """Refund an order."""
    orders: dict[str, str] = {}
    return orders[order]  # the fault


@tool(effect="pure")
async def deep(order: str) -> Any:
    """Fail in a library, called by this file."""
    await asyncio.sleep(0)
    return json.loads(order)  # in a library


@tool(effect="pure")
async def grouped(order: str) -> None:
    """Fail in a task group."""
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0, missing_name))  # type: ignore[name-defined]  # noqa: F821 - in a group


@tool(effect="pure")
def leaking(order: str) -> None:
    """Raise a message with a secret."""
    raise RuntimeError(f"denied for {LEAKED}")  # a secret


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    return wrapper


@tool(effect="pure")
@_wrapped
def decorated(order: str) -> int:
    """Fail under a decorator."""
    return order.missing  # type: ignore[attr-defined,no-any-return]  # under a decorator


def calls(name: str, times: int = 1) -> list[ToolCall]:
    return [ToolCall(str(number), name, '{"order": "A1"}') for number in range(times)]


def agent(*tools: ToolSpec[Any], script: list[Any] | None = None, **options: Any) -> Agent[Any, str]:
    script = [calls(tools[0].name), "done"] if script is None else script
    return Agent(ScriptedLLM(script), tools=tools, observers=options.pop("observers", ()), **options)


@pytest.mark.parametrize(
    ("called", "kind", "place", "bug"),
    [
        (refund, "KeyError", "# the fault", True),
        (deep, "JSONDecodeError", "# in a library", False),
        (grouped, "ExceptionGroup", "# noqa: F821 - in a group", True),
        (leaking, "RuntimeError", "# a secret", False),
        (decorated, "AttributeError", "# under a decorator", True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_exception_is_kept_with_type_message_file_and_line_of_the_tools_own_frame(
    called: ToolSpec[Any], kind: str, place: str, bug: bool
) -> None:
    result = agent(called).run_sync("Refund A1.")
    [error] = result.tool_errors
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None)
    assert (error.tool, error.type, error.where, error.bug) == (called.name, kind, line_of(place), bug)
    assert type(error.error).__name__ == kind
    assert LEAKED not in error.message
    assert place.removeprefix("# ") in traceback_of(error)
    assert "tool_set.py" not in traceback_of(error)


async def test_the_journal_has_the_error_and_every_reader_of_it_too(tmp_path: Path) -> None:
    where = line_of("# the fault")
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        await agent(refund, journal=journal).run("Refund A1.", run_id="r1")
        [done] = [record.body for record in await journal.load("r1") if record.kind == "done"]
        assert done["error"] == {"type": "KeyError", "message": "'A1'", "where": where, "bug": True}
        assert json.loads(done["content"]) == {"error": "'A1'", "type": "KeyError"}
        again = await Runs(journal).result("r1")
        assert [str(one) for one in again.tool_errors] == [f"tool refund raised KeyError: 'A1' ({where})"]
        found = [one async for one in Runs(journal).events("r1") if type(one).__name__ == "ToolFinished"]
        assert [(one.error.type, one.error.where) for one in found] == [("KeyError", where)]  # type: ignore[attr-defined]


def test_a_log_line_has_type_and_place_and_the_message_only_on_request() -> None:
    for text in (False, True):
        lines = io.StringIO()
        agent(leaking, observers=[TransitionLog(lines, error_text=text)]).run_sync("Refund A1.")
        [told] = [
            line for line in map(json.loads, lines.getvalue().splitlines()) if line["msg"] == "tool.call"
        ]
        assert (told["error_type"], told["where"]) == ("RuntimeError", line_of("# a secret"))
        assert len(told["error_fingerprint"]) == 12
        assert ("error_text" in told) is text
        assert LEAKED not in json.dumps(told)


@tool(effect="pure")
def picky(order: str) -> str:
    """Ask the model to try again."""
    raise ModelRetry("give the number of an order")


@tool(effect="pure", timeout=0.01)
async def slow(order: str) -> str:
    """Take too long."""
    await asyncio.sleep(60)
    return ""


@pytest.mark.parametrize("called", [picky, slow], ids=["ModelRetry", "timeout"])
def test_an_answer_that_is_meant_for_the_model_is_no_error_and_ends_no_run(called: ToolSpec[Any]) -> None:
    result = agent(called, limits=Limits(on_tool_error="raise")).run_sync("Refund A1.")
    assert (result.outcome, result.tool_errors) == (Outcome.COMPLETED, ())


def option(errors: Any, error: type[Exception] = KeyError) -> ToolSpec[Any]:
    @tool(effect="pure", errors=errors)
    def fails(order: str) -> str:
        """Fail."""
        raise error("A1")

    return fails


@pytest.mark.parametrize(
    ("of_tool", "of_limits", "variable", "error", "ends"),
    [
        (None, None, None, KeyError, False),
        (None, None, "raise_bugs", KeyError, True),
        (None, None, "raise_bugs", ValueError, False),
        (None, None, "raise", ValueError, True),
        (None, "return", "raise", KeyError, False),
        (None, "raise_bugs", None, KeyError, True),
        (None, "raise_bugs", None, OSError, False),
        (None, "raise", None, OSError, True),
        ("return", "raise", "raise", KeyError, False),
        ("raise_bugs", None, None, KeyError, True),
        ("raise_bugs", "return", None, ValueError, False),
        ("raise", "return", None, ValueError, True),
    ],
)
def test_a_tool_a_run_and_the_environment_choose_which_exceptions_end_a_run_in_that_order(
    of_tool: Any,
    of_limits: Any,
    variable: str | None,
    error: type[Exception],
    ends: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable is not None:
        monkeypatch.setenv(ON_TOOL_ERROR, variable)
    fails = option(of_tool, error)
    result = agent(fails, limits=Limits(on_tool_error=of_limits)).run_sync("Refund A1.")
    ENDED.clear()  # the plugin would fail this test
    if not ends:
        assert (result.outcome, result.output) == (Outcome.COMPLETED, "done")
        return
    assert (result.outcome, result.reason) == (Outcome.FAILED, "tool_error")
    assert isinstance(result.error, ToolRaised)
    assert isinstance(result.error.__cause__, error)
    assert (result.error.tool, result.error.kind, result.error.where) == (
        "fails",
        error.__name__,
        line_of("raise error("),
    )
    assert [message.role for message in result.messages][-1] == "tool"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_class_of_bugs_ends_a_run_that_asks_for_it(bug: type[Exception]) -> None:
    result = agent(option("raise_bugs", bug)).run_sync("Refund A1.")
    assert result.reason == "tool_error"


@pytest.mark.parametrize(
    "other", [ValueError, OSError, RuntimeError, LLMError, TimeoutError, PermissionError]
)
def test_exceptions_that_answer_the_model_are_no_bugs(other: type[Exception]) -> None:
    assert agent(option("raise_bugs", other)).run_sync("Refund A1.").outcome == Outcome.COMPLETED


def test_other_calls_of_the_turn_have_their_results_before_a_bug_ends_the_run() -> None:
    finished: list[str] = []
    raised = asyncio.Event()

    @tool(effect="irreversible")
    async def pay(order: str) -> str:
        """Pay, later than the bug."""
        await raised.wait()
        await asyncio.sleep(0)
        finished.append(order)
        return "paid"

    @tool(effect="pure", errors="raise")
    async def breaks(order: str) -> str:
        """Fail at once."""
        raised.set()
        raise KeyError(order)

    result = agent(breaks, pay, script=[[*calls("breaks"), *calls("pay")], "never"]).run_sync("Pay A1.")
    assert (result.reason, finished, result.messages[-1].content) == ("tool_error", ["A1"], "paid")


async def test_a_bug_ends_the_run_before_a_person_is_asked() -> None:
    @tool(approval=True)
    def pay(order: str) -> str:
        """Pay."""
        return "paid"

    script = [[*calls("fails"), *calls("pay")], "never"]
    result = await agent(option("raise"), pay, script=script).run("Pay A1.")
    assert result.reason == "tool_error"


async def test_a_run_that_a_crash_left_after_the_bug_ends_by_it_too(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        hanging = asyncio.Event()

        @tool(effect="pure")
        async def hangs(order: str) -> str:
            """Never return the first time."""
            if not hanging.is_set():
                hanging.set()
                await asyncio.Event().wait()
            return "there"

        script = [[*calls("fails"), *calls("hangs")], "never"]
        first = agent(option("raise"), hangs, script=script, journal=journal)
        running = asyncio.create_task(first.run("Go.", run_id="r1"))
        await hanging.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        result = await agent(option("raise"), hangs, script=["never"], journal=journal).resume("r1")
        assert (result.reason, [one.type for one in result.tool_errors]) == ("tool_error", ["KeyError"])


def test_observers_receive_the_error_with_the_call() -> None:
    heard: list[Fact] = []

    class Watch:
        def observe(self, fact: Fact, /) -> None:
            heard.append(fact)

    agent(refund, observers=[Watch()]).run_sync("Refund A1.")
    [told] = [fact for fact in heard if isinstance(fact, ToolExecution)]
    assert told.error is not None
    assert (told.outcome, told.error.type) == ("error", "KeyError")


def test_only_the_last_hundred_errors_are_kept() -> None:
    script = [*(calls("refund") for _ in range(120)), "done"]
    limits = Limits(max_iterations=0, max_tool_errors=0, max_no_progress=0)
    assert len(agent(refund, script=script, limits=limits).run_sync("Go.").tool_errors) == 100


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Limits(on_tool_error="stop"),  # type: ignore[arg-type]
            "limit on_tool_error is 'stop'; it must be one of: return, raise_bugs, raise",
        ),
        (
            lambda: option("stop"),
            "tool 'fails': errors is 'stop'; possible: 'return', 'raise_bugs', 'raise', None",
        ),
    ],
    ids=["Limits", "tool"],
)
def test_another_word_is_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value) == sentence
