"""The work of a stage: check the budget, call the port, make its result durable, check the budget again.

An invalid result of a port fails the stage and the run. A plan or an implementation without a JSON form is not
invalid: the stage has run and must not be repeated, so a notice takes the place of its content, for the next stages
to read.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from orchestrator.errors import RunError
from orchestrator.kernel.cancellation import called
from orchestrator.kernel.fact import BudgetChecked
from orchestrator.kernel.run import Run
from orchestrator.llm.message import encodable
from orchestrator.llm.port import Clock
from orchestrator.machines.pipeline import progress
from orchestrator.machines.pipeline.model import (
    BudgetManager,
    Evaluation,
    Implementation,
    Issue,
    OrchestrationState,
    PipelineContext,
    PipelineEvent,
    PipelineLimits,
    Plan,
    Port,
    Rubric,
    Severity,
    StageRequest,
    StageResult,
    Validation,
)
from orchestrator.machines.pipeline.progress import Made
from orchestrator.machines.plain import plain_json
from orchestrator.telemetry.scope import logger_from_context
from orchestrator.tools.result import description_of, json_data, no_json_form, unreadable_notice
from orchestrator_guards import (
    Verdict,
    affordable,
    first_refusal,
    host_budget,
    iterations,
    refinements,
    tokens,
)
from orchestrator_guards.evaluation import given, row_of


@dataclass(slots=True, kw_only=True)
class PipelineDeps:
    """Handles of a pipeline, shared by its runs."""

    ports: Mapping[OrchestrationState, Port]
    """Working state -> its port."""
    clock: Clock
    budget: BudgetManager | None = None
    host: Any = None
    """The host's own handles: `StageRequest.deps`."""


PipelineRun: TypeAlias = Run[PipelineContext, PipelineDeps]


# ---- results of ports ----


class UnreadableContent(dict[str, Any]):
    """A notice in place of content without a JSON form, with type and start of the `repr` of the content."""


def read(stage: OrchestrationState, given: Any, rubric: Rubric) -> Made:
    """Return the result of a stage, with its content as plain data. Raises RunError with the fault."""
    found = _READERS[stage](given)
    if _number(found.tokens, "tokens", int) < 0:
        raise RunError(f"{stage.value} gave tokens {found.tokens}; it must be 0 or more")
    if isinstance(found, Evaluation):
        # Reject scores outside the scale, because they must not pass.
        for name, value in (("score", found.score), *found.categories.items()):
            if not 0 <= value <= rubric.top:
                raise RunError(f"judging gave {name} {value:g}; scores are from 0 to {rubric.top:g}")
    if isinstance(found, Plan | Implementation):
        return replace(found, content=_content(stage, found.content, given))
    try:
        plain_json(progress.plain(found))
    except ValueError as error:
        raise RunError(f"{stage.value} returned a value that cannot be stored as JSON: {error}") from None
    return found


def _content(stage: OrchestrationState, content: Any, given: Any) -> Any:
    """Return content as JSON types, which a resumed run has as well; a notice if it has no such form."""
    if content is None:
        raise RunError(f"{stage.value} returned nothing; it must return a result")
    try:
        return plain_json(json_data(_unwrapped(content) if content is given else content))
    except Exception as error:  # noqa: BLE001 - code of the content can raise anything
        notice = unreadable_notice("stage", "stage", no_json_form(content, error))
        return UnreadableContent(notice, returned=description_of(content))


def _unwrapped(given: Any) -> Any:
    """Return a pydantic model as a mapping."""
    dump = getattr(given, "model_dump", None)
    return dump(mode="json") if callable(dump) else given


def _plan(given: Any) -> Plan:
    return given if isinstance(given, Plan) else Plan(given)


def _implementation(given: Any) -> Implementation:
    return given if isinstance(given, Implementation) else Implementation(given)


def _validation(given: Any) -> Validation:
    found: Any = _unwrapped(given)
    tokens = 0
    if isinstance(given, Validation):
        found, tokens = given.issues, given.tokens
    elif isinstance(found, Mapping) and "issues" in found:
        found, tokens = found["issues"], _number(found.get("tokens", 0), "tokens", int)
    if not isinstance(found, list | tuple | set | frozenset | Iterator):
        raise RunError(f"validating gave {_kind(found)}; it must give a Validation or a list of issues")
    return Validation(tuple(map(_issue, found)), tokens)


def _issue(given: Any) -> Issue:
    if isinstance(given, Issue):
        return Issue(_severity(given.severity), _text(given.message), _text(given.where))
    if not isinstance(given, Mapping) or "message" not in given:
        raise RunError(f"validating gave an issue that is {_kind(given)}; it needs severity and message")
    return Issue(
        _severity(given.get("severity", "error")), _text(given["message"]), _text(given.get("where") or "")
    )


def _severity(given: Any) -> Severity:
    try:
        return Severity(given)
    except ValueError:
        known = ", ".join(Severity)
        raise RunError(f"validating gave an issue of severity {given!r}; allowed: {known}") from None


def _text(given: Any) -> str:
    return str(encodable(str(given)))


def evaluation_of(given: Any) -> Evaluation:
    """Return the evaluation that a judge gave, as an Evaluation or as a mapping. Raises RunError with the fault."""
    given = _unwrapped(given)
    if isinstance(given, Evaluation):
        return Evaluation(
            _number(given.score, "score", float),
            _scores(given.categories),
            _text(given.comments),
            given.tokens,
        )
    if not isinstance(given, Mapping) or "score" not in given:
        raise RunError(f"judging gave {_kind(given)}; it must give an Evaluation or a mapping with a score")
    return Evaluation(
        _number(given["score"], "score", float),
        _scores(given.get("categories") or {}),
        _text(given.get("comments") or ""),
        _number(given.get("tokens", 0), "tokens", int),
    )


def _scores(given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise RunError(f"judging gave categories that are {_kind(given)}; they must map names to scores")
    return {_text(name): _number(value, f"category {name}", float) for name, value in given.items()}


def _number(value: Any, name: str, kind: type[Any]) -> Any:
    wanted = int if kind is int else int | float
    if isinstance(value, bool) or not isinstance(value, wanted) or not math.isfinite(value):
        raise RunError(f"a stage gave {name} {value!r}; it must be a number")
    return kind(value)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


_READERS: Mapping[OrchestrationState, Callable[[Any], Made]] = {
    OrchestrationState.PLANNING: _plan,
    OrchestrationState.VALIDATING: _validation,
    OrchestrationState.IMPLEMENTING: _implementation,
    OrchestrationState.JUDGING: evaluation_of,
}


# ---- the work of a stage ----


_ESTIMATES: Mapping[OrchestrationState, Callable[[PipelineLimits], int]] = {
    OrchestrationState.PLANNING: lambda limits: limits.plan_tokens,
    OrchestrationState.VALIDATING: lambda limits: limits.validate_tokens,
    OrchestrationState.IMPLEMENTING: lambda limits: limits.implement_tokens,
    OrchestrationState.JUDGING: lambda limits: limits.judge_tokens,
}


async def work(run: PipelineRun, decide: Callable[[PipelineContext], PipelineEvent]) -> PipelineEvent:
    """Execute the stage of the current state and return the event that `decide` chooses, or budget_exhausted.

    A stage with a record from before a crash is not executed again. No budget is checked after an approval, because
    approved work causes no further cost.
    """
    ctx = run.ctx
    if not is_done(run):
        if not await _goes_on(run, _ahead(run, OrchestrationState(run.state))):
            return PipelineEvent.BUDGET_EXHAUSTED
        await _run_stage(run)
    event = decide(ctx)
    if event is PipelineEvent.APPROVED or await _goes_on(run, _behind(ctx, event)):
        return event
    return PipelineEvent.BUDGET_EXHAUSTED


def is_done(run: PipelineRun) -> bool:
    """Return whether the stage of this visit has ended with a result."""
    done = done_here(run)
    return done is not None and not done.error


def done_here(run: PipelineRun) -> StageResult | None:
    """Return the end of this visit's stage, also if it raised; None if no stage was executed."""
    done = run.ctx.done
    return done if done is not None and done.seq == run.seq else None


# ---- budgets ----


def _ahead(run: PipelineRun, state: OrchestrationState) -> list[Verdict]:
    """Evaluate the budget before a stage: the rest must cover its estimate with a margin."""
    ctx = run.ctx
    if ctx.remaining is None:
        return []
    limits = ctx.limits
    refines = state is OrchestrationState.IMPLEMENTING and ctx.refining
    estimate = limits.refine_tokens if refines else _ESTIMATES[state](limits)
    if not estimate:
        return []
    inputs = ctx.remaining, estimate, limits.headroom
    verdict = affordable(*inputs)
    run.attach_guards((given(verdict, affordable, *inputs),))
    return [verdict]


def _behind(ctx: PipelineContext, event: PipelineEvent) -> list[Verdict]:
    """Evaluate the budgets after a stage; a limit with a guard on the next edge is only published here."""
    limits = ctx.limits
    verdicts = [tokens(ctx.tokens, limits.token_budget)] if limits.token_budget else []
    if event is PipelineEvent.SOFT_FAILURE:
        verdicts.append(refinements(ctx.refinements, limits.max_refinements))
    elif event in (PipelineEvent.PLAN_INVALID, PipelineEvent.HARD_FAILURE):
        verdicts.append(iterations(ctx.iteration, limits.max_iterations))
    return verdicts


_COUNTS = ("iterations", "refinements")


async def _goes_on(run: PipelineRun, verdicts: list[Verdict]) -> bool:
    """Evaluate the host's budget as well, publish all verdicts, and keep a refusal that ends the run."""
    budget = run.deps.budget
    if budget is not None:
        said = budget.is_exhausted()
        exhausted = await said if inspect.isawaitable(said) else said
        verdicts = [host_budget(int(bool(exhausted))), *verdicts]
    if not verdicts:
        return True
    run.attach_guards([row_of(one) for one in verdicts if one.guard != "affordable"])  # it has its row
    run.emit(BudgetChecked(run.graph.name, run.run_id, run.cursor.state, run.ctx.iteration, verdicts))
    refusal = first_refusal(one for one in verdicts if one.guard not in _COUNTS)
    if refusal is not None:
        run.ctx.verdict = refusal
    return refusal is None


# ---- the port ----


async def _run_stage(run: PipelineRun) -> None:
    """Call the port and apply its result, which is durable before any other call outside."""
    ctx, state = run.ctx, OrchestrationState(run.state)
    request = StageRequest(
        stage=state,
        spec=ctx.spec,
        iteration=ctx.iteration,
        refinement=ctx.refinements,
        feedback=progress.for_stage(ctx.feedback, state),
        plan=ctx.plan,
        validation=ctx.validation,
        implementation=ctx.implementation,
        evaluation=ctx.evaluation,
        remaining_tokens=ctx.remaining,
        key=f"{run.run_id}:{state.value}:{run.seq}",
        run_id=run.run_id,
        deps=run.deps.host,
    )
    try:
        made = read(state, await called(run.deps.ports[state], request, state.value), ctx.rubric)
    except Exception as error:
        ctx.fault = "stage_error"
        _take(run, None, StageResult(run.seq, sum(request.used), type(error).__name__))
        raise
    except asyncio.CancelledError:
        if request.used and run.control.halted:  # otherwise the process that resumes it counts
            _take(run, None, StageResult(run.seq, sum(request.used), "CancelledError"))
        raise
    if isinstance(getattr(made, "content", None), UnreadableContent):
        logger_from_context().warning("stage.result_unreadable", state=state.value, iteration=ctx.iteration)
    used = made.tokens + sum(request.used)
    _take(run, replace(made, tokens=used), StageResult(run.seq, used))
    await run.settle()


def _take(run: PipelineRun, made: Made | None, done: StageResult) -> None:
    progress.take(run.ctx, done, made)
    body = progress.record(OrchestrationState(run.state), run.ctx, made)
    run.note("stage", body | {"at": run.deps.clock.time()})
