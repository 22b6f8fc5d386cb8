"""The API reference: `make docs` writes it to build/docs, one page for each public namespace, with a search.

pdoc reads the docstrings. Public names are loaded late, so each is loaded first. The constructor of a dataclass
or a named tuple has annotations as text, which pdoc would read in the wrong module: they are resolved here.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pdoc
from pdoc.doc_types import safe_eval_type

NAMESPACES = (
    "orchestrator",
    "orchestrator.approval",
    "orchestrator.backtest",
    "orchestrator.events",
    "orchestrator.notification",
    "orchestrator.pipeline",
    "orchestrator.providers",
    "orchestrator.ralph",
    "orchestrator.rlm",
    "orchestrator.telemetry",
    "orchestrator.testing",
    "orchestrator_guards",
)


def main(folder: Path) -> None:
    """Write the pages. Raises the first warning of pdoc as an error."""
    for namespace in NAMESPACES:
        module = import_module(namespace)
        for name in module.__all__:
            _resolve(getattr(module, name))
    pdoc.render.configure(docformat="google", search=True, show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*NAMESPACES, output_directory=folder)


def _resolve(value: object) -> None:
    if not inspect.isclass(value):
        return
    if dataclasses.is_dataclass(value):
        written = value.__init__.__annotations__
    elif hasattr(value, "_fields"):
        written = getattr(value.__new__, "__annotations__", {})
    else:
        return
    for base in reversed(value.__mro__):
        module = sys.modules[base.__module__]
        for name, annotation in inspect.get_annotations(base).items():
            if name in written:
                text = getattr(annotation, "__forward_arg__", annotation)
                written[name] = safe_eval_type(text, vars(module), None, module, f"{base.__name__}.{name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
