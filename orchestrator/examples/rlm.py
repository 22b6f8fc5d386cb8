r"""A model that looks words up in a text of any length. It needs no network: it is a function of the request.

    orchestrator rlm run README.md --prompt 'What is said of "lease"?' \
        --model python:orchestrator.examples.rlm:librarian

In code mode it looks at the text, splits it, asks a model (itself) about each part that has the word, and then
gives what it was told. In tools mode it searches. Words in quotes are looked up, else the longest one of the question.
"""

from __future__ import annotations

import re

from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.providers.scripted import call

_LOOK = """I do not know the text yet.

```repl
print(type(context).__name__, len(context))
print(context[:200])
```"""

_ASK = """Now I ask about each part that has {words!r}.

```repl
import textwrap

words = {words!r}
size = 20_000
parts = [context[at : at + size] for at in range(0, len(context), size)]
hits = [part for part in parts if words.lower() in part.lower()]
print(len(parts), "parts,", len(hits), "of them have the words")
said = llm_query_batched([f"Quote the sentences that mention {{words!r}}.\\n\\n{{part}}" for part in hits[:50]])
quotes = [line for answer in said for line in answer.splitlines() if line]
found = "\\n".join(dict.fromkeys(quotes)) or f"Nothing is said of {{words!r}}."
print(textwrap.shorten(found, 500))
```"""

_ANSWER = "That is all there is.\n\nFINAL_VAR(found)"


def librarian(request: Request) -> str | ToolCall | Response:
    """Answer as the librarian: in code mode, in tools mode, or as the one who is asked about a part."""
    first = next(message.text for message in request.messages if message.role == "user")
    if request.messages[0].role != "system":
        return _quoted(first)
    turn = sum(message.role == "assistant" for message in request.messages)
    words = _words(first)
    if request.tools:
        return call("context_search", words=words) if turn == 0 else request.messages[-1].text
    return (_LOOK, _ASK.format(words=words))[turn] if turn < 2 else _ANSWER  # noqa: PLR2004


def _words(question: str) -> str:
    """Return what is to be looked up."""
    quoted = re.search(r"[\"“']([^\"”']+)[\"”']", question)
    if quoted:
        return quoted[1]
    return max(re.findall(r"\w+", question.partition("\n")[0]), key=len, default="")


def _quoted(prompt: str) -> str:
    """Return the sentences of a part that have the words."""
    task, _, part = prompt.partition("\n\n")
    words = _words(task).lower()
    sentences = re.split(r"(?<=[.!?])\s+|\n{2,}", part)
    return "\n".join(" ".join(one.split()) for one in sentences if words in one.lower())
