"""What becomes of a question that code asks: a model is asked once, or a run of its own is begun, one level deeper.

A question that cannot be answered is an error for the code that asked, never the end of the run: a limit that is used
up, a model that fails, a nested run that does not complete. Cancellation goes through.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from orchestrator.errors import LLMError, OrchestratorError
from orchestrator.llm.message import Message, Request, Response
from orchestrator.machines.code_mode.ports import Answer
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator.machines.rlm.policy import NestedCallPolicy
from orchestrator_callbacks.rlm.budget_account import RequestUsage, RunBudget, estimated

Ask: TypeAlias = Callable[[Request], Awaitable[Response]]
"""Asks a model, with whatever retries, prices and telemetry there are; the response's usage has its cost."""

Nested: TypeAlias = Callable[[str, int, RunBudget], Awaitable[str]]
"""(prompt, depth, the purse it is lent from) -> the answer of a run of its own; it counts what it uses by itself."""


class SubCalls:
    """The broker of one run. `depth` is that run's; questions are one deeper.

    A question is given to `nested` while it is above `limits.max_depth` and the policy says so; without a policy every
    one is. Else, and without `nested`, `ask` asks a model once. `params` go with such a request; `pay` reserves what it
    can cost, `check` looks at its answer once that is counted, `admit` returns when it may go out.
    """

    def __init__(
        self,
        ask: Ask,
        *,
        depth: int,
        limits: RlmLimits,
        purse: RunBudget,
        policy: NestedCallPolicy | None = None,
        nested: Nested | None = None,
        params: Mapping[str, Any] | None = None,
        pay: Callable[[Request], AbstractAsyncContextManager[RequestUsage]] | None = None,
        check: Callable[[Response], None] | None = None,
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._ask = ask
        self._pay = pay
        self._check = check
        self._admit = admit
        self._depth = depth + 1
        self._max_depth = limits.max_depth
        self._purse = purse
        self._policy = policy
        self._nested = nested
        self._params = dict(params or {})
        self._slots = asyncio.Semaphore(limits.max_concurrent_subcalls or 1_000_000)

    async def __call__(self, prompts: Sequence[str]) -> list[Answer]:
        """Answer all of them, as many at once as the limits allow, in the order they came."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer(prompt)) for prompt in prompts]
        return [task.result() for task in tasks]

    async def _answer(self, prompt: str) -> Answer:
        try:
            async with self._slots:
                self._purse.count_call()
                if await self._goes_deeper(prompt) and self._nested is not None:
                    return await self._nested(prompt, self._depth, self._purse)
                return await self._asked(prompt)
        except OrchestratorError as error:
            return error
        except Exception as error:  # noqa: BLE001  a model's own error, or a policy's: the code reads it
            return RuntimeError(f"{type(error).__name__}: {error}")

    async def _goes_deeper(self, prompt: str) -> bool:
        if self._nested is None or self._depth >= self._max_depth:
            return False
        if self._policy is None:
            return True
        said = self._policy.should_orchestrate(prompt, self._depth)
        return await said if inspect.isawaitable(said) else said

    async def _asked(self, prompt: str) -> str:
        request = Request(messages=(Message("user", prompt),), params=self._params)
        if self._admit is not None:
            await self._admit()
        paid = self._pay(request) if self._pay else self._purse.request(estimated(request.messages))
        async with paid as bill:
            response = await self._ask(request)
            bill.usage = response.usage
        if self._check is not None:
            self._check(response)
        if response.refusal:
            raise LLMError(f"the model refused to answer: {response.refusal}", kind="content_filter")
        return response.message().text
