"""A browser without a window: requests to an ASGI application, with cookies, in the test's event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message

from orchestrator import Runs
from orchestrator.console import Actor, console_app
from orchestrator.runtime.service.answer import default_actor

HOST = "127.0.0.1:8484"


def readable(runs: Runs, **options: Any) -> ASGIApp:
    """The console of a host that lets everybody read."""
    return console_app(runs, actor=lambda _: Actor(default_actor()), **options)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes
    cookies: str

    @property
    def text(self) -> str:
        return self.body.decode()

    def form_token(self) -> str:
        found = re.search(r'name="form_token" value="([0-9a-f]{64})"', self.text)
        assert found is not None
        return found[1]


@dataclass(slots=True)
class Client:
    """Asks an application."""

    app: ASGIApp
    host: str = HOST
    address: str = "127.0.0.1"
    root: str = ""
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, target: str, **headers: str) -> Answer:
        return await self.ask("GET", target, headers)

    async def post(self, target: str, form: Mapping[str, object], **headers: str) -> Answer:
        body = urlencode(form, doseq=True).encode()
        typed = {"content-type": "application/x-www-form-urlencoded", "content-length": str(len(body))}
        return await self.ask("POST", target, {**typed, **headers}, body)

    async def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        path, _, query = target.partition("?")
        sent = {"host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": self.root + path,
            "raw_path": path.encode(),
            "root_path": self.root,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
            "client": (self.address, 50_000),
            "server": ("127.0.0.1", 8484),
        }
        answers: list[Message] = []
        asked = iter(({"type": "http.request", "body": body, "more_body": False},))

        async def receive() -> Message:
            if (message := next(asked, None)) is not None:
                return message
            return await self.left()

        async def send(message: Message) -> None:
            answers.append(message)

        await self.app(scope, receive, send)
        return self._answer(answers)

    async def left(self) -> Message:
        """Return when the client has left; this one stays connected."""
        return await asyncio.Future()

    def _answer(self, answers: list[Message]) -> Answer:
        pairs = [(name.decode(), value.decode()) for name, value in answers[0]["headers"]]
        given = "\n".join(value for name, value in pairs if name == "set-cookie")
        for line in given.splitlines():
            self.cookies |= {name: morsel.value for name, morsel in SimpleCookie(line).items()}
        body = b"".join(message.get("body", b"") for message in answers[1:])
        return Answer(answers[0]["status"], dict(pairs), body, given)
