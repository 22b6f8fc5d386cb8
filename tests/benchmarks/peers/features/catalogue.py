"""The features that are compared, how each is tried, and what Temporal's documentation says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.benchmarks.peers.features.trial import Cell, Judge, asked, killed, observed, shared, talked


class Feature(NamedTuple):
    """One row of the table."""

    name: str
    title: str
    judge: Judge
    documented: Cell = Cell("-", "not an agent library")
    """Temporal, by its documentation: its server is no Python package, so that nothing of it is tried here."""


LIBRARIES: Mapping[str, str] = {
    "ours": "ours",
    "langgraph": "LangGraph",
    "pydantic-ai": "pydantic-ai",
    "openai-agents": "openai-agents",
    "burr": "Burr",
}
"""Names in the roster -> titles of the columns; the module of the probes has the name with underscores."""

TEMPORAL = "Temporal"

FEATURES = (
    Feature(
        "resume",
        "a killed run resumes at its last step",
        killed("model"),
        Cell("yes", "docs.temporal.io/encyclopedia/event-history"),
    ),
    Feature(
        "once",
        "an interrupted call is not run twice",
        killed("tool"),
        Cell(
            "option",
            "an Activity is retried unless its maximum attempts are 1: docs.temporal.io/activity-execution",
        ),
    ),
    Feature(
        "lease",
        "two processes cannot continue one run",
        shared,
        Cell("yes", "docs.temporal.io/workflow-execution/workflowid-runid"),
    ),
    Feature(
        "approval",
        "a question outlives the process",
        asked,
        Cell("yes", "Signals and Updates: docs.temporal.io/develop/python/message-passing"),
    ),
    Feature(
        "conversation",
        "conversations are stored",
        talked,
    ),
    Feature(
        "fork",
        "a run continues from an earlier step",
        observed("fork"),
        Cell("yes", "reset: docs.temporal.io/cli/command-reference/workflow"),
    ),
    Feature("graph", "its control flow can be printed", observed("graph")),
    Feature("lint", "an unreachable state is refused", observed("lint")),
    Feature("tokens", "a token limit ends a run", observed("tokens")),
    Feature("repeat", "a repeating model is stopped", observed("repeat")),
    Feature(
        "metrics",
        "metrics of every transition",
        observed("metrics"),
        Cell("activities", "SDK metrics: docs.temporal.io/evaluate/features/observability"),
    ),
    Feature(
        "cancel",
        "cancellation reaches the tool",
        observed("cancel"),
        Cell("option", "an Activity must heartbeat: docs.temporal.io/activity-execution"),
    ),
    Feature("stream", "text is streamed", observed("stream")),
    Feature(
        "parallel",
        "parallel branches in a graph",
        observed("parallel"),
        Cell("yes", "asyncio.gather in a Workflow: docs.temporal.io/develop/python"),
    ),
    Feature("handoff", "an agent hands over to another", observed("handoff")),
    Feature("vendors", "model vendors", observed("vendors")),
)
