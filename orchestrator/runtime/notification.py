"""Notify people about the open questions of the runs of a journal.

Design: what is to be sent is derived from the journal and stored nowhere else. A question without an answer in the
journal, and without the mark of a channel, is due on that channel. After a delivery the notifier posts the mark into
the inbox of the run, under an id that names channel and question. The inbox is the one place of the journal that any
process may write without a lease. The owner of a run ignores the marks, and they are removed with the run.

- At least once: a process that dies between delivery and mark, or loses the journal there, sends again after its
  restart, and so does another notifier. Both send the same id, by which the receiver drops the second one.
- Nothing is lost: a failed delivery leaves no mark, so it stays due, until the question is answered or expires. After
  the retries of the policy it rests for `pause` seconds.
- No notice is sent for an answered question: the journal is read again directly before each attempt, also before
  retries. An answer that arrives while an attempt is in progress cannot recall it.

Any number of processes may notify for one journal, including processes that run no agents. The alternatives were a
queue beside the journal, which must be written together with the question to lose nothing, and records of the run,
which only its owner may append.

A channel is a signed webhook, a program, or a function of the host. It delivers one notice or raises; the Notifier
decides about retries.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import http.client
import inspect
import json
import logging
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias
from urllib.parse import quote, urlsplit

from orchestrator.errors import ConfigError, Corrupt, RunError, RunUnknown
from orchestrator.kernel.cancellation import in_thread
from orchestrator.kernel.fact import Fact, RunParked
from orchestrator.kernel.journal import NOTIFIED, Journal, Posted, RunHead
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.question import Question
from orchestrator.runtime.runs.listing import read_page
from orchestrator.runtime.service.answer import OpenQuestions, default_actor, replies
from orchestrator.runtime.service.descendant import is_cancelled_with_ancestor, name_of, open_ancestors


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One question of a run to a person. It has no prompts, arguments or results."""

    id: str
    """Identifies the question: the same for each attempt, channel and process. Receivers drop repeated ids."""
    run_id: str
    root_run_id: str = ""
    """The run that its caller started, if `run_id` is a child run of it, at any depth; else empty."""
    agent: str = ""
    agents: tuple[str, ...] = ()
    """Agents from that run to the one that waits; empty if it is no child run."""
    machine: str = ""
    state: str = ""
    reason: str = ""
    """Why the run waits: `approval`, `unknown_effect`, `undo_failed`, `input` or `questions`."""
    question: str = ""
    """Key of the call (`pending`), or id of the question."""
    tool: str = ""
    """Tool whose call waits; empty for other questions."""
    digest: str = ""
    """Digest of the call, for the answer."""
    expires_at: float = 0.0
    """Epoch seconds after which no answer counts; 0 means never."""
    tags: Mapping[str, str] = field(default_factory=dict)
    link: str = ""
    """Address where a person answers."""

    @property
    def text(self) -> str:
        """The notice as a sentence for a person."""
        agents = " > ".join(self.agents) or self.agent
        owner = f" of {agents}" if agents else ""
        what = f"{self.tool} ({self.reason})" if self.tool else f"question {self.question}"
        answer = self.link or f"orchestrator runs show {self.run_id}"
        return f"Run {self.run_id}{owner} waits for a person: {what}. Answer: {answer}"

    def body(self) -> dict[str, Any]:
        """Return the notice as plain data."""
        plain = {"agents": [*self.agents], "tags": dict(self.tags), "text": self.text}
        return asdict(self) | plain


@dataclass(frozen=True, slots=True)
class OpenNotices:
    """The unanswered questions of one run."""

    notices: tuple[Notice, ...]
    delivered: frozenset[str]
    """Ids of the marks of the run: a channel and a notice."""

    @classmethod
    async def read(cls, journal: Journal, head: RunHead, link: str, now: float) -> OpenNotices:
        """Read the questions of a run without an answer in the journal. Raises RunUnknown, Corrupt, StoreDown."""
        found = await OpenQuestions.read(journal, head.run_id, now)
        posted = await journal.inbox(head.run_id)
        marks = frozenset(one.id for one in posted if one.kind == NOTIFIED)
        stored = found.stored
        if found.cancelled or await is_cancelled_with_ancestor(journal, head):
            return cls((), marks)
        above = await open_ancestors(journal, head)
        notices = [_of_call(head, one) for one in found.waiting.values() if not 0 < one.expires_at <= now]
        if asked := (stored.parked or {}).get("questions"):
            answered = await replies(journal, stored)
            notices += [_of_question(head, str(one), stored.seq) for one in asked if str(one) not in answered]
        return cls(tuple(_linked(_in_tree(one, head, above), link) for one in notices), marks)


def _in_tree(notice: Notice, head: RunHead, above: Sequence[RunHead]) -> Notice:
    """Add the path from the root run to a child run that waits."""
    if not above:
        return notice
    return replace(notice, root_run_id=above[0].run_id, agents=tuple(name_of(one) for one in (*above, head)))


def _of_call(head: RunHead, question: Question) -> Notice:
    return Notice(
        id=_id(head.run_id, question.key, question.digest),
        reason=question.why,
        question=question.key,
        tool=question.tool,
        digest=question.digest,
        expires_at=question.expires_at,
        **_run(head),
    )


def _of_question(head: RunHead, question: str, seq: int) -> Notice:
    """Return the notice about a question about a run's work; it may be asked again in a later state."""
    return Notice(
        id=_id(head.run_id, question, str(seq)), reason=head.reason, question=question, **_run(head)
    )


def _run(head: RunHead) -> dict[str, Any]:
    return {
        "run_id": head.run_id,
        "agent": head.agent,
        "machine": head.graph,
        "state": head.state,
        "tags": head.tags,
    }


def _id(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _linked(notice: Notice, link: str) -> Notice:
    values = {name: quote(getattr(notice, name), safe="") for name in LINK_FIELDS}
    return replace(notice, link=link.format(**values)) if link else notice


LINK_FIELDS = ("id", "run_id", "root_run_id", "agent", "question", "digest")
"""Names that a link may contain, in braces."""


Body: TypeAlias = Callable[[Notice], object]
"""Makes what a channel sends: text or bytes as they are, anything else as JSON."""
NotifyFunction: TypeAlias = Callable[[Notice], Awaitable[object] | object]

_PREFIX = "whsec_"


class NotificationChannel(Protocol):
    """Delivers notices. `name` identifies it in the journal: a renamed channel sends open questions again."""

    name: str
    kind: str
    """`webhook`, `command` or `function`: label of the metric."""
    timeout: float
    """Seconds of each attempt."""

    async def send(self, notice: Notice, /) -> None:
        """Deliver a notice. Raises any exception if it may not have arrived."""
        ...


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: it could send the notice to another server."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


class _InTime(http.client.HTTPConnection):
    """Ends an answer that is not complete in time: a socket's timeout starts again with each byte."""

    def getresponse(self) -> http.client.HTTPResponse:
        late = threading.Event()

        def end() -> None:
            late.set()
            with suppress(OSError):  # closed by now
                self.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout or 0.0, end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if late.is_set():  # also if the part that arrived looks like an answer
                raise TimeoutError(f"no answer within {self.timeout:g} s")


class _InTimeWithTls(_InTime, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_InTime, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_InTimeWithTls, req)


_OPENER = urllib.request.build_opener(_NoRedirects, _Http, _Https)


class Webhook:
    """A POST of the notice to a web address, signed as described by Standard Webhooks.

    The headers are `webhook-id` and `Idempotency-Key` (the id of the notice), `webhook-timestamp` (epoch seconds of
    this attempt) and `webhook-signature`: `v1,` and the Base64 form of HMAC-SHA256 over `id.timestamp.body`. Any
    answer 2xx means delivered.

    Args:
        url: The address, http or https. Redirects are errors.
        secret: Key of the signature; text that starts with `whsec_` is Base64. Without one nothing is signed.
        name: Name of the channel in the journal, if there are several webhooks.
        headers: Further headers.
        body: Makes the body; by default it is the notice as JSON.
        timeout: Seconds of each attempt.

    Raises:
        ConfigError: The address is not http or https, or the secret is invalid.

    Example:
        Webhook("https://ops.example/questions", secret=os.environ["WEBHOOK_SECRET"])
    """

    kind = "webhook"

    def __init__(
        self,
        url: str,
        secret: str | None = None,
        *,
        name: str = "webhook",
        headers: Mapping[str, str] | None = None,
        body: Body = Notice.body,
        timeout: float = 10.0,
    ) -> None:
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc:
            raise ConfigError(f"{url!r} is not an address to POST to; it must start with http:// or https://")
        if secret is not None:
            _key(secret)
        self.name, self.timeout = name, timeout
        self._url, self._secret, self._body = url, secret, body
        self._headers = {"Content-Type": "application/json", **(headers or {})}

    async def send(self, notice: Notice, /) -> None:
        """POST a notice. Raises the errors of urllib for any answer but 2xx."""
        body = _encoded(self._body(notice))
        _, error = await in_thread(partial(self._post, notice.id, body), f"notify-{self.name}")
        if error is not None:
            raise error

    def _post(self, notice_id: str, body: bytes) -> None:
        headers = self._headers | signed_headers(notice_id, body, self._secret, int(time.time()))
        request = urllib.request.Request(self._url, body, headers)  # noqa: S310 - checked above
        try:
            with _OPENER.open(request, timeout=self.timeout):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise


def signed_headers(notice_id: str, body: bytes, secret: str | None, at: int) -> dict[str, str]:
    """Return the headers that identify and sign a webhook."""
    headers = {"webhook-id": notice_id, "Idempotency-Key": notice_id, "webhook-timestamp": str(at)}
    if secret is not None:
        headers["webhook-signature"] = f"v1,{_signature(notice_id, body, secret, at)}"
    return headers


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secret: str,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> str:
    """Check the signature of a received webhook and return the id of its notice.

    Args:
        headers: The headers of the request; capitals do not matter.
        body: The body as it was received.
        secret: The key of the sender.
        tolerance: Seconds by which the time of the attempt may differ from the present time.
        now: The present time (epoch seconds); None reads the clock.

    Raises:
        ValueError: A header is missing, the signature is wrong, or the time differs too much.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        notice_id, at = given["webhook-id"], int(given["webhook-timestamp"])
        signatures = given["webhook-signature"].split()
    except (KeyError, ValueError) as error:
        raise ValueError(f"the webhook has no valid header {error}") from None
    if abs((time.time() if now is None else now) - at) > tolerance:
        raise ValueError("the webhook is too old, or the clocks differ")
    wanted = f"v1,{_signature(notice_id, body, secret, at)}".encode()
    if not any(hmac.compare_digest(one.encode(), wanted) for one in signatures):
        raise ValueError("the signature of the webhook is wrong")
    return notice_id


def _signature(notice_id: str, body: bytes, secret: str, at: int) -> str:
    signed = b".".join((notice_id.encode(), str(at).encode(), body))
    return base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()


def _key(secret: str) -> bytes:
    """Return the key of a secret. Raises ConfigError for one that is empty or no Base64 although it says so."""
    try:
        coded = secret.startswith(_PREFIX)
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if coded else secret.encode()
    except binascii.Error:
        raise ConfigError(f"the secret starts with {_PREFIX}, but the rest is not Base64") from None
    if not key:
        raise ConfigError("the secret of the webhook is empty; give None to sign nothing")
    return key


class CommandChannel:
    """A program that gets the notice on its standard input. Exit status 0 means delivered.

    The program and its children are killed after the timeout.

    Args:
        name: Name of the channel in the journal, if there are several commands.
        body: Makes the input; by default it is the notice as one line of JSON.
        timeout: Seconds of each attempt.
        *argv: The program and its arguments. No shell reads them.

    Raises:
        ConfigError: No program is given.

    Example:
        CommandChannel("/usr/local/bin/page-oncall", "--team", "payments")
    """

    kind = "command"

    def __init__(
        self, *argv: str, name: str = "command", body: Body = Notice.body, timeout: float = 30.0
    ) -> None:
        if not argv:
            raise ConfigError(
                'a CommandChannel needs a program: CommandChannel("/usr/local/bin/page-oncall")'
            )
        self.name, self.timeout = name, timeout
        self._argv, self._body = argv, body

    async def send(self, notice: Notice, /) -> None:
        """Run the program. Raises RunError for another exit status than 0."""
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await process.communicate(_encoded(self._body(notice)) + b"\n")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise RunError(f"{self._argv[0]} ended with status {process.returncode}")


class FunctionChannel:
    """A function of the host as a channel: a coroutine function on the event loop, any other one in a thread."""

    kind = "function"

    def __init__(self, function: NotifyFunction, *, name: str = "", timeout: float = 30.0) -> None:
        self.name, self.timeout = name or getattr(function, "__name__", type(function).__name__), timeout
        self._function = function

    async def send(self, notice: Notice, /) -> None:
        """Call the function. Raises its errors."""
        if inspect.iscoroutinefunction(self._function):
            await self._function(notice)
            return
        value, error = await in_thread(partial(self._function, notice), f"notify-{self.name}")
        if error is not None:
            raise error
        if inspect.isawaitable(value):
            await value


def _encoded(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode()
    return body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()


_RETRY = RetryPolicy(attempts=5, base=1.0, max_delay=30.0)
_LOG = logging.getLogger("orchestrator")


class NotificationMeters(Protocol):
    """Counts deliveries; Metrics is one."""

    def notified(self, channel: str, outcome: str) -> None:
        """Count an attempt on a kind of channel: `delivered`, `failed`, or `withdrawn` before it was sent."""
        ...


class _Withdrawn(Exception):
    """The question was answered, or another notifier delivered the notice."""


class Notifier:
    """Delivers a notice for each open question of a journal, at least once on each channel.

    It works while it is entered (`async with`). As an observer of an agent it also reacts to a parked run at once,
    instead of at the next reading of the journal.

    Args:
        journal: The journal of the runs.
        link: Address where a person answers. `{run_id}`, `{question}`, `{digest}`, `{root_run_id}`, `{agent}` and
            `{id}` are replaced.
        interval: Seconds between two readings of the journal.
        retry: Attempts of one delivery; by default 5 within 5 minutes. Every error is retried.
        pause: Seconds between the last attempt of a failed delivery and its next first one.
        concurrency: Maximum simultaneous attempts.
        metrics: Counts the attempts, as `notifications_total`.
        *channels: `Webhook`, `CommandChannel`, an object with `name`, `kind`, `timeout` and `send`, or a function of a
            notice.

    Raises:
        ConfigError: There is no channel, two have one name, or the link contains an unknown name.

    Example:
        notifier = Notifier(journal, Webhook(url, secret), link="https://console.example/runs/{run_id}")
        async with notifier:
            await server.serve()
    """

    def __init__(
        self,
        journal: Journal,
        *channels: NotificationChannel | NotifyFunction,
        link: str = "",
        interval: float = 5.0,
        retry: RetryPolicy | None = None,
        pause: float = 60.0,
        concurrency: int = 16,
        metrics: NotificationMeters | None = None,
        clock: Clock | None = None,
    ) -> None:
        found: dict[str, NotificationChannel] = {}
        for one in channels:
            channel: NotificationChannel = one if hasattr(one, "send") else FunctionChannel(one)  # type: ignore[assignment]
            if channel.name in found:
                raise ConfigError(f"two channels are named {channel.name!r}; give one of them another name=")
            found[channel.name] = channel
        if not found:
            raise ConfigError("a Notifier needs a channel: a Webhook, a CommandChannel or a function")
        self._channels = found
        try:
            link.format(**dict.fromkeys(LINK_FIELDS, ""))
        except (KeyError, ValueError, IndexError):
            names = ", ".join(f"{{{name}}}" for name in LINK_FIELDS)
            raise ConfigError(f"link is {link!r}; it may contain {names}, and other braces doubled") from None
        self._journal, self._link, self._interval = journal, link, interval
        self._retry, self._pause, self._metrics = retry or _RETRY, pause, metrics
        self._clock = clock or SystemClock()
        self._slots = asyncio.Semaphore(concurrency)
        self._settled: dict[str, int] = {}
        """Run -> number of its last record when all its notices were delivered."""
        self._sending: dict[str, asyncio.Task[None]] = {}
        """Id of a mark -> its delivery."""
        self._resting: dict[str, float] = {}
        """Id of a mark -> monotonic seconds of its next attempt, after the retries have failed."""
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing: set[str] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._watch(), name="orchestrator notifier")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._sending.values(), *([] if self._task is None else [self._task])]
        self._task = self._loop = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def observe(self, fact: Fact, /) -> None:
        """Read the journal soon after a run has parked."""
        if type(fact) is RunParked and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def deliver(self) -> int:
        """Read the journal once, wait for the deliveries that are due, and return the number of failed ones.

        For a scheduled job; an entered notifier does this by itself. Raises the errors of the journal.
        """
        await self._start_due()
        await asyncio.gather(*self._sending.values())
        return len(self._resting)

    # ---- private ----

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._start_due()
            except Exception as error:  # noqa: BLE001 - logged; the questions are still due
                self._warn("the journal", error)
            else:
                self._failing.discard("the journal")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval)

    async def _start_due(self) -> None:
        """Start a delivery for each notice that is due."""
        page = await read_page(self._journal, "age", waiting=True)
        heads = page.runs
        if page.damage:
            self._warn("the journal", Corrupt(page.damage))
        waiting = {head.run_id for head in heads}
        for run_id in self._settled.keys() - waiting:
            del self._settled[run_id]
        due: set[str] = set()
        for head in heads:
            if self._settled.get(head.run_id) == head.seq:
                continue
            try:
                due |= await self._start_of(head)
            except RunUnknown:
                continue  # it was erased meanwhile
            except Corrupt as error:
                self._warn(f"run {head.run_id}", error)
        for mark in self._resting.keys() - due:  # it was answered meanwhile
            del self._resting[mark]

    async def _start_of(self, head: RunHead) -> set[str]:
        """Start the deliveries of a run, and return the ids of the marks that it lacks."""
        found = await self._open(head)
        due = [
            (mark, notice, channel)
            for notice in found.notices
            for name, channel in self._channels.items()
            if (mark := f"notified {name} {notice.id}") not in found.delivered
        ]
        if not due:
            self._settled[head.run_id] = head.seq
        now = self._clock.monotonic()
        for mark, notice, channel in due:
            if mark not in self._sending and self._resting.get(mark, now) <= now:
                self._resting.pop(mark, None)
                task = asyncio.create_task(self._deliver(mark, head, notice, channel))
                self._sending[mark] = task
                task.add_done_callback(lambda _, mark=mark: self._sending.pop(mark, None))  # type: ignore[misc]
        return {mark for mark, _, _ in due}

    async def _deliver(self, mark: str, head: RunHead, notice: Notice, channel: NotificationChannel) -> None:
        async with self._slots:
            try:
                await self._retry.call(
                    self._attempt,
                    mark,
                    head,
                    notice,
                    channel,
                    may_retry=lambda error: not isinstance(error, _Withdrawn),
                    clock=self._clock,
                )
                await self._journal.post(
                    notice.run_id,
                    Posted(mark, NOTIFIED, {"notice": notice.id}, default_actor(), self._clock.time()),
                )
            except _Withdrawn:
                self._count(channel, "withdrawn")
            except Exception as error:  # noqa: BLE001 - of a host's function, a network, a journal: it stays due
                self._resting[mark] = self._clock.monotonic() + self._pause
                self._warn(f"channel {channel.name}", error)
            else:
                self._failing.discard(f"channel {channel.name}")

    async def _attempt(self, mark: str, head: RunHead, notice: Notice, channel: NotificationChannel) -> None:
        found = await self._open(head)
        if mark in found.delivered or notice.id not in {one.id for one in found.notices}:
            raise _Withdrawn
        try:
            async with asyncio.timeout(channel.timeout or None):
                await channel.send(notice)
        except Exception:
            self._count(channel, "failed")
            raise
        self._count(channel, "delivered")

    async def _open(self, head: RunHead) -> OpenNotices:
        return await OpenNotices.read(self._journal, head, self._link, self._clock.time())

    def _count(self, channel: NotificationChannel, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.notified(channel.kind, outcome)

    def _warn(self, what: str, error: Exception) -> None:
        """Log an error once, until the next success."""
        if what not in self._failing:
            self._failing.add(what)
            _LOG.error("notifications are late: %s raised %s", what, type(error).__name__)
