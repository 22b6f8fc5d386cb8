"""Who makes plans: a model in the loop, over a real connection too; a file; and how often either is asked again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import LLMError
from orchestrator.llm.message import Request, Response, Usage
from orchestrator.llm.port import LLM
from orchestrator.llm.retry import RetryAttempt
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.plan import ApprovalPlan, Extraction, Intent, IntentKind, PlanRequest
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.limiter import RateLimit, RateLimitedModel
from orchestrator.providers.openai import OpenAI
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.approval.plan_executor import drafted, extracted
from orchestrator.runtime.approval.plan_file import PlanFile, read_plans
from orchestrator.runtime.approval.planner import ModelPlanner, address_of
from orchestrator.runtime.approval.workspace import MOST_FILES, Workspace
from orchestrator.testing.clock import FakeClock
from tests.providers.endpoint import GUARD
from tests.providers.loopback import Loopback, json_reply
from tests.runtime.approval.hostile import DIFF, create, edit, project

KEY = "sk-very-secret"
INTENT = Intent(kind=IntentKind.FIX_BUG, summary="two is three", confidence=0.9)
EXTRACTION = {"intents": [{"kind": "FixBug", "summary": "two is three", "confidence": 0.9}]}
PLAN = {"goal": "Fix two", "steps": [edit("a.py")]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path)


@pytest.fixture(autouse=True)
def _guard() -> Iterator[None]:
    """No test opens a socket but to the server it made."""
    with GUARD.watching():
        yield


async def planned(llm: LLM, root: Path, told: list[RetryAttempt] | None = None, **more: Any) -> ApprovalPlan:
    clock = FakeClock(auto=True)
    planner = ModelPlanner(llm, root, limits=more.pop("limits", None))
    request = PlanRequest(intent=INTENT, **more)
    on_attempt = None if told is None else told.append
    return await drafted(
        planner, Workspace(root), request, plan_id="plan-1", version=1, clock=clock, on_attempt=on_attempt
    )


async def understood(llm: LLM, root: Path, told: list[RetryAttempt] | None = None) -> Extraction:
    on_attempt = None if told is None else told.append
    planner = ModelPlanner(llm, root)
    return await extracted(planner, "Make two three", clock=FakeClock(auto=True), on_attempt=on_attempt)


# ---- a model ----


async def test_a_model_says_what_is_wanted(root: Path) -> None:
    llm = ScriptedLLM([json.dumps(EXTRACTION)])
    assert await understood(llm, root) == Extraction(intents=(INTENT,))
    llm.assert_complete()


async def test_a_request_for_several_things_is_several_intents_in_their_order(root: Path) -> None:
    second = {"kind": "BuildPackage", "summary": "build it", "confidence": 0.7, "question": "as a wheel?"}
    llm = ScriptedLLM([json.dumps({"intents": [*EXTRACTION["intents"], second]})])
    found = await understood(llm, root)
    assert [one.kind for one in found.intents] == [IntentKind.FIX_BUG, IntentKind.BUILD_PACKAGE]


async def test_a_model_reads_the_project_and_its_plan_is_rehearsed(root: Path) -> None:
    llm = ScriptedLLM(
        [call("list_files"), call("read_file", path="a.py"), json.dumps(PLAN)],
    )
    plan = await planned(llm, root)
    assert plan.steps[0].paths == ("a.py",)
    assert plan.intent_digest == INTENT.digest
    assert plan.results[0].sha256 != plan.targets[0].sha256
    shown = [one.content for one in llm.requests[-1].messages if one.role == "tool"]
    assert json.loads(str(shown[0])) == ["a.py (16)", "src/b.py (6)"]
    assert shown[1] == "one = 1\ntwo = 2\n"
    llm.assert_complete()


@pytest.mark.parametrize("path", ["../outside/secret.txt", "/etc/passwd", ".git/config", "link.txt", ".env"])
async def test_a_model_cannot_read_what_no_plan_may_touch(root: Path, path: str) -> None:
    (root / "link.txt").symlink_to(root.parent / "outside" / "secret.txt")
    (root / ".env").write_text("KEY=secret\n")
    llm = ScriptedLLM([call("read_file", path=path), json.dumps(PLAN)])
    await planned(llm, root)
    (told,) = [one for one in llm.requests[-1].messages if one.role == "tool"]
    assert told.is_error
    assert "secret\n" not in str(told.content)


async def test_what_was_wrong_with_a_plan_is_said_to_the_model_and_it_may_try_twice_more(root: Path) -> None:
    bad = json.dumps({"goal": "x", "steps": [create("../x")]})
    llm = ScriptedLLM([bad, bad, json.dumps(PLAN)])
    told: list[RetryAttempt] = []
    plan = await planned(llm, root, told)
    assert plan.goal == "Fix two"
    assert [one.outcome for one in told] == ["retry", "retry", "ok"]
    assert "SEC-001: step 1:" in str(llm.requests[-1].messages[-1].content)


async def test_a_third_bad_plan_is_the_last_and_every_reason_is_kept(root: Path) -> None:
    bad = json.dumps({"goal": "x", "steps": [create("../x"), create(".git/x")]})
    llm = ScriptedLLM([bad] * 3)
    with pytest.raises(ApprovalError) as refused:
        await planned(llm, root)
    assert refused.value.code == "VAL-004"
    assert {"SEC-001", "SEC-004", "VAL-015"} == {one.code for one in refused.value.faults}
    llm.assert_complete()


@pytest.mark.parametrize(
    ("steps", "code"),
    [([edit("a.py", DIFF.replace("one = 1", "one = 0"))], "VAL-003"), ([create("n.py", "def (")], "VAL-005")],
)
async def test_a_diff_that_does_not_fit_and_a_file_that_is_not_valid_get_one_more_try(
    root: Path, steps: list[Any], code: str
) -> None:
    llm = ScriptedLLM([json.dumps({"steps": steps})] * 2)
    told: list[RetryAttempt] = []
    with pytest.raises(ApprovalError) as refused:
        await planned(llm, root, told)
    assert (refused.value.code, [one.outcome for one in told]) == (code, ["retry", "exhausted"])
    llm.assert_complete()


async def test_what_a_person_wants_to_be_different_and_the_plan_before_reach_the_model(root: Path) -> None:
    first = await planned(ScriptedLLM([json.dumps(PLAN)]), root)
    llm = ScriptedLLM([json.dumps(PLAN)])
    await planned(llm, root, changes="rather four", previous=first)
    asked = str(llm.requests[0].messages[-1].content)
    assert "rather four" in asked
    assert '"goal":"Fix two"' in asked


FAILURES = [
    (LLMError("no", kind="auth", status=401), "AI-001", []),
    (LLMError("no", kind="timeout"), "AI-002", [1.0, 2.0, 4.0]),
    (LLMError("no", kind="connection"), "AI-002", [1.0, 2.0, 4.0]),
    (LLMError("no", kind="server_error", status=503), "AI-002", [1.0, 2.0, 4.0]),
    (LLMError("no", kind="rate_limited", status=429), "AI-003", [1.0, 2.0, 4.0]),
    (LLMError("no", kind="rate_limited", status=429, retry_after=9.0), "AI-003", [9.0, 9.0, 9.0]),
    (LLMError("no", kind="client_error", status=400), "AI-004", []),
    (LLMError("no", kind="content_filter"), "AI-006", []),
    (LLMError("no", kind="context_length"), "AI-007", []),
    ("no JSON at all", "AI-005", [0.0]),
    ('{"intents": []}', "AI-005", [0.0]),
    ('{"intents": [{"kind": "FixBug", "summary": "x", "confidence": 2}]}', "AI-005", [0.0]),
]


@pytest.mark.parametrize(("answer", "code", "delays"), FAILURES)
async def test_a_model_that_fails_is_asked_again_as_the_table_says_and_by_nobody_else(
    root: Path, answer: Any, code: str, delays: list[float]
) -> None:
    llm = ScriptedLLM([answer] * (len(delays) + 1))
    told: list[RetryAttempt] = []
    with pytest.raises(ApprovalError) as failed:
        await understood(llm, root, told)
    assert failed.value.code == code
    assert [one.delay for one in told if one.outcome == "retry"] == delays
    llm.assert_complete()


async def test_a_vendors_text_is_in_no_error_for_it_may_quote_the_key(root: Path) -> None:
    llm = ScriptedLLM([LLMError(f"bad key {KEY}", kind="auth", status=401)])
    with pytest.raises(ApprovalError) as failed:
        await understood(llm, root)
    assert KEY not in json.dumps(failed.value.fault.plain())
    assert "401" in failed.value.fault.message


async def test_a_model_that_only_ever_reads_runs_into_its_budget(root: Path) -> None:
    llm = FunctionLLM(lambda request: call("read_file", path=f"x{len(request.messages)}"))
    with pytest.raises(ApprovalError) as failed:
        await planned(llm, root, limits=Limits(max_iterations=3))
    assert failed.value.code in {"RES-002", "AI-005"}


@pytest.mark.parametrize("text", ["", " \n", "x" * 20_001])
async def test_an_empty_or_endless_request_asks_nobody(root: Path, text: str) -> None:
    llm = ScriptedLLM([])
    with pytest.raises(ApprovalError) as refused:
        await extracted(ModelPlanner(llm, root), text)
    assert refused.value.code == "VAL-001"


async def test_tokens_are_counted_over_all_answers_for_one_request_and_end_at_the_soft_limit(
    root: Path,
) -> None:
    def reply(tokens: int) -> Response:
        return Response(json.dumps(PLAN), usage=Usage(input_tokens=tokens, output_tokens=10))

    said = [
        Response(json.dumps(EXTRACTION), usage=Usage(input_tokens=60_000, output_tokens=10)),
        reply(10_000),
    ]
    planner = ModelPlanner(ScriptedLLM([*said, reply(9_000)]), root)
    await planner.extract("x")
    await planner.plan(PlanRequest(intent=INTENT))
    assert planner.budget() is None
    await planner.plan(PlanRequest(intent=INTENT))
    with pytest.raises(ApprovalError, match="79000 input tokens are used of 96000") as refused:
        await planner.plan(PlanRequest(intent=INTENT))
    assert refused.value.code == "RES-002"


async def test_an_answer_beyond_the_hard_limit_is_the_last(root: Path) -> None:
    much = Usage(input_tokens=96_001, output_tokens=1)
    planner = ModelPlanner(
        FunctionLLM(lambda _: Response("", (call("read_file", path="a.py"),), usage=much)), root
    )
    with pytest.raises(ApprovalError) as refused:
        await planner.plan(PlanRequest(intent=INTENT))
    assert refused.value.code == "RES-002"
    assert planner.budget() is not None


async def test_a_model_that_never_answers_is_waited_for_so_long_and_no_longer(root: Path) -> None:
    async def never(_: Request) -> str:
        await asyncio.Event().wait()
        return ""

    planner = ModelPlanner(FunctionLLM(never), root, seconds=0.05)
    with pytest.raises(ApprovalError) as failed:
        await planner.extract("x")
    assert failed.value.code == "AI-002"


# ---- a model over a real connection ----


async def test_over_http_the_model_reads_and_plans_and_the_key_goes_to_its_server_only(root: Path) -> None:
    def completion(content: str | None = None, *calls: tuple[str, str]) -> Any:
        tools = [
            {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": content, **({"tool_calls": tools} if tools else {})}
        return json_reply(
            {"choices": [{"message": message, "finish_reason": "tool_calls" if tools else "stop"}]}
        )

    replies = [
        completion(json.dumps(EXTRACTION)),
        json_reply({"error": {"message": f"{KEY} is busy"}}, 503),
        completion(None, ("read_file", '{"path": "a.py"}')),
        completion(json.dumps(PLAN)),
    ]
    async with Loopback(replies) as server, OpenAI("m", base_url=f"{server.url}/v1", api_key=KEY) as llm:
        assert await ModelPlanner(llm, root).reachable() is None
        assert (await understood(llm, root)).intents[0].kind is IntentKind.FIX_BUG
        told: list[RetryAttempt] = []
        plan = await planned(llm, root, told)
        assert [one.outcome for one in told] == ["retry", "ok"]
        assert all(one.headers["authorization"] == f"Bearer {KEY}" for one in server.asked)
        sent = [one for one in server.asked[-1].json["messages"] if one["role"] == "tool"]
        assert sent[0]["content"] == "one = 1\ntwo = 2\n"
        assert len(server.asked) == 4
    assert KEY not in json.dumps(plan.plain())
    host, port = address_of(llm) or ("", 0)
    with GUARD.allow(host, port):
        fault = await ModelPlanner(llm, root).reachable()
    assert fault is not None
    assert fault.code == "AI-002"


@pytest.mark.parametrize(
    ("variable", "address"),
    [("http://127.0.0.1:9/v1", ("127.0.0.1", 9)), ("", ("api.openai.com", 443))],
)
def test_where_a_model_is_asked_is_known_also_where_nobody_named_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, address: tuple[str, int]
) -> None:
    if variable:
        monkeypatch.setenv("OPENAI_BASE_URL", variable)
    model = OpenAI("m", api_key=KEY)
    assert address_of(model) == address
    assert address_of(RateLimitedModel(model, RateLimit(concurrency=1))) == address


async def test_a_model_that_names_no_address_counts_as_reachable(root: Path) -> None:
    assert await ModelPlanner(ScriptedLLM([]), root).reachable() is None


# ---- files ----

TOML = """
goal = "Fix two"
[intent]
kind = "FixBug"
confidence = 0.7
question = "really?"
[[steps]]
id = "1"
kind = "edit"
[[steps.files]]
path = "a.py"
diff = '''
@@ -1,2 +1,2 @@
 one = 1
-two = 2
+two = 3
'''
"""


async def test_a_plan_is_read_from_toml_as_from_json(root: Path, tmp_path: Path) -> None:
    toml, plain = tmp_path / "plan.toml", tmp_path / "plan.json"
    toml.write_text(TOML)
    plain.write_text(json.dumps({"goal": "Fix two", "steps": [edit("a.py")]}))
    assert read_plans(toml)[0] == read_plans(plain)[0]
    found = await PlanFile(toml).extract("anything")
    assert found.intents == (
        Intent(kind=IntentKind.FIX_BUG, summary="Fix two", confidence=0.7, question="really?"),
    )
    plan = await drafted(
        PlanFile(toml), Workspace(root), PlanRequest(intent=found.intents[0]), plan_id="plan-1", version=1
    )
    assert plan.steps[0].paths == ("a.py",)


async def test_several_plans_of_a_file_each_have_their_intent(tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    tables = [{"goal": goal, "steps": [create(f"{goal}.py")]} for goal in ("one", "two")]
    file.write_text(json.dumps({"plans": tables}))
    planner = PlanFile(file)
    intents = (await planner.extract("both")).intents
    drafts = [await planner.plan(PlanRequest(intent=intent)) for intent in intents]
    assert [draft.steps[0].paths for draft in drafts] == [("one.py",), ("two.py",)]


async def test_a_file_is_not_asked_again_for_it_would_say_the_same(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"goal": "x", "steps": [create("../x")]}))
    told: list[RetryAttempt] = []
    with pytest.raises(ApprovalError, match="SEC-001"):
        await drafted(
            PlanFile(file),
            Workspace(root),
            PlanRequest(intent=INTENT),
            plan_id="plan-1",
            version=1,
            on_attempt=told.append,
        )
    assert [one.outcome for one in told] == ["fatal"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "FS-001"),
        (b"", "VAL-002"),
        (b"{", "VAL-002"),
        (b"[]", "VAL-002"),
        (b"null", "VAL-002"),
        (b'{"plans": []}', "VAL-002"),
        (b'{"plans": [1]}', "VAL-002"),
        (b'{"goal": "x"}', "VAL-002"),
        (b'{"goal": "x", "steps": [], "intent": {"confidence": 2}}', "VAL-002"),
        (b"\xff\xfe", "VAL-002"),
        (b"[" * 100_000, "VAL-002"),
        (b" " * 4_194_305, "VAL-002"),
    ],
)
async def test_a_file_that_is_no_plan_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes | None, code: str
) -> None:
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ApprovalError) as refused:
        await PlanFile(file).extract("x")
    assert refused.value.code == code


# ---- what is in no plan ----


def test_a_request_says_nothing_of_the_keys_of_this_machine(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.runtime.approval import planner

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert KEY not in planner._prompt(PlanRequest(intent=INTENT), Workspace(root).caps)


async def test_a_model_is_told_that_a_long_list_of_files_may_not_be_all(root: Path) -> None:
    from orchestrator.runtime.approval import planner

    ground = Workspace(root)
    request = PlanRequest(intent=INTENT, tree=await ground.tree())
    assert "there may be more" not in planner._prompt(request, ground.caps)
    for number in range(MOST_FILES):
        (root / f"{number}.txt").touch()
    request = PlanRequest(intent=INTENT, tree=await ground.tree())
    assert len(request.tree) == MOST_FILES
    assert "Only 2000 files are listed; there may be more" in planner._prompt(request, ground.caps)
    list_files, _ = planner.reading(ground)
    listed = await list_files.call()
    assert (len(listed), listed[-1].split(";")[0]) == (MOST_FILES + 1, "Only 2000 files are listed")


async def test_every_answer_is_a_conversation_of_its_own(root: Path) -> None:
    seen: list[int] = []

    def answer(request: Request) -> str:
        seen.append(len(request.messages))
        return json.dumps(EXTRACTION)

    planner = ModelPlanner(FunctionLLM(answer), root)
    for _ in range(3):
        await planner.extract("again")
    assert len(set(seen)) == 1
