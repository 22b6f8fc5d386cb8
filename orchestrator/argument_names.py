"""Names of arguments: a misspelt one is refused by a sentence that has the right one.

People come from other libraries, so their words for the same thing are answered with ours (`ELSEWHERE`), and so are
words of ours that belong elsewhere.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, Final, TypeVar

from orchestrator.errors import ConfigError

T = TypeVar("T", bound=type)

ELSEWHERE: Final[Mapping[str, str]] = {
    "callbacks": "hooks=[…], or observers=[…] to watch",
    "checkpointer": "journal=SqliteJournal(path)",
    "clock": "runtime=Runtime(clock=…) of an agent",
    "context": "deps=… for live handles, metadata={…} for data that is stored",
    "context_type": "Agent[Deps, Output]; the handles themselves are deps=…",
    "deps_type": "Agent[Deps, Output]; the handles themselves are deps=…",
    "evict_after": "runtime=Runtime(evict_after=…) of an agent",
    "functions": "tools=[…]",
    "guardrails": "input_guards=[…] and output_guards=[…]",
    "history": "a conversation in place of the prompt, run([*result.messages, prompt]), or conversation_id=…",
    "input_guardrails": "input_guards=[…]",
    "llm": "the first argument, the model",
    "max_iterations": "limits=Limits(max_iterations=…)",
    "max_tokens": 'params={"max_tokens": …}, or limits=Limits(max_output_tokens=…)',
    "max_turns": "limits=Limits(max_iterations=…)",
    "message_history": "a conversation in place of the prompt, run([*result.messages, prompt]), or conversation_id=…",
    "messages": "the first argument, the prompt: text or messages",
    "middleware": "hooks=[…]",
    "migrations": "runtime=Runtime(migrations=[…]) of an agent",
    "model_settings": "params={…}",
    "output_guardrails": "output_guards=[…]; an output_validator may call a model",
    "prompt": "instructions=… of an agent; the prompt is the first argument of run",
    "needs_approval": "approval=True",
    "price": "runtime=Runtime(price=…) of an agent",
    "recursion_limit": "limits=Limits(max_iterations=…)",
    "requires_approval": "approval=True",
    "response_format": "output_type=…",
    "result_type": "output_type=…",
    "session": "conversation_id=…",
    "session_id": "conversation_id=…",
    "system": "instructions=…",
    "system_message": "instructions=…",
    "system_prompt": "instructions=…",
    "temperature": 'params={"temperature": …}',
    "thread_id": "run_id=… for one run, conversation_id=… for a conversation",
    "timeout": "limits=Limits(max_seconds=…), or deadline=… of a run",
    "tool_choice": 'params={"tool_choice": …}',
    "toolsets": "tools=[…]",
    "usage_limits": "limits=Limits(…)",
    "user_prompt": "the first argument, the prompt",
}
"""Keyword of another agent library, or of ours in another place -> what to write."""


def unknown_name(
    whose: str, name: str, known: Collection[str], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the sentence about a name that does not exist: the one that is meant, or all that are known.

    Example:
        >>> unknown_name("Agent has no argument", "tols", ["name", "tools"])
        "Agent has no argument 'tols'; did you mean 'tools'?"
        >>> unknown_name("Agent has no argument", "system_prompt", ["instructions"], ELSEWHERE)
        "Agent has no argument 'system_prompt'; here it is instructions=…"
    """
    if (ours := elsewhere.get(name)) is not None:
        return f"{whose} {name!r}; here it is {ours}"
    plain = {one.replace("_", ""): one for one in known}
    close = difflib.get_close_matches(name, known, n=1) or [
        plain[one] for one in difflib.get_close_matches(name.replace("_", "").casefold(), plain, n=1)
    ]
    return f"{whose} {name!r}; " + (f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}")


def refuse_unknown(
    whose: str,
    given: Mapping[str, object],
    known: Collection[str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise ConfigError about the first name that is not known."""
    for name in given:
        if name not in known:
            raise ConfigError(unknown_name(whose, name, known, elsewhere))


def checks_names(kind: T) -> T:
    """Make a class refuse unknown keyword arguments by such a sentence, as ConfigError.

    So do its constructor and its public methods; those with `**options` check them in their own words.
    """
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            if not any(one.kind is one.VAR_KEYWORD for one in parameters):
                known = [one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY]
                setattr(
                    kind, name, _checked(kind.__name__ if name == "__init__" else name, method, tuple(known))
                )
    return kind


def _checked(name: str, method: Callable[..., Any], known: tuple[str, ...]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *unnamed: Any, **given: Any) -> Any:
        if not given.keys() <= allowed:
            refuse_unknown(f"{name} has no argument", given, known, ELSEWHERE)
        return method(self, *unnamed, **given)

    allowed = frozenset(known)
    return call
