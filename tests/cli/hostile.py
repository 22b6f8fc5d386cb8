"""Text that tries to control a terminal, and what may be left of it on one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from orchestrator.kernel.journal import Draft, Posted
from tests.cli.recorded import Call, Tape, record

HOSTILE = (
    "H\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\x1b[5;31m"
    "\u202e5000\u202c\u2066x\u2069\u061c\u200f\rover\b\b\b\x7f\u2028\u200bZ"
)
"""Clears the screen, writes the clipboard, rings, blinks, reverses, returns to the left, goes back."""
MARKS = (r"\x1b]52", r"\u001b]52")
"""What escaping makes of it, as text and as JSON."""

CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
OURS = re.compile(
    r"\x1b\[(?:0|1|2|7|(?:1;)?(?:3[1-6]|9[0-4]|38;5;\d+|38;2;\d+;\d+;\d+)|2;9|39|49)?m"  # colours
    r"|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|\r(?=\n|\x1b\[(?:2K|1A)|\r)"  # a table that moves; ends of lines of a terminal
)


def controls(text: str, *, terminal: bool = False) -> list[str]:
    """Return the characters that control a terminal; on a terminal, those of our own sequences are left out."""
    return [ascii(one) for one in CONTROLS.findall(OURS.sub("", text) if terminal else text)]


def marked(text: str) -> bool:
    """Whether hostile text arrived, escaped."""
    return any(mark in text for mark in MARKS)


MODELS = f"""
from orchestrator import Agent, LLMError, Response, ToolCall, tool
from orchestrator.testing import ScriptedLLM
from orchestrator.providers.scripted import call

P = {HOSTILE!r} + chr(0)
H = P + chr(0xd83d)

def text():
    return ScriptedLLM([H])

def support(journal):
    return Agent(text(), name="support", journal=journal, observers=())

def judge(run):
    raise ValueError(H)

def refuses():
    return ScriptedLLM([LLMError(H, kind="client_error")])

def crashes():
    return ScriptedLLM([ValueError(H)])

def result():
    return ScriptedLLM([call("look", query=H), H])

def unknown_tool():
    return ScriptedLLM([Response(None, (ToolCall("1", "pay" + H, "{{}}"),)), H])

def tool_error():
    return ScriptedLLM([call("fails"), H])

def asks():
    return ScriptedLLM([call("look", query="x"), call("fails"), H])

def factory():
    raise OSError(H)

@tool(effect="pure")
def look(query: str) -> str:
    return H

@tool(effect="pure")
def fails() -> str:
    raise RuntimeError(H)

def code(request):
    return "```repl\\nprint(context)\\nraise ValueError(" + ascii(H) + ")\\n```" if len(request.messages) < 3 else H

def plan(request):
    return {{"for": P}}

def valid(request):
    return [{{"severity": "warning", "message": P, "where": P}}]

def work(request):
    return P

def good(request):
    return {{"score": 9, "comments": P}}

def raises(request):
    raise ValueError(H)
"""

STAGES = "".join(
    f'\n[stages.{name}]\npython = "evil:{function}"\n'
    for name, function in (
        ("planner", "plan"),
        ("validator", "valid"),
        ("implementer", "work"),
        ("judge", "good"),
    )
)

MCP = f"""
import json, sys
H = {HOSTILE!r}
tool = {{"name": "t" + (H if "name" in sys.argv else ""), "description": H, "inputSchema": {{"type": "object"}}}}
print(H, file=sys.stderr, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {{"jsonrpc": "2.0", "id": asked["id"]}}
    if asked["method"] == "initialize" and "error" not in sys.argv:
        answer["result"] = {{"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {{"tools": {{}}}},
                            "serverInfo": {{"name": H, "version": H}}}}
    elif asked["method"] == "tools/list":
        answer["result"] = {{"tools": [tool]}}
    elif asked["method"] == "tools/call":
        answer["result"] = {{"content": [{{"type": "text", "text": H}}], "isError": True}}
    else:
        answer["error"] = {{"code": -32000, "message": H}}
    print(json.dumps(answer), flush=True)
"""
"""A server by hand: the official one would refuse to send such names."""


def journal() -> None:
    """Record runs in every string of which somebody put hostile text."""
    call = Call("pay" + HOSTILE, json.dumps({"to": HOSTILE, HOSTILE: 1}), content=HOSTILE)
    error = {"type": HOSTILE, "message": HOSTILE, "reason": "callback_error", "state": "await_llm"}
    body: dict[str, Any] = {"conversation_id": HOSTILE, "parent_run_id": HOSTILE}
    failed = Tape("failed", prompt=HOSTILE, **body).begin().calls(call)
    failed.add(failed.to("terminate_error", "failure", 1.0, error=error)).ends("failed", "llm_error")
    asks = Tape("asks", prompt=HOSTILE, **body).begin().asks(call)
    decided = Tape("decided", prompt=HOSTILE, **body).begin().asks(call)
    decided.decided("1:0", "approve", HOSTILE, why=HOSTILE)
    short = Tape("short").begin().asks(Call("pay", json.dumps({"to": HOSTILE[:10]})))
    foreign = Tape("foreign", graph="pipe" + HOSTILE, fingerprint=HOSTILE)
    ralph = Tape("ralph-run", graph="ralph").add(Draft("parked", {"reason": HOSTILE, "at": 0.0, "t": 0.0}))
    about = {"name": HOSTILE, "host": HOSTILE, "slots": 1, "agents": {HOSTILE: {"graph": HOSTILE}}}
    engine = Tape("engine-1", graph="engine", engine=about)
    posts = [Posted("p1", "pause", {"why": HOSTILE, "call": "9:9"}, HOSTILE, 1.0)]
    record(failed, asks, decided, short, foreign, ralph, engine, posts={"decided": posts}, path="journal.db")


def files(folder: Path) -> None:
    """Write every file that a command reads, with hostile text in it."""
    (folder / "evil.py").write_text(MODELS)
    (folder / "server.py").write_text(MCP)
    (folder / "spec.toml").write_text(f"spec = {json.dumps(HOSTILE)}\n{STAGES}")
    (folder / "raises.toml").write_text(
        f"spec = {json.dumps(HOSTILE)}\n{STAGES.replace('evil:good', 'evil:raises')}"
    )
    (folder / "book.txt").write_text(HOSTILE)
    line = {
        "msg": "fsm.transition",
        "machine": HOSTILE,
        "run_id": HOSTILE,
        "seq": 1,
        "from_state": "a" + HOSTILE,
    }
    line |= {"fsm_event": HOSTILE, "to_state": HOSTILE, "state_duration_s": 1.0}
    (folder / "run.log").write_text(f"{json.dumps(line)}\n{json.dumps({**line, 'seq': 3})}\n")
    asks = {"name": "one", "input": HOSTILE, "expect": {"output": "x"}}
    (folder / "cases.jsonl").write_text(json.dumps(asks))
    (folder / "names.jsonl").write_text(json.dumps({**asks, "name": HOSTILE}))
    talk = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}]
    one = {"id": HOSTILE, "model": HOSTILE, "messages": talk}
    bad = {"id": HOSTILE, "messages": [{"role": HOSTILE, "content": 1}]}
    (folder / "talks.jsonl").write_text(f"{json.dumps(one)}\n{json.dumps(bad)}\n")
    (folder / "session.md").write_text("no")
    (folder / "tasks.md").write_text(f"# Tasks\n\n- [ ] task-1: {HOSTILE.replace(chr(0x0D), ' ')}\n")
    (folder / "plan.json").write_text(
        json.dumps(
            {
                "goal": HOSTILE,
                "steps": [
                    {
                        "id": "1",
                        "kind": "create",
                        "title": HOSTILE,
                        "files": [{"path": HOSTILE, "content": HOSTILE}],
                    }
                ],
            }
        )
    )
    step = {
        "id": "1",
        "kind": "create",
        "title": "A note",
        "files": [{"path": "n.txt", "content": f"{HOSTILE}\n"}],
    }
    (folder / "diff.json").write_text(json.dumps({"goal": "A note.", "steps": [step]}))
