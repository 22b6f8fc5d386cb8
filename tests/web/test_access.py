"""Hosts, tokens and statuses, which every HTTP surface shares."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import ConfigError
from orchestrator.web.access import (
    ATTEMPTS,
    Authentication,
    Bearers,
    HostGuard,
    is_known_host,
    parse_tokens,
)
from orchestrator.web.limits import Message
from orchestrator.web.status import status_of

ANN, BOB = "a" * 16, "b" * 16


async def status(
    app: Any, address: str = "127.0.0.1", path: str = "/", root_path: str = "", **headers: str
) -> tuple[int, list[Message]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "root_path": root_path, "headers": pairs, "client": (address, 1)}
    await app(scope, None, send)
    return int(sent[0]["status"]), sent


class Named:
    """An application that answers, and keeps who asked."""

    def __init__(self) -> None:
        self.actors: list[str] = []

    async def __call__(self, scope: Any, _: Any, send: Any) -> None:
        self.actors.append(scope.get("state", {}).get("actor", ""))
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def test_the_actor_is_the_person_of_the_token_and_no_header() -> None:
    app = Named()
    guarded = Authentication(app, Bearers({"ann": ANN, "bob": BOB}).actor)
    for token in (ANN, BOB):
        assert (await status(guarded, authorization=f"bearer  {token}", **{"x-user": "ceo"}))[0] == 200
    assert app.actors == ["ann", "bob"]
    for shown in ("", ANN, f"Basic {ANN}", f"Bearer {ANN}x", f"Bearer {ANN[:-1]}", "Bearer", "Bearer \xff"):
        assert (await status(guarded, "10.0.0.1", authorization=shown))[0] in {401, 429}
    assert (await status(guarded))[0] == 401
    assert len(app.actors) == 2


async def test_behind_one_address_wrong_tokens_get_429_and_the_right_one_always_passes() -> None:
    app = Named()
    guarded = Authentication(app, Bearers({"ann": ANN}).actor)
    found = []
    for _ in range(ATTEMPTS + 3):
        found.append((await status(guarded, authorization="Bearer wrong"))[0])
        assert (await status(guarded, authorization=f"Bearer {ANN}"))[0] == 200
    assert found == [401] * ATTEMPTS + [429] * 3
    _, sent = await status(guarded, authorization="Bearer wrong")
    assert (b"connection", b"close") in sent[0]["headers"]
    assert guarded.limiter.wrong == ATTEMPTS + 4
    assert (await status(guarded))[0] == 401, "a request without a token is no attempt"


@pytest.mark.parametrize(("root", "path"), [("", "/healthz"), ("/runs", "/runs/healthz")])
async def test_a_public_page_needs_no_token_wherever_it_is_mounted(root: str, path: str) -> None:
    guarded = Authentication(Named(), lambda _: None, public=("/healthz",))
    for asked, expected in ((path, 200), (f"{path}/x", 401), (f"{root}/", 401)):
        assert (await status(guarded, path=asked, root_path=root))[0] == expected


async def test_a_websocket_is_closed() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await Authentication(Named(), lambda _: "ann")({"type": "websocket"}, None, send)  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (ANN, {"operator": ANN}),
        (f"ann:{ANN}", {"ann": ANN}),
        (f" ann:{ANN} , bob:{BOB}", {"ann": ANN, "bob": BOB}),
    ],
)
def test_a_variable_has_one_token_or_those_of_several_people(text: str, tokens: dict[str, str]) -> None:
    assert parse_tokens(text, "X") == tokens


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("short", "X has 5 characters; it must have at least 16"),
        ("", "X has 0 characters"),
        (f"ann:{ANN},", "X has 0 characters"),
        (f"ann:{ANN},ann:{BOB}", "X has two tokens for 'ann'"),
        (f":{ANN}", "X has a token for ''"),
    ],
)
def test_a_variable_with_a_short_token_or_two_of_one_person_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_tokens(text, "X")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        *((host, True) for host in ("a.example", "A.EXAMPLE:80", "10.0.0.7:8000", "[::1]:9", "127.0.0.1")),
        *(
            (host, False)
            for host in ("evil.com", "a.example.evil.com", "a.example@evil.com", "", "[", "10.0.0.7.evil")
        ),
    ],
)
async def test_names_of_the_list_and_addresses_are_answered(host: str, *, known: bool) -> None:
    assert is_known_host(host, {"a.example"}) is known
    guarded = HostGuard(Named(), lambda: {"a.example"}, "HOSTS")
    assert (await status(guarded, host=host))[0] == (200 if known else 400)


def test_each_error_has_one_status() -> None:
    assert status_of(errors.RunExists("r")) == 409
    assert status_of(errors.RunUnknown("r")) == 404
    assert status_of(errors.StoreDown("x")) == 503
    assert status_of(errors.RunError("x")) == 409
    assert status_of(ConfigError("x")) == 422
    assert status_of(LookupError()) == 500
