"""The message exchange of an event source in either mode: model requests with the history, and policy calls."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import orjson

from orchestrator.llm.finish_reason import INCOMPLETE
from orchestrator.llm.message import Message, Request, Response, ToolOffer
from orchestrator.llm.port import LLM
from orchestrator.machines.rlm.model import ModeContext
from orchestrator.machines.rlm.policy import ContextCompressor, StoppingPolicy, estimate

T = TypeVar("T")

_POLICY_FIELDS = ("iteration", "max_iterations", "agent_mode", "depth", "history", "last_result")
"""Keys that are updated each time; all other keys of the mapping belong to the policy."""


async def settled(value: T | Awaitable[T]) -> T:
    """Return a value, awaited if necessary."""
    return await value if inspect.isawaitable(value) else value


class Conversation:
    """One model, its history, and its policies."""

    def __init__(
        self,
        llm: LLM,
        mode: Literal["code", "tools"],
        *,
        stopping: StoppingPolicy | None,
        compressor: ContextCompressor | None,
        params: Mapping[str, Any] | None,
        tools: tuple[ToolOffer, ...] = (),
    ) -> None:
        self._llm = llm
        self._mode = mode
        self._stopping = stopping
        self._compressor = compressor
        self._params = dict(params or {})
        self._tools = tools

    async def ask(
        self, ctx: ModeContext, extra: Sequence[Message] = (), *, tool_choice: str = "auto"
    ) -> Response:
        """Call the model with the whole history and `extra`, which is not in the history yet."""
        if self._compressor is not None and ctx.limits.history_tokens:
            await self._compress(self._compressor, ctx, extra)
        messages = (*ctx.messages, *extra)
        return await self._llm.complete(Request(messages, self._tools, tool_choice, params=self._params))

    async def ask_with(self, messages: Sequence[Message]) -> Response:
        """Call the model with only these messages."""
        return await self._llm.complete(Request(tuple(messages), params=self._params))

    async def should_stop(self, ctx: ModeContext) -> bool:
        """Return whether the policy ends the run here."""
        if self._stopping is None:
            return False
        stops = await settled(self._stopping.should_stop(self._policy_view(ctx)))
        _keep(ctx)
        return bool(stops)

    async def complete_turn(self, ctx: ModeContext, last_result: str) -> None:
        """Inform the policy of a completed turn and its result."""
        if self._stopping is None:
            return
        told = self._policy_view(ctx)
        told["iteration"], told["last_result"] = ctx.iteration + 1, last_result
        done: Any = self._stopping.on_iteration_complete(told)
        if inspect.isawaitable(done):
            await done
        _keep(ctx)

    def _policy_view(self, ctx: ModeContext) -> dict[str, Any]:
        """Update the policy's mapping. It is one mapping for the whole run, so values of the policy stay."""
        told = ctx.shared
        if not told:
            told.update(ctx.kept)
        told.update(
            iteration=max(ctx.iteration, told.get("iteration", 0)),
            max_iterations=ctx.max_iterations,
            agent_mode=self._mode,
            depth=ctx.depth,
            history=ctx.message_history,
        )
        told.setdefault("last_result", None)
        return told

    async def _compress(
        self, compressor: ContextCompressor, ctx: ModeContext, extra: Sequence[Message]
    ) -> None:
        """Call the compressor if the history and the extra messages are too long."""
        limit = ctx.limits.history_tokens
        said = ctx.messages
        if estimate((*said, *extra)) <= limit:
            return
        kept = await settled(compressor.compress(said, limit=max(1, limit - estimate(extra))))
        if kept is not said and list(kept) != said:
            ctx.message_history = [one.to_openai() for one in kept]


def _keep(ctx: ModeContext) -> None:
    """Keep the policy's values that can be stored as JSON; other values are lost with the process."""
    kept: dict[str, Any] = {}
    for name, value in ctx.shared.items():
        if name not in _POLICY_FIELDS:
            try:
                kept[name] = orjson.loads(orjson.dumps(value))
            except TypeError:
                continue
    if kept != ctx.kept:
        ctx.kept = kept


def text_of(response: Response) -> str:
    """Return the text of a response, or its refusal if there is no text."""
    return response.message().text or response.refusal or ""


def incomplete_of(response: Response) -> str:
    """Return `truncated`, `filtered` or `refused` for a response that is not complete, else empty text."""
    return INCOMPLETE.get(response.finish, "")


def at_last_turn(ctx: ModeContext) -> bool:
    """Return whether the current turn is the last one."""
    return bool(ctx.max_iterations) and ctx.iteration + 1 >= ctx.max_iterations
