"""The machine against the hand-written loop: equal where no guard trips; each difference has exactly one cause.

The classifier asks what would have been. It looks for the fewest defects without which the loop would follow the
machine furthest: nearly always one, and only that one. Where defects need or hide each other, the cause is the one
that the loop comes to first. It is repaired, and the next difference is asked about, until none is left.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import pytest

from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Response, ToolCall
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import ToolContext
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.runtime.hand_loop import DEFECTS, ORDER, HandLoop
from tests.runtime.stage import Notebook, agent

Reply: TypeAlias = str | list[ToolCall] | Exception
Trace: TypeAlias = list[Any]

RETRY = RetryPolicy(attempts=4, base=1.0, max_delay=2.5, jitter=0.0)
ERROR_OBJECT = '{"error": "overloaded"}'


class Effects:
    """The tools of every script. What they do is written down in the trace of the one that runs."""

    def __init__(self) -> None:
        self.trace: Trace = []
        self.tools = ToolSet([self.say, self.echo, self.fail, self.call_agent])

    async def say(self, text: str, n: int = 0) -> str:
        self.trace.append(("ran", "say", n, text))
        return text

    async def echo(self, n: int) -> str:
        self.trace.append(("ran", "echo", n))
        return f"echo {n}"

    async def fail(self, n: int) -> str:
        self.trace.append(("ran", "fail", n))
        raise ValueError(f"{n} is wrong")

    async def call_agent(self, n: int) -> str:
        self.trace.append(("ran", "call_agent", n))
        return f"agent {n}"


EFFECTS = Effects()


@dataclass
class Script:
    """What the model says, what limits there are, and whether the host's finalize fails."""

    replies: list[Reply]
    limits: Limits
    finalize_fails: bool = False
    remembers: bool = False

    def model(self) -> Callable[[Sequence[Message]], Response]:
        replies = iter(self.replies)

        def answer(messages: Sequence[Message]) -> Response:
            shown = [m for m in messages if not m.text.startswith("You are repeating yourself")]
            EFFECTS.trace.append(("asked", *map(plain, shown)))
            reply = next(replies, "the end")
            if isinstance(reply, Exception):
                raise reply
            return Response(reply) if isinstance(reply, str) else Response(None, tuple(reply))

        return answer

    def finalize(self) -> None:
        if self.finalize_fails:
            raise RuntimeError("finalize")


def plain(message: Message) -> tuple[object, ...]:
    return (
        message.role,
        message.text,
        tuple(call.to_openai()["function"]["name"] for call in message.tool_calls),
    )


def ended(script: Script, ending: tuple[str, str], episodes: int, messages: Sequence[Message]) -> Trace:
    kept = [("episodes", episodes)] if script.remembers else []
    return [*EFFECTS.trace, ("ended", *ending), *kept, ("messages", *map(plain, messages)), ("over",)]


async def by_machine(script: Script) -> Trace:
    EFFECTS.trace = []
    answer, memory = script.model(), Notebook()

    class Host:
        async def before_finalize(self, run: LoopRun, output: object) -> None:
            script.finalize()

    model = FunctionLLM(lambda request: answer(request.messages))
    runner = agent(
        model,
        EFFECTS.tools,
        limits=script.limits,
        retry=RETRY,
        clock=FakeClock(auto=True),
        memory=memory,
        hooks=[Host()],
    )
    result = await runner.run("go")
    return ended(script, (result.outcome, result.reason), len(memory.episodes), result.messages)


async def by_hand(script: Script, defects: frozenset[str]) -> Trace:
    EFFECTS.trace = []
    answer = script.model()

    async def ask(messages: Sequence[Message]) -> Response:
        return answer(messages)

    async def execute(calls: Sequence[ToolCall], done: list[ToolResult | None]) -> list[ToolResult]:
        return await EFFECTS.tools.execute_all(
            calls, lambda call, position: ToolContext("r", str(position)), done=done
        )

    hand = HandLoop(
        ask=ask,
        execute=execute,
        finalize=script.finalize,
        limits=script.limits,
        retry=RETRY,
        clock=FakeClock(auto=True),
        messages=[Message("user", "go")],
        defects=defects,
    )
    ending = await hand.run()
    return ended(script, ending, hand.episodes, hand.messages)


def common(one: Trace, other: Trace) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


async def causes(script: Script) -> list[str]:
    """Name the defect behind each difference, in the order in which they show. Raises AssertionError for any other."""
    machine, defects = await by_machine(script), DEFECTS
    assert await by_hand(script, frozenset()) == machine, "with every defect repaired nothing differs"
    found: list[str] = []
    while (hand := await by_hand(script, defects)) != machine:
        reached = common(hand, machine)
        first = await cause(script, defects, machine, reached)
        assert first is not None, unexplained(script, found, machine[reached:], hand[reached:])
        defects -= {first}
        found.append(first)
    return found


async def cause(script: Script, defects: frozenset[str], machine: Trace, reached: int) -> str | None:
    """Name the defect behind the first difference, or None."""
    for size in (1, 2, 3):
        follows = {
            repaired: common(await by_hand(script, defects - {*repaired}), machine)
            for repaired in combinations(sorted(defects, key=ORDER.index), size)
        }
        furthest = max(follows.values())
        if furthest > reached:
            return next(repaired[0] for repaired, reach in follows.items() if reach == furthest)
    return None


def unexplained(script: Script, found: list[str], machine: Trace, hand: Trace) -> str:
    lines = [f"no cause fits; repaired before: {found}", f"{script.replies}", f"{script.limits}"]
    return "\n".join([*lines, "machine:", *map(str, machine[:4]), "hand:", *map(str, hand[:4])])


# ---- scripts ----


def use(tool: str, /, **arguments: object) -> ToolCall:
    return ToolCall("1", tool, json.dumps(arguments))


class Writer:
    """Writes scripts out of motifs: runs of replies that may trip one guard or another."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.number = 0

    def fresh(self) -> int:
        self.number += 1
        return self.number

    def quiet(self) -> Script:
        """A script that trips no guard: other calls each time, no errors, few turns."""
        turns: list[Reply] = [
            [
                use(self.chance.choice(("echo", "say")), **self._new())
                for _ in range(self.chance.randint(1, 4))
            ]
            for _ in range(self.chance.randint(0, 6))
        ]
        for turn in turns:
            assert isinstance(turn, list)
            turn[:] = [use("echo", n=self.fresh()) if call.name == "echo" else call for call in turn]
        return Script([*turns, self.chance.choice(("done", "", '{"a": 1}'))], Limits(max_iterations=10))

    def _new(self) -> dict[str, object]:
        n = self.fresh()
        return {"n": n, "text": f"text {n}"}

    def script(self) -> Script:
        motifs = [
            self.same, self.alike, self.alternating, self.failing, self.flaky, self.worded, self.batch,
            self.unusable, self.broken, self.capitals, self.agents, self.steps, self.unusable, self.flaky,
        ]  # fmt: skip
        replies: list[Reply] = []
        for motif in self.chance.sample(motifs, self.chance.choice((1, 1, 2, 3))):
            replies += motif()
        return Script(
            [*replies, "done"],
            self.limits(),
            finalize_fails=self.chance.random() < 0.1,
            remembers=self.chance.random() < 0.3,
        )

    def limits(self) -> Limits:
        pick = self.chance.choice
        return Limits(
            max_iterations=pick((4, 8, 12, 20)),
            max_tool_errors=pick((0, 2, 3, 10)),
            max_repeated_success=pick((0, 2, 3, 3)),
            max_no_progress=pick((0, 2, 3, 3)),
            tool_caps={} if self.chance.random() < 0.7 else {"echo": pick((1, 2, 3))},
            completion_retries=pick((0, 2, 5, 5)),
            max_restarts=pick((0, 0, 1, 2)),
            restart_stall_threshold=pick((1, 2)),
        )

    def times(self, fewest: int = 2, most: int = 7) -> range:
        return range(self.chance.randint(fewest, most))

    def same(self) -> list[Reply]:
        n = self.fresh()
        return [[use("echo", n=n)] for _ in self.times()]

    def alike(self) -> list[Reply]:
        """Other arguments, equal results: in turns, or in one batch."""
        calls = [use("say", text="ok", n=self.fresh()) for _ in self.times()]
        return [calls] if self.chance.random() < 0.5 else [[one] for one in calls]

    def alternating(self) -> list[Reply]:
        one, other = use("echo", n=self.fresh()), use("echo", n=self.fresh())
        if self.chance.random() < 0.5:
            return [[one, other] if n % 2 else [other, one] for n in self.times(3, 8)]
        return [[one] if n % 2 else [other] for n in self.times(4, 10)]

    def failing(self) -> list[Reply]:
        n = self.fresh()
        return [[use("fail", n=n if self.chance.random() < 0.5 else self.fresh())] for _ in self.times()]

    def flaky(self) -> list[Reply]:
        texts = [json.dumps({"success": n % 3 == 2, "n": n}) for n in self.times(5, 10)]
        return [[use("say", text=text, n=self.fresh())] for text in texts]

    def worded(self) -> list[Reply]:
        texts = ('{"success": true, "error": null}', "0 errors found", "", 'so: {"ok": false}', "cannot fail")
        return [[use("say", text=self.chance.choice(texts), n=self.fresh())] for _ in self.times()]

    def batch(self) -> list[Reply]:
        return [[use("echo", n=self.fresh()) for _ in self.times(2, 5)]]

    def unusable(self) -> list[Reply]:
        other = '{"error": {"code": 7}}'
        return [ERROR_OBJECT if self.chance.random() < 0.8 else other for _ in self.times(1, 6)]

    def broken(self) -> list[Reply]:
        errors: list[Reply] = [
            TimeoutError("slow"),
            ConnectionResetError("reset by peer"),
            ValueError("please try again"),
            LLMError("no such model", kind="client_error"),
        ]
        return [self.chance.choice(errors[: self.chance.choice((1, 2, 4))]) for _ in self.times(1, 3)]

    def capitals(self) -> list[Reply]:
        tool = self.chance.choice(("say", "fail"))
        names = (tool, tool.upper(), tool.title())
        extra = {"text": "ok"} if tool == "say" else {}
        n = self.fresh()
        return [[use(names[k % 3], n=n, **extra)] for k in self.times(3, 7)]

    def agents(self) -> list[Reply]:
        return [[use("call_agent", n=self.fresh())]]

    def steps(self) -> list[Reply]:
        return [[use("echo", n=self.fresh())] for _ in self.times(1, 12)]


@pytest.mark.parametrize("scripts", [40, pytest.param(150, marks=pytest.mark.campaign)])
async def test_scripts_that_trip_no_guard_end_alike(
    seed: int, scripts: int, campaign: Callable[[int, int], int]
) -> None:
    writer = Writer(random.Random(seed))
    for _ in range(campaign(scripts, 3_000)):
        script = writer.quiet()
        machine, hand = await by_machine(script), await by_hand(script, DEFECTS)
        assert machine == hand
        assert any(one[:2] == ("ended", "completed") for one in machine)


@pytest.mark.campaign
async def test_every_other_difference_has_one_known_cause(
    seed: int, campaign: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(random.Random(seed))
    first: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for _ in range(campaign(400, 5_000)):
        found = await causes(writer.script())
        first[found[0] if found else "equal"] += 1
        every.update(found)
        await asyncio.sleep(0)
    with capsys.disabled():
        print(f"\nseed {seed}: first causes {dict(first.most_common())}")  # noqa: T201
        print(f"all causes {dict(every.most_common())}")  # noqa: T201
    assert set(every) == DEFECTS, "each defect makes a difference somewhere"
    assert first["equal"] >= 40
