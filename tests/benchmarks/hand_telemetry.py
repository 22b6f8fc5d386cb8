"""The hand-written loop with the telemetry that ours has: four JSON lines a turn, and the same metrics by hand.

A careful engineer's version: lines by orjson, counters and histograms looked up once and moved in place.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orchestrator.llm.message import Message, Request, Response
from orchestrator.llm.port import LLM
from tests.benchmarks.hand_loop import Tool, run_tool

_MACHINE = "by_hand"
_SERVICE, _PID = "by_hand", os.getpid()
_EDGES = (
    ("await_llm", "llm_response", "evaluate_response"),
    ("evaluate_response", "response_with_tools", "process_tools"),
    ("process_tools", "tools_executed", "update_budgets"),
    ("update_budgets", "budget_ok", "await_llm"),
)
_FINAL = ("evaluate_response", "response_no_tool", "finalize")


class HandTelemetry:
    """Log and metrics of hand-written loops.

    Args:
        log: the file to which lines go.
        registry: where the metrics are registered.
    """

    def __init__(self, log: BinaryIO, registry: CollectorRegistry) -> None:
        self._log = log
        transitions = Counter(
            "transitions", "Transitions.", ("machine", "from_state", "event", "to_state"), registry=registry
        )
        seconds = Histogram(
            "state_duration_seconds", "Seconds in a state.", ("machine", "state"), registry=registry
        )
        overhead = Histogram(
            "transition_overhead_seconds", "Seconds of a transition.", ("machine",), registry=registry
        )
        self._edges = {
            edge: (transitions.labels(_MACHINE, *edge), seconds.labels(_MACHINE, edge[0]))
            for edge in (*_EDGES, _FINAL)
        }
        self._overhead = overhead.labels(_MACHINE)
        self._last = Gauge(
            "last_transition_timestamp_seconds", "When.", ("machine",), registry=registry
        ).labels(_MACHINE)
        model = Histogram(
            "llm_request_duration_seconds", "Seconds of a request.", ("model",), registry=registry
        )
        requests = Counter("llm_requests", "Requests.", ("model", "outcome"), registry=registry)
        tokens = Counter("llm_tokens", "Tokens.", ("model", "direction"), registry=registry)
        self._model = model.labels("paced")
        self._requests = requests.labels("paced", "ok")
        self._tokens = tokens.labels("paced", "input"), tokens.labels("paced", "output")
        guards = Counter("guard_evaluations", "Guards.", ("machine", "guard", "result"), registry=registry)
        self._guard = guards.labels(_MACHINE, "may_continue", "allow")
        self._iteration = Histogram(
            "iteration_duration_seconds", "Seconds of a turn.", ("machine",), registry=registry
        ).labels(_MACHINE)
        self._calls = Counter("tool_calls", "Calls.", ("tool", "outcome"), registry=registry)
        self._call = Histogram(
            "tool_call_duration_seconds", "Seconds of a call.", ("tool",), registry=registry
        )

    def transition(
        self,
        run_id: str,
        seq: int,
        iteration: int,
        edge: tuple[str, str, str],
        since: float,
        guard: str | None = None,
    ) -> float:
        """Write the line of a transition and move its metrics; return the time, in seconds."""
        now = time.perf_counter()
        stamp = datetime.now(UTC)
        line = {
            "ts": stamp.isoformat().replace("+00:00", "Z"),
            "level": "info",
            "msg": "fsm.transition",
            "schema": "by_hand.log/1",
            "service": _SERVICE,
            "pid": _PID,
            "run_id": run_id,
            "machine": _MACHINE,
            "seq": seq,
            "iteration": iteration,
            "from_state": edge[0],
            "fsm_event": edge[1],
            "to_state": edge[2],
            "outcome": "ok",
            "state_duration_s": round(now - since, 6),
        }
        if guard:
            line |= {"guard": guard, "guard_result": "allow"}
            self._guard.inc()
        counter, seconds = self._edges[edge]
        counter.inc()
        seconds.observe(now - since)
        self._last.set(stamp.timestamp())
        overhead = time.perf_counter() - now
        self._overhead.observe(overhead)
        self._log.write(orjson.dumps(line | {"overhead_s": overhead}, option=orjson.OPT_APPEND_NEWLINE))
        return now

    def request(self, response: Response, seconds: float) -> None:
        """Count one request of the model."""
        self._model.observe(seconds)
        self._requests.inc()
        if response.usage is None:
            return
        self._tokens[0].inc(response.usage.input_tokens)
        self._tokens[1].inc(response.usage.output_tokens)

    def call(self, tool: str, seconds: float) -> None:
        """Count one call of a tool."""
        self._calls.labels(tool, "ok").inc()
        self._call.labels(tool).observe(seconds)

    def turn(self, seconds: float) -> None:
        """Count one turn."""
        self._iteration.observe(seconds)


async def watched_hand_loop(
    llm: LLM,
    tools: Mapping[str, Tool],
    offers: tuple[Any, ...],
    prompt: str,
    most: int,
    telemetry: HandTelemetry,
) -> list[Message]:
    """Ask, run the tools, ask again, until the model answers without a call; log and count each step."""
    messages, run_id, seq = [Message("user", prompt)], "by-hand", 0
    at = time.perf_counter()
    for turn in range(most):
        began = at
        response = await llm.complete(Request(messages, offers))
        telemetry.request(response, time.perf_counter() - at)
        messages.append(response.message())
        at = telemetry.transition(run_id, seq + 1, turn, _EDGES[0], at)
        if not response.tool_calls:
            telemetry.transition(run_id, seq + 2, turn, _FINAL, at)
            return messages
        at = telemetry.transition(run_id, seq + 2, turn, _EDGES[1], at)

        async def watched(call: Any) -> Message:
            started = time.perf_counter()
            message = await run_tool(tools, call)
            telemetry.call(call.name, time.perf_counter() - started)
            return message

        if len(response.tool_calls) == 1:
            messages.append(await watched(response.tool_calls[0]))
        else:
            messages += await asyncio.gather(*map(watched, response.tool_calls))
        at = telemetry.transition(run_id, seq + 3, turn, _EDGES[2], at)
        at = telemetry.transition(run_id, seq + 4, turn, _EDGES[3], at, "may_continue")
        telemetry.turn(at - began)
        seq += 4
    raise RuntimeError("max iterations without final response")
