"""Answers to model queries of code: one model call, or a child run one level deeper.

A query that cannot be answered raises an error in the code and never ends the run: a used-up limit, a failing model,
a child run that does not complete. Cancellation passes through.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from orchestrator.errors import LLMError, OrchestratorError
from orchestrator.llm.message import NO_USAGE, Message, Request, Response, Route
from orchestrator.machines.code_mode.ports import Answer
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator.machines.rlm.policy import NestedCallPolicy
from orchestrator_callbacks.rlm.budget_account import RequestUsage, RunBudget, estimated

Ask: TypeAlias = Callable[[Request], Awaitable[Response]]
"""Calls a model with retries, prices and telemetry; the usage of the response includes its cost."""

Nested: TypeAlias = Callable[[str, int, RunBudget], Awaitable[str]]
"""(prompt, depth, budget of the parent) -> the answer of a child run, which counts its own usage."""


class SubCalls:
    """The broker of one run. `depth` is the depth of that run; queries are one level deeper.

    A query is passed to `nested` while its depth is below `limits.max_depth` and the policy agrees; without a policy
    all are. Otherwise, and without `nested`, `ask` calls a model once with `params`. `pay` reserves the cost of that
    request, `check` checks its answer after it was counted, `admit` returns when it may be sent.
    """

    def __init__(
        self,
        ask: Ask,
        *,
        depth: int,
        limits: RlmLimits,
        budget: RunBudget,
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
        self._budget = budget
        self._policy = policy
        self._nested = nested
        self._params = dict(params or {})
        self._slots = asyncio.Semaphore(limits.max_concurrent_subcalls or 1_000_000)

    async def __call__(self, prompts: Sequence[str]) -> list[Answer]:
        """Answer all prompts concurrently within the limits; answers are in the same order."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer(prompt)) for prompt in prompts]
        return [task.result() for task in tasks]

    async def _answer(self, prompt: str) -> Answer:
        try:
            async with self._slots:
                self._budget.count_call()
                if await self._goes_deeper(prompt) and self._nested is not None:
                    return await self._nested(prompt, self._depth, self._budget)
                return await self._ask_model(prompt)
        except OrchestratorError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an error of a model or a policy: the code gets it
            return RuntimeError(f"{type(error).__name__}: {error}")

    async def _goes_deeper(self, prompt: str) -> bool:
        if self._nested is None or self._depth >= self._max_depth:
            return False
        if self._policy is None:
            return True
        said = self._policy.should_orchestrate(prompt, self._depth)
        return await said if inspect.isawaitable(said) else said

    async def _ask_model(self, prompt: str) -> str:
        request = Request(messages=(Message("user", prompt),), params=self._params, route=Route())
        if self._admit is not None:
            await self._admit()
        paid = self._pay(request) if self._pay else self._budget.request(estimated(request.messages))
        async with paid as bill:
            response = await self._ask(request)
            bill.usage = response.usage or NO_USAGE
        if self._check is not None:
            self._check(response)
        if response.refusal:
            raise LLMError(f"the model refused to answer: {response.refusal}", kind="content_filter")
        return response.message().text
