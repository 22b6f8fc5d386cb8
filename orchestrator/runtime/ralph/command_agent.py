"""A program as an agent of the ralph loop, such as the command line of a coding agent.

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
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.machines.ralph.fault import AgentFailed
from orchestrator.machines.ralph.ports import AgentRequest
from orchestrator.runtime.service.program import (
    ProgramExit,
    TooMuchSaid,
    check_names,
    inherited,
    last_words,
    run_program,
)

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
