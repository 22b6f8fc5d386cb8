"""A process that drives one run of code mode or tools mode over SQLite until it ends or is killed.

As a script it is a nursery, as `tests.crash.loop_worker` is: it imports everything once, then forks a child for each
line of its input. An order says what the child does with the run in `folder`, and where it dies:

    do       run, or resume
    kill     "", "before" or "after" the `at`-th write to the journal, "asked": at the `at`-th boundary of a question
             to a model or of a tool's work (its begin, its middle, its end)
    mode     code, tools

The model goes by what it is shown. Code mode: its second block needs a name of the first, its third asks two questions
and gives the answer; where it is told that names are gone it does what it did before. Tools mode: it looks, saves and
asks about the data. What happens outside stands in `folder/world`, a line each.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.runtime.rlm.run_record import RlmResult
from orchestrator.tools.spec import ToolContext, tool
from orchestrator_callbacks.rlm.conversation import AGAIN, LOST
from tests.crash import mortal
from tests.crash.mortal import RUN, Fate, crashing, nursery

TEXT = "nothing\n" * 50 + "needle 42\n"
BLOCKS = (
    "where = context.index('needle')\nprint(llm_query('first'), where)",
    "found = context[where:].split()[1]\nprint('found', found)",
    "print('needle', found)\nprint(llm_query_batched(['second', 'third']))",
)
DEFINED = "where = context.index('needle')\nfound = context[where:].split()[1]\nprint('defined', found)"
"""What the model writes where it is told that its names are gone."""
ANSWER = 7
"""Tokens of each answer; nobody may answer more."""


class World(mortal.World):
    """The models and the tools, and where the process dies while they work."""

    async def model(self, request: Request) -> Any:
        """Be the model of the run, and of its questions."""
        said = [message.text for message in request.messages if message.role == "assistant"]
        shown = request.messages[-1].text
        own = request.messages[0].role == "system"
        about = {"turn": len(said)} if own else {"question": shown.partition("\n")[0]}
        await self.fate.point("before")
        tokens = sum(len(message.text) for message in request.messages) // 4
        self.say("asked", **about, lost=LOST in shown, again=AGAIN in shown, tokens=[tokens, ANSWER])
        await self.fate.point("within")
        answer: Any = f"yes to {shown[:6]}"
        if own:
            answer = _tools_turn(request) if request.tools else _code_turn(said, shown)
        self.say("answered", **about)
        await self.fate.point("after")
        text, calls = (answer, ()) if isinstance(answer, str) else (None, answer)
        return Response(text, calls, "stop", Usage(tokens, ANSWER))

    def tools(self) -> list[Any]:
        @tool(effect="pure")
        async def look(ctx: ToolContext, at: int) -> str:
            """Look."""
            return await self.worked("look", str(at), ctx.idempotency_key)

        @tool(effect="idempotent")
        async def save(ctx: ToolContext, text: str) -> str:
            """Save."""
            return await self.worked("save", text, ctx.idempotency_key)

        return [look, save]

    async def worked(self, name: str, about: str, key: str) -> str:
        await self.fate.point("before")
        self.say("began", tool=name, about=about, key=key)
        await self.fate.point("within")
        self.say("ended", tool=name, about=about, key=key)
        await self.fate.point("after")
        return f"{name} {about}: done"

    def rlm(self, mode: Any, journal: Journal) -> Rlm:
        tools = self.tools() if mode == "tools" else ()
        model = FunctionLLM(self.model)
        return Rlm(
            model, mode=mode, tools=tools, journal=journal, observers=(), params={"max_tokens": ANSWER}
        )


def _code_turn(said: list[str], shown: str) -> str:
    """Write the next block, what was lost first; answer when the last one came to its end."""
    if "NameError" in shown:
        return f"```repl\n{DEFINED}\n```"
    done = sum(any(block in one for one in said) for block in BLOCKS)
    if "needle 42" in shown:
        return "FINAL(42)"
    return f"```repl\n{BLOCKS[min(done, len(BLOCKS) - 1)]}\n```"


def _tools_turn(request: Request) -> Any:
    turn = sum(message.role == "assistant" for message in request.messages)
    match turn:
        case 0:
            return _calls(turn, look={"at": 1}, save={"text": "a"})
        case 1:
            return _calls(turn, context_search={"words": "needle"}, context_query={"question": "first"})
        case 2:
            return _calls(turn, save={"text": "b"})
        case _:
            return "42"


def _calls(turn: int, **calls: Any) -> tuple[ToolCall, ...]:
    """Return calls with ids that do not depend on how often this process was asked."""
    return tuple(ToolCall(f"{turn}-{name}", name, json.dumps(given)) for name, given in calls.items())


def told(result: RlmResult) -> dict[str, Any]:
    """A result as the tests compare it: all but the times."""
    return {
        "outcome": str(result.outcome),
        "reason": result.reason,
        "output": result.output,
        "iterations": result.iterations,
        "tokens": [result.usage.input_tokens, result.usage.output_tokens],
        "sub_calls": result.sub_calls,
        "messages": [message.to_openai() for message in result.messages],
        "moves": [[one.seq, one.event, one.iteration] for one in result.transitions],
    }


async def live(folder: Path, *, do: str, mode: str, kill: str = "", at: int = 0) -> None:
    tempfile.tempdir = str(folder / "temporary")
    Path(tempfile.tempdir).mkdir(exist_ok=True)
    fate = Fate(at if kill == "asked" else 0)
    world = World(folder, fate)
    inner = SqliteJournal(folder / "journal.db")
    journal = crashing(inner, kill if kill in {"before", "after"} else "", at)
    rlm = world.rlm(mode, journal)
    result = await (rlm.run("What is the needle?", TEXT, run_id=RUN) if do == "run" else rlm.resume(RUN))
    world.say("counted", writes=len(journal.writes), points=fate.passed)
    world.say("result", **told(result))
    await inner.close()


def warmed() -> None:
    """Do once, in memory, what would take each child a while the first time."""
    for mode in ("code", "tools"):
        rlm = World(None, Fate(0)).rlm(mode, MemoryJournal())
        rlm.run_sync("What?", TEXT, run_id="warm")
        asyncio.run(rlm.resume("warm"))


if __name__ == "__main__":
    warmed()
    nursery(live)
