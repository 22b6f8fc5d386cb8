"""Options that go together become a command's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.spread import spread
from tests.cli.conftest import Cli, whole_program


@dataclass(frozen=True, kw_only=True)
class Size:
    wide: Annotated[int, typer.Option(help="Columns.")] = 80
    high: Annotated[int | None, typer.Option(help="Rows.")] = None


@dataclass(frozen=True, kw_only=True)
class Ink:
    colour: Annotated[str, typer.Option("--colour", "-c", help="Its name.")] = "black"


@pytest.fixture
def drawn() -> list[Any]:
    return []


@pytest.fixture
def app(drawn: list[Any]) -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @spread
    def draw(
        file: Annotated[str, typer.Argument()],
        *,
        size: Size,
        twice: Annotated[bool, typer.Option("--twice")] = False,
        ink: Ink,
    ) -> None:
        """Draw a file."""
        drawn.append((file, size, twice, ink))

    return app


def test_the_members_stand_in_the_place_of_the_parameter(app: typer.Typer) -> None:
    said = CliRunner().invoke(app, ["--help"]).output
    assert "Draw a file." in said
    places = [said.index(name) for name in ("--wide", "--high", "--twice", "--colour")]
    assert places == sorted(places)
    assert "--size" not in said


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["a"], ("a", Size(), False, Ink())),
        (["a", "--high", "3", "-c", "red", "--twice"], ("a", Size(high=3), True, Ink(colour="red"))),
    ],
)
def test_the_command_gets_them_back_together(
    app: typer.Typer, drawn: list[Any], arguments: list[str], found: tuple[Any, ...]
) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert drawn == [found]


def test_a_value_that_does_not_fit_is_refused_as_any_other(app: typer.Typer, drawn: list[Any]) -> None:
    done = CliRunner().invoke(app, ["a", "--wide", "much"])
    assert (done.exit_code, drawn) == (2, [])
    assert "--wide" in done.output


# ---- dataclasses that are made of others ----


@dataclass(frozen=True, kw_only=True)
class Paper(Size):
    kind: Annotated[str, typer.Argument()]
    inks: Annotated[tuple[str, ...], typer.Option("--ink")] = ()
    ink: Ink


def test_members_of_bases_and_of_dataclasses_in_them_are_options_too_and_a_tuple_is_one_that_repeats() -> (
    None
):
    app, drawn = typer.Typer(rich_markup_mode=None), []

    @app.command()
    @spread
    def draw(paper: Paper) -> int:
        drawn.append(paper)
        return 3

    run = CliRunner().invoke(app, ["thin", "--ink", "red", "--ink", "blue", "--high", "2", "-c", "green"])
    assert run.exit_code == 3
    assert drawn == [Paper(kind="thin", inks=("red", "blue"), high=2, ink=Ink(colour="green"))]
    CliRunner().invoke(app, ["thick"])
    assert drawn[1] == Paper(kind="thick", ink=Ink())
    said = CliRunner().invoke(app, ["--help"]).output
    places = [said.index(name) for name in ("--ink", "--colour", "--wide", "--high", "--trust")]
    assert places == sorted(places)


def test_the_help_of_each_command_fits_on_one_line_of_80_columns_in_the_list_of_its_group(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lists(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        yield path
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from lists(command, (*path, name))

    monkeypatch.setenv("COLUMNS", "80")
    for path in lists(whole_program()):
        said = cli(*path, "--help").out
        listed = said.partition("Commands:")[2].partition("Exit codes")[0]
        assert listed.strip(), path
        assert [line for line in listed.splitlines() if line.endswith("...")] == [], path
