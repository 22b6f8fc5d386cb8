"""Options that go together become a command's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.spread import spread


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
