"""The namespace that persists between blocks, and the execution of a block in it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import importlib
import io
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from orchestrator.repl.inside.channel import MEMORY_EXIT, Channel

# ---- output ----


_MOST_PARTS = 10_000
"""Many short prints must not cost a list entry each."""


class Capture(io.TextIOBase):
    """Replaces both streams, so that their lines stay in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._kept = 0
        self.dropped = 0
        """Characters beyond the limit."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str, /) -> int:
        """Store text up to the limit."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        fits = text[: self._limit - self._kept]
        if fits:
            self._parts.append(fits)
            self._kept += len(fits)
            if len(self._parts) > _MOST_PARTS:
                self._parts = ["".join(self._parts)]
        self.dropped += len(text) - len(fits)
        return len(text)

    def text(self) -> str:
        """Return the stored text."""
        return "".join(self._parts)


# ---- built-ins ----


_TAKEN = (
    "eval",
    "exec",
    "compile",
    "input",
    "breakpoint",
    "help",
    "exit",
    "quit",
    "copyright",
    "credits",
    "license",
)


def offered(imports: Sequence[str], folder: str) -> dict[str, Any]:
    """Return the built-ins for code that may import `imports` and open files in `folder`."""
    found = {name: value for name, value in vars(builtins).items() if name not in _TAKEN}
    allowed = frozenset(imports)

    def limited_import(
        name: str,
        globals: dict[str, Any] | None = None,  # noqa: A002  the name of the built-in's parameter
        locals: dict[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        if level or name.partition(".")[0] not in allowed:
            raise ImportError(f"{name!r} cannot be imported here; these can: {', '.join(sorted(allowed))}")
        return importlib.__import__(name, globals, locals, fromlist, level)

    found["__import__"] = limited_import
    root = os.path.realpath(folder)

    def limited_open(file: Any, *args: Any, **options: Any) -> Any:
        path = os.path.realpath(os.path.join(root, os.fspath(file)))
        if os.path.commonpath((root, path)) != root:
            raise PermissionError(
                f"{os.fspath(file)!r} is outside the working folder; give a name without a path"
            )
        return io.open(path, *args, **options)  # noqa: UP020  not the replaced built-in

    found["open"] = limited_open
    return found


def preload(imports: Sequence[str]) -> None:
    """Import the allowed modules while their linked libraries can still be loaded."""
    for name in imports:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


# ---- the namespace ----


RESERVE = 8 * 1024 * 1024
"""Bytes kept in reserve, so that a block that used all memory can still be reported."""
ERROR_CHARS = 8_000
_OURS = os.path.dirname(__file__) + os.sep


class QueryError(RuntimeError):
    """A question got no answer. `answers` has the answers of the others, and None for each failed one."""

    def __init__(self, message: str, answers: Sequence[str | None] = ()) -> None:
        super().__init__(message)
        self.answers = list(answers)


class ReplNamespace:
    """One namespace."""

    def __init__(self, channel: Channel, config: dict[str, Any], context: Any) -> None:
        self._channel = channel
        self._limits = config["limits"]
        self._blocks = 0
        self._final: str | None = None
        self._reserve: bytearray | None = bytearray(RESERVE)
        module = ModuleType("__repl__")
        sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up
        self._names = module.__dict__
        self._own: dict[str, Callable[..., Any]] = {
            "llm_query": self._query,
            "llm_query_batched": self._query_batched,
            "FINAL_VAR": self._final_var,
        }
        self._names |= {
            "__builtins__": offered(config["imports"], config["folder"]),
            "context": context,
            "RLM_DEPTH": config["depth"],
            "RLM_CORRELATION_ID": config["correlation_id"],
            "QueryError": QueryError,
            **self._own,
        }

    # ---- requests of the program ----

    def run(self, code: str) -> dict[str, Any]:
        """Run a block and return its result. Ends the process if its memory is used up."""
        self._blocks += 1
        self._final = None
        output = Capture(self._limits["output_chars"])
        error = None
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                # Run a block; an expression on its last line is printed, as in Python's own prompt.
                name = f"<block {self._blocks}>"
                lines = [line + "\n" for line in code.split("\n")]
                linecache.cache[name] = (len(code), None, lines, name)
                tree = ast.parse(code, name)
                last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, name, "exec"), self._names)  # noqa: S102  the purpose of a REPL
                if isinstance(last, ast.Expr):
                    value = ast.Expression(last.value)
                    shown = eval(compile(value, name, "eval"), self._names)  # noqa: S307
                    if shown is not None:
                        print(repr(shown))  # noqa: T201
            except BaseException as raised:  # noqa: BLE001  SystemExit too: the model gets the error
                error = self._described(raised)
        final = self._final if error is None else None
        return {"stdout": output.text(), "dropped": output.dropped, "error": error, "final": final}

    def variable(self, name: str) -> dict[str, Any]:
        """Return the text of a variable, if it exists."""
        if name not in self._names or name in self._own or name.startswith("__"):
            return {"text": None}
        try:
            text = str(self._names[name])
        except MemoryError:
            raise
        except BaseException:  # noqa: BLE001  an object's own __str__ may raise anything
            return {"text": None}
        return {"text": text if len(text) <= self._limits["value_chars"] else None}

    # ---- running ----

    def _described(self, raised: BaseException) -> str:
        """Return the description of an exception."""
        if isinstance(raised, MemoryError):
            # Report that memory is used up; end the process if even the reserve cannot be allocated
            # again.
            self._reserve = None
            traceback.clear_frames(raised.__traceback__)
            raised.__traceback__ = None
            gc.collect()
            try:
                self._reserve = bytearray(RESERVE)
            except MemoryError:
                os._exit(MEMORY_EXIT)
            limit = self._limits["memory_bytes"] >> 20
            return f"MemoryError: the code may use {limit} MB in all; delete what is not needed, or take less at a time"
        if isinstance(raised, SystemExit):
            return "SystemExit: a block ends at its last line; exit() does nothing here"
        try:
            # The traceback of an exception without the frames of this package.
            told = traceback.TracebackException.from_exception(raised)
            chain: list[traceback.TracebackException | None] = [told]
            while chain:
                one = chain.pop()
                if one is not None:
                    one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_OURS)]
                    chain += [one.__cause__, one.__context__]
            text = "".join(told.format()).rstrip()
        except BaseException:  # noqa: BLE001  an exception's own __str__ may raise anything
            text = f"{type(raised).__name__} (it cannot be shown)"
        if len(text) <= ERROR_CHARS:
            return text
        return f"{type(raised).__name__[:50]}, of which the end is: …{text[-ERROR_CHARS:]}"

    # ---- requests of the code ----

    def _query(self, prompt: str) -> str:
        """Ask a model and return its answer."""
        (answer,) = self._ask_host([prompt], "llm_query takes one prompt, as text")
        return answer

    def _query_batched(self, prompts: Sequence[str]) -> list[str]:
        """Ask many prompts at once, and return the answers in the same order."""
        if isinstance(prompts, str):
            raise TypeError("llm_query_batched takes a list of prompts")
        return self._ask_host(list(prompts), "llm_query_batched takes a list of prompts, each as text")

    def _ask_host(self, prompts: list[str], wrong: str) -> list[str]:
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise TypeError(wrong)
        if len(prompts) > self._limits["batch"]:
            raise ValueError(f"{len(prompts):,} prompts at once; at most {self._limits['batch']:,}")
        if sum(map(len, prompts)) > self._limits["query_chars"]:
            raise ValueError(
                f"the prompts of one call may have {self._limits['query_chars']:,} characters in all"
            )
        if not prompts:
            return []
        self._channel.send({"t": "query", "prompts": prompts})
        found = self._channel.receive()["answers"]
        failed = [said for is_answer, said in found if not is_answer]
        if failed:
            more = f" (and {len(failed) - 1} more of {len(found)})" if len(failed) > 1 else ""
            raise QueryError(failed[0] + more, [said if ok else None for ok, said in found])
        return [said for _, said in found]

    def _final_var(self, name: Any) -> str:
        """Set the answer: the name of a variable, or the value itself if it is not text."""
        if isinstance(name, str):
            if name not in self._names or name in self._own:
                known = sorted(one for one in self._names if not one.startswith("_") and one not in self._own)
                raise NameError(
                    f"FINAL_VAR takes the name of a variable; {name[:80]!r} is none of {', '.join(known)}"
                )
            name = self._names[name]
        text = str(name)
        if len(text) > self._limits["value_chars"]:
            raise ValueError(
                f"an answer of {len(text):,} characters; at most {self._limits['value_chars']:,}"
            )
        self._final = text
        return text
