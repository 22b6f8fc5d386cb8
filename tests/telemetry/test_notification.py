"""People are notified of every open question at least once, and of no answered one."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Self

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import (
    Agent,
    MemoryJournal,
    PostgresJournal,
    RetryPolicy,
    Runs,
    SqliteJournal,
    ToolCall,
    tool,
)
from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import NOTIFIED, Journal
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.notification import CommandChannel, Notice, Notifier, Webhook, verify_webhook
from orchestrator.runtime.notification import signed_headers
from orchestrator.telemetry import Metrics
from orchestrator.testing import ScriptedLLM
from tests.runtime.stage import until
from tests.telemetry.receiver import SECRET, Receiver

QUICK = RetryPolicy(attempts=2, base=0.005, jitter=0.0)


@tool(approval=True)
def pay(secret: str) -> str:
    """Pay."""
    return f"paid {secret}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.stop()
    assert found.faults == []


async def parked(journal: Journal, run_id: str) -> None:
    async def waits() -> bool:
        return run_id in [head.run_id async for head in journal.runs(waiting=True)]

    await until(waits)


@contextlib.asynccontextmanager
async def waiting(journal: Journal, *run_ids: str) -> AsyncIterator[Agent[Any, Any]]:
    """Runs that wait for a person, in this process."""
    calls = [[ToolCall("a", "pay", '{"secret": "canary"}')] for _ in run_ids]
    llm = ScriptedLLM([*calls, *["done" for _ in run_ids]])
    agent = Agent(llm, name="billing", tools=[pay], journal=journal, observers=[])
    tasks = [asyncio.create_task(agent.run("pay", run_id=run_id, tags={"team": "a"})) for run_id in run_ids]
    for run_id in run_ids:
        await parked(journal, run_id)
    yield agent
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def marks(journal: Journal, run_id: str) -> list[str]:
    return [one.id for one in await journal.inbox(run_id) if one.kind == NOTIFIED]


async def marked(journal: Journal, *run_ids: str) -> None:
    for run_id in run_ids:
        await until(partial(marks, journal, run_id))


async def test_a_webhook_is_signed_has_the_link_and_no_content(receiver: Receiver) -> None:
    journal = MemoryJournal()
    link = "https://console.example/runs/{run_id}?question={question}&digest={digest}"
    async with waiting(journal, "r?1") as agent:
        notifier = Notifier(journal, Webhook(receiver.url, SECRET), link=link)
        assert await notifier.deliver() == 0
        [question] = await agent.pending("r?1")
        [told] = receiver.accepted
        assert told | {"id": "", "text": ""} == {
            "id": "",
            "run_id": "r?1",
            "root_run_id": "",
            "agents": [],
            "agent": "billing",
            "machine": "llm_loop",
            "state": "process_tools",
            "reason": "approval",
            "question": question.key,
            "tool": "pay",
            "digest": question.digest,
            "expires_at": question.expires_at,
            "tags": {"team": "a"},
            "link": f"https://console.example/runs/r%3F1?question=1%3A0&digest={question.digest}",
            "text": "",
        }
        assert "canary" not in json.dumps(told)
        assert told["link"] in told["text"]
        assert await notifier.deliver() == 0
        assert await Notifier(journal, Webhook(receiver.url, SECRET)).deliver() == 0  # another process
        assert len(receiver.requests) == 1


async def test_an_answered_question_is_not_notified_and_a_run_with_marks_is_answered_as_before(
    receiver: Receiver,
) -> None:
    journal = MemoryJournal()
    async with waiting(journal, "r1", "r2") as agent:
        await agent.reject("r1", by="ann")
        await Notifier(journal, Webhook(receiver.url, SECRET)).deliver()
        assert [told["run_id"] for told in receiver.accepted] == ["r2"]
        details = await agent.runs.get("r2")
        assert details.unread == []  # a mark is no request
        await agent.approve("r2", by="ann")
        await until(lambda: agent._service.live.find("r2") is None)
        assert (await agent.runs.result("r2")).outcome == "completed"


async def test_a_question_that_is_answered_between_two_attempts_is_withdrawn(receiver: Receiver) -> None:
    journal, registry = MemoryJournal(), CollectorRegistry()
    metrics = Metrics(registry)
    metrics.declare(LLM_LOOP)
    answered = threading.Event()

    def refuse() -> int:
        if len(receiver.requests) == 2:
            answered.wait(60)
        return 500

    receiver.behave = refuse
    async with waiting(journal, "r1") as agent:
        retry = RetryPolicy(attempts=50, base=0.02, max_delay=0.02, jitter=0.0)
        channel = Webhook(receiver.url, SECRET, timeout=60)
        async with Notifier(journal, channel, retry=retry, metrics=metrics, interval=0.01):
            await until(lambda: len(receiver.requests) == 2)  # an attempt that cannot be recalled any more
            await agent.reject("r1", by="ann")
            receiver.behave = lambda: 204
            answered.set()
            await until(lambda: _count(registry, "withdrawn") == 1)
        assert receiver.accepted == []
        assert await marks(journal, "r1") == []
        assert _count(registry, "failed") == len(receiver.requests) == 2
        assert _count(registry, "delivered") == 0


HOSTILE = {
    "a redirect to another server": (
        b"HTTP/1.1 307 T\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\n\r\n",
        "307",
    ),
    "no answer": (b"", "timed out|no answer within"),
    "one byte after the other": (b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000, "no answer within 0.2 s"),
    "an endless header": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000, "got more than 65536 bytes"),
    "headers without an end": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000_000, "got more than 100 headers"),
    "no HTTP": (b"\x00\xff" * 1_000 + b"\r\n", "BadStatusLine|\\\\x00"),
}


class HostileTarget:
    """A server that reads a request and writes bytes until its client leaves."""

    def __init__(self, chunks: Iterable[bytes], pause: float = 0.0) -> None:
        self._chunks, self._pause = chunks, pause
        self._left = asyncio.Event()
        self.written = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._left.wait()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for chunk in self._chunks:
                writer.write(chunk)
                await writer.drain()
                self.written += len(chunk)
                await asyncio.sleep(self._pause)
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self._left.set()


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_target_of_a_webhook_fails_the_attempt_and_gets_nothing_else(
    case: str, receiver: Receiver
) -> None:
    data, said = HOSTILE[case]
    data = data.replace(b"{elsewhere}", receiver.url.encode())
    slow = "byte" in case
    chunks = [data[at : at + 1] for at in range(len(data))] if slow else [data]
    async with HostileTarget(chunks, 0.02 if slow else 0.0) as target:
        channel = Webhook(target.url, SECRET, timeout=0.2 if "no answer within" in said else 60)
        with pytest.raises((OSError, http.client.HTTPException)) as failure:
            await channel.send(Notice(id="n-1", run_id="r1"))
    assert re.search(said, f"{type(failure.value).__name__}: {failure.value}")
    assert receiver.requests == []


async def test_a_body_of_100_megabytes_is_not_read() -> None:
    body = (bytes(1 << 20) for _ in range(100))
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n"
    async with HostileTarget(chain([head], body)) as target:
        journal = MemoryJournal()
        async with waiting(journal, "r1"):
            assert await Notifier(journal, Webhook(target.url, SECRET)).deliver() == 0
            assert await marks(journal, "r1") != []
    assert target.written < 50 << 20


def _count(registry: CollectorRegistry, outcome: str) -> float | None:
    labels = {"channel": "webhook", "outcome": outcome}
    return registry.get_sample_value("orchestrator_notifications_total", labels)


async def test_a_receiver_that_fails_hangs_and_restarts_gets_every_open_question_and_no_answered_one(
    tmp_path: Path, receiver: Receiver, seed: int
) -> None:
    chance, registry = random.Random(seed), CollectorRegistry()
    metrics = Metrics(registry)
    names = [f"r{number}" for number in range(12)]
    async with SqliteJournal(tmp_path / "journal.db") as journal, waiting(journal, *names) as agent:
        receiver.behave = lambda: chance.choice([500, 503, "hang", "drop"])
        channel = Webhook(receiver.url, SECRET, timeout=0.2)
        async with Notifier(
            journal, channel, retry=QUICK, pause=0.02, interval=0.02, metrics=metrics
        ) as notifier:
            await until(lambda: len(receiver.requests) >= 20)
            receiver.stop()
            await until(
                lambda: (_count(registry, "failed") or 0) >= len(receiver.requests) + 5
            )  # no server at all
            asked = {name: (await agent.pending(name))[0] for name in names}
            answered = set(chance.sample(names, 4))
            for name in answered:
                await agent.reject(name, asked[name].key, digest=asked[name].digest, by="ann")
            await _attempts_of_now(notifier)
            before = len(receiver.requests)
            receiver.behave = lambda: chance.choice([500, "hang", "drop", 204, 204])
            receiver.start()
            await marked(journal, *(set(names) - answered))
        assert {told["run_id"] for told in receiver.accepted} == set(names) - answered
        later = Counter(receiver.requests[before:])
        assert later.keys() == receiver.ids  # no attempt for an answered question
        for name in answered:
            assert await marks(journal, name) == []


async def _attempts_of_now(notifier: Notifier) -> None:
    """Wait for the end of all attempts that have begun, also of those that were given up: none can be recalled."""
    await asyncio.gather(*notifier._sending.values())
    threads = [thread for thread in threading.enumerate() if thread.name == "notify-webhook"]
    await until(lambda: not any(thread.is_alive() for thread in threads))


async def test_two_notifiers_of_a_shared_database_send_one_id_and_the_run_is_answered_from_elsewhere(
    database: str, receiver: Receiver
) -> None:
    async with PostgresJournal(database) as journal, PostgresJournal(database) as other:
        llm = ScriptedLLM([[ToolCall("a", "pay", '{"secret": "canary"}')], "done"])
        agent = Agent(llm, tools=[pay], journal=journal, observers=[])
        running = asyncio.create_task(agent.run("pay", run_id="r1"))
        await parked(other, "r1")
        webhooks = [Notifier(store, Webhook(receiver.url, SECRET)) for store in (journal, other)]
        assert await asyncio.gather(*(each.deliver() for each in webhooks)) == [0, 0]
        assert len(receiver.ids) == len(await marks(other, "r1")) == 1
        await Runs(other).approve("r1", by="ann")
        assert (await running).outcome == "completed"


async def test_an_agents_notifier_reacts_to_a_parked_run_at_once(receiver: Receiver) -> None:
    journal = MemoryJournal()
    notifier = Notifier(journal, Webhook(receiver.url, SECRET), interval=3600)
    llm = ScriptedLLM([[ToolCall("a", "pay", '{"secret": "canary"}')], "done"])
    agent = Agent(llm, tools=[pay], journal=journal, observers=[notifier])
    async with notifier:
        running = asyncio.create_task(agent.run("pay", run_id="r1"))
        await until(lambda: len(receiver.accepted) == 1)
        await agent.approve("r1")
        assert (await running).outcome == "completed"


async def test_several_questions_and_channels_have_marks_of_their_own(
    receiver: Receiver, tmp_path: Path
) -> None:
    journal, told = MemoryJournal(), []

    async def chat(notice: Notice) -> None:
        told.append(notice.question)

    def mail(notice: Notice) -> None:
        told.append(f"mail {notice.question}")
        raise OSError("no server")

    calls = [ToolCall(str(number), "pay", f'{{"secret": "{number}"}}') for number in range(2)]
    agent = Agent(ScriptedLLM([calls, "done"]), tools=[pay], journal=journal, observers=[])
    running = asyncio.create_task(agent.run("pay", run_id="r1"))
    await parked(journal, "r1")
    out = tmp_path / "out"
    command = CommandChannel("/bin/sh", "-c", f"cat >> {quote(str(out))}")
    notifier = Notifier(
        journal, Webhook(receiver.url, SECRET), command, chat, mail, retry=RetryPolicy(attempts=1)
    )
    assert await notifier.deliver() == 2
    assert Counter(told) == Counter(["1:0", "1:1", "mail 1:0", "mail 1:1"])
    assert sorted(json.loads(line)["question"] for line in out.read_text().splitlines()) == ["1:0", "1:1"]
    assert {one.split()[1] for one in await marks(journal, "r1")} == {"webhook", "command", "chat"}
    running.cancel()
    await asyncio.wait([running])


async def test_a_command_that_fails_or_hangs_is_a_failed_attempt_and_is_ended(tmp_path: Path) -> None:
    journal, started = MemoryJournal(), tmp_path / "started"
    async with waiting(journal, "r1"):
        failing = CommandChannel("/bin/sh", "-c", "cat > /dev/null; exit 3", name="wrong")
        once, seconds, pids = RetryPolicy(attempts=1), 0.3, list[str]()
        while not pids:
            program = f"echo $$ >> {quote(str(started))}; sleep 60 & wait"
            hanging = CommandChannel("/bin/sh", "-c", program, name="slow", timeout=seconds)
            assert await Notifier(journal, hanging, failing, retry=once).deliver() == 2
            assert await marks(journal, "r1") == []
            pids = started.read_text().split() if started.exists() else []
            seconds *= 4  # a shell may not have begun within the first timeout
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda headers, body: (headers | {"webhook-signature": "v1,AAAA"}, body), "signature"),
        (lambda headers, body: (headers, body + b" "), "signature"),
        (lambda headers, body: (headers | {"webhook-timestamp": "1700009999"}, body), "too old"),
        (lambda headers, body: (headers | {"webhook-timestamp": "soon"}, body), "header"),
        (lambda headers, body: ({}, body), "header"),
    ],
)
def test_a_receiver_refuses_a_webhook_that_was_changed(
    change: Callable[[dict[str, str], bytes], tuple[dict[str, str], bytes]], words: str
) -> None:
    at = 1_700_000_000
    headers = signed_headers("q1", b"{}", SECRET, at)
    signature = headers["webhook-signature"]
    assert signature.startswith("v1,")
    assert headers == {
        "webhook-id": "q1",
        "webhook-timestamp": str(at),
        "webhook-signature": signature,
        "Idempotency-Key": "q1",
    }
    assert verify_webhook(headers, b"{}", SECRET, now=at) == "q1"
    with pytest.raises(ValueError, match=words):
        verify_webhook(*change(headers, b"{}"), SECRET, now=at)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Webhook("ftp://x"), "http://"),
        (lambda: Webhook("http://x", ""), "empty"),
        (lambda: Webhook("http://x", "whsec_!"), "Base64"),
        (CommandChannel, "program"),
        (lambda: Notifier(MemoryJournal()), "channel"),
        (lambda: Notifier(MemoryJournal(), CommandChannel("a"), CommandChannel("b")), "name="),
        (lambda: Notifier(MemoryJournal(), CommandChannel("a"), link="https://x/{run}"), "run_id"),
    ],
)
def test_a_notifier_that_could_not_work_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


# ---- the notifying process dies ----


def test_a_request_whose_sender_dies_in_the_middle_is_no_request(receiver: Receiver) -> None:
    with socket.create_connection(("127.0.0.1", receiver.port)) as connection:
        connection.sendall(b'POST /questions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"id":')
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert receiver.requests == receiver.faults == []


def notifying(path: Path, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.telemetry.notifying_process", str(path), url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline() == "notifying\n"
    return process


async def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait)


def _requests(receiver: Receiver, count: int) -> bool:
    return len(receiver.requests) >= count


async def killed_and_restarted(path: Path, receiver: Receiver, runs: int, kills: int) -> None:
    """Kill a notifying process after some requests, again and again, then let one finish."""
    names = [f"r{number}" for number in range(runs)]
    async with SqliteJournal(path) as journal, waiting(journal, *names):
        for number in range(kills):
            receiver.behave = lambda: "hang"  # the notice has arrived, and the process never learns it
            seen = len(receiver.requests)
            process = await asyncio.to_thread(notifying, path, receiver.url)
            try:
                await until(partial(_requests, receiver, seen + min(runs, 3)))
            finally:
                await kill(process)
            assert await marks(journal, names[number % runs]) == []
        receiver.stop()  # what the dead processes sent is taken or refused now, and not accepted later
        arrived = set(receiver.requests)
        receiver.behave = lambda: 204
        receiver.start()
        process = await asyncio.to_thread(notifying, path, receiver.url)
        try:
            await marked(journal, *names)
        finally:
            await kill(process)
        assert arrived <= receiver.ids  # sent again, with the same id
        assert len(receiver.ids) == runs
        assert len(receiver.accepted) == runs  # and no more than once to a receiver that works
        process = await asyncio.to_thread(notifying, path, receiver.url)
        await kill(process)
        assert len(receiver.accepted) == runs


@pytest.mark.canary
async def test_a_killed_notifier_loses_nothing(tmp_path: Path, receiver: Receiver) -> None:
    await killed_and_restarted(tmp_path / "journal.db", receiver, runs=2, kills=1)


@pytest.mark.campaign
async def test_a_notifier_that_is_killed_again_and_again_loses_nothing(
    tmp_path: Path, receiver: Receiver, campaign: Callable[[int, int], int]
) -> None:
    await killed_and_restarted(tmp_path / "journal.db", receiver, runs=8, kills=campaign(3, 20))
