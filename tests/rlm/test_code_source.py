"""The event source of code mode, with a real REPL: what it asks, what it runs, what it takes for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from orchestrator import (
    CodeBlocksFound,
    CodeExecuted,
    CodeModeContext,
    CodeModeState,
    DepthExceeded,
    FinalAnswerFound,
    LLMResponseReceived,
    MaxIterationsReached,
    PolicyStop,
    Verdict,
    build_code_mode_machine,
)
from orchestrator.errors import LimitReached
from orchestrator.repl import WorkerRepl
from orchestrator.rlm import CodeModeSource, KeepEnds, RlmLimits, StopAfter
from orchestrator.testing import FunctionLLM, ScriptedLLM

S = CodeModeState
Repls = Callable[..., WorkerRepl]


def block(code: str) -> str:
    return f"Let me see.\n```repl\n{code}\n```\n"


def said(llm: ScriptedLLM | FunctionLLM, number: int = -1) -> str:
    return llm.requests[number].messages[-1].text


async def ran(llm: Any, worker: WorkerRepl, ctx: CodeModeContext, **options: Any) -> Any:
    async with worker:
        return await build_code_mode_machine().arun(S.INIT, ctx, CodeModeSource(llm, worker, **options))


# ---- asking ----


async def test_the_model_is_told_the_mode_the_prompt_and_the_size_of_the_data_but_not_the_data(
    repl: Repls,
) -> None:
    llm, ctx = ScriptedLLM(["FINAL(x)"]), CodeModeContext(prompt="What is it?", context="secret " * 1_000)
    await ran(llm, repl(ctx.context), ctx)
    system, user = llm.requests[0].messages
    assert system.role == "system"
    assert "llm_query" in system.text
    assert "What is it?" in user.text
    assert "text of 7,000 characters" in user.text
    assert "secret" not in system.text + user.text


@pytest.mark.parametrize(
    ("context", "said_of_it"),
    [({"a": 1, "b": 2}, "a dict with 2 keys ('a', 'b')"), (["xy", "z"], "a list of 2 items"), (7, "a int")],
)
async def test_data_of_other_kinds_is_described_too(repl: Repls, context: Any, said_of_it: str) -> None:
    llm = ScriptedLLM([block("print(type(context).__name__, context)"), "FINAL(x)"])
    ctx = CodeModeContext(prompt="p", context=context)
    await ran(llm, repl(context), ctx)
    assert said_of_it in llm.requests[0].messages[1].text
    assert f"{type(context).__name__} {context}" in said(llm)


async def test_instructions_of_the_callers_own_stand_in_place_of_ours(repl: Repls) -> None:
    llm = ScriptedLLM(["FINAL(x)"])
    await ran(llm, repl(), CodeModeContext(prompt="p"), instructions="Be brief.", params={"temperature": 0})
    assert llm.requests[0].messages[0].text == "Be brief."
    assert llm.requests[0].params == {"temperature": 0}


async def test_a_run_that_is_too_deep_asks_once_with_the_data_and_answers_with_that(repl: Repls) -> None:
    llm, ctx = ScriptedLLM(["FINAL(forty-two)"]), CodeModeContext(prompt="p", context="data", depth=1)
    source = CodeModeSource(llm, repl())
    assert await source(S.INIT, ctx) == DepthExceeded(1, 1)
    done = await ran(llm, repl(), ctx)
    assert (done[0], ctx.final_answer, done.transitions) == (S.DONE, "forty-two", 2)
    assert said(llm) == "p\n\ndata"


# ---- reading ----


@pytest.mark.parametrize(
    ("reply", "event"),
    [
        ("FINAL(42)", FinalAnswerFound("42")),
        ("I think\nFINAL(42)", FinalAnswerFound("42")),
        (block("a = 1"), CodeBlocksFound(("a = 1",))),
        (block("a = 1") + "FINAL(42)", CodeBlocksFound(("a = 1",))),
        (block("a") + block("b"), CodeBlocksFound(("a", "b"))),
        ("```python\na = 1\n```", CodeBlocksFound(())),
        ("Hm.", CodeBlocksFound(())),
        ("", CodeBlocksFound(())),
        ("FINAL()", CodeBlocksFound(())),
        ("FINAL_VAR(nobody)", CodeBlocksFound(())),
    ],
)
async def test_prompting_reads_code_before_an_answer_and_counts_a_turn_with_neither(
    repl: Repls, reply: str, event: Any
) -> None:
    async with repl() as worker:
        ctx = CodeModeContext(last_response=reply)
        assert await CodeModeSource(ScriptedLLM([]), worker)(S.PROMPTING, ctx) == event


async def test_an_answer_may_be_the_value_of_a_variable_of_an_earlier_block(repl: Repls) -> None:
    llm, ctx = ScriptedLLM([block("n = 6 * 7"), "FINAL_VAR(n)"]), CodeModeContext(prompt="p")
    assert (await ran(llm, repl(), ctx))[0] is S.DONE
    assert (ctx.final_answer, ctx.iteration) == ("42", 1)


# ---- executing ----


async def test_what_the_code_printed_is_what_the_model_reads_and_goes_into_the_history(repl: Repls) -> None:
    llm, ctx = ScriptedLLM([block("print(6 * 7)"), "FINAL(42)"]), CodeModeContext(prompt="p")
    await ran(llm, repl(), ctx)
    assert said(llm) == "Result of your code:\n42"
    assert [message["role"] for message in ctx.message_history] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


async def test_blocks_run_in_order_and_keep_their_variables(repl: Repls) -> None:
    llm = ScriptedLLM([block("a = 1") + block("a += 1\nprint(a)"), block("print(a + 1)"), "FINAL(x)"])
    await ran(llm, repl(), CodeModeContext(prompt="p"))
    assert said(llm, 1) == "Result of block 1:\n(no output)\n\nResult of block 2:\n2"
    assert said(llm, 2) == "Result of your code:\n3"


async def test_an_answer_beside_code_counts_once_the_code_came_to_its_end(repl: Repls) -> None:
    llm, ctx = ScriptedLLM([block("n = 'found'") + "FINAL_VAR(n)"]), CodeModeContext(prompt="p")
    assert (await ran(llm, repl(), ctx))[0] is S.DONE
    assert (ctx.final_answer, ctx.iteration) == ("found", 1)


async def test_an_answer_beside_code_that_failed_is_not_taken_and_the_model_hears_why(repl: Repls) -> None:
    llm = ScriptedLLM([block("1 / 0") + "FINAL(42)", "FINAL(43)"])
    ctx = CodeModeContext(prompt="p")
    await ran(llm, repl(), ctx)
    assert "ZeroDivisionError" in said(llm)
    assert "was not taken, because its code did not come to its end" in said(llm)
    assert ctx.final_answer == "43"


async def test_a_variable_that_is_not_there_is_no_answer_and_the_model_hears_so(repl: Repls) -> None:
    llm, ctx = ScriptedLLM(["FINAL_VAR(result)", "FINAL(43)"]), CodeModeContext(prompt="p")
    await ran(llm, repl(), ctx)
    assert "no variable 'result'" in said(llm)
    assert (ctx.final_answer, ctx.iteration) == ("43", 1)


async def test_code_may_give_the_answer_itself(repl: Repls) -> None:
    llm, ctx = ScriptedLLM([block("n = 42\nFINAL_VAR('n')")]), CodeModeContext(prompt="p")
    await ran(llm, repl(), ctx)
    assert (ctx.final_answer, ctx.iteration) == ("42", 1)


@pytest.mark.parametrize(
    ("reply", "words"), [("Hm.", "neither a ```repl block nor an answer"), ("FINAL(4", "never ends")]
)
async def test_a_reply_with_nothing_in_it_is_a_turn_and_the_model_hears_what_was_wrong(
    repl: Repls, reply: str, words: str
) -> None:
    llm, ctx = ScriptedLLM([reply, "FINAL(42)"]), CodeModeContext(prompt="p")
    await ran(llm, repl(), ctx)
    assert words in said(llm)
    assert ctx.iteration == 1


async def test_a_worker_that_was_lost_ends_the_turns_blocks_and_the_model_hears_so(repl: Repls) -> None:
    llm = ScriptedLLM(
        [block("a = 1\nwhile True: pass") + block("print('never')"), block("print('a' in dir())"), "FINAL(x)"]
    )
    await ran(llm, repl(cpu_seconds=0.5), CodeModeContext(prompt="p"))
    assert "every variable, function and file is gone" in said(llm, 1)
    assert "The other 1 of your blocks did not run." in said(llm, 1)
    assert said(llm, 2) == "Result of your code:\nFalse"


async def test_a_long_result_is_cut_before_it_goes_into_the_history(repl: Repls) -> None:
    llm = ScriptedLLM([block("print('x' * 50_000)"), "FINAL(x)"])
    ctx = CodeModeContext(prompt="p", limits=RlmLimits(result_chars=1_000))
    await ran(llm, repl(), ctx)
    assert len(said(llm)) < 1_200
    assert "49,001 more characters of output were cut" in said(llm)


async def test_code_asks_models_and_the_answers_come_back_in_order(repl: Repls) -> None:
    code = "one = llm_query('a')\nprint(one, llm_query_batched(['b', 'c']))"
    llm = ScriptedLLM([block(code), "FINAL(x)"])
    await ran(llm, repl(answers=["A", "B", "C"]), CodeModeContext(prompt="p"))
    assert said(llm) == "Result of your code:\nA ['B', 'C']"


# ---- the limit of turns, and policies ----


@pytest.mark.parametrize(
    ("last", "answer"), [("FINAL(42)", "42"), ("It is 42.", "It is 42."), ("FINAL_VAR(n)", "7"), ("", None)]
)
async def test_after_the_last_turn_the_model_is_asked_once_more_for_its_answer(
    repl: Repls, last: str, answer: str | None
) -> None:
    llm = ScriptedLLM([block("n = 7"), block("print(n)"), last])
    ctx = CodeModeContext(prompt="p", max_iterations=2)
    assert (await ran(llm, repl(), ctx))[0] is S.DONE
    assert "This was your last turn." in said(llm)
    assert (ctx.iteration, ctx.final_answer, ctx.finish_reason) == (2, answer, "max_iterations")
    llm.assert_complete()


async def test_a_budget_that_refuses_the_extra_request_leaves_a_run_at_its_limit_without_an_answer(
    repl: Repls,
) -> None:
    refused = LimitReached(Verdict(False, "input_tokens", 10, 10))
    llm, ctx = ScriptedLLM([block("n = 7"), refused]), CodeModeContext(prompt="p", max_iterations=1)
    async with repl() as worker:
        source = CodeModeSource(llm, worker)
        ctx.last_response = (await source(S.INIT, ctx)).response  # type: ignore[union-attr]
        ctx.blocks = ("n = 7",)
        assert await source(S.EXECUTING, ctx) == MaxIterationsReached(None)


async def test_a_policy_is_asked_before_a_reply_is_read_and_before_the_next_request(repl: Repls) -> None:
    asked: list[tuple[int, Any]] = []

    class Policy:
        async def should_stop(self, context: MutableMapping[str, Any], /) -> bool:
            asked.append((context["iteration"], context["last_result"]))
            return len(asked) == 2

        def on_iteration_complete(self, context: MutableMapping[str, Any], /) -> None:
            context["seen"] = [*context.get("seen", ()), context["last_result"]]

    llm, ctx = ScriptedLLM([block("print(1)"), "never asked"]), CodeModeContext(prompt="p")
    done = await ran(llm, repl(), ctx, stopping=Policy())
    assert (done[0], ctx.policy_stop, ctx.finish_reason) == (S.DONE, True, "policy_stop")
    assert asked == [(0, None), (1, "1")]
    assert (ctx.shared["seen"], ctx.kept["seen"]) == (["1"], ["1"])
    assert len(llm.requests) == 1


async def test_a_policy_stops_a_run_whose_results_repeat(repl: Repls) -> None:
    llm = FunctionLLM(lambda _request: block("print('same')"))
    ctx = CodeModeContext(prompt="p")
    await ran(llm, repl(), ctx, stopping=StopAfter(repeats=3))
    assert (ctx.policy_stop, len(llm.requests)) == (True, 3)


async def test_a_compressor_shortens_what_the_model_is_shown(repl: Repls) -> None:
    llm = ScriptedLLM([*[block(f"print('{number}' * 900)") for number in range(8)], "FINAL(x)"])
    ctx = CodeModeContext(prompt="p", limits=RlmLimits(history_tokens=1_200))
    await ran(llm, repl(), ctx, compressor=KeepEnds(last=2, least=4))
    longest = max(sum(len(message.text) for message in request.messages) for request in llm.requests)
    assert longest < 1_200 * 4
    assert "earlier messages were left out" in str(ctx.message_history[1]["content"])
    assert ctx.message_history[0]["role"] == "system"


# ---- the source itself ----


async def test_done_has_no_event_and_a_source_may_be_asked_twice_for_the_same(repl: Repls) -> None:
    ctx, llm = CodeModeContext(prompt="p"), ScriptedLLM(["one", "two"])
    source = CodeModeSource(llm, repl())
    assert await source(S.DONE, ctx) is None
    assert await source(S.INIT, ctx) == LLMResponseReceived("one")
    assert await source(S.INIT, ctx) == LLMResponseReceived("two")
    assert len(ctx.message_history) == 2, "the prompt stands there once"


@pytest.mark.parametrize("inside", [False, True])
def test_the_sync_source_drives_the_sync_machine_also_inside_a_loop(repl: Repls, inside: bool) -> None:
    llm, ctx = ScriptedLLM([block("n = 6 * 7"), "FINAL_VAR(n)"]), CodeModeContext(prompt="p")

    def work() -> Any:
        with CodeModeSource(llm, repl()).blocking() as source:
            return build_code_mode_machine().run(S.INIT, ctx, source)

    async def outer() -> Any:
        return work()

    done = asyncio.run(outer()) if inside else work()
    assert (done[0], ctx.final_answer) == (S.DONE, "42")


async def test_a_model_that_fails_ends_the_run_with_its_error(repl: Repls) -> None:
    llm = ScriptedLLM([block("a = 1"), ConnectionError("gone")])
    with pytest.raises(ConnectionError):
        await ran(llm, repl(), CodeModeContext(prompt="p"))


def test_events_hold_copies_that_cannot_change() -> None:
    blocks = ["a"]
    event, done = CodeBlocksFound(blocks), CodeExecuted(blocks)  # type: ignore[arg-type]
    blocks.append("b")
    assert (event.blocks, done.results) == (("a",), ("a",))
    assert PolicyStop() == PolicyStop("")
