"""With a host's own logging every line has the same keys and values as on a stream of ours."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.handlers
import os
import queue
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
import structlog

from orchestrator import Agent, Limits, LLMError, RetryPolicy, ToolCall, tool
from orchestrator.errors import ConfigError
from orchestrator.kernel.fact import RunStarted
from orchestrator.telemetry import TransitionLog, configure_logging, logger_from_context
from orchestrator.telemetry.log import KEYS, FieldNames
from orchestrator.testing import ScriptedLLM
from tests.dashboards.test_runbooks import FACTS
from tests.telemetry.test_log import VALIDATOR, lines_of

Make = Callable[[io.StringIO], Any]
SPAN = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}


class JsonFormatter(logging.Formatter):
    """A formatter that merges a mapping into its output, as python-json-logger and ecs-logging do."""

    def format(self, record: logging.LogRecord) -> str:
        told = record.msg if isinstance(record.msg, dict) else {"message": record.getMessage()}
        extra = {"from_extra": 1} if hasattr(record, "from_extra") else {}
        return json.dumps({"levelname": record.levelname, **told, **extra})


def plain(
    stream: io.StringIO, form: logging.Formatter | None = None, name: str = "host.plain"
) -> logging.Logger:
    """A logger of the standard library that writes to a stream."""
    logger = logging.Logger(name, logging.DEBUG)  # noqa: LOG001 - outside of the tree, so that no test sees another's
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form or logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    return logger


def chain(*processors: Any) -> Make:
    """A structlog logger with a chain of the host's."""

    def make(stream: io.StringIO) -> Any:
        return structlog.wrap_logger(
            structlog.PrintLogger(stream),
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
                *processors,
                structlog.processors.JSONRenderer(),
            ],
        )

    return make


def to_records(stream: io.StringIO) -> Any:
    """A structlog logger that hands its lines to a logger of the standard library."""
    return structlog.wrap_logger(
        plain(stream, JsonFormatter()),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.add_log_level, structlog.stdlib.render_to_log_kwargs],
    )


HOSTS: dict[str, Make] = {
    "structlog": chain(),
    "structlog, event renamed to message": chain(structlog.processors.EventRenamer("message")),
    "structlog, event renamed to msg": chain(structlog.processors.EventRenamer("msg")),
    "structlog, bound": lambda stream: chain()(stream).bind(customer="acme"),
    "structlog, into records": to_records,
    "plain": plain,
    "plain, JSON": lambda stream: plain(stream, JsonFormatter()),
    "plain, adapter": lambda stream: logging.LoggerAdapter(plain(stream), {"customer": "acme"}),
}


@pytest.mark.parametrize("host", HOSTS)
def test_every_line_has_the_keys_and_values_that_runbooks_ask_for(host: str) -> None:
    theirs, ours = io.StringIO(), io.BytesIO()
    logs = TransitionLog(logger=HOSTS[host](theirs), level="debug"), TransitionLog(ours, level="debug")
    for fact in FACTS:
        for log in logs:
            log.observe(fact)
    wanted, found = lines_of(ours), [json.loads(line) for line in theirs.getvalue().splitlines()]
    assert len(found) == len(wanted) > 10
    for one, other in zip(found, wanted, strict=True):
        VALIDATOR.validate(one)
        timeless = {
            key: value for key, value in other.items() if key != "ts" or one["msg"] == "fsm.transition"
        }
        assert {key: one.get(key) for key in timeless} == timeless


async def test_every_line_of_a_real_run_names_its_service_process_and_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "checkout")

    @tool(effect="pure")
    async def look(path: str) -> str:
        """Look."""
        logger_from_context().info("look.done", bytes=3)
        raise ValueError(path)

    streams = io.BytesIO(), io.StringIO()
    logs = TransitionLog(streams[0], level="debug"), TransitionLog(logger=plain(streams[1]), level="debug")
    for log, stream in ((logs[0], streams[0]), (logs[1], streams[1])):
        llm = ScriptedLLM(
            [LLMError("busy", kind="rate_limited"), [ToolCall("1", "look", '{"path": "x"}')], "done"]
        )
        retry = RetryPolicy(base=0.0, jitter=0.0)
        agent = Agent(llm, name="support", tools=[look], retry=retry, limits=Limits(), observers=[log])
        assert (await agent.run("go")).outcome == "completed"
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert {line["msg"] for line in lines} >= {"run.started", "tool.call", "look.done", "run.completed"}
        assert {(line["service"], line["pid"], line["agent"]) for line in lines} == {
            ("checkout", os.getpid(), "support")
        }


async def test_runs_of_two_agents_side_by_side_keep_their_names() -> None:
    stream = io.BytesIO()
    log = TransitionLog(stream, level="warning")
    llms = [ScriptedLLM([LLMError("no", kind="auth")]) for _ in range(2)]
    agents = [Agent(llm, name=name, observers=[log]) for llm, name in zip(llms, ("ann", "bob"), strict=True)]
    await asyncio.gather(*(agent.run("go", run_id=agent.name) for agent in agents))
    lines = lines_of(stream)
    assert {(line["run_id"], line["agent"]) for line in lines} == {("ann", "ann"), ("bob", "bob")}


async def test_the_runs_logger_keeps_numbers_booleans_and_declared_fields() -> None:
    stream = io.BytesIO()

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        logger_from_context().info(
            "look.done",
            rows=7,
            ratio=0.5,
            cached=True,
            missing=None,
            tier="gold",
            note="secret",
            names=["secret"],
        )
        return "ok"

    llm = ScriptedLLM([[ToolCall("1", "look", "{}")], "done"])
    log = TransitionLog(stream, fields=["tier"])
    await Agent(llm, tools=[look], observers=[log]).run("go")
    [line] = [line for line in lines_of(stream) if line["msg"] == "look.done"]
    own = {key: line[key] for key in ("rows", "ratio", "cached", "missing", "tier", "note", "names")}
    assert own == {
        "rows": 7,
        "ratio": 0.5,
        "cached": True,
        "missing": None,
        "tier": "gold",
        "note": "[redacted]",
        "names": "[redacted]",
    }


@pytest.mark.parametrize(
    ("names", "renamed"),
    [
        (
            "ecs",
            {
                "ts": "@timestamp",
                "level": "log.level",
                "msg": "message",
                "service": "service.name",
                "pid": "process.pid",
                "trace_id": "trace.id",
                "span_id": "span.id",
                "error_type": "error.type",
                "error_code": "error.code",
                "run_id": "orchestrator.run_id",
                "agent": "orchestrator.agent",
            },
        ),
        (
            "otel",
            {
                "ts": "timestamp",
                "level": "severity_text",
                "msg": "body",
                "service": "service.name",
                "pid": "process.pid",
                "trace_id": "trace_id",
                "span_id": "span_id",
                "error_type": "error.type",
                "run_id": "orchestrator.run_id",
                "agent": "gen_ai.agent.name",
                "model": "gen_ai.request.model",
                "tool": "gen_ai.tool.name",
                "tokens_in": "gen_ai.usage.input_tokens",
                "tokens_out": "gen_ai.usage.output_tokens",
            },
        ),
    ],
)
def test_lines_have_the_names_of_another_convention(names: FieldNames, renamed: dict[str, str]) -> None:
    own, ours, theirs = io.BytesIO(), io.BytesIO(), io.StringIO()
    logs = [
        TransitionLog(own, level="debug", trace=lambda: SPAN),
        TransitionLog(ours, level="debug", names=names, trace=lambda: SPAN),
        TransitionLog(logger=HOSTS["structlog"](theirs), level="debug", names=names, trace=lambda: SPAN),
    ]
    for fact in (*FACTS, RunStarted("loop", "r3", 1.0, agent="helper")):
        for log in logs:
            log.observe(fact)
    lines = [[json.loads(line) for line in stream.getvalue().splitlines()] for stream in (own, ours, theirs)]
    assert renamed.keys() <= {key for line in lines[0] for key in line}
    for wanted, found, host in zip(*lines, strict=True):
        shared = {key: name for key, name in renamed.items() if key in wanted and key != "ts"}
        for line in (found, host):
            assert {name: line[name] for name in shared.values()} == {
                name: wanted[key] for key, name in shared.items()
            }
        assert renamed["ts"] in found
        extra = {"ecs.version", "severity_number"} & found.keys()
        assert len(found) - len(extra) == len(wanted)
        assert not KEYS - {"trace_id", "span_id"} & found.keys()
        assert ("ecs.version" in found) is (names == "ecs")
        assert ("severity_number" in found) is (names == "otel")


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(ConfigError, match="'orchestrator', 'ecs' or 'otel'"):
        TransitionLog(names="gcp")  # type: ignore[arg-type]


def test_a_record_keeps_its_line_through_a_queue_of_the_host() -> None:
    stream, records = io.StringIO(), queue.SimpleQueue[logging.LogRecord]()
    logger = logging.Logger("host.queue", logging.DEBUG)  # noqa: LOG001 - as above
    logger.addHandler(logging.handlers.QueueHandler(records))
    TransitionLog(logger=logger).observe(FACTS[0])
    plain(stream).handle(records.get())
    assert json.loads(stream.getvalue())["msg"] == "run.started"


def test_a_host_that_configures_structlog_after_its_agents_gets_its_lines_there() -> None:
    stream = io.StringIO()
    log = TransitionLog(logger=structlog.get_logger())
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory(stream)
    )
    try:
        log.observe(FACTS[0])
    finally:
        structlog.reset_defaults()
    assert json.loads(stream.getvalue())["msg"] == "run.started"


def test_a_chain_that_makes_records_receives_each_line_once_after_the_first() -> None:
    received: list[MutableMapping[str, Any]] = []

    def receive(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        received.append(line)
        return line

    stream = io.StringIO()
    processors = [receive, structlog.stdlib.render_to_log_kwargs]
    logger = structlog.wrap_logger(plain(stream, JsonFormatter()), processors=processors)
    log = TransitionLog(logger=logger)
    for fact in FACTS[:3]:
        log.observe(fact)
    assert (len(stream.getvalue().splitlines()), len(received)) == (3, 4)


def test_the_process_wide_configuration_takes_the_same_options() -> None:
    stream, root = io.BytesIO(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging(stream, service="checkout", fields=["tier"])
        logging.getLogger("host").warning("late", extra={"tier": "gold", "rows": 7, "note": "secret"})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    [line] = lines_of(stream)
    assert (line["service"], line["tier"], line["rows"], line["note"]) == (
        "checkout",
        "gold",
        7,
        "[redacted]",
    )
