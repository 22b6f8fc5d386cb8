"""Errors of tools: what is told about an exception, and whether it ends the run.

The model reads every exception of a tool as the result of the call, because it can often act on it: a file that does
not exist, a refused payment. A KeyError of the tool's own code is no such answer. The author of the tool has to see
it: so type, message, file and line are kept beside the result, and a tool or a run can end by it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, get_args

from orchestrator.errors import ConfigError, ToolRaised
from orchestrator.kernel.fact import ToolError
from orchestrator.kernel.redaction import scrub
from orchestrator.llm.message import encodable
from orchestrator.tools.spec import OnToolError, ToolSpec, function_of

if TYPE_CHECKING:
    from orchestrator.tools.result import ToolResult

ON_TOOL_ERROR: Final = "ORCHESTRATOR_ON_TOOL_ERROR"
"""Environment variable for runs and tools that do not say it; the pytest plugin sets it to `raise_bugs`."""

BUGS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
)
"""Exceptions that are a fault of the code rather than an answer for the model, with their subclasses."""

RAISED: Final[list[ToolError]] = []
"""Exceptions of tools in the present test, for the pytest plugin; empty unless ON_TOOL_ERROR is set."""
ENDED: Final[list[ToolError]] = []
"""Those of them that ended a run because ON_TOOL_ERROR says so, not the tool or the limits."""

_MOST: Final = 2_000
_OURS: Final = str(Path(__file__).parents[1]) + os.sep


def tool_error(spec: ToolSpec, error: BaseException, why: str) -> ToolError:
    """Return what is kept of an exception of a tool. `why` is its text.

    A group of exceptions is a bug if one of them is; its frame is that of the first. A tool of a server has no frame.
    """
    leaves = list(_leaves(error))
    traces = () if spec.kind == "mcp" else (one.__traceback__ for one in (*leaves, error))
    text = encodable(scrub(why))
    found = ToolError(
        spec.name,
        type(error).__name__,
        text if len(text) <= _MOST else f"{text[: _MOST - 1]}…",
        next(filter(None, (_frame_of(trace, spec.call) for trace in traces)), ""),
        any(isinstance(one, BUGS) for one in leaves),
        error,
    )
    if ON_TOOL_ERROR in os.environ:
        RAISED.append(found)
    return found


def raise_tool_error(
    results: Iterable[ToolResult | None],
    find: Callable[[str], ToolSpec | None],
    of_run: OnToolError | None = None,
) -> None:
    """Raise ToolRaised if an exception of a turn, whose calls all have their results, ends the run.

    Raises ConfigError for an environment variable with another word.
    """
    for error in [result.error for result in results if result is not None]:
        if error is None:
            continue
        spec = find(error.tool)
        if _ends_run(error, None if spec is None else spec.errors, of_run):
            raise ToolRaised(error) from error.error


def _ends_run(error: ToolError, own: OnToolError | None, of_run: OnToolError | None) -> bool:
    """Return whether an exception ends the run: the tool's own option counts before that of the run."""
    choice = own or of_run or os.environ.get(ON_TOOL_ERROR) or "return"
    if choice not in (words := get_args(OnToolError)):
        raise ConfigError(f"{ON_TOOL_ERROR} is {choice!r}; it must be one of: {', '.join(words)}")
    ends = choice == "raise" or (choice == "raise_bugs" and error.bug)
    if ends and not (own or of_run):
        ENDED.append(error)
    return ends


def traceback_of(error: ToolError) -> str:
    """Return the traceback as text, without the frames of this library; without an exception, one line."""
    if error.error is None:
        return f"{error}\n"
    told = traceback.TracebackException.from_exception(error.error)
    own = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
    told.stack = traceback.StackSummary.from_list(own or told.stack)
    return str(encodable("".join(told.format())))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in error.exceptions:
        yield from _leaves(one)


def _frame_of(trace: TracebackType | None, function: Callable[..., Any]) -> str:
    """Return file and line of the innermost frame in the file of the function, else in a file of the host."""
    code = getattr(function_of(function), "__code__", None)
    own = None if code is None else code.co_filename
    found = fallback = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        place = f"{os.path.basename(file)}:{trace.tb_lineno}"  # noqa: PTH119 - no path is made
        if file == own:
            found = place
        if not file.startswith(_OURS):
            fallback = place
        trace = trace.tb_next
    return found or fallback
