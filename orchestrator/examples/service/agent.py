"""The agent of the service: it refunds an order after a person has approved that."""

from __future__ import annotations

import json

from orchestrator import Agent, ToolCall, tool
from orchestrator.errors import ConfigError
from orchestrator.events import Observer
from orchestrator.journal.opening import StoredJournal
from orchestrator.llm.message import Request
from orchestrator.llm.port import LLM
from orchestrator.providers.connection import MissingKey
from orchestrator.providers.named_model import ModelForm, model_of
from orchestrator.providers.scripted import Answer, FunctionLLM
from orchestrator.settings import Settings


@tool(effect="pure")
def find_order(number: int) -> str:
    """Return what was ordered."""
    return f"Order {number}: one kettle, 40 EUR, paid."


@tool(effect="irreversible", approval=True)
def refund(number: int, euros: int) -> str:
    """Pay an order back."""
    return f"{euros} EUR for order {number} are on their way."


LATENCY = 0.5
"""Seconds until the scripted model answers."""


def support(journal: StoredJournal, observers: list[Observer]) -> Agent:
    """Return the agent of the service. A resumed run needs an agent of the same name in each worker."""
    return Agent(model(), tools=[find_order, refund], journal=journal, observers=observers, name="support")


def model() -> LLM:
    """Return the model that ORCHESTRATOR_MODEL names, or one that follows a script and needs no key."""
    settings = Settings.load()
    if not settings.model:
        return FunctionLLM(scripted, model="scripted", latency=LATENCY)
    keys = {"openai": settings.openai_api_key, "anthropic": settings.anthropic_api_key}
    try:
        return model_of(settings.model, ModelForm(settings.base_url), keys=keys).llm
    except MissingKey as error:
        raise ConfigError(
            f"ORCHESTRATOR_MODEL is {settings.model!r}, and there is no API key for {error.vendor}: set "
            f"{error.variable}; without ORCHESTRATOR_MODEL the service answers from a script"
        ) from error


def scripted(request: Request) -> Answer:
    """Find the order that the prompt names, refund it, and report."""
    said = [message for message in request.messages if message.role in {"user", "tool"}]
    number = int("".join(letter for letter in said[0].text if letter.isdecimal())[:9] or 1)
    if said[-1].role == "user":
        return ToolCall("call-1", "find_order", json.dumps({"number": number}))
    if len(said) == 2:  # noqa: PLR2004 - the prompt and the order
        return ToolCall("call-2", "refund", json.dumps({"number": number, "euros": 40}))
    return f"Done: {said[-1].text}"
