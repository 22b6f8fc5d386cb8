r"""A model that looks up words in a text of any length. It needs no network: it is a function of the request.

    orchestrator rlm run README.md --prompt 'What is said of "lease"?' \
        --model python:orchestrator.examples.rlm:librarian

In code mode it reads and splits the text, asks a model (itself) about each part with the word, and returns the
answers. In tools mode it searches. It looks up the words in quotes, else the longest word of the question.
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
    """Answer as the librarian: in code mode, in tools mode, or as the model that is asked about a part."""
    first = next(message.text for message in request.messages if message.role == "user")
    if request.messages[0].role != "system":
        # The sentences of a part that have the words.
        task, _, part = first.partition("\n\n")
        words = _words(task).lower()
        sentences = re.split(r"(?<=[.!?])\s+|\n{2,}", part)
        return "\n".join(" ".join(one.split()) for one in sentences if words in one.lower())
    turn = sum(message.role == "assistant" for message in request.messages)
    words = _words(first)
    if request.tools:
        return call("context_search", words=words) if turn == 0 else request.messages[-1].text
    return (_LOOK, _ASK.format(words=words))[turn] if turn < 2 else _ANSWER  # noqa: PLR2004


def _words(question: str) -> str:
    """Return the words to look up."""
    quoted = re.search(r"[\"“']([^\"”']+)[\"”']", question)
    if quoted:
        return quoted[1]
    return max(re.findall(r"\w+", question.partition("\n")[0]), key=len, default="")
