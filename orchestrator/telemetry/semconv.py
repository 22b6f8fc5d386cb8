"""Names of spans and attributes in one table, by the version of OpenTelemetry's GenAI conventions.

The conventions are in development and change; their names are copied here, so that a new version is a new row and no
dependency. A test compares them with the package opentelemetry-semantic-conventions. Our own names start with
`orchestrator.` and do not change. Attributes with content (prompts, arguments, results) are not in the table, so that
no code can set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """Names of one version. A name that is None does not exist there: nothing is recorded under it."""

    schema_url: str | None
    """None for a text that has not been released."""
    run: str = "invoke_workflow"
    """Operation of a run's span; the name of a span is its operation and its object."""
    agent_run: str | None = None
    """The same for a run of an agent; None: as any other run."""
    llm: str = "chat"
    tool: str = "execute_tool"
    operation: str = "gen_ai.operation.name"
    workflow: str = "gen_ai.workflow.name"
    provider: str = "gen_ai.provider.name"
    model: str = "gen_ai.request.model"
    tool_name: str = "gen_ai.tool.name"
    tool_type: str = "gen_ai.tool.type"
    tool_call: str | None = None
    input_tokens: str = "gen_ai.usage.input_tokens"
    output_tokens: str = "gen_ai.usage.output_tokens"
    cached_tokens: str = "gen_ai.usage.cache_read.input_tokens"
    reasoning_tokens: str = "gen_ai.usage.reasoning.output_tokens"
    finish_reasons: str = "gen_ai.response.finish_reasons"
    first_chunk: str = "gen_ai.response.time_to_first_chunk"
    response_model: str | None = None
    response_id: str | None = None
    server_address: str | None = None
    server_port: str | None = None
    error: str = "error.type"
    agent: str = "gen_ai.agent.name"
    agent_version: str = "gen_ai.agent.version"
    conversation: str = "gen_ai.conversation.id"
    token_type: str = "gen_ai.token.type"  # noqa: S105 - a name
    token_usage: str = "gen_ai.client.token.usage"  # noqa: S105
    """Metric: tokens of a request, by token type."""
    duration: str = "gen_ai.client.operation.duration"
    """Metric: seconds of a request, and of a tool call where that has no metric of its own."""
    tool_duration: str | None = None
    """Metric: seconds of a tool call."""
    agent_duration: str | None = None
    """Metric: seconds of a run of an agent."""
    first_chunk_time: str = "gen_ai.client.operation.time_to_first_chunk"
    """Metric: seconds to the first chunk of a streamed answer."""


VERSIONS: Mapping[str, Conventions] = {
    "1.41": Conventions(schema_url="https://opentelemetry.io/schemas/1.41.0"),
    "genai-main": Conventions(
        schema_url=None,
        agent_run="invoke_agent",
        tool_call="gen_ai.tool.call.id",
        response_model="gen_ai.response.model",
        response_id="gen_ai.response.id",
        server_address="server.address",
        server_port="server.port",
        tool_duration="gen_ai.execute_tool.duration",
        agent_duration="gen_ai.invoke_agent.duration",
    ),
}
"""Version -> names. 1.41 is the last of OpenTelemetry's main repository, `genai-main` the text of the repository of its
own that succeeds it."""

DEFAULT = "1.41"
_OPT_IN = {"gen_ai_latest_experimental": "genai-main"}
"""Value of OTEL_SEMCONV_STABILITY_OPT_IN -> version."""


def chosen(version: str | None, opt_in: str = "") -> Conventions:
    """Return the names of a version, by default of the one that the host's environment asks for.

    Args:
        version: A version of `VERSIONS`; None follows `opt_in`.
        opt_in: The value of OTEL_SEMCONV_STABILITY_OPT_IN, a list with commas. As its specification says, values
            that are not known here are ignored: they are those of other instrumentations.

    Raises:
        ConfigError: The version is unknown.

    Example:
        >>> chosen(None, "http/dup, gen_ai_latest_experimental").agent_run
        'invoke_agent'
    """
    if version is None:
        asked = (_OPT_IN.get(word.strip()) for word in opt_in.split(","))
        version = next(filter(None, asked), DEFAULT)
    if version not in VERSIONS:
        raise ConfigError(f"unknown version {version!r} of the conventions; known: {', '.join(VERSIONS)}")
    return VERSIONS[version]


# ---- ours ----

RUN_ID = "orchestrator.run_id"
PARENT_RUN_ID = "orchestrator.parent_run_id"
ORIGIN = "orchestrator.origin"
"""`new` or `resumed`."""
MACHINE = "orchestrator.machine"
STATE = "orchestrator.state"
OUTCOME = "orchestrator.outcome"
REASON = "orchestrator.reason"
PARKED = "orchestrator.parked"
"""Reason of the parking that ended the span."""
ABANDONED = "orchestrator.abandoned"
"""The span ended before the run: the run's end was not reported, or the run was resumed elsewhere meanwhile."""
TRANSITIONS = "orchestrator.transitions"
ITERATIONS = "orchestrator.iterations"
ITERATION = "orchestrator.iteration"
POSITION = "orchestrator.position"
"""Position of a tool call in its answer, from 0."""
TOOL_CALLS = "orchestrator.tool_calls"
"""Number of calls in a model's answer."""
COST = "orchestrator.cost"
QUEUED = "orchestrator.queued_seconds"
RESULT_CHARS = "orchestrator.result_chars"
CUT = "orchestrator.cut"
SEQ = "orchestrator.seq"
FROM_STATE = "orchestrator.from_state"
EVENT = "orchestrator.event"
TO_STATE = "orchestrator.to_state"
GUARD = "orchestrator.guard"
HOOK = "orchestrator.hook"
OPERATION = "orchestrator.operation"
DELAY = "orchestrator.delay_seconds"
LINKED = "orchestrator.link"
"""Kind of a span link: `resumed`, from a run's span to its span before."""

TRANSITION_EVENT = "orchestrator.transition"
FAILED_EVENT = "orchestrator.event_failed"
RETRY_EVENT = "orchestrator.llm.retry"
