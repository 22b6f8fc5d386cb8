"""`orchestrator approval submit --model`: a model makes the plan; who it is is kept, its key and its words are not."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote

import pytest

from tests.cli.conftest import Cli
from tests.cli.shop import OURS, Shop, shop

__all__ = ["shop"]

PLANNERS = '''
import json
import os
from pathlib import Path

from orchestrator import LLMError
from orchestrator.providers.scripted import FunctionLLM

ASKED = Path(__file__).with_name("asked.jsonl")


def planner(confidence, name="notes.txt", kind="AddFeature"):
    """Answers from what is asked: an intent of that confidence, then a plan that creates one file."""

    def answer(request):
        schema = json.dumps(request.output_schema)
        with ASKED.open("a") as asked:
            print(json.dumps([message.content for message in request.messages]), file=asked)
        if "confidence" in schema:
            intent = {"kind": kind, "summary": "A note", "confidence": confidence, "question": "A note, really?"}
            return json.dumps({"intents": [intent]})
        wanted = request.messages[-1].content
        path = "other.txt" if "call it other" in wanted else name
        step = {"id": "1", "kind": "create", "files": [{"path": path, "content": "new\\n"}]}
        return json.dumps({"goal": "A note", "steps": [step]})

    return lambda: FunctionLLM(answer, model="planner")


sure = planner(0.9)
unsure = planner(0.7)
lost = planner(0.3)
wild = planner(0.9, "../outside.txt")


def mute():
    def answer(request):
        raise LLMError("the key sk-secret-key is wrong", kind="auth")

    return FunctionLLM(answer, model="mute")


def talks():
    return FunctionLLM(lambda request: "I would rather talk.", model="talks")
'''


@pytest.fixture
def approval(folder: Path, cli: Cli, shop: Shop) -> Cli:
    """Run a command of the group on the shop, with models that plan."""
    (folder / "models.py").write_text(PLANNERS)
    return lambda name, *more: cli("approval", name, *more, *shop.here)


def submit(approval: Cli, model: str) -> tuple[int, str, str]:
    return approval("submit", "Make a note.", "--model", f"python:models:{model}")


def test_a_model_that_is_sure_makes_a_plan_that_later_commands_need_no_model_for(
    approval: Cli, shop: Shop
) -> None:
    code, out, err = submit(approval, "sure")
    assert (code, err) == (0, "")
    assert "state: AwaitingApproval" in out
    assert "intent: AddFeature, confidence 0.90" in approval("show").out
    assert "version 2, pending" in approval("changes", "call it other").out
    approval("diff")
    assert approval("approve", "--execute").code == 0
    assert shop.read("other.txt") == "new\n"


def test_a_model_that_is_unsure_asks_and_a_yes_goes_on(approval: Cli, shop: Shop) -> None:
    code, out, _ = submit(approval, "unsure")
    assert code == 0
    assert "state: Idle" in out
    assert "question: A note, really? (confidence 0.70)" in out
    assert f"orchestrator approval submit --confirm --project {quote(str(shop.folder))}" in out
    again = approval("submit", "--confirm")
    assert again.code == 0
    assert "state: AwaitingApproval" in again.out


def test_a_model_that_is_lost_asks_for_other_words(approval: Cli, shop: Shop) -> None:
    code, out, _ = submit(approval, "lost")
    assert code == 0
    assert "state: Idle" in out
    assert "--confirm" not in out
    assert approval("submit", "--confirm").code == 2
    assert shop.tree() == shop.before


@pytest.mark.parametrize(("model", "code"), [("wild", "VAL-004"), ("mute", "AI-001"), ("talks", "AI-005")])
def test_a_model_that_cannot_plan_fails_with_a_code_and_can_be_tried_again(
    approval: Cli, shop: Shop, model: str, code: str
) -> None:
    failed, out, err = submit(approval, model)
    assert failed == 1
    assert "state: Failed" in out
    assert f"error: {code}" in out
    assert "Traceback" not in err
    if model == "wild":
        assert "SEC-" in out
        again = approval("retry", "--model", "python:models:sure")
        assert again.code == 0
        assert "state: AwaitingApproval" in again.out
    else:
        assert approval("acknowledge").code == 0
    assert not (shop.folder.parent / "outside.txt").exists()


def test_no_key_and_nothing_that_was_asked_is_kept(
    approval: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-key")
    monkeypatch.setenv("ORCHESTRATOR_OPENAI_API_KEY", "sk-secret-key")
    assert submit(approval, "mute")[0] == 1
    assert approval("acknowledge").code == 0
    assert submit(approval, "sure")[0] == 0
    approval("status")
    kept = b"".join(file.read_bytes() for file in (shop.folder / OURS).rglob("*") if file.is_file())
    assert b"sk-secret-key" not in kept
    asked = [json.loads(line) for line in (shop.folder.parent / "asked.jsonl").read_text().splitlines()]
    for said in {str(text) for messages in asked for text in messages if text and "Make a note" not in text}:
        assert said.encode() not in kept, "the conversation with the model is not kept"


def test_only_who_makes_a_plan_or_resumes_one_needs_the_model(approval: Cli, shop: Shop) -> None:
    assert submit(approval, "sure")[0] == 0
    (shop.folder.parent / "models.py").unlink()
    for command, code in (("status", 0), ("show", 0), ("diff", 0), ("approve", 0)):
        assert approval(command).code == code
    refused = approval("changes", "call it other")
    assert refused.code == 2
    assert "there is no module 'models'" in refused.err
    assert "--model names another" in refused.err
    assert approval("execute").code == 0
    assert shop.read("notes.txt") == "new\n"
