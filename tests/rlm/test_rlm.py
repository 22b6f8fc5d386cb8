"""`Rlm`: completions, outcomes, budgets, what comes for nothing, conversations, batches, runs below runs."""

from __future__ import annotations

import asyncio
import json
from io import StringIO
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import (
    CodeModeState,
    ConfigError,
    LLMError,
    MemoryJournal,
    Message,
    Outcome,
    Request,
    Response,
    RetryPolicy,
    RunExists,
    RunStopped,
    Usage,
    tool,
)
from orchestrator.errors import RunError
from orchestrator.kernel.fact import (
    LLMCall,
    OperationAttempt,
    RunCompleted,
    RunStarted,
    ToolExecution,
    Transition,
)
from orchestrator.machines.rlm.policy import NestedConfig
from orchestrator.providers.model_guard import real_models_refused
from orchestrator.providers.scripted import call
from orchestrator.repl import ReplError, WorkerRepl
from orchestrator.rlm import Rlm, RlmLimits, SimpleNestedCallPolicy, StopAfter, ToolsModeState
from orchestrator.telemetry import Metrics, TransitionLog
from orchestrator.testing import FunctionLLM, ScriptedLLM
from tests.runtime.stage import Facts, path, until
from tests.telemetry.sampling import sampled
from tests.with_runtime import with_runtime


def block(code: str) -> str:
    return f"```repl\n{code}\n```"


def rlm(script: Any, **options: Any) -> Rlm:
    llm = ScriptedLLM(script) if isinstance(script, list) else script
    return Rlm(llm, **with_runtime(**{"observers": (), **options}))


@tool(effect="pure")
def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


# ---- completions ----


async def test_a_completion_in_code_mode_runs_code_on_its_context() -> None:
    text = "nothing here\n" * 100_000 + "the needle is 42\n"
    find = block("line = next(one for one in context.splitlines() if 'needle' in one)\nprint(line)")
    done = await rlm([find, "FINAL(42)"]).run("What is the needle?", text)
    assert (done.outcome, done.reason, done.finish_reason) == (Outcome.COMPLETED, "none", "stop")
    assert (done.output, done.iterations, done.depth, done.sub_calls) == ("42", 1, 0, 0)
    assert done.state is CodeModeState.DONE
    assert done.usage == Usage(2, 2)
    assert path(done.transitions) == [
        *("LLMResponseReceived", "CodeBlocksFound", "CodeExecuted", "FinalAnswerFound"),
    ]
    assert done.raise_for_outcome() is done
    assert max(len(message.text) for message in done.messages) < 2_000


async def test_a_completion_in_tools_mode_calls_tools() -> None:
    done = await rlm([call("add", one=40, other=2), "42"], mode="tools", tools=[add]).run("40 + 2?")
    assert (done.outcome, done.output, done.iterations) == (Outcome.COMPLETED, "42", 1)
    assert done.state is ToolsModeState.DONE
    assert [message.role for message in done.messages] == ["system", "user", "assistant", "tool", "assistant"]


async def test_in_tools_mode_the_context_is_read_and_searched_by_tools() -> None:
    text = "x" * 60_000 + " the needle is 42 " + "y" * 60_000
    script: list[Any] = [
        [call("context_search", words="NEEDLE"), call("context_read", start=60_000, length=18)],
        call("context_query", question="Which number?", start=60_000, length=18),
        "it is forty-two",
        "42",
    ]
    llm = ScriptedLLM(script)
    done = await rlm(llm, mode="tools").run("What is the needle?", text)
    results = [message.text for message in done.messages if message.role == "tool"]
    assert results[0].startswith("60,005: …")
    assert results[1] == "[60,000 to 60,018 of 120,018 characters]\n the needle is 42 "
    assert results[2] == "it is forty-two"
    assert (done.output, done.sub_calls) == ("42", 1)
    assert all(len(message.text) < 10_000 for request in llm.requests for message in request.messages)


def test_a_completion_without_an_event_loop() -> None:
    assert rlm(["FINAL(42)"]).run_sync("p").output == "42"

    async def inside() -> None:
        rlm(["FINAL(42)"]).run_sync("p")

    with pytest.raises(ConfigError, match="inside a running event loop"):
        asyncio.run(inside())


async def test_a_prompt_may_be_a_conversation() -> None:
    llm = ScriptedLLM(["FINAL(43)"])
    said: list[Any] = [
        Message("user", "41?"),
        {"role": "assistant", "content": "42"},
        {"role": "user", "content": "And then?"},
    ]
    await rlm(llm).run(said)
    assert [message.text for message in llm.requests[0].messages[1:]] == ["41?", "42", "And then?"]


@pytest.mark.parametrize("prompt", ["", [], [Message("assistant", "x")], 7])
async def test_a_prompt_that_asks_nothing_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigError):
        await rlm([]).run(prompt)


@pytest.mark.parametrize("context", [object(), {"a": {1, 2}, "b": object()}, 1 << 70, "a\udc80"])
async def test_a_context_that_json_has_no_form_for_is_refused(context: Any) -> None:
    with pytest.raises(ConfigError, match="the context cannot be stored as JSON"):
        await rlm([]).run("p", context)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "chat"}, "mode is 'chat'; allowed: code, tools"),
        ({"tools": [add]}, "tools are for mode 'tools'"),
        ({"mode": "tools", "tools": [pay]}, "pay: mode 'tools' does not ask a person about calls"),
        ({"limits": 3}, "limits is 3; give RlmLimits"),
        ({"sub_model": "gpt"}, "sub_model must have `async complete"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rlm([], **options)
    with pytest.raises(ConfigError, match="model must have `async complete"):
        Rlm("gpt")  # type: ignore[arg-type]


async def test_a_known_run_id_is_refused() -> None:
    one = rlm(["FINAL(1)", "FINAL(2)"])
    await one.run("p", run_id="r")
    with pytest.raises(RunExists):
        await one.run("p", run_id="r")


# ---- how runs end ----


async def test_at_the_limit_of_turns_a_run_is_partial_with_what_it_has() -> None:
    done = await rlm([block("a = 1"), "As far as I know 42."], limits=RlmLimits(max_iterations=1)).run("p")
    assert (done.outcome, done.reason, done.finish_reason) == (
        Outcome.PARTIAL,
        "max_iterations",
        "max_iterations",
    )
    assert (done.output, done.iterations) == ("As far as I know 42.", 1)
    with pytest.raises(RunStopped, match="max_iterations"):
        done.raise_for_outcome()


async def test_at_the_limit_of_turns_without_budget_for_an_answer_the_budget_is_exceeded() -> None:
    limits = RlmLimits(max_iterations=1, max_output_tokens=1)
    done = await rlm([block("a = 1")], limits=limits).run("p")
    assert (done.outcome, done.reason, done.output) == (Outcome.BUDGET_EXCEEDED, "max_iterations", None)


async def test_a_policy_that_stops_makes_a_run_partial_and_comes_before_the_limit() -> None:
    limits = RlmLimits(max_iterations=2)
    done = await rlm(["Hm."] * 3, limits=limits, stopping=StopAfter(iterations=1)).run("p")
    assert (done.outcome, done.reason, done.finish_reason) == (Outcome.PARTIAL, "policy_stop", "policy_stop")
    assert (done.output, done.iterations) == ("Hm.", 0)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"max_input_tokens": 2}, "input_tokens"), ({"max_output_tokens": 1}, "output_tokens")],
)
async def test_a_used_up_budget_ends_a_run_before_the_next_request(
    limits: dict[str, Any], reason: str
) -> None:
    llm = ScriptedLLM([block("a = 1")] * 5)
    done = await rlm(llm, limits=RlmLimits(**limits)).run("p")
    assert (done.outcome, done.reason, done.finish_reason) == (Outcome.BUDGET_EXCEEDED, reason, reason)
    assert done.verdict is not None
    assert done.verdict.guard == reason
    assert len(llm.requests) == max(limits.values())


async def test_cost_counts_by_the_price_table() -> None:
    def price(_model: str | None, tokens: Any) -> float:
        return float(tokens["input_tokens"])

    limits = RlmLimits(max_cost=2.0)
    done = await rlm([block("a = 1")] * 5, price=price, limits=limits).run("p")
    assert (done.outcome, done.reason, done.usage.cost) == (Outcome.BUDGET_EXCEEDED, "cost", 2.0)


async def test_a_model_that_fails_for_good_fails_the_run_and_one_that_recovers_does_not() -> None:
    facts = Facts()
    down, retry = LLMError("down", kind="server_error"), RetryPolicy(attempts=2, base=0)
    done = await rlm([down, "FINAL(1)"], retry=retry, observers=[facts]).run("p")
    assert done.output == "1"
    assert [one.outcome for one in facts.of(OperationAttempt)] == ["retry"]
    assert [one.outcome for one in facts.of(LLMCall)] == ["server_error", "ok"]
    done = await rlm([down, down], retry=retry).run("p")
    assert (done.outcome, done.reason, str(done.error)) == (Outcome.FAILED, "llm_error", "down")
    assert path(done.transitions) == ["Failed"]


async def test_a_model_that_gives_no_response_is_blamed_for_it() -> None:
    class Odd:
        model, double = "odd", True

        async def complete(self, _request: Request) -> Response:
            return "text"  # type: ignore[return-value]

    done = await rlm(Odd()).run("p")
    assert (done.outcome, done.reason) == (Outcome.FAILED, "llm_error")
    assert "a str, not a Response" in str(done.error)


async def test_the_deadline_of_the_caller_and_the_limit_of_time_interrupt_a_model_that_hangs() -> None:
    async def hangs(_request: Request) -> str:
        await asyncio.Event().wait()
        return ""

    one = rlm(FunctionLLM(hangs))
    assert (await one.run("p", deadline=0.02)).reason == "time"
    assert (await one.run("p", limits=RlmLimits(max_seconds=0.02))).outcome is Outcome.BUDGET_EXCEEDED
    assert (await one.run("p", deadline=0)).reason == "time"


async def test_a_run_can_be_cancelled_by_its_id() -> None:
    asked = asyncio.Event()

    async def hangs(_request: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    one = rlm(FunctionLLM(hangs))
    running = asyncio.create_task(one.run("p", run_id="r"))
    await asked.wait()
    one.cancel("r", why="enough")
    done = await running
    assert (done.outcome, done.reason, done.finish_reason) == (Outcome.CANCELLED, "caller", "caller")


async def test_a_worker_is_cancelled_with_its_run() -> None:
    repls: list[WorkerRepl] = []

    def made(context: Any, **options: Any) -> WorkerRepl:
        repls.append(WorkerRepl(context, **options))
        return repls[-1]

    one = rlm([block("llm_query('go')\nwhile True: pass"), "yes"], repl=made)
    running = asyncio.create_task(one.run("p", run_id="r"))
    await until(lambda: bool(repls) and repls[0]._worker is not None)
    assert repls[0]._worker is not None
    process = repls[0]._worker._process
    one.cancel("r")
    done = await running
    assert (done.outcome, done.reason) == (Outcome.CANCELLED, "caller")
    assert process.returncode is not None
    with pytest.raises(ReplError, match="closed"):
        await repls[0].run("1")


# ---- what comes for nothing ----


async def test_every_transition_is_a_log_line_and_touches_the_metrics() -> None:
    stream, registry = StringIO(), CollectorRegistry()
    observers = (TransitionLog(stream=stream), Metrics(registry=registry))
    await rlm([block("print(1)"), "FINAL(1)"], observers=observers).run("p", "data")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    moves = [line for line in lines if line["msg"] == "fsm.transition"]
    assert [line["to_state"] for line in moves] == ["PROMPTING", "EXECUTING", "PROMPTING", "DONE"]
    assert {line["machine"] for line in moves} == {"code_mode"}
    labels = {
        "machine": "code_mode",
        "from_state": "PROMPTING",
        "event": "CodeBlocksFound",
        "to_state": "EXECUTING",
    }
    assert sampled(registry, "orchestrator_transitions_total", **labels) == 1


async def test_requests_tools_and_ends_are_facts_with_their_turn() -> None:
    facts = Facts()
    usage = Usage(10, 5)
    llm = ScriptedLLM([call("add", one=1, other=2), "3"], usage=usage, model="small")
    await rlm(llm, mode="tools", tools=[add], observers=[facts]).run("p", run_id="r")
    assert [
        (one.state, one.iteration, one.model, one.input_tokens, one.tool_calls) for one in facts.of(LLMCall)
    ] == [
        ("INIT", 1, "small", 10, 1),
        ("EXECUTING_TOOLS", 1, "small", 10, 0),
    ]
    assert [(one.tool, one.iteration, one.outcome) for one in facts.of(ToolExecution)] == [("add", 1, "ok")]
    (end,) = facts.of(RunCompleted)
    assert (end.graph, end.outcome, end.iterations, end.summary["tokens_in"]) == (
        "tools_mode",
        "completed",
        1,
        20,
    )


async def test_hooks_of_a_host_run_at_their_states_and_events() -> None:
    seen: list[str] = []

    class Hooks:
        async def before_code_blocks_found(self, run: Any) -> None:
            seen.append(f"before {run.cursor.event_object.blocks}")

        async def after_final_answer_found(self, run: Any) -> None:
            seen.append(f"done {run.ctx.final_answer}")

    await rlm([block("a = 1"), "FINAL(1)"], hooks=[Hooks()]).run("p")
    assert seen == ["before ('a = 1',)", "done 1"]


# ---- questions that code asks ----


async def test_code_asks_the_other_model_and_what_that_uses_is_counted() -> None:
    llm = ScriptedLLM([block("print(llm_query_batched(['a', 'b']))"), "FINAL(x)"])
    sub = FunctionLLM(lambda request: request.messages[-1].text.upper(), usage=Usage(7, 3), model="sub")
    done = await rlm(llm, sub_model=sub).run("p")
    assert llm.requests[1].messages[-1].text == "Result of your code:\n['A', 'B']"
    assert (done.sub_calls, done.usage) == (2, Usage(2 + 14, 2 + 6))


async def test_more_questions_than_allowed_are_errors_in_the_code_and_no_end() -> None:
    code = "for one in range(3):\n    try: print(llm_query('q'))\n    except Exception as error: print(error)"
    llm = ScriptedLLM([block(code), "a", "b", "FINAL(x)"])
    done = await rlm(llm, limits=RlmLimits(max_sub_calls=2)).run("p")
    told = llm.requests[-1].messages[-1].text.splitlines()
    assert told[1:3] == ["a", "b"]
    assert "sub_calls" in told[3]
    assert (done.outcome, done.sub_calls) == (Outcome.COMPLETED, 2)


async def test_a_question_gets_a_run_of_its_own_while_the_depth_allows_it() -> None:
    facts = Facts()

    def model(request: Request) -> str:
        said = request.messages[-1].text
        if said.startswith("outer"):
            return block("print(llm_query('inner question'))")
        if said.startswith("inner question"):
            return block("print(6 * 7)\nprint(RLM_DEPTH)")
        return "FINAL(42 at depth 1)" if "\n1" in said else f"FINAL({said.splitlines()[-1]})"

    done = await rlm(FunctionLLM(model), limits=RlmLimits(max_depth=2), observers=[facts]).run(
        "outer", run_id="r"
    )
    assert done.output == "42 at depth 1"
    outer, inner = facts.of(RunStarted)
    assert (outer.run_id, inner.parent_run_id) == ("r", "r")
    assert (done.sub_calls, done.usage) == (1, Usage(4, 4))


async def test_a_long_question_is_data_of_the_run_that_answers_it() -> None:
    shown: list[int] = []

    def model(request: Request) -> str:
        said = request.messages[-1].text
        shown.append(len(said))
        if said == "outer":
            return block("print(llm_query('Count the a: ' + 'a' * 100_000))")
        if "Your task is the text in `context`" in said:
            return block("n = context.count('a')") + "\nFINAL_VAR(n)"
        return f"FINAL({said.splitlines()[-1]})"

    done = await rlm(FunctionLLM(model), limits=RlmLimits(max_depth=2)).run("outer")
    assert done.output == "100001"
    assert max(shown) < 5_000


async def test_a_policy_says_which_questions_get_a_run_and_of_which_mode() -> None:
    facts = Facts()
    policy = SimpleNestedCallPolicy(10, 3, NestedConfig("tools", (add,), 2))
    script: list[Any] = [
        block("print(llm_query('short'))\nprint(llm_query('a question long enough'))"),
        "asked once",
        call("add", one=1, other=2),
        "3",
        "FINAL(x)",
    ]
    llm = ScriptedLLM(script)
    done = await rlm(llm, nested=policy, limits=RlmLimits(max_depth=2), observers=[facts]).run("p")
    assert llm.requests[-1].messages[-1].text == "Result of your code:\nasked once\n3"
    assert [one.graph for one in facts.of(RunStarted)] == ["code_mode", "tools_mode"]
    assert done.sub_calls == 2


async def test_a_run_below_spends_what_the_run_above_lends() -> None:
    llm = ScriptedLLM([block("print(llm_query('deeper'))"), *[block("a = 1")] * 10])
    limits = RlmLimits(max_depth=2, max_output_tokens=4)
    done = await rlm(llm, limits=limits).run("p")
    assert (done.outcome, done.reason) == (Outcome.BUDGET_EXCEEDED, "output_tokens")
    assert (len(llm.requests), done.usage.output_tokens) == (4, 4)


async def test_a_run_below_that_breaks_off_is_an_error_in_the_code() -> None:
    code = "try: llm_query('deeper')\nexcept Exception as error: print(error)"
    llm = ScriptedLLM([block(code), LLMError("down", kind="auth"), "FINAL(x)"])
    done = await rlm(llm, limits=RlmLimits(max_depth=2)).run("p")
    assert "a run below this one ended as failed (llm_error)" in llm.requests[-1].messages[-1].text
    assert done.outcome is Outcome.COMPLETED


# ---- conversations and batches ----


async def test_a_conversation_shows_earlier_prompts_and_answers_and_nothing_between() -> None:
    llm = ScriptedLLM([block("a = 1"), "FINAL(41)", "FINAL(42)", "FINAL(43)"])
    one = rlm(llm)
    await one.run("first", "data", conversation_id="c")
    await one.run("second", conversation_id="c")
    await one.run("third", conversation_id="other")
    assert [message.text for message in llm.requests[2].messages[1:]] == ["first", "41", "second"]
    assert [message.text for message in llm.requests[3].messages[1:]] == ["third"]


async def test_another_process_goes_on_with_a_conversation_from_the_journal() -> None:
    journal = MemoryJournal()
    await rlm([block("a = 1"), "FINAL(41)"], journal=journal).run("first", "data", conversation_id="c")
    await rlm(["FINAL(42)"], journal=journal).run("second", conversation_id="c")
    llm = ScriptedLLM(["FINAL(43)"])
    await rlm(llm, journal=journal).run("third", conversation_id="c")
    assert [message.text for message in llm.requests[0].messages[1:]] == [
        "first",
        "41",
        "second",
        "42",
        "third",
    ]


async def test_a_batch_answers_in_order_with_a_bound_on_how_many_run_at_once() -> None:
    now, most = [0], [0]

    async def model(request: Request) -> str:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await until(lambda: most[0] >= 2)
        now[0] -= 1
        return f"FINAL({request.messages[-1].text.splitlines()[0]})"

    done = await rlm(FunctionLLM(model)).batch(["a", ("b", "data"), "c", "d"], max_concurrent=2)
    assert [one.output for one in done] == ["a", "b", "c", "d"]
    assert most == [2]


@pytest.mark.parametrize(
    ("questions", "options", "said"),
    [
        ("who and why", {}, "the questions are str; give a list of prompts"),
        (None, {}, "the questions are NoneType"),
        (["a", ("b", "data", "c")], {}, "question 2 is a tuple of 3"),
        (["a"], {"max_concurrent": -1}, "max_concurrent is -1; it must be a whole number, 0"),
        (["a"], {"max_concurrent": "2"}, "max_concurrent is '2'"),
        (["a", "b"], {"run_id": "r"}, "run_id is 'r', but a batch of 2 has as many runs"),
    ],
)
async def test_what_is_no_batch_is_refused_before_anything_is_asked(
    questions: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await rlm(ScriptedLLM([])).batch(questions, **options)


async def test_an_error_that_is_no_outcome_ends_a_batch() -> None:
    with pytest.raises(ConfigError, match="the prompt"):
        await rlm(FunctionLLM(lambda _request: "FINAL(1)")).batch(["a", "", "b"])


async def test_a_real_model_is_refused_where_real_models_are_switched_off() -> None:
    class Real:
        model = "real"

        async def complete(self, _request: Request) -> Response:
            raise RunError("asked")

    if real_models_refused():
        with pytest.raises(ConfigError, match="real model calls are refused"):
            await Rlm(Real(), observers=()).run("p")
    else:
        assert (await Rlm(Real(), observers=()).run("p")).outcome is Outcome.FAILED


def test_transitions_are_facts_of_the_kernel() -> None:
    done = rlm(["FINAL(1)"]).run_sync("p", run_id="r")
    assert {type(one) for one in done.transitions} == {Transition}
    assert {one.run_id for one in done.transitions} == {"r"}
