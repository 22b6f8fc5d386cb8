"""Objects that a text names as `module:attribute`."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, GraphError


def imported(spec: str, what: str) -> Any:
    """Return the object that `module:attribute` names; modules in the working directory are found too.

    Raises ConfigError. A GraphError propagates: a strict graph with problems cannot be built.
    """
    module, _, attribute = spec.partition(":")
    if not module or not attribute:
        raise ConfigError(f"{what} {spec!r} is not of the form module:attribute")
    found = imported_module(module, what)
    for name in attribute.split("."):
        if not hasattr(found, name):
            near = get_close_matches(name, [one for one in dir(found) if not one.startswith("_")], n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{what} {spec!r}: {module} has no {attribute!r}{meant}")
        found = getattr(found, name)
    return found


def imported_module(name: str, what: str) -> Any:
    """Import a module. Raises as `imported`.

    The working directory is searched last, so that its files replace no installed package.
    """
    here = os.getcwd()  # noqa: PTH109 - sys.path holds text
    if here not in sys.path:
        sys.path.append(here)
    try:
        return import_module(name)
    except GraphError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            where = "in the working directory or among the installed packages"
            files = [one.stem for one in Path().glob("*.py")]
            near = get_close_matches(
                name, [*files, *(one.parent.name for one in Path().glob("*/__init__.py"))], n=1
            )
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{what}: there is no module {name!r} {where}{meant}") from error
        raise ConfigError(f"{what}: module {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what}: importing {name!r} raised {type(error).__name__}: {error}") from error
