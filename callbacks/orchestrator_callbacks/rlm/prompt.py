"""Texts for the model about its mode, and about data that it does not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.llm.message import Message
from orchestrator.machines.rlm.model import ModeContext

CODE = """\
You answer a question about data that you are not shown. The data is in the variable `context` of a Python REPL.

Write code between ```repl and ``` and it runs; you then read what it printed. Variables stay from block to block. In
the REPL there is:
- `context`: the data.
- `llm_query(prompt)`: asks another model and returns its answer as text. It sees the prompt and nothing else, and can
  read long texts: give it a part of the data with a question about that part.
- `llm_query_batched(prompts)`: the same for a list of prompts at once; the answers are in the same order.
- `FINAL_VAR("name")`: ends your work with the value of that variable as the answer.

Look at the data before you rely on its form: print its type, its size, its beginning. Search and split it with code,
and keep what you find in variables. Print little: long output is cut.

When you know the answer, write it outside of any code block on a line of its own: FINAL(the answer) or, where it is in
a variable, FINAL_VAR(name). An answer counts only if the code in the same message ran without an error."""

TOOLS = """\
You answer a question with the help of tools. Call those that you need; when you know the answer, say it and call
none."""

TOOLS_CONTEXT = """
The data that the question is about is not shown to you. It can be read piece by piece with `context_read`, searched
with `context_search`, and given to another model in pieces with `context_query`."""

LIMIT = "This was your last turn. Give your final answer now, from what you have; say what is missing."

LOST = (
    "The REPL was started anew: every variable, function and file of earlier blocks is gone. `context` and the "
    "functions are there again. Define again what you need."
)

AGAIN = (
    "Your last code may have run before that, or a part of it; it ran again from its beginning, and asked its "
    "questions again."
)


def begin(ctx: ModeContext, instructions: str) -> None:
    """Add instructions and prompt to the history, after earlier turns; once per run."""
    if ctx.begun:
        return
    said = ctx.message_history
    if not (said and said[0].get("role") == "system"):
        said.insert(0, Message("system", instructions).to_openai())
    about = described(ctx.context)
    ctx.say(Message("user", f"{ctx.prompt}\n\n{about}" if about else ctx.prompt))
    ctx.begun = True


def shallow(ctx: ModeContext) -> list[Message]:
    """Return the single request of a run that is too deep for turns: the prompt, and then the data itself."""
    text = ctx.prompt if ctx.context is None else f"{ctx.prompt}\n\n{ctx.context}"
    return [*ctx.messages, Message("user", text)]


def described(context: Any) -> str:
    """Return the type and size of the data, without any of its content."""
    match context:
        case None:
            return ""
        case str():
            size = f"text of {len(context):,} characters in {context.count(chr(10)) + 1:,} lines"
        case Mapping():
            keys = ", ".join(repr(str(key))[:40] for key in list(context)[:10])
            size = f"a dict with {len(context):,} keys ({keys}{', …' if len(context) > 10 else ''})"  # noqa: PLR2004
        case Sequence():
            lengths = [len(str(one)) for one in context[:5]]
            size = f"a list of {len(context):,} items (the first ones have {lengths} characters as text)"
        case _:
            size = f"a {type(context).__name__}"
    return f"The data is {size}."
