"""The command: its agent, its journal, and the earlier prompts of the conversation."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import Any, TypeAlias

from orchestrator.cli import keyboard
from orchestrator.cli.chat.line_reader import line_reader
from orchestrator.cli.chat.session import ChatSession
from orchestrator.cli.chat_option import ChatOptions
from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.fleet import made
from orchestrator.cli.launch import Launch, LoadedParts
from orchestrator.cli.load import limits_from
from orchestrator.cli.loop import on_signal, run_async
from orchestrator.cli.output import complain, say, shown
from orchestrator.cli.run import logging_to, new_id
from orchestrator.cli.runs.store import OpenStore, journal_file
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.kernel.record import Observer
from orchestrator.runtime.llm_loop.agent import Agent

MakeAgent: TypeAlias = Callable[[StoredJournal, Sequence[Observer]], AbstractAsyncContextManager[Any]]

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the chat; a run at work stays open and can be resumed."""


def chat(options: ChatOptions) -> int:
    """Talk until the end of the input, and return the exit code."""
    conversation = new_id(options.conversation, "conversation_id")
    make = _described(options) if options.made_by is None else _own(options.made_by, options)
    with logging_to(options.log, project_settings().log_level) as logs:
        return run_async(_chat(options, make, conversation, logs))


def _described(options: ChatOptions) -> MakeAgent:
    """Return the maker of the agent that the options describe. Raises ConfigError."""
    settings = project_settings()
    launch = Launch.here(settings, **options.agent.plain())
    parts, limits = LoadedParts.of(launch), limits_from(options.limits, settings.limits)
    return lambda journal, observers: launch.agent(parts, journal=journal, observers=observers, limits=limits)


def _own(target: str, options: ChatOptions) -> MakeAgent:
    """Return the maker of the user's own agent. Raises ConfigError for options that would have no effect."""
    given = [name for name, value in options.agent.plain().items() if value] + ["limits"] * bool(
        options.limits
    )
    if given:
        raise ConfigError(
            f"{', '.join(given)}: these describe an agent, and --agent names one that is complete; leave them out"
        )
    return lambda journal, observers: nullcontext(made(target, journal, observers))


async def _chat(options: ChatOptions, make: MakeAgent, conversation: str, logs: Sequence[Observer]) -> int:
    store, task = (
        OpenStore(journal_at(journal_file(options.journal)), options.journal),
        asyncio.current_task(),
    )
    with on_signal(lambda: task and task.cancel(), _ENDING):
        try:
            async with AsyncExitStack() as stack:
                with beginning():
                    await stack.enter_async_context(store.journal)
                agent = await stack.enter_async_context(make(store.journal, logs))
                if not isinstance(agent, Agent):
                    raise ConfigError(f"the agent is a {type(agent).__name__}; chat talks to an Agent")
                with beginning():
                    earlier = await _earlier(store, conversation)
                session = ChatSession(agent, store, line_reader(earlier), conversation)
                if keyboard.present():
                    say(f"conversation {shown(conversation)}, journal {shown(str(store.journal.address))}")
                    say("/help lists the commands, Ctrl-D leaves")
                return await session.converse()
        except asyncio.CancelledError:
            return Exit.CANCELLED


async def _earlier(store: OpenStore, conversation: str) -> list[str]:
    """Return the prompts of a conversation so far. A run that is still open is mentioned."""
    newest = await store.journal.newest(conversation)
    if newest is None:
        return []
    if newest.status != "ended":
        command = store.command("resume", newest.run_id)
        complain(f"the last run of this conversation is open; `{command}` continues it")
        return []
    result = await store.runs.result(newest.run_id)
    return [message.text for message in result.messages if message.role == "user"]
