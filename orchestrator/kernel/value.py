"""Values: dataclasses that are frozen for type checkers only, because a turn makes dozens of them.

At run time each field of a frozen dataclass is set through `object.__setattr__`, which costs four times as much. Type
checkers still reject an assignment, and code that inspects the class sees a frozen one: equality, hash, snapshots and
fingerprints are those of a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    import dataclasses

    def value(*, frozen: bool, slots: bool, **options: bool) -> Any:
        """Make a dataclass whose values do not change; options are those of `dataclass`."""
        if not frozen:
            raise TypeError("a value is frozen")

        def make(cls: type) -> type:
            made: Any = dataclasses.dataclass(slots=slots, unsafe_hash=True, **options)(cls)
            made.__dataclass_params__.frozen = True
            return made

        return make


__all__ = ["value"]
