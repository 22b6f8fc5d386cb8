"""Objects that a command line names: those of modules, limits, files, words, actors. Each fault is one ConfigError."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from orchestrator.cli.output import shown
from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file, read_stream
from orchestrator.machines.llm_loop.limits import Limits


def decoded_text(text: str, what: str) -> str:
    """Return a text that a person gives; `-` is standard input. Raises ConfigError if it is no text."""
    try:
        if text != "-":
            text.encode()  # bytes that are not UTF-8 arrive from the shell as lone surrogates
            return text
        raw = getattr(sys.stdin, "buffer", None)
        return str(sys.stdin.read()) if raw is None else read_stream(raw, "standard input").decode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} is no text: character {error.start + 1:,} is not UTF-8") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} is no text: byte {error.start:,} is not UTF-8") from error


def context_from(file: Path, *, as_json: bool) -> Any:
    """Return the content of a file: its text, or its data if it is JSON; - is standard input.

    Raises ConfigError.
    """
    try:
        text = (
            read_stream(sys.stdin.buffer, "standard input") if str(file) == "-" else read_file(file)
        ).decode()
    except UnicodeDecodeError as error:
        name = "standard input" if str(file) == "-" else str(file)
        raise ConfigError(f"{name} is no text: byte {error.start:,} is not UTF-8") from error
    if not as_json:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON: {error}") from error


def prompt_of(text: str) -> str:
    """Return the prompt; `-` is standard input. Raises ConfigError if it is empty or no text."""
    prompt = decoded_text(text, "the prompt")
    if not prompt.strip():
        raise ConfigError("the prompt is empty; give text, or - for standard input")
    return prompt


def limits_from(pairs: Iterable[str], base: Mapping[str, Any]) -> Limits:
    """Return the limits of `base` with those given as `name=value` put over them. Raises ConfigError.

    A value that is no number is JSON: tool_caps={"search": 3}.
    """
    members: dict[str, Any] = dict(base)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"limit {pair!r} is not of the form name=value")
        members[name.strip()] = value = value.strip()
        if value.startswith(("{", "[")):
            try:
                members[name.strip()] = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise ConfigError(
                    f"limit {name}: {shown(value, 80)!r} is not JSON ({_fault(error)})"
                ) from error
    from orchestrator.settings import build  # imports pydantic, which `--help` does without

    return build(Limits, members, "limits")


def params_from(pairs: Iterable[str]) -> dict[str, Any]:
    """Return parameters of a model given as `name=value`; a value that is JSON is parsed, any other is a text.

    Raises ConfigError.
    """
    params: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"param {pair!r} is not of the form name=value")
        try:
            params[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            params[name.strip()] = value
    return params


def _fault(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def members_of(limits: Limits) -> dict[str, Any]:
    """Return limits as the members they are made of."""
    return {item.name: getattr(limits, item.name) for item in fields(limits)}


def schema_from(file: Path) -> Mapping[str, Any]:
    """Return the JSON schema in a file. Raises ConfigError when it is none, or OSError."""
    try:
        found = json.loads(read_file(file))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON ({_fault(error)})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds no JSON schema: a schema is an object")
    return found


def actor_name(given: str | None) -> str:
    """Return the actor of a request; empty if no name is given and the system has none."""
    from orchestrator.runtime.service.answer import login

    return (login() if given is None else given).strip()


def known_actor(given: str | None, does: str) -> str:
    """Return the actor. Raises ConfigError if there is no name; its message uses the verb `does`, such as `orders`."""
    actor = actor_name(given)
    if not actor:
        raise ConfigError(f"it must be known who {does} this: give --by NAME")
    return actor
