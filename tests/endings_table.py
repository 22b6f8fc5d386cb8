"""The table of endings in the guide of the machines: each row is a real run, read where an operator reads it.

Outcome and reason come from the result of the run, the log line from its log, the labels from its metrics. A row whose
three sources disagree is an AssertionError.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from orchestrator.approval import Approval, ApprovalError, ModelPlanner
from orchestrator.branches import Branch, Fan
from orchestrator.cli.exit import EXIT_CODES
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.message import Response, ToolCall, Usage
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.model import PipelineLimits
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import RalphLimits
from orchestrator.machines.rlm.code_mode import CodeResult
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator.pipeline import PromptStage
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.ralph import PromptAgent, Ralph
from orchestrator.rlm import Rlm, StopAfter
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.catalogue import PREFIX
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import ToolSpec, tool
from tests.runtime.approval.stand import planted
from tests.runtime.branches.machine import SpreadContext, workflow
from tests.runtime.pipeline_stage import BAD, SOFT, Purse, Stages
from tests.runtime.ralph_stage import NO_WAIT, NOT_QUALIFIED, World
from tests.runtime.stage import agent

GUIDE = "orchestrator/machines/README.md"
COMPLETED = f"{PREFIX}runs_completed_total"

Run = Callable[..., Awaitable[Any]]
"""(options of the facade) -> the result of a run, or (outcome, reason)."""


class EndingRow(NamedTuple):
    """One row: what happens, and where an operator reads how the run ended."""

    graph: str
    ending: str
    outcome: str
    reason: str
    exit_code: int
    log: str
    metric: str


def cut(text: str | None, *calls: ToolCall, finish: str = "length") -> Response:
    return Response(text, calls, finish, Usage(1, 1))


FILTERED = cut("I can", finish="content_filter")
REFUSED = cut("I would rather not", finish="refusal")
BLOCKED = cut("", finish="content_filter")


@tool(effect="pure")
async def look(place: str = "") -> str:
    """Look."""
    return f"nothing in {place}"


@tool(effect="pure")
async def same() -> str:
    """Give the same."""
    return "the same"


@tool(effect="pure")
async def broken() -> str:
    """Fail."""
    raise ValueError("it is broken")


@tool(effect="pure")
async def lost(place: str) -> str:
    """Fail."""
    raise ValueError(f"{place} is lost")


def _turns(number: int) -> list[Any]:
    return [call("look", place=str(turn)) for turn in range(number)]


# ---- the graphs ----


def _loop(script: list[Any], limits: Limits | None = None, **options: Any) -> Run:
    async def run(**given: Any) -> Any:
        return await agent(script, [look, same, broken], limits=limits or Limits(), **given, **options).run(
            "Find it."
        )

    return run


def _slow(script: list[Any]) -> Run:
    """A run with a limit of time, whose clock moves during the first request."""

    async def run(clock: FakeClock, **given: Any) -> Any:
        class Slow(ScriptedLLM):
            async def complete(self, request: Any) -> Response:
                await clock.sleep(20)
                return await super().complete(request)

        return await agent(Slow(script), [look], limits=Limits(max_seconds=10), clock=clock, **given).run(
            "Find it."
        )

    return run


def _team(script: list[Any], first: Limits, second: list[Any]) -> Run:
    """A run of triage, which can hand over to billing and back."""

    async def run(**given: Any) -> Any:
        billing = agent(second, name="billing", handoffs=["triage"])
        triage = agent(script, name="triage", handoffs=[billing], limits=first, **given)
        return await triage.run("Find it.")

    return run


def _team_endings() -> dict[str, Run]:
    there, back = [call("transfer_to_billing")] * 5, [call("transfer_to_triage")] * 5
    return {
        "`max_handoffs`": _team(there, Limits(max_handoffs=2), back),
        "`max_no_progress`: handoffs repeat": _team(there, Limits(max_no_progress=1), back),
        "`max_iterations` of the run": _team(there, Limits(max_iterations=1), back),
        "the last segment is cut by the output limit": _team(there, Limits(), [cut("The first half")]),
        "the last segment with a refusal": _team(there, Limits(), [REFUSED]),
    }


def _branch(work: ToolSpec) -> Run:
    """A run of a machine with one branch that calls a tool."""

    async def run(**given: Any) -> None:
        await workflow(Fan(1), lambda place: Branch(work, {"place": place}), **given).run(
            SpreadContext(["sky"])
        )

    return run


def _call_endings() -> dict[str, Run]:
    return {"the tool raises": _branch(lost)}


def _pipeline(stages: Stages, **options: Any) -> Run:
    async def run(**given: Any) -> Any:
        return await stages.pipeline(**given, **options).run("a module")

    return run


def _stage(answer: Response) -> Run:
    """A pipeline whose planner is a model that answers in the same way for ever."""

    async def run(**given: Any) -> Any:
        stages = Stages()
        stages.planner = PromptStage(ScriptedLLM([answer]), "Plan it.", retry=NO_WAIT)  # type: ignore[assignment]
        return await stages.pipeline(**given).run("a module")

    return run


def _ralph(says: Mapping[Any, Any], *, limits: RalphLimits | None = None, **options: Any) -> Run:
    async def run(**given: Any) -> Any:
        with TemporaryDirectory() as root:
            world = World(Path(root), says, tasks=("task-1: one",))
            return await world.ralph(limits=limits or RalphLimits(), **given, **options).run("Build it")

    return run


def _ralph_model(answer: Response) -> Run:
    """A loop whose planner is a model that answers in the same way for ever."""

    async def run(**given: Any) -> Any:
        with TemporaryDirectory() as root:
            world, planner = (
                World(Path(root)),
                PromptAgent(ScriptedLLM([answer] * 9), folder=root, retry=NO_WAIT),
            )
            ralph = Ralph(planner, world, world, root=root, retry=NO_WAIT, **given)
            return await ralph.run("Build it")

    return run


class _Repl:
    """A REPL that runs nothing."""

    def __init__(self, _context: object, **_: Any) -> None:
        pass

    async def run(self, code: str, *, seconds: float | None = None) -> CodeResult:
        return CodeResult("ran")

    async def variable(self, name: str) -> str | None:
        return "forty-two" if name == "answer" else None

    async def close(self) -> None:
        pass


CODE = "```repl\nlook()\n```"


def _mode(script: list[Any], mode: Any, limits: RlmLimits | None = None, **options: Any) -> Run:
    async def run(**given: Any) -> Any:
        more = {"tools": [look, same]} if mode == "tools" else {"repl": _Repl}
        llm = ScriptedLLM(script)
        return await Rlm(llm, mode=mode, limits=limits or RlmLimits(), **more, **given, **options).run(
            "Find it."
        )

    return run


def _approval(answer: Response) -> Run:
    """A request whose planner is a model that answers in the same way for ever; a person acknowledges the failure."""

    async def run(observers: Any) -> Any:
        with TemporaryDirectory() as folder:
            root = planted(Path(folder))
            planner = ModelPlanner(ScriptedLLM([answer] * 20), root)
            runtime = Runtime(observers=observers, clock=FakeClock(auto=True))
            async with Approval(
                root, planner, by="ann", limits=ApprovalLimits(), runtime=runtime
            ) as approval:
                status = await approval.run("Please tidy up.")
                assert status.state == "Failed", status
                await approval.shown()
                await approval.acknowledge()
                with contextlib.suppress(ApprovalError):  # the next request ends this one
                    await approval.run("Once more.")
        return None

    return run


def _loop_endings() -> dict[str, Run]:
    wrap_up = Limits(max_iterations=2, wrap_up_turns=1)
    return {
        "`max_iterations` requests are made": _loop(_turns(2), Limits(max_iterations=2)),
        "the same, and the wrap-up turn answers": _loop([*_turns(1), "So far."], wrap_up),
        "the wrap-up turn calls a tool, with text": _loop(
            [*_turns(1), cut("So far.", call("look"), finish="tool_calls")], wrap_up
        ),
        "the wrap-up turn only calls a tool": _loop(_turns(2), wrap_up),
        "`max_input_tokens`": _loop(_turns(3), Limits(max_input_tokens=1)),
        "`max_output_tokens`": _loop(_turns(3), Limits(max_output_tokens=1)),
        "`max_cost`": _loop(_turns(3), Limits(max_cost=0.5), price=lambda _usage, _model: 1.0),
        "`max_seconds`": _slow(_turns(3)),
        "`max_tool_calls`": _loop([[call("look"), call("same")]], Limits(max_tool_calls=1)),
        "`tool_caps`": _loop([[call("look"), call("look")]], Limits(tool_caps={"look": 1})),
        "`max_tool_errors`": _loop([call("broken")] * 2, Limits(max_tool_errors=2, max_no_progress=0)),
        "`max_no_progress`": _loop([call("same")] * 9, Limits(max_repeated_success=0)),
        "`max_repeated_success`": _loop([call("same")] * 9, Limits(max_no_progress=0)),
        "free text, cut by the output limit": _loop([cut("The first half")]),
        '`on_truncated="retry"`, cut in each attempt': _loop(
            [cut("One"), cut("Two")], Limits(on_truncated="retry", completion_retries=1)
        ),
        "the output limit leaves no text": _loop([cut("")]),
        "free text, cut by a filter": _loop([FILTERED]),
        "free text with a refusal": _loop([REFUSED]),
        "a filter or a refusal leaves no text": _loop([BLOCKED]),
        "a typed answer, cut in each attempt": _loop(
            [cut("[1, 2")] * 2, Limits(completion_retries=1), output_type=list[int]
        ),
        "a typed answer, refused in each attempt": _loop(
            [REFUSED] * 2, Limits(completion_retries=1), output_type=int
        ),
    }


def _pipeline_endings() -> dict[str, Run]:
    return {
        "`max_iterations` plans": _pipeline(Stages(valid=[BAD]), limits=PipelineLimits(max_iterations=2)),
        "`max_refinements` of a plan": _pipeline(
            Stages(judged=[SOFT]), limits=PipelineLimits(max_refinements=1)
        ),
        "the budget of tokens": _pipeline(Stages(valid=[BAD]), budget=Purse(at=1)),
        "the text of a stage, cut by the output limit": _stage(cut("The first half")),
        "the text of a stage, a refusal": _stage(REFUSED),
    }


def _approval_endings() -> dict[str, Run]:
    return {
        "the plan, cut in each attempt; acknowledged": _approval(cut('{"intents": [')),
        "a refusal in each attempt; acknowledged": _approval(REFUSED),
    }


def _ralph_endings() -> dict[str, Run]:
    asks = {Role.PLANNER: [{"status": "needs_qa_cycle"}] * 20}
    fails = {Role.REVIEWER: [NOT_QUALIFIED] * 9}
    return {
        "the planner is blocked": _ralph({Role.PLANNER: [{"status": "blocked", "blockers": ["no goal"]}]}),
        "`max_task_attempts`": _ralph(fails),
        "`max_qa_cycles`, and the planner asks on": _ralph(asks),
        '`max_qa_cycles` with `open_questions="fail"`': _ralph(asks, open_questions="fail"),
        "`max_replans`": _ralph({Role.CHECKER: [{"passed": False, "summary": "no"}] * 9}),
        "`max_executions`": _ralph(fails, limits=RalphLimits(max_executions=1)),
        "the answer of a model, cut in each attempt": _ralph_model(cut('{"status"')),
        "the answer of a model, a refusal in each attempt": _ralph_model(REFUSED),
    }


def _code_endings() -> dict[str, Run]:
    few = RlmLimits(max_iterations=1)
    return {
        "`max_iterations`, and the final request answers": _mode([CODE, "So far."], "code", few),
        "the same without an answer": _mode([CODE, ""], "code", few),
        "`max_output_tokens`": _mode([CODE] * 3, "code", RlmLimits(max_output_tokens=1)),
        "a StoppingPolicy": _mode([CODE] * 9, "code", stopping=StopAfter(repeats=1)),
        "FINAL(…) in a response that is cut": _mode([cut("FINAL(The first half)\nand")], "code"),
        "FINAL_VAR(…) in a response that is cut": _mode([cut("FINAL_VAR(answer)\nand")], "code"),
        "at the maximum depth, cut by the output limit": _mode(
            [cut("The first half")], "code", RlmLimits(max_depth=0)
        ),
        "a filter cuts the response": _mode([FILTERED], "code"),
        "a refusal": _mode([REFUSED], "code"),
        "a filter leaves no text": _mode([BLOCKED], "code"),
    }


def _tools_endings() -> dict[str, Run]:
    few = RlmLimits(max_iterations=1)
    return {
        "`max_iterations`, and the final request answers": _mode([*_turns(1), "So far."], "tools", few),
        "the same without an answer": _mode([*_turns(1), ""], "tools", few),
        "`max_output_tokens`": _mode(_turns(3), "tools", RlmLimits(max_output_tokens=1)),
        "a StoppingPolicy; the last response has no text": _mode(
            [call("same")] * 9, "tools", stopping=StopAfter(repeats=1)
        ),
        "text, cut by the output limit": _mode([cut("The first half")], "tools"),
        "a filter cuts the text": _mode([FILTERED], "tools"),
        "a refusal": _mode([REFUSED], "tools"),
        "a filter leaves no text": _mode([BLOCKED], "tools"),
    }


ENDINGS: Mapping[str, Callable[[], dict[str, Run]]] = {
    "llm_loop": _loop_endings,
    "team": _team_endings,
    "call": _call_endings,
    "pipeline": _pipeline_endings,
    "approval": _approval_endings,
    "ralph": _ralph_endings,
    "code_mode": _code_endings,
    "tools_mode": _tools_endings,
}
"""Graph -> its endings by exhaustion, truncation and refusal."""


# ---- the table ----


def clock_of(ending: str) -> dict[str, FakeClock]:
    """Return the clock of a run that a limit of time ends, as an option of its facade."""
    return {"clock": FakeClock(auto=True)} if ending == "`max_seconds`" else {}


async def row_of(graph: str, ending: str, run: Run) -> EndingRow:
    """Carry out a run, and read how it ended from its result, its log and its metrics."""
    out, registry = StringIO(), CollectorRegistry()
    observers = (TransitionLog(out), Metrics(registry))
    result = await run(observers=observers, **clock_of(ending))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    (line,) = (one for one in lines if one["msg"] == "run.completed" and one["machine"] == graph)
    (labels,) = (
        sample.labels
        for family in registry.collect()
        for sample in family.samples
        if sample.name == COMPLETED and sample.value and sample.labels["machine"] == graph
    )
    told = line["outcome"], line["reason"]
    assert (labels["outcome"], labels["reason"]) == told, (graph, ending, labels, line)
    assert result is None or (result.outcome.value, result.reason) == told, (graph, ending, result)
    outcome = Outcome(told[0])
    assert told[1] in REASONS[outcome]
    metric = f"{labels['outcome']}, {labels['reason']}"
    return EndingRow(graph, ending, *told, int(EXIT_CODES[outcome]), line["level"], metric)


async def rows() -> list[EndingRow]:
    """Return the row of each ending."""
    return [
        await row_of(graph, ending, run)
        for graph, endings in ENDINGS.items()
        for ending, run in endings().items()
    ]


def line_of(row: EndingRow) -> str:
    """Return a row as Markdown."""
    cells = (row.graph, row.ending, row.outcome, row.reason, str(row.exit_code), row.log, row.metric)
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """Return the table as Markdown."""
    head = [
        "| graph | ending | outcome | reason | exit code | log | metric |",
        "|---|---|---|---|--:|---|---|",
    ]
    return "\n".join([*head, *map(line_of, asyncio.run(rows())), ""])
