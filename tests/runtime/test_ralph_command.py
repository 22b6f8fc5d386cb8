"""Agents that are programs. Every program here is a real one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.machines.ralph.contract import (
    AgentFailed,
    AgentOutputInvalid,
    ExecutorOutput,
    ExecutorStatus,
    Role,
    read,
)
from orchestrator.machines.ralph.model import AgentRequest
from orchestrator.runtime.ralph.coding_agent import CommandAgent
from tests.passing_time import pass_time
from tests.runtime.stage import until

REQUEST = AgentRequest(
    role=Role.EXECUTOR,
    input={"SESSION_PATH": ".ralph-sessions/s", "TASK_ID": "task-1", "ATTEMPT_NUMBER": 2},
    key="r:3",
    run_id="r",
    again=1,
    fault="no report",
    notes=("be quick",),
)


def asked(script: str, **options: Any) -> str:
    return asyncio.run(CommandAgent([sys.executable, "-c", script], **options)(REQUEST))


def test_a_program_reads_one_object_and_what_it_prints_is_its_answer(tmp_path: Path) -> None:
    script = (
        "import json, os, sys; print(json.dumps([json.load(sys.stdin), os.getcwd(), os.environ['WORD']]))"
    )
    said = asked(script, folder=tmp_path, environment={"WORD": "hello"})
    given = {
        "role": "executor",
        "SESSION_PATH": ".ralph-sessions/s",
        "TASK_ID": "task-1",
        "ATTEMPT_NUMBER": 2,
        "key": "r:3",
        "run_id": "r",
        "again": 1,
        "fault": "no report",
        "notes": ["be quick"],
    }
    assert json.loads(said) == [given, str(tmp_path), "hello"]


PRINTS_NAMES = "import json, os; print(json.dumps(sorted(os.environ)))"


@pytest.mark.parametrize(
    ("env", "passed"),
    [
        ((), set()),
        (("CANARY_TOKEN",), {"CANARY_TOKEN"}),
        (("CANARY_*",), {"CANARY_TOKEN", "CANARY_KEY"}),
        (("*",), {"CANARY_TOKEN", "CANARY_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"}),
    ],
)
def test_a_program_gets_the_usual_variables_and_those_that_env_names(
    monkeypatch: pytest.MonkeyPatch, env: tuple[str, ...], passed: set[str]
) -> None:
    secret = ("CANARY_TOKEN", "CANARY_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")
    usual = ("PATH", "HOME", "LC_TIME", "XDG_STATE_HOME", "https_proxy", "SSL_CERT_FILE", "SSH_AUTH_SOCK")
    for name in (*secret, *usual):
        monkeypatch.setenv(name, os.environ.get(name, "x"))
    names = json.loads(asked(PRINTS_NAMES, env=env))
    assert set(usual) <= set(names)
    assert set(secret) & set(names) == passed


@pytest.mark.parametrize("wrong", ["TOKEN", ["A=b"], [""], [1], 7], ids=repr)
def test_a_list_of_variables_that_cannot_be_one_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"possible: a list of names or patterns"):
        CommandAgent(["x"], env=wrong)


@pytest.mark.parametrize(
    "said",
    [
        '{"status": "completed", "new_field": 1}',
        'I did it.\n\n```json\n{"status": "completed"}\n```\n',
        'First\n```\n{"a": 1}\n```\nthen\n```\n{"status": "completed"}\n```',
    ],
)
def test_an_answer_is_json_alone_or_in_the_last_fenced_block_of_prose(said: str) -> None:
    assert read(Role.EXECUTOR, said) == ExecutorOutput(status=ExecutorStatus.COMPLETED)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "the answer is not JSON: it is empty"),
        ("\x00\x1bgarbage {", "the answer is not JSON: it starts with"),
        ("[1]", "valid dictionary"),
        ("{}", "status: Field required"),
        ('{"status": "great"}', "status: Input should be 'completed', 'failed' or 'blocked'"),
        (
            '{"status": "completed", "discovered_tasks": [{"id": "../x", "description": "d"}]}',
            "discovered_tasks.0.id",
        ),
        ("[" * 100_000, "the answer is not JSON"),
    ],
)
def test_garbage_is_refused_in_a_sentence(said: str, why: str) -> None:
    with pytest.raises(AgentOutputInvalid) as raised:
        read(Role.EXECUTOR, said)
    assert why in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_program_that_ends_badly_fails_with_what_it_said_last() -> None:
    with pytest.raises(AgentFailed, match=r"ended with exit code 1: no such model$") as raised:
        asked("import sys; print('{}'); sys.exit('no such model')")
    assert raised.value.retryable is False
    with pytest.raises(AgentFailed, match="was stopped by signal 9"):
        asked("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


def test_a_program_that_cannot_work_now_is_worth_another_try() -> None:
    with pytest.raises(AgentFailed, match="exit code 75: no network") as raised:
        asked("import sys; print('no network', file=sys.stderr); sys.exit(75)")
    assert raised.value.retryable is True


async def test_a_program_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "alive")
    held = f"pipe = open({str(tmp_path / 'alive')!r}, 'w'); print('here', file=pipe, flush=True)"
    inner = f"import sys, threading; {held}; threading.Event().wait()"
    script = f"import subprocess, sys\n{held}\nsubprocess.run([sys.executable, '-c', {inner!r}])"
    asking = asyncio.create_task(CommandAgent([sys.executable, "-c", script], timeout=600)(REQUEST))
    with await asyncio.to_thread((tmp_path / "alive").open) as pipe:
        for _ in range(2):
            assert await asyncio.to_thread(pipe.readline) == "here\n"
        pass_time(monkeypatch, 600)
        with pytest.raises(AgentFailed, match="took longer than 600 s and was killed"):
            await asking
        assert await asyncio.to_thread(pipe.read) == ""  # its end: nobody holds the other one any more


def test_a_program_that_never_stops_talking_is_killed_before_it_fills_the_memory() -> None:
    with pytest.raises(AgentFailed, match="printed more than 32 MiB and was killed"):
        asked("import sys\nwhile True: sys.stdout.write('garbage' * 10_000)")


async def test_what_a_program_left_behind_in_a_group_of_its_own_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import subprocess, sys\n"
        "daemon = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'],"
        " start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(daemon.pid))\n"
        "print('{}')\n"
    )
    left = tmp_path / "pid"
    asking = asyncio.create_task(CommandAgent([sys.executable, "-c", script], timeout=600)(REQUEST))
    await until(lambda: left.exists() and left.read_text())
    try:
        pass_time(monkeypatch, 600)
        with pytest.raises(AgentFailed, match="took longer than 600 s"):
            await asking
        os.kill(int(left.read_text()), 0)  # it is still there
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


def test_much_input_and_many_words_on_standard_error_are_no_trouble() -> None:
    big = AgentRequest(role=Role.PLANNER, input={"USER_REQUEST": "x" * 3_000_000})
    script = "import sys; sys.stderr.write('e' * 3_000_000); sys.stdout.write(str(len(sys.stdin.read())))"
    assert int(asyncio.run(CommandAgent([sys.executable, "-c", script])(big))) > 3_000_000
    assert asyncio.run(CommandAgent([sys.executable, "-c", "print(1)"])(big)) == "1\n"  # it reads nothing


async def test_a_program_whose_call_is_given_up_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    script = f"import signal; alive = open({str(fifo)!r}, 'w'); signal.pause()"
    agent = CommandAgent([sys.executable, "-c", script])
    work = asyncio.ensure_future(agent(REQUEST))
    alive = await asyncio.to_thread(fifo.open)  # returns once the program is there
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    with alive:
        assert await asyncio.to_thread(alive.read) == "", "the end of what it never wrote: it is gone"


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    with pytest.raises(AgentFailed, match="cannot be started"):
        asyncio.run(CommandAgent([str(tmp_path / "nothing")])(REQUEST))
    for wrong in ("python agent.py", [], [1]):
        with pytest.raises(ConfigError, match="give its words"):
            CommandAgent(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout is -1"):
        CommandAgent(["x"], timeout=-1)
