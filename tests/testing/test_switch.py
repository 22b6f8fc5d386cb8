from __future__ import annotations

import asyncio
import threading

import pytest

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message, Request, Response
from orchestrator.providers.model_guard import NO_REAL_MODELS, real_models_refused, refuse_real_models
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent


class Paid:
    """Stands for a vendor's model: its class does not say that it is a double."""

    model = "paid"

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: Request) -> Response:
        self.asked += 1
        return Response("that cost you")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NO_REAL_MODELS, raising=False)


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        ("1", True),
        ("true", True),
        ("yes", True),
        ("", False),
        ("0", False),
        ("False", False),
        (" off ", False),
    ],
)
def test_the_environment_is_read_at_each_call(
    monkeypatch: pytest.MonkeyPatch, value: str, refused: bool
) -> None:
    assert not real_models_refused()
    monkeypatch.setenv(NO_REAL_MODELS, value)
    assert real_models_refused() is refused


def test_the_block_refuses_and_nothing_after_it_does() -> None:
    with refuse_real_models():
        with refuse_real_models():
            assert real_models_refused()
        assert real_models_refused()
    assert not real_models_refused()
    with pytest.raises(ZeroDivisionError), refuse_real_models():
        _ = 1 / 0
    assert not real_models_refused()


async def test_tasks_and_worker_threads_begun_in_the_block_are_refused_too() -> None:
    async def ask() -> bool:
        return real_models_refused()

    with refuse_real_models():
        task = asyncio.create_task(ask())
        in_thread = await asyncio.to_thread(real_models_refused)
    assert (await task, in_thread, await asyncio.create_task(ask())) == (True, True, False)


def test_a_bare_thread_sees_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setenv(NO_REAL_MODELS, "1")
    thread = threading.Thread(target=lambda: seen.append(real_models_refused()))
    thread.start()
    thread.join()
    assert seen == [True]


async def test_a_real_model_is_refused_before_it_is_asked() -> None:
    llm = Paid()
    with refuse_real_models(), pytest.raises(ConfigError, match="Paid is not a test double"):
        await Agent(llm, observers=()).run("hello")
    assert llm.asked == 0
    assert (await Agent(llm, observers=()).run("hello")).output == "that cost you"


async def test_doubles_answer_while_real_models_are_refused() -> None:
    with refuse_real_models():
        for llm in (ScriptedLLM(["hi"]), FunctionLLM(lambda _: Message("assistant", "hi"))):
            assert (await Agent(llm, observers=()).run("hello")).output == "hi"
