"""Sampling requests of tools (`tools.sampling`): each is a child run of one turn, without tools and without memory.

The hooks of the agent see the request as they see every other one, and its limits on tokens and cost apply to both
runs. The child run asks once: a tool that wants a better answer samples again.
"""

# ruff: noqa: SLF001 - one class with agent.py

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import OUTPUT_LIMITS, Response, output_limit
from orchestrator.llm.port import check_params
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent_tool import ChildCall, member
from orchestrator.runtime.llm_loop.result import ANSWERED, Result
from orchestrator.runtime.llm_loop.run_options import RunSettings
from orchestrator.runtime.service.run_data import OPTIONS
from orchestrator.runtime.service.run_scope import here
from orchestrator.tools.sampling import SamplingRequest
from orchestrator_callbacks.llm_loop.deps import LoopDeps, LoopRun

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Agent
    from orchestrator.runtime.llm_loop.loop_service import LoopService

_DIGEST = 16
"""Characters of the digest in the id of a child run."""
_STOP = ("stop", "stop_sequences")


class RunSampler:
    """`ToolContext.sample` of one call."""

    __slots__ = ("_key", "_numbers", "_run_id")

    def __init__(self, run_id: str, key: str) -> None:
        self._run_id = run_id
        self._key = key
        self._numbers: dict[str, int] | None = None

    async def __call__(self, request: SamplingRequest, /) -> Response:
        """Run a sampling request, or read its recorded answer."""
        parent = here()
        if parent is None or parent.run.run_id != self._run_id:
            raise ConfigError(
                "a tool samples only inside the run that calls it; await context.sample in the call"
            )
        call = ChildCall(self._child_id(request), parent)
        agent, run = sampling_agent(parent.agent), parent.run
        messages = tuple(request.messages)
        result = await call.result(
            agent, messages, lambda _: _limits(run.ctx.limits), _settings(run, request)
        )
        return await _answer(agent._journal, result)

    def _child_id(self, request: SamplingRequest) -> str:
        """Return the id of the child run. Equal requests of a call are numbered in their order."""
        digest = request.digest[:_DIGEST]
        self._numbers = self._numbers or {}
        number = self._numbers[digest] = self._numbers.get(digest, 0) + 1
        return f"{self._run_id}:{self._key}:{digest}" + (f".{number}" if number > 1 else "")


def sampling_agent(agent: LoopService) -> Agent:
    """Return the agent of the sampling requests in the runs of `agent`."""
    key = agent, "sampling"
    if key not in agent._members:
        bare = cast("Agent", agent).replace(tools=(), output_type=None, memory=None, instructions=None)
        agent._members[key] = member(agent, bare)
    return cast("Agent", agent._members[key])


def _limits(limits: Limits) -> Limits:
    """Return the limits of a child run: one request with the limits of its parent on tokens, cost and time."""
    return replace(
        limits,
        max_iterations=1,
        completion_retries=0,
        wrap_up_turns=0,
        max_restarts=0,
        compaction_threshold=0.0,
    )


def _settings(run: LoopRun, request: SamplingRequest) -> RunSettings:
    """Return the options of a child run: the parameters of its parent, and those of the request."""
    params = dict((run.data or {}).get(OPTIONS, {}).get("params", {}))
    params |= sampling_params(run.deps, request)
    return RunSettings({OPTIONS: {"params": params}} if params else {}, run.deps.host, request.instructions)


def sampling_params(deps: LoopDeps, request: SamplingRequest) -> dict[str, Any]:
    """Return the parameters of a request under the names that the model has, as far as the host sets no others."""
    own, found = deps.params, dict[str, Any]()
    most = min(request.max_tokens, output_limit(own) or request.max_tokens)
    set_by_host = [name for name in OUTPUT_LIMITS if own.get(name)]
    if most > 0 and (name := _known(deps.llm, set_by_host or OUTPUT_LIMITS, most, "max_tokens")):
        found[name] = most
    if request.temperature is not None and "temperature" not in own:
        found |= _checked(deps.llm, {"temperature": request.temperature})
    if request.stop and (name := _known(deps.llm, _STOP, list(request.stop), "stop")):
        found[name] = list(request.stop)
    return found


def _known(llm: object, names: Iterable[str], value: object, usual: str) -> str:
    """Return the first name of a parameter that a model has; `usual` if it cannot check names, else empty."""
    names = tuple(names)
    if not callable(getattr(llm, "check_params", None)):
        return usual if usual in names else names[0]
    return next((name for name in names if _checked(llm, {name: value})), "")


def _checked(llm: object, params: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        check_params(llm, params)
    except ConfigError:
        return {}
    return params


async def _answer(journal: Journal, result: Result) -> Response:
    """Return the answer of an ended child run with its details. Raises RunStopped."""
    if result.outcome not in ANSWERED:
        result.raise_for_outcome()
    records = [record.body for record in await journal.load(result.run_id) if record.kind == "answer"]
    said = records[-1] if records else {}
    return Response(
        result.output,
        finish_reason=said.get("finish_reason"),
        usage=result.usage,
        model=said.get("model"),
    )
