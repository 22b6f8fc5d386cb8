"""The routes of the web service: every answer is JSON, and an error is one sentence."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from orchestrator import Agent, Response, Runs, SqliteJournal
from orchestrator.errors import ConfigError
from orchestrator.events import Observer
from orchestrator.examples.service import agent as service_agent
from orchestrator.examples.service import create_app
from orchestrator.examples.service.agent import find_order, model, refund, scripted, support
from orchestrator.examples.service.application import RETRY
from orchestrator.examples.service.run_server import PAGES, MakeAgent
from orchestrator.examples.service.schema import MAX_PROMPT
from orchestrator.journal.opening import StoredJournal
from orchestrator.llm.message import Request as ModelRequest
from orchestrator.providers.scripted import FunctionLLM, call
from tests.examples.service_client import TOKENS, Client, Stream, read


class HeldModel:
    """The scripted model of the service, which answers while `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()

    async def answer(self, request: Any) -> Any:
        while not self.open.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.005)
        return scripted(request)


HELD = HeldModel()


class StreamingModel:
    """A model that streams its answer in pieces, each when `pieces` has a permit."""

    model = "streaming"

    def __init__(self) -> None:
        self.pieces = threading.Semaphore(0)

    async def complete(self, request: ModelRequest) -> Response:
        for piece in ("Two ", "moons ", "and ", "a ring"):
            while not self.pieces.acquire(blocking=False):  # noqa: ASYNC110 - another thread releases it
                await asyncio.sleep(0.005)
            if request.on_delta is not None:
                request.on_delta(piece)
        return Response("Two moons and a ring")


def at_once(journal: StoredJournal, observers: list[Observer]) -> Agent:
    """The agent of the service without its pauses."""
    tools, llm = [find_order, refund], FunctionLLM(HELD.answer)
    return Agent(llm, tools=tools, journal=journal, observers=observers, name="support")


@contextmanager
def served(folder: Path, make_agent: MakeAgent = at_once, **options: Any) -> Iterator[Client]:
    """The application under uvicorn, in a thread."""
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as listener:
        patch.setenv("ORCHESTRATOR_JOURNAL", str(folder / "runs.db"))
        patch.setenv("SERVICE_TOKEN", TOKENS)
        app = create_app(make_agent, rescan=0.2, grace=0.0, **options)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        client = Client(listener.getsockname()[1])
        client.until(lambda: server.started)
        try:
            yield client
        finally:
            HELD.open.set()
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with served(tmp_path_factory.mktemp("service")) as found:
        yield found


def waiting(client: Client, run_id: str) -> dict[str, Any]:
    """Start a run and return its question."""
    client.post("/runs", prompt="Refund order 7.", run_id=run_id)
    client.until(lambda: client.get(f"/runs/{run_id}/questions"))
    (question,) = client.get(f"/runs/{run_id}/questions")
    found: dict[str, Any] = question
    return found


def answered(client: Client, run_id: str) -> list[str]:
    """Start a run and approve its question; return the ids of its events."""
    question = waiting(client, run_id)
    client.post(f"/runs/{run_id}/approve", digest=question["digest"])
    stream = Stream(client, run_id)
    stream.finished()
    return stream.ids


def test_a_run_is_started_followed_approved_and_read(client: Client) -> None:
    client.post("/runs", prompt="Refund order 7.", run_id="whole", tags={"user": "ann"}, metadata={"n": 1})
    stream = Stream(client, "whole")
    client.until(lambda: "RunSuspended" in stream.names)
    (question,) = client.get("/runs/whole/questions")
    assert (question["tool"], json.loads(question["arguments"])) == ("refund", {"number": 7, "euros": 40})
    shown = client.get("/runs/whole")
    assert (shown["status"], shown["waiting"], shown["tags"]) == ("parked", "refund", {"user": "ann"})
    client.post("/runs/whole/approve", digest=question["digest"])
    last = stream.finished()[-1]
    assert (last.name, last.data["outcome"]) == ("RunFinished", "completed")
    assert "seq" not in last.data
    result = client.get("/runs/whole/result")
    assert (result["outcome"], result["error"]) == ("completed", None)
    assert result["output"] == last.data["output"] == "Done: 40 EUR for order 7 are on their way."
    assert client.get("/runs/whole/questions") == []


@pytest.mark.parametrize(
    ("verb", "body", "outcome", "result"),
    [
        ("approve", {"arguments": '{"number": 7, "euros": 20}'}, "completed", "20 EUR for order 7"),
        ("reject", {"why": "too much"}, "completed", "too much"),
        ("reject", {"end": True}, "rejected", None),
        ("respond", {"content": "It was paid by hand."}, "completed", "paid by hand"),
    ],
)
def test_a_person_answers(
    client: Client, verb: str, body: dict[str, Any], outcome: str, result: str | None
) -> None:
    run_id = f"{verb}-{outcome}"
    digest = waiting(client, run_id)["digest"]
    assert client.post(f"/runs/{run_id}/{verb}", digest=digest, **body) == {
        "run_id": run_id,
        "repeated": False,
    }
    Stream(client, run_id).finished()
    found = client.get(f"/runs/{run_id}/result")
    assert found["outcome"] == outcome
    assert result is None or result in found["output"]


def test_a_cancelled_run_ends(client: Client) -> None:
    waiting(client, "unwanted")
    with client.http() as http:
        sent = http.post("/runs/unwanted/cancel", json={"why": "changed my mind"})
        assert sent.status_code == 202
    assert Stream(client, "unwanted").finished()[-1].data["outcome"] == "cancelled"


def test_a_client_that_continues_anywhere_gets_exactly_the_rest(client: Client) -> None:
    ids = answered(client, "anywhere")
    assert len(set(ids)) == len(ids) > 15
    for place, last in enumerate(ids):
        with client.http() as http, http.stream("GET", f"/runs/anywhere/events?after={last}") as response:
            found = [line[4:] for line in response.iter_lines() if line.startswith("id: ")]
            assert response.status_code == (200 if ids[place + 1 :] else 204)
        assert found == ids[place + 1 :]


def test_a_client_that_has_all_events_is_told_not_to_come_back(client: Client) -> None:
    last = answered(client, "all-of-it")[-1]
    with client.http() as http:
        again = http.get("/runs/all-of-it/events", headers={"Last-Event-ID": last})
    assert (again.status_code, again.content) == (204, b"")


def with_child(journal: StoredJournal, observers: list[Observer]) -> Agent:
    """An agent whose child run does the work of the agent of the service."""
    below = Agent(FunctionLLM(scripted), tools=[find_order, refund], name="refunds", observers=observers)

    def ask(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return last.text if last.role == "tool" else call("refunds", task=last.text)

    tools = [below.as_tool("refunds", "Refund.")]
    return Agent(FunctionLLM(ask), tools=tools, journal=journal, observers=observers, name="support")


def test_the_events_of_a_run_and_of_its_child_runs_are_streamed_and_continued_anywhere(
    tmp_path: Path,
) -> None:
    path = "/runs/top/tree/events"
    with served(tmp_path, with_child) as client:
        client.post("/runs", prompt="Refund order 7.", run_id="top")
        with client.http() as http, http.stream("GET", path) as response:
            events = read(response)
            asked = next(event for event in events if event.name == "QuestionAsked")
            assert asked.data["run_id"] == "top:1:0"
            client.post("/runs/top/approve", digest=asked.data["digest"])
            ended = [event.data["run_id"] for event in events if event.name == "RunFinished"]
        assert sorted(ended) == ["top", "top:1:0"]
        with client.http() as http, http.stream("GET", path) as response:
            found = list(read(response))
        for run_id in ("top", "top:1:0"):
            with client.http() as http, http.stream("GET", f"/runs/{run_id}/events") as response:
                alone = [(one.name, one.data) for one in read(response)]
            assert [(one.name, one.data) for one in found if one.data["run_id"] == run_id] == alone
        for place, one in enumerate(found):
            headers = {"Last-Event-ID": one.id or ""}
            with client.http() as http, http.stream("GET", path, headers=headers) as response:
                assert response.status_code == (200 if found[place + 1 :] else 204)
                assert list(read(response)) == found[place + 1 :]


def test_the_text_of_a_model_arrives_piece_by_piece_from_the_first_request_on(tmp_path: Path) -> None:
    llm = StreamingModel()

    def make_agent(journal: StoredJournal, observers: list[Observer]) -> Agent:
        return Agent(llm, journal=journal, observers=observers)

    with served(tmp_path, make_agent) as client:
        client.post("/runs", prompt="How many moons has Mars?", run_id="mars")
        llm.pieces.release(2)
        early = Stream(client, "mars")
        client.until(lambda: "".join(text_of(early)) == "Two moons ")
        late = Stream(client, "mars")
        client.until(lambda: text_of(late) == ["Two moons "])
        llm.pieces.release(2)
        for stream in (early, late):
            events = stream.finished()
            assert "".join(text_of(stream)) == events[-1].data["output"] == "Two moons and a ring"
            assert {event.id for event in events if event.name == "TextDelta"} == {None}
            assert stream.names.index("ModelRequestFinished") > stream.names.index("TextDelta")
        assert early.ids == late.ids


def text_of(stream: Stream) -> list[str]:
    return [event.data["text"] for event in stream.events if event.name == "TextDelta"]


def test_a_stream_tells_when_to_reconnect_and_is_not_cached(client: Client) -> None:
    answered(client, "headers")
    with client.http() as http:
        response = http.get("/runs/headers/events")
    assert response.text.startswith(f"retry: {RETRY}\n\n")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"


def test_runs_are_listed_in_pages_by_conditions(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        for number in range(5):
            client.post(
                "/runs", prompt="x", run_id=f"r{number}", tags={"user": "ann" if number % 2 else "bob"}
            )
        client.until(lambda: len(client.get("/runs?waiting=true")["runs"]) == 5)

        def listed(query: str) -> tuple[list[str], bool]:
            page = client.get(f"/runs?{query}")
            return [run["run_id"] for run in page["runs"]], page["more"]

        assert listed("limit=2") == (["r4", "r3"], True)
        assert listed("limit=2&after=r3") == (["r2", "r1"], True)
        assert listed("limit=2&after=r1") == (["r0"], False)
        assert listed("tag=user:ann") == (["r3", "r1"], False)
        assert listed("status=ended") == ([], False)


BAD: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/runs/nope", None, 404, "there is no run 'nope'"),
    ("GET", "/runs/nope/events", None, 404, "there is no run 'nope'"),
    ("GET", "/runs/nope/tree/events", None, 404, "there is no run 'nope'"),
    (
        "GET",
        '/runs/asks/tree/events?after={"asks":"x"}',
        None,
        422,
        "must be the id of an event of this stream",
    ),
    ("GET", "/runs/asks/tree/events?after=7", None, 422, "must be the id of an event of this stream"),
    ("GET", "/runs/nope/questions", None, 404, "there is no run 'nope'"),
    ("GET", "/runs/nope/result", None, 404, "there is no run 'nope'"),
    ("POST", "/runs/nope/approve", {"digest": "0" * 64}, 404, "there is no run 'nope'"),
    ("POST", "/runs/nope/cancel", {}, 404, "there is no run 'nope'"),
    ("GET", "/runs?after=nope", None, 404, "there is no run 'nope'"),
    ("GET", "/runs/asks/result", None, 409, "run 'asks' has no result yet: it is parked (approval)"),
    ("POST", "/runs", {"prompt": "x", "run_id": "asks"}, 409, "run 'asks' exists"),
    ("POST", "/runs", {"prompt": "x", "if_exists": "resume"}, 422, "which is about an id: give run_id too"),
    (
        "POST",
        "/runs",
        {"prompt": "x", "run_id": "asks", "if_exists": "keep"},
        422,
        "'raise', 'resume' or 'return'",
    ),
    (
        "POST",
        "/runs/asks/approve",
        {"call": "9:9", "digest": "0" * 64},
        409,
        "no question is open about call '9:9'",
    ),
    ("POST", "/runs/asks/approve", {"digest": "0" * 64}, 409, "it is about other arguments"),
    ("POST", "/runs/asks/approve", {}, 422, "body.digest: Field required"),
    ("POST", "/runs/asks/approve", {"digest": "01234567"}, 422, "body.digest: String should match pattern"),
    (
        "POST",
        "/runs/asks/approve",
        {"arguments": "[]", "digest": "0" * 64},
        409,
        "must be the text of one JSON object",
    ),
    ("POST", "/runs/over/approve", {"call": "9:9", "digest": "0" * 64}, 409, "run 'over' has ended"),
    ("POST", "/runs/over/reject", {}, 409, "ann answered before (approve"),
    ("POST", "/runs/over/cancel", {}, 409, "run 'over' has ended: completed"),
    ("POST", "/runs", {}, 422, "body.prompt: Field required"),
    ("POST", "/runs", {"prompt": ""}, 422, "body.prompt: String should have at least 1 character"),
    ("POST", "/runs", {"prompt": "x" * (MAX_PROMPT + 1)}, 422, "at most 100000 characters"),
    ("POST", "/runs", {"prompt": 7}, 422, "body.prompt: Input should be a valid string"),
    ("POST", "/runs", {"prompt": "x", "run_id": "a/b"}, 422, "body.run_id: String should match pattern"),
    ("POST", "/runs", {"prompt": "x", "agent": "other"}, 422, "body.agent: Extra inputs"),
    ("POST", "/runs", {"prompt": "x", "tags": {"n": 1}}, 422, "body.tags.n: Input should be a valid string"),
    ("POST", "/runs", {"prompt": "x", "tags": {"": "1"}}, 422, "tag"),
    ("POST", "/runs", {"prompt": "x", "conversation_id": ""}, 422, "conversation_id"),
    ("POST", "/runs", "prompt", 422, "body: Input should be"),
    ("POST", "/runs", b"{", 422, "body.1: JSON decode error (Expecting property name"),
    ("POST", "/runs/asks/respond", {}, 422, "body.content: Field required"),
    ("POST", "/runs/asks/cancel", None, 422, "body: Field required"),
    ("GET", "/runs/asks/events?after=x", None, 422, "query.after: String should match pattern"),
    ("GET", "/runs?status=nope", None, 422, "unknown status 'nope'; known: open, parked, ended"),
    ("GET", "/runs?limit=0", None, 422, "query.limit: Input should be greater than or equal to 1"),
    ("GET", "/nope", None, 404, "GET /nope: Not Found; /docs lists the routes"),
    ("DELETE", "/runs", None, 405, "DELETE /runs: Method Not Allowed; /docs lists the routes"),
]


@pytest.fixture(scope="module")
def prepared(client: Client) -> Client:
    waiting(client, "asks")
    answered(client, "over")
    return client


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"), BAD, ids=lambda value: str(value)[:30]
)
def test_a_bad_request_is_answered_with_one_sentence(
    prepared: Client, method: str, path: str, body: Any, status: int, error: str
) -> None:
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    with prepared.http() as http:
        headers = {"Content-Type": "application/json"}
        response = http.request(method, path, content=content, headers=headers)
    found = response.json()
    assert (response.status_code, list(found)) == (status, ["error"])
    assert error in found["error"]
    assert "\n" not in found["error"]


def test_a_request_without_the_type_of_json_is_refused_so_that_no_other_site_can_send_it(
    prepared: Client,
) -> None:
    with prepared.http() as http:
        response = http.post("/runs/asks/approve", content=b"{}", headers={"Content-Type": "text/plain"})
    assert response.status_code == 422
    assert prepared.get("/runs/asks")["status"] == "parked"


def test_no_call_is_approved_without_a_token_a_known_host_and_the_whole_digest(prepared: Client) -> None:
    (question,) = prepared.get("/runs/asks/questions")
    whole = {"digest": question["digest"]}
    attacks: list[tuple[dict[str, str], dict[str, str], int]] = [
        ({"Host": "evil.com", "X-User": "ceo", "Authorization": ""}, {}, 400),
        ({"Host": "evil.com"}, whole, 400),
        ({"X-User": "ceo", "Authorization": ""}, whole, 401),
        ({"Authorization": "Bearer wrong"}, whole, 401),
        ({"X-User": "ceo"}, {}, 422),
        ({}, {"digest": question["digest"][:8]}, 422),
    ]
    with prepared.http() as http:
        for headers, body, status in attacks:
            assert http.post("/runs/asks/approve", json=body, headers=headers).status_code == status
        for path in ("/runs", "/runs/asks", "/runs/asks/events", "/nope"):
            assert http.get(path, headers={"Authorization": ""}).status_code == 401
    assert len(prepared.get("/runs/asks/questions")) == 1


def test_a_huge_request_is_not_read(prepared: Client) -> None:
    with prepared.http() as http:
        response = http.post("/runs", json={"prompt": "x" * 2_000_000})
    assert (response.status_code, response.text) == (413, "a body has at most 2,000,000 bytes\n")


def test_too_many_waiting_runs_are_refused_and_none_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.examples.service.run_server.MAX_WAITING", 2)
    with served(tmp_path, slots=1) as client:
        HELD.open.clear()
        for number in range(3):
            client.post("/runs", prompt="x", run_id=f"r{number}")
        with client.http() as http:
            response = http.post("/runs", json={"prompt": "x", "run_id": "r3"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert "2 runs wait for its 1 slots" in response.json()["error"]
        assert len(client.get("/runs")["runs"]) == 3
        HELD.open.set()
        client.until(lambda: len(client.get("/runs?waiting=true")["runs"]) == 3)


def test_the_pages_for_operators_are_served_and_the_debug_pages_are_not(client: Client) -> None:
    with client.http() as http:
        assert [http.get(path).status_code for path in PAGES] == [200, 200, 200]
        assert "orchestrator_runs_completed_total" in http.get("/metrics").text
        assert http.get("/debug/runs").status_code == 404


def test_the_routes_are_documented(client: Client) -> None:
    schema = client.get("/openapi.json")
    assert len(schema["paths"]) == 10
    assert "`if_exists` is `raise`" in schema["paths"]["/runs"]["post"]["responses"]["409"]["description"]
    field = schema["components"]["schemas"]["StartRequest"]["properties"]["if_exists"]
    assert field["enum"] == ["raise", "resume", "return"]
    assert "`resume` continues the run" in field["description"]


async def pause(journal: Path, run_id: str) -> None:
    async with SqliteJournal(journal) as store:
        await Runs(store).pause(run_id)


def test_a_run_that_exists_is_continued_or_left_alone_as_the_request_says(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        answered(client, "over")
        asks = waiting(client, "asks")
        question = waiting(client, "paused")
        asyncio.run(pause(tmp_path / "runs.db", "paused"))
        client.post("/runs/paused/approve", digest=question["digest"])
        client.until(lambda: client.get("/runs/paused")["reason"] == "paused")
        for run_id, status in (("over", "ended"), ("asks", "parked"), ("paused", "parked")):
            with client.http() as http:
                refused = http.post("/runs", json={"prompt": "x", "run_id": run_id})
            assert refused.status_code == 409
            assert f"run {run_id!r} exists" in refused.json()["error"]
            known = {"run_id": run_id, "repeated": True}
            assert client.post("/runs", prompt="x", run_id=run_id, if_exists="return") == known
            assert client.get(f"/runs/{run_id}")["status"] == status
            assert client.post("/runs", prompt="x", run_id=run_id, if_exists="resume") == known
        client.post("/runs/asks/approve", digest=asks["digest"])
        for run_id in ("asks", "paused"):
            Stream(client, run_id).finished()
            assert client.get(f"/runs/{run_id}/result")["outcome"] == "completed"


def test_a_run_of_another_agent_is_neither_continued_nor_left_alone(tmp_path: Path) -> None:
    async def other() -> None:
        async with SqliteJournal(tmp_path / "runs.db") as journal:
            agent = Agent(FunctionLLM(lambda _: "done"), name="other", journal=journal, observers=())
            await agent.run("Hi.", run_id="theirs")

    asyncio.run(other())
    with served(tmp_path) as client, client.http() as http:
        for if_exists in ("resume", "return"):
            refused = http.post("/runs", json={"prompt": "x", "run_id": "theirs", "if_exists": if_exists})
            assert refused.status_code == 409
            assert "belongs to agent 'other', and this is agent 'support'" in refused.json()["error"]


def test_a_new_run_is_started_whatever_the_request_says_about_one_that_exists(client: Client) -> None:
    for if_exists in ("raise", "resume", "return"):
        run_id = f"fresh-{if_exists}"
        started = client.post("/runs", prompt="Refund order 7.", run_id=run_id, if_exists=if_exists)
        assert started == {"run_id": run_id, "repeated": False}


async def test_the_agent_of_the_service_works_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_agent, "LATENCY", 0.0)
    async with SqliteJournal(tmp_path / "runs.db") as journal:
        agent = support(journal, [])
        run = asyncio.create_task(agent.run("Refund order 7.", run_id="r"))
        while not await agent.runs.list(waiting=True):  # noqa: ASYNC110 - the journal has no event
            await asyncio.sleep(0.01)
        await agent.runs.approve("r")
        assert (await run).output == "Done: 40 EUR for order 7 are on their way."


@pytest.mark.parametrize(("spec", "kind"), [("openai:gpt-5", "OpenAI"), ("anthropic:claude-x", "Anthropic")])
def test_a_model_of_a_vendor_is_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, spec: str, kind: str
) -> None:
    for vendor in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{vendor}_API_KEY", "sk-test")
    monkeypatch.setenv("ORCHESTRATOR_MODEL", spec)
    assert type(model()).__name__ == kind


@pytest.mark.parametrize("spec", ["gpt-5", "openai:", "other:x"])
def test_an_unknown_model_is_refused(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.setenv("ORCHESTRATOR_MODEL", spec)
    with pytest.raises(ConfigError, match=f"{spec}.*known: openai:NAME"):
        model()


WITHOUT = """
import sys
sys.modules["fastapi"] = None
import orchestrator.examples.service
"""


def test_a_missing_extra_names_the_command_that_installs_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], check=False, capture_output=True, text=True)
    assert "FastAPI is not installed: pip install 'fsm-orchestrator[service]'" in done.stderr
