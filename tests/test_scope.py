from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from orchestrator.telemetry.scope import (
    config_from_context,
    logger_from_context,
    scope,
)


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, /, *args: object, **fields: object) -> None:
        self.lines.append(event)

    debug = warning = error = info


def test_outside_a_run_both_say_where_they_work() -> None:
    with pytest.raises(LookupError, match=r"^config_from_context\(\) works inside a run only: .*$"):
        config_from_context()
    with pytest.raises(LookupError, match=r"^logger_from_context\(\) works inside a run only: .*$"):
        logger_from_context()


def test_inside_a_scope_code_finds_its_config_and_logger() -> None:
    notes = Notes()
    with scope({"retries": 2}, notes):
        assert config_from_context() == {"retries": 2}
        logger_from_context().info("hello")
    assert notes.lines == ["hello"]
    with pytest.raises(LookupError):
        config_from_context()


def test_a_run_inside_a_run_has_its_own_and_gives_it_back_also_after_an_error() -> None:
    with scope("outer"):
        with suppress(RuntimeError), scope("inner"):
            assert config_from_context() == "inner"
            raise RuntimeError
        assert config_from_context() == "outer"


def test_a_run_that_nobody_logs_has_a_silent_logger(capsys: pytest.CaptureFixture[str]) -> None:
    with scope(None):
        logger = logger_from_context()
        for say in (logger.debug, logger.info, logger.warning, logger.error):
            say("hello %s", "you", key=1)
    assert capsys.readouterr() == ("", "")


async def test_two_runs_at_once_do_not_see_each_others() -> None:
    async def run(name: str, notes: Notes) -> None:
        with scope(name, notes):
            for _ in range(5):
                await asyncio.sleep(0)
                assert config_from_context() == name
                logger_from_context().info(name)

    one, other = Notes(), Notes()
    await asyncio.gather(run("one", one), run("other", other))
    assert (set(one.lines), set(other.lines)) == ({"one"}, {"other"})


async def test_tasks_and_threads_of_a_run_inherit_its_scope() -> None:
    with scope("mine"):
        assert await asyncio.create_task(asyncio.to_thread(config_from_context)) == "mine"


async def test_a_stream_abandoned_halfway_closes_without_an_error() -> None:
    async def stream() -> AsyncIterator[str]:
        with scope("streamed"):
            yield config_from_context()

    opened = stream()
    assert await contextvars.copy_context().run(asyncio.ensure_future, anext(opened)) == "streamed"
    await opened.aclose()  # type: ignore[attr-defined]
    with pytest.raises(LookupError):
        config_from_context()
