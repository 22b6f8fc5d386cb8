"""The syntax trees of our modules, for the tests that read them: each source is parsed and walked once."""

from __future__ import annotations

import ast
import gc
from functools import cache


@cache
def tree(source: str) -> ast.Module:
    """Return the syntax tree of a source. All of them stay, so no search for garbage visits them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of the syntax tree of a source, the module first."""
    return tuple(ast.walk(tree(source)))
