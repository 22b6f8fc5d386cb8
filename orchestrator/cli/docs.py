"""`orchestrator docs`: the guides, from the installed package or from a checkout.

A guide is the README of its folder, or a second page beside it. Guides outside of the package are added to the wheel as
`orchestrator/guides/<topic>.md` (`force-include` in pyproject.toml). `--open` shows the documentation site that `make
docs` builds in a checkout. A wheel has the guides and not the site: diagrams and search are 20 MB.
"""

from __future__ import annotations

import difflib
import webbrowser
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
    """One guide: its topic, section, file relative to the root of the repository, and contents in one line."""

    topic: str
    section: str
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


SECTIONS = ("Start", "Embed", "Operate", "Extend", "Internals")
"""What a reader wants to do: the groups of the list, and the tabs of the documentation site."""

GUIDES = (
    Guide("start", "Start", "README.md", "Overview, installation, quickstarts."),
    Guide(
        "project", "Start", "orchestrator/project/README.md", "A new project in one command, additions, chat."
    ),
    *(
        Guide(
            f"from-{page.lower().replace('_', '-')}",
            "Start",
            f"orchestrator/coming_from/{page}.md",
            f"Coming from {name}.",
        )
        for page, name in (
            ("LOOP", "a loop of your own"),
            ("LANGGRAPH", "LangGraph"),
            ("PYDANTIC_AI", "pydantic-ai"),
            ("OPENAI_AGENTS", "openai-agents"),
            ("STATE_MACHINES", "transitions, python-statemachine"),
        )
    ),
    Guide("agents", "Embed", "orchestrator/tools/README.md", "Agents, tools, hooks, output types, memory."),
    Guide(
        "providers",
        "Embed",
        "orchestrator/providers/README.md",
        "OpenAI, Anthropic, MCP, rate limits, prices.",
    ),
    Guide(
        "loop",
        "Embed",
        "orchestrator/machines/llm_loop/README.md",
        "States, hooks, outcomes and limits of an agent.",
    ),
    Guide("approvals", "Embed", "orchestrator/runtime/README.md", "Questions to people and their answers."),
    Guide(
        "streaming",
        "Embed",
        "orchestrator/examples/README.md",
        "Streams, engines in a service, health endpoints.",
    ),
    Guide("hosts", "Embed", "orchestrator/README.md", "Python versions, environments, what may change."),
    Guide(
        "testing", "Embed", "orchestrator/testing/README.md", "Doubles, graph coverage, the pytest plugin."
    ),
    Guide(
        "several-agents",
        "Embed",
        "orchestrator/runtime/SEVERAL_AGENTS.md",
        "Tool, triage, branches, pipeline, handoff: when and why.",
    ),
    Guide(
        "branches",
        "Embed",
        "orchestrator/runtime/branches/README.md",
        "Several child runs of one state, and their join.",
    ),
    Guide(
        "handoffs", "Embed", "orchestrator/runtime/team/README.md", "Agents that take over a conversation."
    ),
    Guide(
        "evaluation",
        "Embed",
        "orchestrator/runtime/evaluation/README.md",
        "Sets of cases: expectations, judges, reports.",
    ),
    Guide(
        "backtests", "Embed", "orchestrator/runtime/backtest/README.md", "Test other limits on recorded runs."
    ),
    Guide(
        "durability",
        "Operate",
        "orchestrator/journal/README.md",
        "Crash and resume, what runs again, records.",
    ),
    Guide(
        "journals",
        "Operate",
        "orchestrator/journal/OPERATIONS.md",
        "Owners, damage, upgrades, space, backups.",
    ),
    Guide("workers", "Operate", "orchestrator/engines/README.md", "Engines, workers, deployment, failures."),
    Guide("operations", "Operate", "dashboards/README.md", "Log, metrics, alerts, runbooks, dashboards."),
    Guide(
        "telemetry", "Operate", "orchestrator/telemetry/README.md", "Traces, the host's log, notifications."
    ),
    Guide(
        "console",
        "Operate",
        "orchestrator/console/README.md",
        "Web pages: watch runs, answer questions, stop runs.",
    ),
    Guide(
        "security",
        "Operate",
        "orchestrator/cli/trust/README.md",
        "What is trusted, escaped, stored, never stored.",
    ),
    Guide(
        "performance",
        "Operate",
        "tests/benchmarks/README.md",
        "Figures, how they are measured, other libraries.",
    ),
    Guide(
        "machines", "Extend", "orchestrator/machines/README.md", "The graphs as data, and how to change them."
    ),
    Guide(
        "pipeline", "Extend", "orchestrator/machines/pipeline/README.md", "Plan, validate, implement, judge."
    ),
    Guide(
        "approval",
        "Extend",
        "orchestrator/machines/approval/README.md",
        "Change a folder under a person's control.",
    ),
    Guide(
        "ralph",
        "Extend",
        "orchestrator/machines/ralph/README.md",
        "Work through a task list with coding agents.",
    ),
    Guide("rlm", "Extend", "orchestrator/machines/rlm/README.md", "Questions about texts of any length."),
    Guide("callbacks", "Extend", "callbacks/README.md", "Hooks: names, files, handles."),
    Guide("guards", "Extend", "guards/README.md", "Guards: limits, progress, quality."),
    Guide(
        "kernel",
        "Internals",
        "orchestrator/kernel/README.md",
        "The machine, and its relation to transitions.",
    ),
    Guide("repl", "Internals", "orchestrator/repl/README.md", "Isolation of code that a model writes."),
)


def find_guide(topic: str) -> Guide:
    """Return a guide by its topic or its folder. Raises ConfigError for another name."""
    guide = {**{one.folder: one for one in reversed(GUIDES)}, **{one.topic: one for one in GUIDES}}.get(topic)
    if guide is None:
        known = [name for one in GUIDES for name in (one.topic, one.folder) if name]
        close = difflib.get_close_matches(topic, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"no guide {topic!r}; {hint}`orchestrator docs` lists the topics")
    return guide


def read_guide(topic: str) -> str:
    """Return the Markdown text of a guide, by its topic or its folder. Raises ConfigError for another name."""
    guide = find_guide(topic)
    installed = _PACKAGE.parent / guide.in_wheel
    file = installed if installed.exists() else _PACKAGE.parent / guide.path
    return file.read_text(encoding="utf-8")


def site_page(topic: str | None) -> Path:
    """Return the page of a guide in the documentation site, the first page without a topic.

    The site is built in a checkout. Raises ConfigError if there is none, or no such guide.
    """
    path = Path(find_guide(topic).path if topic else "index.html")
    page = path.parent / "index.html" if path.name == "README.md" else path.with_suffix(".html")
    file = _PACKAGE.parent / "build" / "docs" / page
    if not file.is_file():
        raise ConfigError(
            f"no documentation site at {file.parent}; `make docs` in a checkout builds it, and "
            "`orchestrator docs TOPIC` prints a guide without it"
        )
    return file


def show_guides(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Topic of a guide.")] = None,
    *,
    in_browser: Annotated[
        bool, typer.Option("--open", help="Open the documentation site in a browser, at TOPIC.")
    ] = False,
) -> None:
    """Print a guide; without TOPIC, list the guides. The name of its folder is a name of a guide too."""
    if in_browser:
        address = site_page(topic).as_uri()
        if not webbrowser.open(address):
            raise ConfigError(f"no browser can be started here; open {address} in one")
        say(address)
        return
    if topic is None:
        width = max(len(guide.topic) for guide in GUIDES)
        for section in SECTIONS:
            say(f"{section}:")
            for guide in GUIDES:
                if guide.section == section:
                    say(f"  {guide.topic:{width}}  {guide.summary}")
        return
    text = read_guide(topic)
    if not is_terminal():
        say_more(text)
        return
    from rich.markdown import Markdown

    from orchestrator.cli.screen import console

    console().print(Markdown(text, hyperlinks=False))
