"""The result of an ended run, read from its records, and the comparison of two runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from orchestrator.errors import LimitReached, Refused
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, Record, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.writer import restored_failure
from orchestrator.llm.message import Message, Response, Usage
from orchestrator.machines.llm_loop.graph import BUDGET_OF, STALL_OF
from orchestrator.machines.llm_loop.model import LoopState
from orchestrator.machines.team.graph import TEAM
from orchestrator.machines.team.model import HANDED_OVER, HandoffRecord
from orchestrator.runtime.llm_loop.agent_tool import child_of, output_value, segment_owner
from orchestrator.runtime.llm_loop.result import ANSWERED, Result, as_child, in_call_order
from orchestrator.runtime.llm_loop.run_record import context_of, loop_codec, tool_errors_of
from orchestrator.runtime.runs.story import Story
from orchestrator.runtime.service.arguments import LONGEST_TAG, MOST_TAGS
from orchestrator.runtime.service.restored_run import path_of
from orchestrator.runtime.team.run_record import team_context_of
from orchestrator_callbacks.llm_loop import memory
from orchestrator_guards import Verdict

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Agent

_KEPT = 10_000
"""Most transitions of a result."""
_OF_THE_LOOP = frozenset(("base", "iteration"))
"""Fields that the context of every agent has."""


async def recorded_children(
    journal: Journal, stored: StoredRun, agent: Agent | None = None
) -> tuple[Result, ...]:
    """Return the ended child runs of a stored run, as `Result.children` has them.

    Outputs are JSON data, or values where the types are known from `agent`, the agent of the stored run. Raises
    Corrupt, StoreDown.
    """
    found: list[Result] = []
    is_team = stored.created.get("graph") == TEAM.name
    if not (stored.ledger.entries or is_team):
        return ()  # it called no tool: the heads of its branches, perhaps a thousand, are not read
    async for head in journal.runs(parent_run_id=stored.run_id):
        key = head.run_id.removeprefix(f"{stored.run_id}:")
        entry = stored.ledger.entries.get(key)
        if head.status != "ended" or (entry is None and not is_team):
            continue  # it is open, or a branch, or a request of `context.sample`
        records = await journal.load(head.run_id)
        story = Story.of(head.run_id, records)
        if entry is None:
            found += await recorded_children(journal, story, segment_owner(agent, head.agent))
            continue
        child = child_of(agent, entry.tool)
        result = recorded_result(story, records, await recorded_children(journal, story, child))
        found.append(as_child(replace(result, output=output_value(child, result.output))))
    return in_call_order(found)


def recorded_result(story: Story, records: Iterable[Record], children: tuple[Result, ...] = ()) -> Result:
    """Return the result of a run with an `ended` record, and with these child runs.

    The output is JSON: a value of an `output_type` is not converted back. Runs of other machines than the loop have
    the output that their last record has, and no messages.
    """
    ended = story.ended or {}
    graph = str(story.created.get("graph", ""))
    outcome = Outcome(ended["outcome"])
    error = None
    if story.failure is not None:
        error, _ = restored_failure(story.failure, graph, story.run_id)
    messages: Sequence[Message] = ()
    verdict, answer = None, Response()
    last, made = str(story.created.get("agent", "")), tuple[HandoffRecord, ...]()
    if graph == TEAM.name:
        team = team_context_of(story)
        messages, verdict, last, made = memory.conversation(team), team.verdict, team.agent, team.handoffs
        answer = Response(finish_reason=team.vendor_finish_reason)
    elif story.context.keys() >= _OF_THE_LOOP:
        ctx = context_of(story, loop_codec())
        messages, verdict, answer = memory.conversation(ctx), ctx.verdict, ctx.response or answer
    if verdict is None and isinstance(error, LimitReached | Refused):  # as in the result of the run itself
        named = error.verdict
        verdict = named if isinstance(named, Verdict) and named.guard in {*BUDGET_OF, *STALL_OF} else None
    output = None
    if outcome in ANSWERED and ended["reason"] != HANDED_OVER:
        output = ended["output"] if "output" in ended else messages[-1].text if messages else None
    return Result(
        run_id=story.run_id,
        outcome=outcome,
        reason=str(ended["reason"]),
        output=output,
        messages=tuple(messages),
        usage=story.total,
        transitions=tuple(path_of(story.run_id, graph, records)[-_KEPT:]),
        verdict=verdict,
        error=error,
        tool_errors=tool_errors_of(story),
        finish_reason=answer.finish,
        vendor_finish_reason=answer.finish_reason,
        agent=last,
        handoffs=made,
        children=children,
    )


class RecordedTransition(NamedTuple):
    """A transition of a run."""

    event: str
    source: str
    dest: str


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the two runs."""

    run_id: str
    graph: str
    agent: str
    status: str
    outcome: str
    """"" for a run that has not ended."""
    reason: str
    turns: int
    """Answers of the model."""
    seconds: float
    """Active seconds."""
    usage: Usage
    """As the limits count it."""
    currency: str
    """Currency of its cost; "" if its records name none."""
    states: Mapping[str, float]
    """State -> seconds."""
    tools: Mapping[str, int]
    """Tool -> calls."""
    output: Any
    transitions: Sequence[RecordedTransition]


class ComparedNumber(NamedTuple):
    """A number of both runs."""

    name: str
    unit: Literal["count", "cost", "seconds"]
    first: float | None
    """None if it is unknown, or the run was never in this state."""
    second: float | None
    currencies: tuple[str, str] = ("", "")
    """Currencies of two costs; "" if the records of the run name none."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two transitions at the same place; as `RunPair.divergence` the first ones that differ."""

    number: int
    """Counted from 1, among the compared transitions."""
    first: RecordedTransition | None
    """None if the first run has no more transition."""
    second: RecordedTransition | None


@dataclass(frozen=True, slots=True)
class RunPair:
    """Two runs side by side."""

    first: ComparedRun
    second: ComparedRun
    forked_after: int | None
    """The turn of the first run after which the second one was forked; None if it was not."""
    equal: int
    """Equal transitions before the divergence. Those of the first run before a fork are not compared."""
    divergence: Divergence | None
    starts: tuple[int, int]
    """Transitions of each run before the first compared one."""

    @property
    def same_output(self) -> bool:
        """Whether both runs have an output and the outputs are equal."""
        return self.first.output is not None and bool(self.first.output == self.second.output)

    @property
    def outputs(self) -> str:
        """How the outputs compare, in words."""
        known = [run.output is not None for run in (self.first, self.second)]
        if not all(known):
            return "only one run has an output" if any(known) else "neither run has an output"
        return "the outputs are equal" if self.same_output else "the outputs differ"

    def aligned(self, before: int, after: int) -> Iterator[Divergence]:
        """Yield the compared transitions side by side: so many before the divergence, and so many from it on."""
        ours, theirs = self.first.transitions[self.starts[0] :], self.second.transitions[self.starts[1] :]
        first, last = max(0, self.equal - before), self.equal + after
        pairs = zip_longest(ours[first:last], theirs[first:last])
        for number, (one, other) in enumerate(pairs, first + 1):
            yield Divergence(number, one, other)

    def rows(self) -> Iterator[ComparedNumber]:
        """Yield the numbers of both runs."""
        one, other = self.first, self.second
        yield ComparedNumber("turns", "count", one.turns, other.turns)
        yield ComparedNumber("transitions", "count", len(one.transitions), len(other.transitions))
        yield ComparedNumber("input tokens", "count", one.usage.input_tokens, other.usage.input_tokens)
        yield ComparedNumber("output tokens", "count", one.usage.output_tokens, other.usage.output_tokens)
        currencies = one.currency, other.currency
        yield ComparedNumber("cost", "cost", one.usage.cost, other.usage.cost, currencies)
        yield ComparedNumber("time", "seconds", one.seconds, other.seconds)
        for state in dict.fromkeys([*one.states, *other.states]):
            yield ComparedNumber(f"in {state}", "seconds", one.states.get(state), other.states.get(state))
        for tool in dict.fromkeys([*one.tools, *other.tools]):
            yield ComparedNumber(
                f"calls of {tool}", "count", one.tools.get(tool, 0), other.tools.get(tool, 0)
            )


def compare_runs(
    first: tuple[RunHead, Sequence[Record]], second: tuple[RunHead, Sequence[Record]]
) -> RunPair:
    """Compare two runs, each given by its head and its records. A fork is the second one of the pair."""
    if _forked_after(second[0].run_id, first[1]) is not None:
        first, second = second, first
    one, other = _compared(*first), _compared(*second)
    forked = _forked_after(first[0].run_id, second[1])
    starts = (0, 0)
    if forked:  # the transitions before the request of the turn after that one
        asked = [at for at, step in enumerate(one.transitions, 1) if step.dest == LoopState.AWAIT_LLM]
        starts = asked[forked] if forked < len(asked) else len(one.transitions), 1
    ours, theirs = one.transitions[starts[0] :], other.transitions[starts[1] :]
    for number, (a, b) in enumerate(zip_longest(ours, theirs), 1):
        if a != b:
            return RunPair(one, other, forked, number - 1, Divergence(number, a, b), starts)
    return RunPair(one, other, forked, len(ours), None, starts)


def _compared(head: RunHead, records: Sequence[Record]) -> ComparedRun:
    story = Story.of(head.run_id, records)
    ended = story.ended or {}
    return ComparedRun(
        run_id=head.run_id,
        graph=head.graph,
        agent=head.agent,
        status=head.status,
        outcome=str(ended.get("outcome", "")),
        reason=head.reason,
        turns=story.turn,
        seconds=story.elapsed,
        usage=story.total,
        currency=head.currency,
        states={state: stats.total for state, stats in story.states().items()},
        tools=Counter(call.tool for call in story.calls.values()),
        output=recorded_result(story, records).output if ended else None,
        transitions=[
            RecordedTransition(str(body["event"]), str(body["source"]), str(body["dest"]))
            for kind, body in ((record.kind, record.body) for record in records)
            if kind == "transition"
        ],
    )


FORKED_FROM: Final = "forked_from"
"""Tag of a fork with the id of the run that it was forked from, so that a listing finds the forks of a run."""
FORKED_TURN: Final = "forked_turn"
"""Tag of a fork with the turn after which it was forked; 0 is before the first answer."""


def own_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags without those of a fork."""
    return {name: value for name, value in tags.items() if name not in {FORKED_FROM, FORKED_TURN}}


def fork_tags(tags: Mapping[str, str], run_id: str, turn: int) -> dict[str, str]:
    """Return the tags of a fork of a run after a turn, with those of the run.

    They are its own tags only if there is no room for two more, or if the id of the run is longer than a tag.
    """
    own = own_tags(tags)
    made = {**own, FORKED_FROM: run_id, FORKED_TURN: str(turn)}
    return made if len(made) <= MOST_TAGS and len(run_id) <= LONGEST_TAG else own


def fork_of(records: Sequence[Record]) -> tuple[str, int] | None:
    """Return the run and its turn after which this run was forked; None if it was not.

    A fork that the command line made before forks had tags has them in its `launch`.
    """
    created = records[0].body if records else {}
    launched = (created.get("launch") or {}).get("forked_from") or {}
    if "run_id" in launched:
        return str(launched["run_id"]), int(launched.get("turn", 0))
    tags: Mapping[str, str] = created.get("tags") or {}
    if (
        FORKED_FROM not in tags or created.get("parent_run_id") is not None
    ):  # a child run has the tags of its parent
        return None
    turn = tags.get(FORKED_TURN, "")
    return tags[FORKED_FROM], int(turn) if turn.isdecimal() else 0


def _forked_after(first: str, records: Sequence[Record]) -> int | None:
    """Return the turn of the first run after which the other one was forked; None if it was not."""
    fork = fork_of(records)
    return fork[1] if fork is not None and fork[0] == first else None
