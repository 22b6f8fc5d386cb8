"""The file tools of a model: its folder, all of it, and nothing outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.files.path_safety import FileRefused
from orchestrator.runtime.ralph.prompt_agent import file_tools


def tools(root: Path) -> dict[str, Any]:
    return {
        one.name: one
        for one in file_tools(root, lambda path, there: "it is mine" if path == "mine" else None)
    }


async def test_what_is_written_can_be_read_listed_and_changed(tmp_path: Path) -> None:
    use = tools(tmp_path)
    await use["write_file"]("src/deep/a.py", "x = 1\ny = 1\n")
    await use["write_file"]("b.txt", "b")
    assert await use["list_files"]() == ["b.txt", "src/deep/a.py"]
    assert await use["list_files"]("src") == ["src/deep/a.py"]
    await use["replace_in_file"]("src/deep/a.py", "x = 1", "x = 2")
    assert await use["read_file"]("src/deep/a.py") == "x = 2\ny = 1\n"
    with pytest.raises(ValueError, match="2 times"):
        await use["replace_in_file"]("src/deep/a.py", " = ", "==")
    with pytest.raises(FileNotFoundError, match="list_files says which there are"):
        await use["read_file"]("c.txt")


@pytest.mark.parametrize(("count", "more"), [(500, False), (501, True)])
async def test_a_listing_has_at_most_so_many_names_and_says_that_there_are_more(
    tmp_path: Path, count: int, *, more: bool
) -> None:
    for number in range(count):
        (tmp_path / f"{number:03}").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden").touch()
    listed = await tools(tmp_path)["list_files"]()
    assert listed[:500] == [f"{number:03}" for number in range(500)]
    assert listed[500:] == (["… (there are more; name a folder)"] if more else [])


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "link/out", "", "a/../../out"])
async def test_nothing_outside_is_reached(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "out").write_text("secret", encoding="utf-8")
    (root / "link").symlink_to(tmp_path)
    use = tools(root)
    with pytest.raises((FileRefused, OSError)):
        await use["read_file"](path)
    with pytest.raises((FileRefused, OSError)):
        await use["write_file"](path, "mine now")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "secret"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "root"]


async def test_what_is_barred_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("1", encoding="utf-8")
    for name, given in {"write_file": ("mine", "2"), "replace_in_file": ("mine", "1", "2")}.items():
        with pytest.raises(PermissionError, match="it is mine"):
            await tools(tmp_path)[name](*given)
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "1"
