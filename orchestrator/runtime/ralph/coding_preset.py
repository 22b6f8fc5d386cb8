"""Coding agents that the ralph loop can call: their arguments, and how their output is read.

    claude      Claude Code      `claude -p --output-format json`
    codex       Codex            `codex exec --json`
    gemini      Gemini CLI       `gemini -o json`
    opencode    OpenCode         `opencode run --format json`

Each program reads its prompt from standard input and works in its working folder. To add one, build a `CodingPreset`
with a function that returns its arguments and one that reads its output, and give it to `CodingAgent`; in an agents
file, name it as `agent = "module:PRESET"`.

`tests/runtime/test_coding_agents.py` runs the four programs against a model server on this machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from orchestrator.llm.usage import NO_USAGE, Usage
from orchestrator.runtime.service.program import ProgramExit

Permission: TypeAlias = Literal["read", "edit", "all"]
PERMISSIONS: Final[tuple[Permission, ...]] = ("read", "edit", "all")

_RETRIABLE: Final = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingCall:
    """One call of a coding agent."""

    permission: Permission
    """`read` changes no file, `edit` changes files of the folder, `all` also starts any program without a question."""
    model: str = ""
    """Name of the model; empty means the default of the program."""
    session: str | None = None
    """Session to continue; None starts one."""
    max_turns: int = 0
    max_cost: float = 0.0
    """In US dollars; 0 is no limit, for both."""
    trusted: bool = False
    """The user trusts the content of the working folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingAnswer:
    """The output of a coding agent."""

    text: str = ""
    session: str | None = None
    model: str = ""
    """Name of the model, if the output has it: the one with the most output."""
    usage: Usage = NO_USAGE
    error: str | None = None
    """Why the work failed; None for an answer."""
    retriable: bool = False
    """Whether another attempt may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingPreset:
    """A program.

    Args:
        name: Name in an agents file and in errors.
        program: The program's file.
        arguments: Returns its arguments for a call; the prompt is on its standard input.
        read: Returns its answer from its standard output. Raises ValueError, LookupError or TypeError for other output.
        install: Command that installs it.
        limits: Those of `max_turns` and `max_cost` that it enforces.
        environment: Returns variables for a call; None means none.
        env: Names or patterns of the variables of this process that the program needs: its keys and its settings.
    """

    name: str
    program: str
    arguments: Callable[[CodingCall], Sequence[str]]
    read: Callable[[str], CodingAnswer]
    install: str = ""
    limits: frozenset[str] = frozenset()
    environment: Callable[[CodingCall], Mapping[str, str]] | None = None
    env: tuple[str, ...] = ()

    def variables(self, call: CodingCall) -> Mapping[str, str]:
        """Return the variables of a call."""
        return {} if self.environment is None else self.environment(call)


def answer_of(preset: CodingPreset, ended: ProgramExit) -> CodingAnswer | None:
    """Return the answer of a program that ended; None if its output has another form.

    Gemini CLI prints the object of an error on its standard error.
    """
    for output in (ended.out, ended.err):
        try:
            answer = preset.read(output.decode(errors="replace"))
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
        return replace(answer, error=f"it {ended.how}") if ended.code and answer.error is None else answer
    return None


def _option(name: str, value: object) -> list[str]:
    return [name, str(value)] if value else []


def _objects(output: str) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of an output, one in a line. Other lines are messages for people."""
    for line in output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _most_used(outputs: Mapping[str, int]) -> str:
    """Return the model with the most output tokens, or an empty text: the work may use several."""
    return max(outputs, key=lambda name: outputs[name], default="")


# ---- Claude Code ----


def _claude(call: CodingCall) -> list[str]:
    modes = {"read": "dontAsk", "edit": "acceptEdits", "all": "bypassPermissions"}
    return [
        *("-p", "--output-format", "json", "--permission-mode", modes[call.permission]),
        *_option("--model", call.model),
        *_option("--resume", call.session),
        *_option("--max-turns", call.max_turns),
        *_option("--max-budget-usd", call.max_cost),
    ]


def _claude_answer(output: str) -> CodingAnswer:
    found = list(_objects(output))[-1]
    said, status = found.get("result"), found.get("api_error_status")
    tokens = found.get("usage") or {}
    cached, written = (tokens.get(f"cache_{way}_input_tokens") or 0 for way in ("read", "creation"))
    models = found.get("modelUsage") or {}
    return CodingAnswer(
        text=said or "",
        session=found["session_id"],
        model=_most_used({name: one.get("outputTokens") or 0 for name, one in models.items()}),
        usage=Usage(
            (tokens.get("input_tokens") or 0) + cached + written,
            tokens.get("output_tokens") or 0,
            cached,
            cost=found.get("total_cost_usd"),
            cache_write_tokens=written,
        ),
        error=(said or found["subtype"]) if found["is_error"] else None,
        retriable=status in _RETRIABLE,
    )


# ---- Codex ----


def _codex(call: CodingCall) -> list[str]:
    sandbox = {"read": "read-only", "edit": "workspace-write"}.get(call.permission)
    return [
        *("exec", "--json", "--skip-git-repo-check"),
        *(_option("--sandbox", sandbox) or ["--dangerously-bypass-approvals-and-sandbox"]),
        *_option("--model", call.model),
        *_option("resume", call.session),
        "-",
    ]


def _codex_answer(output: str) -> CodingAnswer:
    events = list(_objects(output))
    by_type = {event["type"]: event for event in events}
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    said = [item["text"] for item in items if item["type"] == "agent_message"]
    failed = by_type.get("turn.failed")
    tokens = by_type.get("turn.completed", {}).get("usage") or {}
    return CodingAnswer(
        text=said[-1] if said else "",
        session=by_type["thread.started"]["thread_id"],
        usage=Usage(
            tokens.get("input_tokens", 0),
            tokens.get("output_tokens", 0),
            tokens.get("cached_input_tokens", 0),
            tokens.get("reasoning_output_tokens", 0),
        ),
        error=None if failed is None else str(failed["error"]["message"]),
    )


# ---- Gemini CLI ----


def _gemini(call: CodingCall) -> list[str]:
    modes = {"read": "plan", "edit": "auto_edit", "all": "yolo"}
    return [
        *("--output-format", "json", "--approval-mode", modes[call.permission]),
        *(["--skip-trust"] if call.trusted else []),
        *_option("--model", call.model),
        *_option("--resume", call.session),
    ]


def _gemini_answer(output: str) -> CodingAnswer:
    lines = f"\n{output}"  # messages for people may precede the object, which is the last one at the start of a line
    found = json.loads(lines[lines.rindex("\n{") :])
    error = found.get("error")
    if error is not None:
        code = error.get("code")
        return CodingAnswer(
            session=found.get("session_id"), error=str(error["message"]), retriable=code in _RETRIABLE
        )
    by_model = {name: one["tokens"] for name, one in found["stats"]["models"].items()}
    tokens = by_model.values()
    return CodingAnswer(
        text=found["response"] or "",
        session=found["session_id"],
        model=_most_used({name: one["candidates"] for name, one in by_model.items()}),
        usage=Usage(
            sum(one["prompt"] for one in tokens),
            sum(one["candidates"] + one["thoughts"] for one in tokens),
            sum(one["cached"] for one in tokens),
            sum(one["thoughts"] for one in tokens),
        ),
    )


# ---- OpenCode ----


def _opencode(call: CodingCall) -> list[str]:
    return [
        *("run", "--format", "json"),
        *(["--auto"] if call.permission == "all" else []),
        *_option("--model", call.model),
        *_option("--session", call.session),
    ]


def _opencode_environment(call: CodingCall) -> Mapping[str, str]:
    denied = {"read": {"edit": "deny", "bash": "deny"}, "edit": {"bash": "deny"}, "all": {}}[call.permission]
    return {"OPENCODE_PERMISSION": json.dumps(denied)} if denied else {}


def _opencode_answer(output: str) -> CodingAnswer:
    events = list(_objects(output))
    said = [event["part"]["text"] for event in events if event["type"] == "text"]
    steps = [event["part"] for event in events if event["type"] == "step_finish"]
    failed = next((event["error"] for event in events if event["type"] == "error"), None)
    about = (failed or {}).get("data") or {}
    tokens = [step["tokens"] for step in steps]
    return CodingAnswer(
        text=said[-1] if said else "",
        session=events[0]["sessionID"],
        usage=Usage(
            sum(one["input"] + one["cache"]["read"] + one["cache"]["write"] for one in tokens),
            sum(one["output"] + one["reasoning"] for one in tokens),
            sum(one["cache"]["read"] for one in tokens),
            sum(one["reasoning"] for one in tokens),
            cost=sum(step["cost"] for step in steps) or None,
            cache_write_tokens=sum(one["cache"]["write"] for one in tokens),
        ),
        error=None if failed is None else str(about.get("message") or failed["name"]),
        retriable=bool(about.get("isRetryable")),
    )


_CLOUDS: Final = ("AWS_*", "GOOGLE_*", "CLOUD_ML_REGION", "AZURE_*")
_VENDORS: Final = (
    *(
        "ANTHROPIC",
        "CEREBRAS",
        "DEEPSEEK",
        "FIREWORKS",
        "GEMINI",
        "GROQ",
        "HF",
        "MISTRAL",
        "MOONSHOT",
        "OPENAI",
    ),
    *("OPENROUTER", "TOGETHER", "XAI"),
)

PRESETS: Final[Mapping[str, CodingPreset]] = {
    preset.name: preset
    for preset in (
        CodingPreset(
            name="claude",
            program="claude",
            arguments=_claude,
            read=_claude_answer,
            install="npm install -g @anthropic-ai/claude-code",
            limits=frozenset(("max_turns", "max_cost")),
            env=("ANTHROPIC_*", "CLAUDE_*", *_CLOUDS),
        ),
        CodingPreset(
            name="codex",
            program="codex",
            arguments=_codex,
            read=_codex_answer,
            install="npm install -g @openai/codex",
            env=("OPENAI_*", "CODEX_*"),
        ),
        CodingPreset(
            name="gemini",
            program="gemini",
            arguments=_gemini,
            read=_gemini_answer,
            install="npm install -g @google/gemini-cli",
            env=("GEMINI_*", "GOOGLE_*"),
        ),
        CodingPreset(
            name="opencode",
            program="opencode",
            arguments=_opencode,
            read=_opencode_answer,
            install="npm install -g opencode-ai",
            environment=_opencode_environment,
            env=("OPENCODE_*", *(f"{vendor}_*" for vendor in _VENDORS), *_CLOUDS),
        ),
    )
}
"""Name -> program."""
