"""Questions of the code: asked once or as a run of their own, within the budget, answered in order."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator import Request, Response
from orchestrator.errors import LimitReached, LLMError
from orchestrator.llm.message import Usage
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator.machines.rlm.policy import NestedCallPolicy, NoNesting, SimpleNestedCallPolicy
from orchestrator.runtime.rlm.run_setup import SubCalls
from orchestrator.testing import FunctionLLM, ScriptedLLM
from orchestrator_callbacks.rlm.model_call import RunBudget


def echo() -> FunctionLLM:
    return FunctionLLM(lambda request: f"answer to {request.messages[-1].text}")


async def test_every_prompt_is_asked_once_and_answered_in_order() -> None:
    llm, limits = echo(), RlmLimits()
    budget = RunBudget(limits)
    answers = await SubCalls(llm.complete, depth=0, limits=limits, budget=budget)(("a", "b", "c"))
    assert answers == ["answer to a", "answer to b", "answer to c"]
    assert [len(request.messages) for request in llm.requests] == [1, 1, 1]
    assert (budget.calls, budget.usage.input_tokens) == (3, 3)


async def test_no_more_are_under_way_at_once_than_allowed() -> None:
    under_way, most = 0, 0

    async def ask(request: Request) -> Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        under_way -= 1
        return Response(request.messages[0].text)

    limits = RlmLimits(max_concurrent_subcalls=3)
    prompts = tuple(map(str, range(20)))
    assert await SubCalls(ask, depth=0, limits=limits, budget=RunBudget(limits))(prompts) == list(prompts)
    assert most == 3


async def test_one_that_fails_is_an_error_and_the_others_are_answered() -> None:
    llm = ScriptedLLM(
        ["one", LLMError("down", kind="server_error"), Response(refusal="I will not"), OSError("line")]
    )
    limits = RlmLimits(max_concurrent_subcalls=1)
    answers = await SubCalls(llm.complete, depth=0, limits=limits, budget=RunBudget(limits))(
        ("a", "b", "c", "d")
    )
    assert answers[0] == "one"
    assert [str(one) for one in answers[1:]] == [
        "down",
        "the model refused to answer: I will not",
        "OSError: line",
    ]


async def test_questions_beyond_the_limit_are_refused_and_never_sent() -> None:
    llm, limits = echo(), RlmLimits(max_sub_calls=2, max_concurrent_subcalls=1)
    broker = SubCalls(llm.complete, depth=0, limits=limits, budget=RunBudget(limits))
    answers = await broker(("a", "b", "c"))
    assert answers[:2] == ["answer to a", "answer to b"]
    assert isinstance(answers[2], LimitReached)
    assert str(answers[2]) == "sub_calls: 2 of 2 used"
    assert len(llm.requests) == 2


@pytest.mark.parametrize(
    ("depth", "max_depth", "policy", "deeper"),
    [
        (0, 1, None, False),
        (0, 2, None, True),
        (1, 2, None, False),
        (1, 3, None, True),
        (0, 2, NoNesting(), False),
        (0, 2, SimpleNestedCallPolicy(min_chars=3), False),
        (0, 2, SimpleNestedCallPolicy(min_chars=2), True),
        (0, 1, SimpleNestedCallPolicy(min_chars=0), False),
    ],
)
async def test_a_question_gets_a_run_of_its_own_above_the_depth_and_where_the_policy_says_so(
    depth: int, max_depth: int, policy: NestedCallPolicy | None, deeper: bool
) -> None:
    begun: list[tuple[str, int]] = []
    limits = RlmLimits(max_depth=max_depth)
    budget = RunBudget(limits)

    async def nested(prompt: str, at: int, lender: RunBudget) -> str:
        begun.append((prompt, at))
        RunBudget(limits, lender=lender).add(Usage(5, 5))
        return "deep answer"

    broker = SubCalls(
        echo().complete, depth=depth, limits=limits, budget=budget, policy=policy, nested=nested
    )
    assert await broker(("qq",)) == ["deep answer" if deeper else "answer to qq"]
    assert begun == ([("qq", depth + 1)] if deeper else [])
    assert budget.usage.input_tokens == (5 if deeper else 1)
    assert budget.calls == 1


async def test_cancelling_cancels_what_is_under_way() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def ask(_: Request) -> Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Response("never")

    limits = RlmLimits()
    work = asyncio.ensure_future(SubCalls(ask, depth=0, limits=limits, budget=RunBudget(limits))(("a", "b")))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert ended.is_set()
