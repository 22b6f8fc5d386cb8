"""Loaded by the generator of the site: what the reference shows of an object.

The section `Example:` of a docstring is one of code, as `Examples:` is. A value with an internal name is left out.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Rename the section, which the generator would show as a note with the prompts as quotations; drop such values."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Remove the value of an attribute that was read."""
        if re.search(r"\b_[a-z]", str(attr.value)):
            attr.value = None
