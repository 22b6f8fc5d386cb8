"""The graph of code mode, with two additional edges on which a StoppingPolicy can end a run.

Model calls belong to the states that wait for the next event: INIT, SHALLOW_CALL and, after the code has run,
EXECUTING. PROMPTING only parses the reply. Therefore CodeExecuted leads back to PROMPTING, not to EXECUTING.
"""

from __future__ import annotations

from orchestrator.kernel.graph import Graph, bounding
from orchestrator.kernel.typed import StateMachine
from orchestrator.llm.message import Message
from orchestrator.machines.code_mode.model import (
    CodeBlocksFound,
    CodeExecuted,
    CodeModeContext,
    CodeModeEvent,
    CodeModeState,
    DepthExceeded,
    FinalAnswerFound,
)
from orchestrator.machines.rlm.model import (
    LLMResponseReceived,
    MaxIterationsReached,
    PolicyStop,
    reach_limit,
    stop,
    take_response,
)
from orchestrator.machines.rlm.table import guarded
from orchestrator_guards import Verdict, iterations

S = CodeModeState


@bounding
def may_continue(_event: CodeExecuted, ctx: CodeModeContext) -> Verdict:
    """Return whether there may be another turn after this one."""
    return iterations(ctx.iteration + 1, ctx.max_iterations)


def _take_blocks(event: CodeBlocksFound, ctx: CodeModeContext) -> None:
    ctx.blocks = event.blocks


def _take_results(event: CodeExecuted, ctx: CodeModeContext) -> None:
    """Complete the turn: add the results of the code and the model's response to them."""
    ctx.iteration += 1
    ctx.blocks, ctx.notice = (), ""
    if event.results:
        ctx.say(Message("user", "\n\n".join(event.results)))
    take_response(LLMResponseReceived(event.response, incomplete=event.incomplete), ctx)


def _keep_answer(event: FinalAnswerFound, ctx: CodeModeContext) -> None:
    ctx.final_answer = event.answer
    if event.is_value:
        ctx.incomplete = ""


def _finish_turn(event: FinalAnswerFound, ctx: CodeModeContext) -> None:
    ctx.iteration += 1
    _keep_answer(event, ctx)


def _answer_at_once(event: LLMResponseReceived, ctx: CodeModeContext) -> None:
    take_response(event, ctx)
    ctx.final_answer = event.response


def build_code_mode_machine() -> StateMachine[CodeModeState, CodeModeEvent, CodeModeContext]:
    """Return the machine of code mode. Build it once; run it with an event source and a context for each run."""
    machine: StateMachine[CodeModeState, CodeModeEvent, CodeModeContext]
    machine = StateMachine("code_mode", initial=S.INIT)
    for state in CodeModeState:
        machine.state(state)
    machine.terminal(S.DONE)
    machine.transition(S.INIT, DepthExceeded, S.SHALLOW_CALL)
    machine.transition(S.INIT, LLMResponseReceived, S.PROMPTING, action=take_response)
    machine.transition(S.SHALLOW_CALL, LLMResponseReceived, S.DONE, action=_answer_at_once)
    machine.transition(S.PROMPTING, CodeBlocksFound, S.EXECUTING, action=_take_blocks)
    machine.transition(S.PROMPTING, FinalAnswerFound, S.DONE, action=_keep_answer)
    machine.transition(S.PROMPTING, PolicyStop, S.DONE, action=stop)
    machine.transition(S.EXECUTING, FinalAnswerFound, S.DONE, action=_finish_turn)
    machine.transition(S.EXECUTING, CodeExecuted, S.PROMPTING, may_continue, _take_results)
    machine.transition(S.EXECUTING, MaxIterationsReached, S.DONE, action=reach_limit)
    machine.transition(S.EXECUTING, PolicyStop, S.DONE, action=stop)
    return machine


CODE_MODE: Graph = guarded(
    build_code_mode_machine(),
    {S.INIT: 600.0, S.SHALLOW_CALL: 600.0, S.PROMPTING: 60.0, S.EXECUTING: 3600.0},
    CodeModeContext,
)
