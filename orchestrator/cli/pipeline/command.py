"""A stage that is a program: the request as JSON on its standard input, the answer on its standard output.

The program is started without a shell, in the working directory, once for each execution of the stage. It reads
one JSON object with the members of the request: stage, spec, iteration, refinement, feedback (kind, text, iteration of
each), plan, validation, implementation, evaluation, remaining_tokens, key, run_id. Its output and its exit
code are the result:

    standard output    exit code   planner, implementer   validator                    judge
    JSON               0, or 1 *   the work               {"issues": [...]} or a list  {"score", "categories", …}
    text, or nothing   0           the text is the work   valid                        the best score
    half JSON, or a    0           the work               the stage failed             the stage failed
    number and its like
    text               1           the stage failed       each line is an error        the lowest score that is refined
    anything           any other   the stage failed       the stage failed             the stage failed

* 1 only for validator and judge. An object with only the members `content` and `tokens` is the work and its usage; the
answers of validator and judge may have `tokens` too. A stage that failed fails the run, with the end of its standard
error as the reason, so a validator that crashes approves nothing. A program that is cancelled, or takes longer than its
`timeout`, is killed with all its child processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import RunError
from orchestrator.machines.pipeline.model import (
    Evaluation,
    Implementation,
    Issue,
    OrchestrationState,
    Plan,
    Severity,
    Validation,
)
from orchestrator.machines.pipeline.ports import StageRequest
from orchestrator.machines.pipeline.rubric import Rubric
from orchestrator.runtime.service.program import TooMuchSaid, check_names, inherited, last_words, run_program

_MAKERS = {OrchestrationState.PLANNING: Plan, OrchestrationState.IMPLEMENTING: Implementation}


class StageFailed(RunError):
    """The program of a stage failed; the message contains how it ended."""


class CommandStage:
    """The program of one stage.

    `timeout` in seconds, 0 means no limit; `env` has the names or patterns of further variables that it gets.
    """

    def __init__(
        self,
        stage: OrchestrationState,
        argv: Sequence[str],
        *,
        timeout: float = 0.0,
        effect: str = "idempotent",
        env: Sequence[str] = (),
        rubric: Rubric,
    ) -> None:
        self.stage = stage
        self.argv = tuple(argv)
        self.effect = effect
        self.env = check_names(env)
        self._timeout = timeout or None
        self._rubric = rubric

    async def __call__(self, request: StageRequest) -> Any:
        """Execute the program for a request. Raises StageFailed, and OSError if it cannot be started."""
        code, out, err = await self._run(request)
        judged = self.stage in (OrchestrationState.VALIDATING, OrchestrationState.JUDGING)
        if code not in ((0, 1) if judged else (0,)):
            raise self._failed(f"ended with exit code {code}", err)
        text = out.decode(errors="replace").strip()
        data = _json(text)
        if isinstance(data, dict | list) or (data is not None and not judged):
            return self._typed(data)
        if judged and not code and (text[:1] in {"{", "["} or _is_json(text)):
            raise self._failed(
                "printed what is no answer of this stage", err
            )  # perhaps truncated: it approves nothing
        if self.stage == OrchestrationState.VALIDATING:
            return self._validation(code, text, err)
        if self.stage == OrchestrationState.JUDGING:
            return self._evaluation(code, text, err)
        return _MAKERS[self.stage](text)

    def _typed(self, data: Any) -> Any:
        made = _MAKERS.get(self.stage)
        if (
            made is not None
            and isinstance(data, Mapping)
            and "content" in data
            and data.keys() <= {"content", "tokens"}
        ):
            return made(data["content"], data.get("tokens", 0))
        return data

    def _validation(self, code: int, text: str, err: bytes) -> Validation:
        if not code:
            return Validation()
        return Validation(
            tuple(
                Issue(Severity.ERROR, line.strip())
                for line in self._said(text, err).splitlines()
                if line.strip()
            )
        )

    def _evaluation(self, code: int, text: str, err: bytes) -> Evaluation:
        if not code:
            return Evaluation(self._rubric.top, comments=text)
        return Evaluation(self._rubric.hard, comments=self._said(text, err))

    def _said(self, text: str, err: bytes) -> str:
        """Return the problems that the program found; without any output it has probably crashed."""
        if not text:
            raise self._failed("ended with exit code 1 and printed nothing", err)
        return text

    async def _run(self, request: StageRequest) -> tuple[int, bytes, bytes]:
        given = json.dumps(plain(request)).encode()
        try:
            return await run_program(
                self.argv, given, call=request.key, seconds=self._timeout, environment=inherited(self.env)
            )
        except TimeoutError:
            raise self._failed(f"took longer than {self._timeout:g} s", b"") from None
        except TooMuchSaid as error:
            raise self._failed(str(error), b"") from None

    def _failed(self, how: str, err: bytes) -> StageFailed:
        said = last_words(err)
        return StageFailed(f"{self.stage.value}: {self.argv[0]} {how}" + (f": {said}" if said else ""))


def plain(request: StageRequest) -> dict[str, Any]:
    """Return a StageRequest as plain data."""
    return {
        "stage": request.stage.value,
        "spec": request.spec,
        "iteration": request.iteration,
        "refinement": request.refinement,
        "feedback": [
            {"kind": one.kind.value, "text": one.text, "iteration": one.iteration} for one in request.feedback
        ],
        "plan": None if request.plan is None else request.plan.content,
        "validation": validation_json(request.validation),
        "implementation": None if request.implementation is None else request.implementation.content,
        "evaluation": evaluation_json(request.evaluation),
        "remaining_tokens": request.remaining_tokens,
        "key": request.key,
        "run_id": request.run_id,
    }


def validation_json(found: Validation | None) -> dict[str, Any] | None:
    """Return the findings of a validator as plain data."""
    if found is None:
        return None
    issues = [
        {"severity": one.severity.value, "where": one.where, "message": one.message} for one in found.issues
    ]
    return {"ok": found.ok, "issues": issues}


def evaluation_json(found: Evaluation | None) -> dict[str, Any] | None:
    """Return the evaluation of a judge as plain data."""
    if found is None:
        return None
    return {"score": found.score, "categories": dict(found.categories), "comments": found.comments}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json(text: str) -> Any:
    """Return JSON as data; None if it is invalid or null."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
