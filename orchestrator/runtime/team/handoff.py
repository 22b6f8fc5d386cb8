"""Handoffs as an agent declares them, and the tools with which its model takes them.

The tool is pure: it only says that it was called. The segment ends after all other calls of the same answer have
their results, and the run decides then, from the records of the segment. Of two handoffs in one answer none is taken,
because no order between them is right; the model reads that and decides again. The same handoff twice is taken once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from orchestrator.errors import ConfigError, ModelRetry, RunError
from orchestrator.llm.message import Message
from orchestrator.machines.team.model import HANDOFF
from orchestrator.runtime.service.child_run import current_scope
from orchestrator.tools.result import explain
from orchestrator.tools.spec import DepsT, RunContext, ToolContext, ToolSpec, tool
from orchestrator_callbacks.llm_loop.admission import effective_call
from orchestrator_guards import Verdict

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Agent

HandoffGuard: TypeAlias = Callable[[RunContext], "Verdict | bool"]
"""Decides whether a handoff is taken. Pure: it reads the metadata, the tags and the deps of the run."""
HistoryFilter: TypeAlias = Callable[[Sequence[Message]], Sequence[Message]]
"""Returns what the next agent reads of the conversation. Pure: the same messages give the same result."""


@dataclass(frozen=True, slots=True, eq=False)
class Handoff(Generic[DepsT]):
    """One handoff of an agent; `handoff` makes it."""

    agent: Agent[DepsT, Any] | str
    """The agent that takes over, or its name."""
    description: str = ""
    when: HandoffGuard | None = None
    history: HistoryFilter | None = None
    input: Any = None

    @property
    def to(self) -> str:
        """Name of the agent that takes over."""
        return self.agent if isinstance(self.agent, str) else self.agent.name


HandoffSource: TypeAlias = "Agent[DepsT, Any] | Handoff[DepsT] | str"
"""What an agent accepts as a handoff."""


def handoff(
    agent: Agent[DepsT, Any] | str,
    *,
    description: str = "",
    when: HandoffGuard | None = None,
    history: HistoryFilter | None = None,
    input: Any = None,  # noqa: A002 - the word of the interface
) -> Handoff[DepsT]:
    """Return a handoff with options, for `Agent(handoffs=[...])`. An agent alone is a handoff without any.

    Args:
        agent: The agent that takes over, or the name of another member of the team, for a way back.
        description: When to hand over, for the model.
        when: Guard: a pure function of the RunContext of the segment that returns a Verdict or a bool. If it refuses,
            the model reads why, and the agent keeps the conversation.
        history: A pure function from the messages of the conversation to those that the next agent reads. By default
            it reads all of them.
        input: Type of an argument `input` that the model gives with the handoff. It is in `result.handoffs`, and the
            next agent reads it with the call.

    Raises:
        ConfigError: An argument is invalid, or the agent has no name.

    Example:
        triage = Agent(model, name="triage", handoffs=[billing, handoff(refunds, input=RefundRequest)])
    """
    made: Handoff[DepsT] = Handoff(agent, description, when, history, input)
    if not made.to:
        raise ConfigError("an agent that takes over has no name; give it one: Agent(..., name='billing')")
    for name, function in (("when", when), ("history", history)):
        if function is not None and not callable(function):
            raise ConfigError(f"{name} of the handoff to {made.to!r} is {function!r}; give a function")
    return made


def handoffs_of(sources: Iterable[HandoffSource[Any]]) -> tuple[Handoff[Any], ...]:
    """Return the handoffs of an agent. Raises ConfigError."""
    if isinstance(sources, str) or not isinstance(sources, Iterable):
        raise ConfigError(f"handoffs is {sources!r:.60}; give a list of agents: handoffs=[billing]")
    made: list[Handoff[Any]] = []
    for source in sources:
        if not (isinstance(source, Handoff | str) or hasattr(source, "hosting")):
            raise ConfigError(f"a handoff is {source!r:.60}; give an agent, its name, or handoff(agent, ...)")
        made.append(source if isinstance(source, Handoff) else handoff(source))
    names = [item.to for item in made]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ConfigError(
            f"two handoffs of one agent are to {twice!r}; give each agent once, or its own name="
        )
    return tuple(made)


class Transfer:
    """The function of a handoff's tool. Works only inside a run of the agent that has it."""

    def __init__(self, made: Handoff[Any]) -> None:
        self.handoff = made
        context = inspect.Parameter(
            "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=ToolContext
        )
        given = inspect.Parameter("input", inspect.Parameter.KEYWORD_ONLY, annotation=made.input)
        self.__signature__ = inspect.Signature([context, *([] if made.input is None else [given])])

    async def __call__(self, context: ToolContext, **_: Any) -> str:
        """Accept a handoff, which takes place when the other calls of the answer have their results."""
        scope = current_scope()
        if scope is None or scope.run.run_id != context.run_id:
            raise ConfigError("a handoff works only inside a run of an agent")
        ctx, find = scope.run.ctx, scope.run.deps.tools.find
        calls = [effective_call(ctx, position) for position in range(len(ctx.response.tool_calls))]
        handoffs = {  # models repeat a call in one answer: the same handoff twice is one
            (spec.name, call.arguments)
            for call in calls
            if (spec := find(call.name)) is not None and spec.kind == HANDOFF
        }
        if len(handoffs) > 1:
            raise ModelRetry(
                "none of the handoffs of this answer was taken, because there were several; hand over to one agent"
            )
        if self.handoff.when is not None:
            self._check(
                self.handoff.when, RunContext(context.run_id, context.metadata, context.tags, context.deps)
            )
        return f"{self.handoff.to} takes over the conversation"

    def _check(self, when: HandoffGuard, about: RunContext) -> None:
        found: object = when(about)
        if not isinstance(found, Verdict | bool):
            raise RunError(
                f"the guard of the handoff to {self.handoff.to!r} returned {type(found).__name__}; give a Verdict or "
                "a bool"
            )
        if not found:
            why = f": {found.explain()}" if isinstance(found, Verdict) else ""
            raise ModelRetry(
                f"the conversation cannot be handed over to {self.handoff.to} now{why}; continue without it"
            )


def transfer_tool(made: Handoff[Any]) -> ToolSpec:
    """Return the tool of a handoff. Its name is `transfer_to_` and the name of the agent."""
    text = f"Hand the conversation over to {made.to}, who answers from then on. {made.description}".strip()
    name = f"transfer_to_{re.sub(r'[^A-Za-z0-9_-]', '_', made.to)}"
    spec = tool(name=name, description=text, effect="pure")(Transfer(made))
    return replace(spec, kind=HANDOFF)


def filtered(made: Handoff[Any], messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return what the history filter of a handoff keeps, in OpenAI form.

    Raises RunError if the filter fails, or if no model could read what it keeps: nothing, or a call without its result.
    """
    assert made.history is not None  # noqa: S101 - the caller has checked it
    name = f"the history filter of the handoff to {made.to!r}"
    try:
        kept = [*made.history(tuple(messages))]
    except Exception as error:
        raise RunError(f"{name} failed: {explain(error)}") from error
    if not kept:
        raise RunError(f"{name} returned no message; keep at least one")
    open_calls: set[str | None] = set()
    for message in kept:
        if not isinstance(message, Message):
            raise RunError(f"{name} returned {type(message).__name__}, not a Message")
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise RunError(
                    f"{name} kept a result of {message.name} without its call; keep both, or neither"
                )
            open_calls.discard(message.tool_call_id)
        elif open_calls:
            break
        open_calls |= {call.id for call in message.tool_calls}
    if open_calls:
        raise RunError(f"{name} kept a call without its result; keep both, or neither")
    return [message.to_openai() for message in kept]
