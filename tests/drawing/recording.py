"""Records of a run with exact times, as a driver writes them."""

from __future__ import annotations

import random
from typing import Any, Self

from orchestrator.kernel.journal import Record, RunHead


class Recording:
    """The records of one run of the loop. Each step moves its clock."""

    def __init__(self, run_id: str = "run-1", at: float = 1_000.0) -> None:
        self.run_id = run_id
        self.at = self.begun = at
        self.records: list[Record] = []
        self.epoch = 1
        self.state = "init"
        self.turn = self._transitions = 0

    def add(self, kind: str, **body: Any) -> Self:
        self.records.append(Record(len(self.records), self.epoch, kind, body, ""))
        return self

    def to(self, dest: str, event: str, **more: Any) -> Self:
        self._transitions += 1
        source, self.state = self.state, dest
        times = {"seq": self._transitions, "at": self.at, "t": self.at - self.begun}
        return self.add("transition", event=event, source=source, dest=dest, **times, **more)

    def wait(self, seconds: float) -> Self:
        self.at += seconds
        return self

    def start(self) -> Self:
        context = {"messages": [], "iteration": 0, "spent": {"usage": {}}}
        self.add("created", schema=1, graph="llm_loop", fingerprint="f", at=self.at, context=context)
        return self.wait(0.01).to("await_llm", "start_loop")

    def ask(self, *attempts: tuple[Any, ...], guards: Any = ()) -> Self:
        """The model answers; an attempt is its seconds, the kind of its error, and the wait after it."""
        rows = []
        for attempt in attempts:
            seconds, kind, wait = (*attempt, "", 0.0)[:3] if len(attempt) < 3 else attempt
            rows.append([self.at, seconds, kind, wait] if kind else [self.at, seconds])
            self.wait(seconds + wait)
        self.turn += 1
        self.add("answer", iteration=self.turn, model="gpt-4o", usage={}, attempts=rows)
        return self.to("evaluate_response", "llm_response", guards=list(guards))

    def intend(self, *tools: str, agent: str | None = None) -> Self:
        more = {} if agent is None else {"agent": agent}
        calls = [
            {"key": f"{self.turn}:{at}", "tool": tool, "effect": "pure", **more}
            for at, tool in enumerate(tools)
        ]
        return self.add("intent", effect="tool", turn=self.turn, calls=calls)

    def done(self, tool: str, seconds: float, position: int = 0, outcome: str = "ok") -> Self:
        key = f"{self.turn}:{position}"
        about = {"tool": tool, "outcome": outcome, "at": self.at, "seconds": seconds, "queued": 0.0}
        return self.add("done", effect="tool", key=key, **about)

    def tools(self, *calls: tuple[str, float], agent: str | None = None, outcome: str = "ok") -> Self:
        """Tools run at the same time."""
        self.intend(*(tool for tool, _ in calls), agent=agent).to("process_tools", "response_with_tools").add(
            "context"
        )
        for position, (tool, seconds) in enumerate(calls):
            self.done(tool, seconds, position, outcome)
        return self.wait(max(seconds for _, seconds in calls)).next_turn()

    def next_turn(self) -> Self:
        return self.to("update_budgets", "tools_executed").to("await_llm", "budget_ok")

    def parks(self, tool: str) -> Self:
        """The run waits for the approval of a call."""
        self.to("process_tools", "response_with_tools")
        self.add("asked", key=f"{self.turn}:0", tool=tool, digest="d", why="approval").add("context")
        return self.add("parked", reason="approval", at=self.at, t=self.at - self.begun)

    def approved(self, by: str, after: float) -> Self:
        self.wait(after).add("approval", key=f"{self.turn}:0", decision="approve", by=by, at=self.at)
        return self.add("unparked", at=self.at)

    def crashes(self, seconds: float, by: str = "worker-b", charged: int = 0) -> Self:
        """The process ends after the last record; another one resumes the run later."""
        self.wait(seconds)
        self.epoch += 1
        usage = {"estimated_input_tokens": charged, "estimated_output_tokens": 0}
        return self.add("resumed", at=self.at, by=by, context={"spent": {"usage": usage}})

    def ends(self) -> Self:
        self.to("handle_completion", "response_no_tool").to("finalize", "completion_success")
        return self.add("ended", outcome="completed", reason="none", at=self.at, t=self.at - self.begun)

    def head(self, status: str = "ended", owner: str | None = None) -> RunHead:
        seq = len(self.records) - 1
        return RunHead(self.run_id, "llm_loop", "f", status, seq, self.epoch, owner, self.begun, self.at)


def support() -> Recording:
    """A run with repeated attempts, parallel calls, a child run, an approval, a lost answer, and an open question."""
    run = Recording("downgrade-omar-2f").start()
    run.ask((1.4, "rate_limited", 2.0), (1.5, "server_error", 0.2), (1.4,)).tools(("get_user_details", 0.31))
    details = "get_reservation_details"
    run.ask((1.1,)).tools((details, 0.4), (details, 0.95), (details, 0.6))
    run.ask((1.7,)).tools(("ask_fare_rules", 2.0), agent="fare-rules")
    run.ask((1.9,)).parks("update_reservation_flights").approved("mara@support", 6.6)
    run.intend("update_reservation_flights").done("update_reservation_flights", 0.88).wait(0.88).next_turn()
    run.crashes(8.6, charged=7_911)
    run.ask((2.2,)).tools((details, 0.42)).ask((1.6,)).tools((details, 0.42))
    return run.ask((1.9,)).parks("update_reservation_flights")


def many_turns(count: int) -> Recording:
    """A run of many short turns, with a busy time in which requests fail, and a crash."""
    chance = random.Random(3)
    run = Recording("index").start()
    for turn in range(count):
        busy = 0.6 < turn / count < 0.75
        seconds = chance.uniform(0.004, 0.012) * (4 if busy and chance.random() < 0.5 else 1)
        guards = [
            [True, "iterations", turn, int(count * 1.05)],
            [True, "input_tokens", turn * 100, count * 300],
        ]
        failed = [(0.02, "server_error", 0.03)] if busy and chance.random() < 0.1 else []
        run.ask(*failed, (seconds,), guards=guards)
        run.tools(("look", chance.uniform(0.002, 0.01)))
        if turn == count // 3:
            run.crashes(30.0)
    return run.ask((0.01,)).ends()
