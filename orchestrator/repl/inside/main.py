"""Run the worker: read the configuration, close the locks, report which locks hold, then serve blocks until its end.

Each lock is tried and its failure recorded: the program decides whether the remaining ones suffice. Locks that need
privileges precede those that drop them. The filter of system calls is last, because it refuses the calls of the
  others:
    root left · namespaces · own file tree · fork · limits · no new privileges · capabilities · landlock · filter
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

from orchestrator.repl.inside import lock
from orchestrator.repl.inside.channel import CPU_EXIT, MEMORY_EXIT, Channel
from orchestrator.repl.inside.session import ReplNamespace, preload

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_ZONES = "/usr/share/zoneinfo"


class SandboxLocks:
    """Tries one lock after the other."""

    def __init__(self, is_allowed: list[str]) -> None:
        self._allowed = is_allowed
        self.found: dict[str, tuple[bool, str]] = {}
        """Name of the lock -> whether it holds, and its description."""

    def __call__(self, name: str, close: Callable[..., str], *arguments: Any) -> None:
        """Close a lock if it is requested."""
        if name in self._allowed:
            self.always(name, close, *arguments)
        else:
            self.found[name] = (False, "not asked for")

    def always(self, name: str, close: Callable[..., str], *arguments: Any) -> None:
        """Close a lock, requested or not."""
        try:
            self.found[name] = (True, close(*arguments))
        except (OSError, ValueError, AttributeError) as error:
            self.found[name] = (False, str(error))

    def holds(self, name: str) -> bool:
        """Return whether a lock is closed."""
        return self.found.get(name, (False, ""))[0]

    def is_allowed(self, name: str) -> bool:
        """Return whether a lock is requested."""
        return name in self._allowed


def main() -> None:
    """Run the worker. Standard input and output are the two ends of the channel."""
    channel = Channel(os.dup(0), os.dup(1))
    config = channel.receive()
    preload(config["imports"])
    locks = SandboxLocks(config["locks"])
    # The files of the host that Python needs.
    paths = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
    readable = [*sorted(os.path.realpath(path) for path in paths), _ZONES, *_DEVICES]
    # Give up root and enter namespaces, both or neither.
    lock.be_first_to_go()
    if os.geteuid() == 0:
        needed = [path for path in readable if os.path.isdir(path) and path != _ZONES]
        locks("other_user", lock.leave_root, config["user"], config["folder"], needed)
    else:
        locks.found["other_user"] = (True, f"user {os.geteuid()}, as the program")
    for name in lock.FLAGS:
        locks.found[name] = (False, "not asked for")
    if wanted := [name for name in lock.FLAGS if locks.is_allowed(name)]:
        try:
            lock.enter(wanted)
            entered = (True, "own")
        except (OSError, AttributeError) as error:
            entered = (False, str(error))
        locks.found |= dict.fromkeys(wanted, entered)
    if locks.holds("mount_namespace"):
        limits = config["limits"]
        locks("file_tree", lock.own_tree, config["folder"], readable, limits["disk_bytes"], limits["files"])
    else:
        locks.found["file_tree"] = (False, "needs a mount namespace")
    _become_worker(locks, channel, config["limits"]["session_cpu_seconds"])
    _lock_up(locks, config, readable)
    channel.send({"t": "hello", "locks": locks.found})
    # Disconnect the standard streams: output of the code uses sys.stdout.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    try:
        serve(channel, ReplNamespace(channel, config, channel.receive()["context"]))
    except MemoryError:
        os._exit(MEMORY_EXIT)
    except EOFError:
        os._exit(0)


def _become_worker(locks: SandboxLocks, channel: Channel, cpu_seconds: int) -> None:
    """Fork into the new process namespace, if there is one; the first process only waits for the second."""
    locks("dies_with_program", lock.die_with_parent)
    if not locks.holds("pid_namespace"):
        return
    worker = os.fork()
    if not worker:
        locks("dies_with_program", lock.die_with_parent)
        return
    channel.send({"t": "born", "pid": worker})
    channel.close()
    for number in range(3):
        os.close(number)
    _, status, used = os.wait4(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL and used.ru_utime + used.ru_stime >= cpu_seconds - 1:
        os._exit(CPU_EXIT)
    os._exit(code if code >= 0 else 128 - code)


def _lock_up(locks: SandboxLocks, config: dict[str, Any], readable: list[str]) -> None:
    """Close the locks that are closed from inside."""
    os.chdir(config["folder"])
    locks("limits", lock.set_limits, config["limits"])
    if sys.platform != "linux":
        locks("no_processes", lock.forbid_processes)
        return
    locks.always("no_new_privileges", lock.forbid_privileges)  # landlock and the filter need it
    locks("no_capabilities", lock.drop_capabilities)
    locks("landlock", lock.limit_files, config["folder"], readable)
    locks("no_processes", lock.forbid_processes)
    locks("seccomp", lock.limit_calls)


def serve(channel: Channel, session: ReplNamespace) -> None:
    """Answer frames until the program ends. Raises EOFError then."""
    channel.send({"t": "ready"})
    while True:
        frame = channel.receive()
        if frame["t"] == "run":
            channel.send({"t": "done", "n": frame["n"], **session.run(frame["code"])})
        else:
            channel.send({"t": "done", "n": frame["n"], **session.variable(frame["name"])})


if __name__ == "__main__":
    main()
