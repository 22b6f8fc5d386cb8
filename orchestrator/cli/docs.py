"""`orchestrator docs`: the guides, from the installed package or from a checkout.

A guide is the README of its folder, or a second page beside it. Guides outside of the package are added to the wheel as
`orchestrator/guides/<topic>.md` (`force-include` in pyproject.toml).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import orchestrator
from orchestrator.cli.output import is_terminal, say, say_more
from orchestrator.errors import ConfigError

_PACKAGE = Path(orchestrator.__file__).parent


@dataclass(frozen=True, slots=True)
class Guide:
    """One guide: its topic, its file relative to the root of the repository, and its contents in one line."""

    topic: str
    path: str
    summary: str

    @property
    def folder(self) -> str:
        """The name of its folder, a second name of the topic of its README; "" for another page and at the root."""
        return Path(self.path).parent.name if self.path.endswith("README.md") else ""

    @property
    def in_wheel(self) -> str:
        """The file in a wheel, relative to the folder that holds the package."""
        return self.path if self.path.startswith("orchestrator/") else f"orchestrator/guides/{self.topic}.md"


GUIDES = (
    Guide("start", "README.md", "Overview, installation, quickstarts."),
    Guide("project", "orchestrator/project/README.md", "A new project in one command, additions, chat."),
    Guide("hosts", "orchestrator/README.md", "Python versions, environments, what may change."),
    Guide("agents", "orchestrator/tools/README.md", "Agents, tools, hooks, output types, memory."),
    Guide("providers", "orchestrator/providers/README.md", "OpenAI, Anthropic, MCP, rate limits, prices."),
    Guide(
        "loop", "orchestrator/machines/llm_loop/README.md", "States, hooks, outcomes and limits of an agent."
    ),
    Guide("durability", "orchestrator/journal/README.md", "Crash and resume, what runs again, records."),
    Guide("journals", "orchestrator/journal/OPERATIONS.md", "Owners, damage, upgrades, space, backups."),
    Guide("approvals", "orchestrator/runtime/README.md", "Questions to people and their answers."),
    Guide(
        "branches",
        "orchestrator/runtime/branches/README.md",
        "Several child runs of one state, and their join.",
    ),
    Guide("streaming", "orchestrator/examples/README.md", "Streams, engines in a service, health endpoints."),
    Guide("console", "orchestrator/console/README.md", "Web pages: watch runs, answer questions, stop runs."),
    Guide("operations", "dashboards/README.md", "Log, metrics, alerts, runbooks, dashboards."),
    Guide("telemetry", "orchestrator/telemetry/README.md", "Traces, the host's log, notifications."),
    Guide("backtests", "orchestrator/runtime/backtest/README.md", "Test other limits on recorded runs."),
    Guide(
        "evaluation",
        "orchestrator/runtime/evaluation/README.md",
        "Sets of cases: expectations, judges, reports.",
    ),
    Guide("testing", "orchestrator/testing/README.md", "Doubles, graph coverage, the pytest plugin."),
    Guide("workers", "orchestrator/engines/README.md", "Engines, workers, deployment, failures."),
    Guide("performance", "tests/benchmarks/README.md", "Figures, how they are measured, other libraries."),
    Guide("security", "orchestrator/cli/trust/README.md", "What is trusted, escaped, stored, never stored."),
    Guide("machines", "orchestrator/machines/README.md", "The graphs as data, and how to change them."),
    Guide("pipeline", "orchestrator/machines/pipeline/README.md", "Plan, validate, implement, judge."),
    Guide(
        "approval", "orchestrator/machines/approval/README.md", "Change a folder under a person's control."
    ),
    Guide("ralph", "orchestrator/machines/ralph/README.md", "Work through a task list with coding agents."),
    Guide("rlm", "orchestrator/machines/rlm/README.md", "Questions about texts of any length."),
    Guide("kernel", "orchestrator/kernel/README.md", "The machine, and its relation to transitions."),
    Guide("callbacks", "callbacks/README.md", "Hooks: names, files, handles."),
    Guide("guards", "guards/README.md", "Guards: limits, progress, quality."),
    Guide("repl", "orchestrator/repl/README.md", "Isolation of code that a model writes."),
)


def read_guide(topic: str) -> str:
    """Return the Markdown text of a guide, by its topic or its folder. Raises ConfigError for another name."""
    guide = {**{one.folder: one for one in reversed(GUIDES)}, **{one.topic: one for one in GUIDES}}.get(topic)
    if guide is None:
        known = [name for one in GUIDES for name in (one.topic, one.folder) if name]
        close = difflib.get_close_matches(topic, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"no guide {topic!r}; {hint}`orchestrator docs` lists the topics")
    installed = _PACKAGE.parent / guide.in_wheel
    file = installed if installed.exists() else _PACKAGE.parent / guide.path
    return file.read_text(encoding="utf-8")


def show_guides(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Topic of a guide.")] = None,
) -> None:
    """Print a guide; without TOPIC, list the guides. The name of its folder is a name of a guide too."""
    if topic is None:
        width = max(len(one.topic) for one in GUIDES)
        for one in GUIDES:
            say(f"{one.topic:{width}}  {one.summary}")
        return
    text = read_guide(topic)
    if not is_terminal():
        say_more(text)
        return
    from rich.markdown import Markdown

    from orchestrator.cli.screen import console

    console().print(Markdown(text, hyperlinks=False))
