"""An agent of the ralph loop that is a program: any coding agent's command line.

It is started without a shell, once a call, in the folder that the work is done in. It reads one JSON object:

    role      planner, questioner, executor, reviewer or checker
    ...       the members of its input, under the seed's names: SESSION_PATH, MODE, TASK_ID, CONTEXT ...
    key       the same for this piece of work, however often it is asked for, by whichever process
    run_id    the run
    again     how often this was asked before because the answer could not be used; `fault` says why
    notes     what people said for everybody to know, oldest first

and prints the output of its role as JSON: alone, or after prose in a fenced block. An exit code other than 0, or more
time than it has, fails the call with the end of its standard error; it is then killed with all that it started. Exit
code 75 (EX_TEMPFAIL of sysexits.h) says that another try may well succeed, because of the network for instance: the
loop then waits and calls it again, as its RetryPolicy says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.machines.ralph.fault import AgentFailed
from orchestrator.machines.ralph.ports import AgentRequest
from orchestrator.runtime.service.program import TooMuchSaid, last_words, run_program

TRY_AGAIN = 75
"""Exit code of a program that could not do its work now."""


class CommandAgent:
    """One agent's program. `timeout` in seconds, 0 is any time; `folder` is where it works, by default the present one.

    `environment` is added to that of this process. Raises ConfigError for what cannot be started at all.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 0.0,
        folder: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(argv, str) or not argv or not all(isinstance(word, str) for word in argv):
            raise ConfigError(f"an agent's command is {argv!r}; give its words: ['python', 'agent.py']")
        if not timeout >= 0:  # `not >=` because NaN is nowhere
            raise ConfigError(f"timeout is {timeout!r}; it must be 0 (any time) or more seconds")
        self.argv = tuple(argv)
        self._timeout = timeout or None
        self._folder = None if folder is None else Path(folder)
        self._environment = None if environment is None else dict(environment)

    async def __call__(self, request: AgentRequest) -> str:
        """Let the program work on a request and return what it printed. Raises AgentFailed."""
        given = json.dumps(plain(request)).encode()
        try:
            ended = await run_program(
                self.argv,
                given,
                call=request.key,
                seconds=self._timeout,
                folder=self._folder,
                environment=self._environment,
            )
        except TimeoutError:
            raise self._failed(request, f"took longer than {self._timeout:g} s and was killed") from None
        except TooMuchSaid as error:
            raise self._failed(request, str(error)) from None
        except OSError as error:
            raise self._failed(request, f"cannot be started ({error.strerror or error})") from error
        if ended.code:
            said = last_words(ended.err)
            how = ended.how + (f": {said}" if said else "")
            raise self._failed(request, how, retriable=ended.code == TRY_AGAIN)
        return ended.out.decode(errors="replace")

    def _failed(self, request: AgentRequest, how: str, *, retriable: bool = False) -> AgentFailed:
        return AgentFailed(request.role.value, f"{self.argv[0]} {how}", retriable=retriable)


def plain(request: AgentRequest) -> dict[str, object]:
    """Return what a program reads."""
    return {
        "role": request.role.value,
        **request.input,
        "key": request.key,
        "run_id": request.run_id,
        "again": request.again,
        "fault": request.fault,
        "notes": list(request.notes),
    }
