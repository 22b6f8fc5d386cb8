"""A coding agent (Claude Code, Codex, Gemini CLI, OpenCode) as an agent of the ralph loop.

The program is called in its non-interactive mode with the instructions of the role, the request and the JSON schema of
the answer. Reviewers and checkers may read only. The session, the tokens and the cost of each call are in the result of
the run and in its journal, and count for its limits.

A role continues its session for the same task: a repeated request, and the next attempt after a review, find what was
done before. The session is that of the last call in the journal, so a resumed run continues it too. After a failed call
the role starts another session. If the program does not have the session, for example on another machine, the call is
made in a new one: a call that fails without a token has done nothing. To recognize the message of each program was
rejected, because it changes with their versions.

claude      Claude Code      `claude -p --output-format json`
    codex       Codex            `codex exec --json`
    gemini      Gemini CLI       `gemini -o json`
    opencode    OpenCode         `opencode run --format json`

Each program reads its prompt from standard input and works in its working folder. To add one, build a `CodingPreset`
with a function that returns its arguments and one that reads its output, and give it to `CodingAgent`; in an agents
file, name it as `agent = "module:PRESET"`.

`tests/runtime/test_coding_agents.py` runs the four programs against a model server on this machine.

The program is started without a shell, once per call, in its working folder. It reads one JSON object:

    role      planner, questioner, executor, reviewer or checker
    ...       the members of its input, with names in capitals: SESSION_PATH, MODE, TASK_ID, CONTEXT ...
    key       idempotency key: the same for this piece of work in every repetition and every process
    run_id    the run
    again     number of earlier calls with an invalid answer; `fault` is the last fault
    notes     notes of people for all agents, oldest first

It prints the output of its role as JSON, either alone or after prose in a fenced block. An exit code other than 0, or
a timeout, fails the call with the last part of its standard error; the program is then killed with all processes that
it started. Exit code 75 (EX_TEMPFAIL of sysexits.h) means that another attempt may succeed, for example after a
network error: the loop then retries by its RetryPolicy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.llm.usage import NO_USAGE, Usage, is_amount
from orchestrator.machines.ralph.contract import OUTPUTS, AgentFailed, Role
from orchestrator.machines.ralph.model import AgentRequest
from orchestrator.providers.structured_output import instruction
from orchestrator.runtime.ralph import prompt_agent as ralph_prompt
from orchestrator.runtime.service.program import (
    ProgramExit,
    TooMuchSaid,
    check_names,
    inherited,
    last_words,
    run_program,
)

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


TRY_AGAIN = 75
"""Exit code of a program that could not do its work at the moment."""


class CommandAgent:
    """The program of one agent.

    Args:
        argv: Program and arguments.
        timeout: Maximum seconds of a call; 0 means no limit.
        folder: Working folder; the current one by default.
        env: Names or patterns of the variables of this process that the program gets, in addition to those that every
            program gets (PATH, HOME, the locale, proxies, certificates); `["*"]` is the whole environment.
        environment: Further variables with their values.

    Raises:
        ConfigError: `argv`, `timeout` or `env` is invalid.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 0.0,
        folder: Path | str | None = None,
        env: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(argv, str) or not argv or not all(isinstance(word, str) for word in argv):
            raise ConfigError(f"an agent's command is {argv!r}; give its words: ['python', 'agent.py']")
        if not timeout >= 0:  # `not >=` because NaN compares as false
            raise ConfigError(f"timeout is {timeout!r}; it must be 0 (any time) or more seconds")
        self.argv = tuple(argv)
        self._timeout = timeout or None
        self._folder = None if folder is None else Path(folder)
        self.env = check_names(env)
        self._environment = dict(environment or {})

    async def __call__(self, request: AgentRequest) -> str:
        """Run the program for a request and return its output. Raises AgentFailed."""
        ended = await run_agent_program(
            request,
            self.argv,
            json.dumps(plain(request)).encode(),
            seconds=self._timeout,
            folder=self._folder,
            environment={**inherited(self.env), **self._environment},
        )
        if ended.code:
            said = last_words(ended.err)
            how = ended.how + (f": {said}" if said else "")
            raise agent_failed(request, self.argv[0], how, retriable=ended.code == TRY_AGAIN)
        return ended.out.decode(errors="replace")


async def run_agent_program(
    request: AgentRequest,
    argv: Sequence[str],
    given: bytes,
    *,
    seconds: float | None,
    folder: Path | None,
    environment: Mapping[str, str],
) -> ProgramExit:
    """Run the program of an agent to its end. Raises AgentFailed if it cannot be started or does not end in time."""
    try:
        return await run_program(
            argv, given, call=request.key, seconds=seconds, folder=folder, environment=environment
        )
    except TimeoutError:
        raise agent_failed(request, argv[0], f"took longer than {seconds:g} s and was killed") from None
    except TooMuchSaid as error:
        raise agent_failed(request, argv[0], str(error)) from None
    except OSError as error:
        how = f"cannot be started ({error.strerror or error})"
        raise agent_failed(request, argv[0], how) from error


def agent_failed(request: AgentRequest, program: str, how: str, *, retriable: bool = False) -> AgentFailed:
    """Return the error of a program that did not do its work."""
    return AgentFailed(request.role.value, f"{program} {how}", retriable=retriable)


def plain(request: AgentRequest) -> dict[str, object]:
    """Return the JSON object that the program reads."""
    return {
        "role": request.role.value,
        **request.input,
        "key": request.key,
        "run_id": request.run_id,
        "again": request.again,
        "fault": request.fault,
        "notes": list(request.notes),
    }


_READERS: Final = frozenset((Role.REVIEWER, Role.CHECKER))
_SHOWN: Final = 500


class CodingAgent:
    """A coding agent, for any role of a Ralph loop.

    Args:
        agent: `claude`, `codex`, `gemini` or `opencode`, or a `CodingPreset` of the host.
        model: Name of the model as the program takes it; empty means the default of the program.
        permission: What planner, questioner and executor may do: `read`, `edit` (files of the folder) or `all` (any
            program, without a question). Reviewer and checker `read`, unless it is `all`.
        timeout: Maximum seconds of a call; 0 means no limit.
        max_turns, max_cost: Maximum requests to the model and US dollars of a call, for programs that enforce
            them; 0 is no limit.
        instructions: Text after the instructions of its role.
        arguments: Further arguments of the program, before those of the preset.
        folder: Working folder; the current one by default. It must contain the session.
        trusted: You trust the content of the folder. Gemini CLI checks this by itself; with True its check is off.
        env: Names or patterns of the variables of this process that the program gets, in addition to those of the
            preset and those that every program gets (PATH, HOME, the locale, proxies, certificates); `["*"]` is the
            whole environment.
        environment: Further variables with their values.

    Raises:
        ConfigError: An argument cannot work.

    Example:
        coder = CodingAgent("claude", model="sonnet", timeout=1800)
        await Ralph(coder, coder, CodingAgent("codex")).run("Add a health check")
    """

    currency: Final = "USD"
    """Currency of the costs that the programs report."""

    def __init__(
        self,
        agent: str | CodingPreset,
        *,
        model: str = "",
        permission: Permission = "edit",
        timeout: float = 0.0,
        max_turns: int = 0,
        max_cost: float = 0.0,
        instructions: str = "",
        arguments: Sequence[str] = (),
        folder: Path | str = ".",
        trusted: bool = False,
        env: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(agent, CodingPreset) and agent not in PRESETS:
            raise ConfigError(f"agent is {agent!r}; possible: {', '.join(PRESETS)}, or a CodingPreset")
        self.preset = agent if isinstance(agent, CodingPreset) else PRESETS[agent]
        if permission not in PERMISSIONS:
            raise ConfigError(f"permission is {permission!r}; possible: {', '.join(PERMISSIONS)}")
        if not (timeout >= 0 and math.isfinite(timeout)):
            raise ConfigError(f"timeout is {timeout!r}; it must be 0 (any time) or more seconds")
        for name, value in (("max_turns", max_turns), ("max_cost", max_cost)):
            if not is_amount(value):
                raise ConfigError(f"{name} is {value!r}; it must be 0 (no limit) or more")
            if value and name not in self.preset.limits:
                raise ConfigError(f"{self.preset.name} enforces no {name}; use timeout")
        if isinstance(arguments, str):
            raise ConfigError(f"arguments is {arguments!r}; give a list of words")
        self._call = CodingCall(
            permission=permission, model=model, max_turns=max_turns, max_cost=max_cost, trusted=trusted
        )
        self._timeout = timeout or None
        self._instructions = instructions
        self._arguments = tuple(arguments)
        self._folder = Path(folder)
        self.env = (*self.preset.env, *check_names(env))
        self._environment = dict(environment or {})

    def __repr__(self) -> str:
        return f"CodingAgent({self.preset.name!r})"

    async def __call__(self, request: AgentRequest) -> str:
        """Call the program for a request and return its answer. Raises AgentFailed, ConfigError."""
        last, rest, call = request.previous, request.remaining_cost, self._call
        if last is not None and not last.failed and last.agent == self.preset.name:
            call = replace(call, session=last.session)  # of the last call for the same work
        if request.role in _READERS and call.permission != "all":
            call = replace(call, permission="read")
        if rest is not None and "max_cost" in self.preset.limits:  # the rest of the run's, if that is less
            call = replace(call, max_cost=min(call.max_cost or rest, rest))
        ended = await self._run(request, call)
        if call.session is not None and self._did_nothing(ended):
            ended = await self._run(request, replace(call, session=None))
        answer = answer_of(self.preset, ended)
        if answer is None:
            said = last_words(ended.err) or last_words(ended.out)
            how = ended.how if ended.code else "printed output of an unknown form"
            raise self._failed(request, how + (f": {said}" if said else ""))
        model = answer.model or call.model
        request.spend(answer.usage, agent=self.preset.name, model=model, session=answer.session)
        if answer.error is not None:
            raise self._failed(request, f"failed: {answer.error[:_SHOWN]}", retriable=answer.retriable)
        return answer.text

    async def _run(self, request: AgentRequest, call: CodingCall) -> ProgramExit:
        return await run_agent_program(
            request,
            [self.preset.program, *self._arguments, *self.preset.arguments(call)],
            self._prompt(request).encode(),
            seconds=self._timeout,
            folder=self._folder,
            environment={
                **inherited(self.env),
                "PWD": str(self._folder.absolute()),  # as a shell sets it: OpenCode reads it
                **self.preset.variables(call),
                **self._environment,
            },
        )

    def _did_nothing(self, ended: ProgramExit) -> bool:
        """Return whether a program failed before it used a token, and would fail again in the same way."""
        answer = answer_of(self.preset, ended)
        if answer is None or answer.error is None:
            return answer is None and ended.code != 0
        return not (answer.retriable or answer.usage.input_tokens or answer.usage.output_tokens)

    def _prompt(self, request: AgentRequest) -> str:
        session, folder = Path(request.input["SESSION_PATH"]).absolute(), self._folder.absolute()
        if not session.is_relative_to(folder):
            raise ConfigError(f"the session {session} is outside of {folder}, where {self.preset.name} works")
        here = {**request.input, "SESSION_PATH": str(session.relative_to(folder))}
        parts = [
            ralph_prompt.instructions(request.role),
            self._instructions,
            ralph_prompt.rendered(replace(request, input=here)),
            instruction(OUTPUTS[request.role].model_json_schema()),
        ]
        return "\n\n".join(filter(None, parts))

    def _failed(self, request: AgentRequest, how: str, *, retriable: bool = False) -> AgentFailed:
        return agent_failed(request, self.preset.program, how, retriable=retriable)
