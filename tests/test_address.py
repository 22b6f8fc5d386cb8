from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import Agent
from orchestrator.errors import ConfigError
from orchestrator.journal.address import JournalAddress, address_of, hidden
from orchestrator.settings import Settings
from orchestrator.testing import ScriptedLLM

SHOWN = [
    ("postgresql://me:secret@host:5432/db", "postgresql://me@host:5432/db"),
    ("postgres://me:secret@host/db?sslmode=require", "postgres://me@host/db?sslmode=require"),
    ("postgresql://host/db", "postgresql://host/db"),
    ("postgresql://me@host/db?password=secret&x=y", "postgresql://me@host/db?password=***&x=y"),
    ("postgresql:///db?host=/run&sslpassword=secret", "postgresql:///db?host=/run&sslpassword=***"),
    ("postgresql://me:sec@r/et@host/db", "postgresql://me@host/db"),
    ("host=h user=me password=secret dbname=db", "host=h user=me password=*** dbname=db"),
    (r"host=h password='sec ret\' more' dbname=db", "host=h password=*** dbname=db"),
]


@pytest.mark.parametrize(("secret", "shown"), SHOWN)
def test_an_address_shows_all_but_its_password(secret: str, shown: str) -> None:
    dsn = JournalAddress(secret)
    assert str(dsn) == shown
    assert repr(dsn) == f"JournalAddress({shown!r})"
    assert dsn.secret == secret
    assert hidden(f"it is {secret}", dsn) == f"it is {shown}"


@given(st.text(min_size=6).filter(lambda text: text.strip() == text and "\0" not in text))
def test_no_password_is_shown_however_it_is_written(password: str) -> None:
    try:
        escaped = quote(password, safe="")
    except UnicodeEncodeError:
        return
    dsn = JournalAddress(f"postgresql://USER:{escaped}@HOST/BASE")
    assert str(dsn) == "postgresql://USER@HOST/BASE"
    told = hidden(f"<{dsn.secret}> <{escaped}> <{password}>", dsn)
    assert told == "<postgresql://USER@HOST/BASE> <***> <***>"


def test_text_names_a_database_or_a_file() -> None:
    assert address_of("postgresql://host/db") == JournalAddress("postgresql://host/db")
    assert address_of("postgres://host/db") != JournalAddress("postgresql://host/db")
    assert address_of("host=h dbname=d password=secret") == JournalAddress("host=h dbname=d password=secret")
    assert address_of("some/journal.db") == Path("some/journal.db")
    assert address_of("a=b/journal.db") == Path("a=b/journal.db")
    assert address_of(Path("journal.db")) == Path("journal.db")
    assert address_of(JournalAddress("postgresql://host/db")) == JournalAddress("postgresql://host/db")
    assert (
        len(
            {
                JournalAddress("postgresql://a"),
                JournalAddress("postgresql://a"),
                JournalAddress("postgresql://b"),
            }
        )
        == 2
    )


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "mysql://me:secret@h/d",
        "jdbc:postgresql://me:secret@h/d",
        "sqlite:///x",
        Path("postgresql://me:secret@h/d"),
        "postgresql://me:one@secret@h/d",
        "postgresql://me:one/secret@h/d",
        JournalAddress("postgresql://me:one@secret@h/d"),
    ],
)
def test_what_is_neither_is_refused_without_repeating_it(bad: object) -> None:
    with pytest.raises(ConfigError) as refused:
        address_of(bad)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "good",
    [
        "postgresql:///d?user=a@b",
        "postgresql://me:a%40b%2F@h/d",
        "postgresql:///d?host=/run/pg",
        "postgresql://",
    ],
)
def test_what_libpq_reads_is_taken_as_it_is(good: str) -> None:
    assert address_of(good) == JournalAddress(good)


def test_an_agent_that_is_given_an_address_for_a_journal_is_told_what_to_give() -> None:
    with pytest.raises(ConfigError, match="PostgresJournal") as refused:
        Agent(ScriptedLLM([]), journal="postgresql://me:secret@h/d", observers=())  # type: ignore[call-overload]
    assert "secret" not in str(refused.value)


def test_the_settings_take_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.load().journal == Path(".orchestrator/journal.db")
    monkeypatch.setenv("ORCHESTRATOR_JOURNAL", "postgresql://me:secret@h/d")
    settings = Settings.load()
    assert settings.journal == JournalAddress("postgresql://me:secret@h/d")
    assert "secret" not in f"{settings!r} {settings}"
    monkeypatch.setenv("ORCHESTRATOR_JOURNAL", "mysql://me:secret@h/d")
    with pytest.raises(ConfigError, match="not mysql") as refused:
        Settings.load()
    assert "secret" not in str(refused.value)
