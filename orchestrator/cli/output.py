"""The output of the command line: its two streams, which escape every text, and drawings as files.

`escape_streams` replaces both streams of the whole process by an `EscapingStream`, so that the output of print, click,
logging, warnings and tracebacks is escaped as well. Only `StyledText`, made here, keeps its control sequences.
"""

from __future__ import annotations

import io
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, redirect_stdout, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, TextIO, cast

from orchestrator.errors import ConfigError
from orchestrator.telemetry.escape import KEPT, escape

_SHOW_CURSOR = b"\x1b[?25h"


class TextColor(StrEnum):
    """Styles of texts, as codes of the terminal."""

    ADDED = "32"
    REMOVED = "31"
    PLACE = "36"
    HEAD = "1"
    WARNING = "1;31"
    HIDDEN = "7"
    FAINT = "2"


class StyledText(str):
    """A text that is already escaped and contains our own control sequences. Only this module makes one.

    Any operation on it, such as an f-string, returns a plain `str`, whose control sequences are escaped again.
    """

    __slots__ = ()


class _Wrapper(io.TextIOBase):
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the wrapped stream."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The error handler of the wrapped stream for characters that its encoding lacks."""
        return self.stream.errors

    def reconfigure(self, **options: Any) -> None:
        """Change encoding, errors or buffering of the wrapped stream."""
        cast("io.TextIOWrapper", self.stream).reconfigure(**options)

    def fileno(self) -> int:
        """Return the descriptor of the wrapped stream."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """Whether the wrapped stream is a terminal."""
        return _is_terminal(self.stream)

    def writable(self) -> bool:
        """Return True."""
        return True

    def flush(self) -> None:
        """Flush the wrapped stream."""
        self.stream.flush()

    def close(self) -> None:
        """Leave the wrapped stream open: it belongs to the process."""


class EscapingStream(_Wrapper):
    """A text stream that escapes all that is written to it, except `StyledText` text."""

    @property
    def buffer(self) -> io.BufferedIOBase:
        """A stream of bytes for code that writes bytes; they are escaped as well."""
        return _Bytes(self)

    def write(self, text: str) -> int:
        """Write a text. Raises the errors of the wrapped stream."""
        return self.stream.write(text if isinstance(text, StyledText) else escape(text))


class _Bytes(io.BufferedIOBase):
    def __init__(self, stream: EscapingStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Leave the stream open, also when this object is garbage: a closed one cannot be flushed."""


class _StyledFile(_Wrapper):
    def write(self, text: str) -> int:
        """Write rendered text. Raises the errors of the wrapped stream."""
        return self.stream.write(StyledText(text))


def _is_terminal(stream: TextIO) -> bool:
    """Whether the file of a stream is a terminal; rich before 15 denies it for each stream that it wraps."""
    try:
        return os.isatty(stream.fileno())
    except (OSError, ValueError):  # not a file, or closed
        return stream.isatty()


def styled_file() -> TextIO:
    """Return standard output for a console, which must escape the texts that it renders."""
    return cast("TextIO", _StyledFile(sys.stdout))


def log_stream(stream: IO[bytes]) -> IO[bytes] | IO[str]:
    """Return the stream of log lines: a file unchanged, a terminal with escapes."""
    if not stream.isatty():
        return stream
    return cast(
        "TextIO", EscapingStream(io.TextIOWrapper(cast("io.BufferedWriter", stream), encoding="utf-8"))
    )


def escape_streams() -> None:
    """Escape everything that is written to standard output and standard error from now on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, EscapingStream):
            setattr(sys, name, EscapingStream(stream))


# ---- lines ----


def say(text: str = "") -> None:
    """Print a line and flush it. Raises BrokenPipeError if the reader has closed the pipe."""
    _put(sys.stdout, joined(text, "\n"))


def say_more(text: str) -> None:
    """Print a piece of a line and flush it. Raises as `say`."""
    _put(sys.stdout, joined(text))


def say_json(data: Any) -> None:
    """Print data as one line of JSON."""
    say(json_text(data))


def complain(sentence: str) -> None:
    """Print one sentence on stderr, on one line, in the words of the command line."""
    _put(sys.stderr, joined(f"orchestrator: {' '.join(in_words(sentence).split())}\n"))


def complain_more(label: str, text: str) -> None:
    """Print a detail of the previous sentence on stderr, on a separate line."""
    _put(sys.stderr, joined(f"  {label}: {text}\n"))


def _put(stream: TextIO, text: StyledText) -> None:
    stream.write(text)
    stream.flush()


def output_on_stderr() -> AbstractContextManager[object]:
    """Inside the block, write everything to standard error, so that standard output has the report alone."""
    return redirect_stdout(sys.stderr)


def show_cursor() -> None:
    """Show the cursor of the terminal again, without the buffer of the stream, which may be in use."""
    with suppress(OSError, ValueError):  # the terminal may be closed
        if _is_terminal(sys.stdout):
            os.write(sys.stdout.fileno(), _SHOW_CURSOR)


# ---- texts ----


def json_text(data: Any, *, indent: int | None = None) -> str:
    r"""Return data as JSON in printable ASCII: recorded text may contain lone surrogates or DEL."""
    return json.dumps(data, indent=indent).replace("\x7f", "\\u007f")


def in_words(text: str) -> str:
    """Return the text of an error of a model in the words of the command line, where it names arguments of Python."""
    return text.replace("the argument base_url", "--base-url").replace(" or the argument api_key", "")


def shown(text: str, most: int = 2_000, *, keep: str = KEPT) -> str:
    """Return a text escaped, tabs as blanks, cut at `most` characters."""
    safe = escape(text.replace("\t", "    "), keep)
    return safe if len(safe) <= most else f"{safe[:most]}… ({len(safe):,} characters)"


def painted(text: str, paint: str, *, colour: bool) -> str:
    """Return a text in its colour, a TextColor or another code of the terminal, or as it is."""
    return StyledText(f"\x1b[{paint}m{joined(text)}\x1b[0m") if colour and text else text


def joined(*parts: str) -> StyledText:
    """Return the concatenation of texts, each escaped except those with our own colours."""
    return StyledText("".join(part if isinstance(part, StyledText) else escape(part) for part in parts))


def visible(text: str, paint: TextColor | None = None, *, colour: bool = False) -> str:
    """Return one line, tabs as blanks; with `colour`, escapes are highlighted."""
    if not colour:
        return shown(text, sys.maxsize, keep="\t")
    return (
        painted(joined(*_pieces(text, paint)), paint, colour=True) if paint else joined(*_pieces(text, paint))
    )


def _pieces(text: str, paint: TextColor | None) -> Iterator[str]:
    for one in text.replace("\t", "    "):
        safe = escape(one, keep="")
        if safe == one:
            yield one
            continue
        yield (
            painted(safe, TextColor.HIDDEN, colour=True)
            if paint is None
            else StyledText(f"\x1b[0m{painted(safe, TextColor.HIDDEN, colour=True)}\x1b[{paint.value}m")
        )


def is_terminal() -> bool:
    """Whether standard output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def coloured() -> bool:
    """Whether standard output takes colour: a terminal, and no NO_COLOR is set (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def reader_is_gone() -> bool:
    """Return whether the reader of the output has closed it, without a write. A file has no reader."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return any(what & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, what in poller.poll(0))
    except (OSError, ValueError):  # not a stream of the system, but one of a test or of a host program
        return False


# ---- drawings as files ----

PICTURES = (".svg", ".png")


def check_picture(file: Path, *endings: str) -> None:
    """Raise ConfigError if no drawing can be written to a file of this name; `endings` are those of one format."""
    allowed = endings or PICTURES
    if file.suffix.lower() not in allowed:
        names = " or ".join(f"*{ending}" for ending in allowed)
        raise ConfigError(f"{file} has the ending {file.suffix!r}; a drawing is written to a file {names}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file} is in the folder {file.parent}, which does not exist; create it first")
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file")


def save_picture(file: Path, svg: str) -> None:
    """Write a drawing in the format of the file's ending; a file of that name is replaced.

    Raises ConfigError, MissingExtra or OSError.
    """
    from orchestrator.drawing.png import png  # few commands draw
    from orchestrator.files.atomic import atomic_write

    check_picture(file)
    atomic_write(file, png(svg) if file.suffix.lower() == ".png" else svg.encode())
