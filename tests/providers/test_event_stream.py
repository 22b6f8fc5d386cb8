from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.providers import reading
from orchestrator.providers.reading import EventDecoder, EventTooLarge, ServerSentEvent


def decoded(*chunks: bytes) -> list[ServerSentEvent]:
    decoder = EventDecoder()
    found = [event for chunk in chunks for event in decoder.feed(chunk)]
    return found + list(decoder.finish())


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [ServerSentEvent("", "a")]),
        (b"data:a\n\ndata:  b\n\n", [ServerSentEvent("", "a"), ServerSentEvent("", " b")]),
        (b"event: x\r\ndata: a\r\ndata: b\r\n\r\n", [ServerSentEvent("x", "a\nb")]),
        (b"data: a\r\rdata: b\r\r", [ServerSentEvent("", "a"), ServerSentEvent("", "b")]),
        (b": a comment\n\nid: 7\nretry: 3\n\ndata: a\n\n", [ServerSentEvent("", "a")]),
        (b"event: ping\n\ndata: a\n\n", [ServerSentEvent("", "a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [ServerSentEvent("", "a")]),
        (b"data\n\n", []),
        (b"data:\n\ndata: \r\n\r\nevent: ping\ndata:\n\ndata: a\n\n", [ServerSentEvent("", "a")]),
        (b"data:\ndata: a\n\n", [ServerSentEvent("", "\na")]),
        (b"error: {}\n\n", [ServerSentEvent("error", "{}")]),
        (b"data: a\nerror: b\n\n", [ServerSentEvent("", "a"), ServerSentEvent("error", "b")]),
        (b'{"a": 1}', [ServerSentEvent("", '{"a": 1}')]),
        (b'data: a\n\n[\n  {"data": 1\n', [ServerSentEvent("", "a"), ServerSentEvent("", '[\n  {"data": 1')]),
        (b'data: a\n{"b": 1}\n\ndata: c\n\n', [ServerSentEvent("", one) for one in ("a", '{"b": 1}', "c")]),
        (b"unknown: {}\nUnknown\n\n", []),
        (b"data: a\n", [ServerSentEvent("", "a")]),
        (b"data: a", []),
        (b"data: a\n\ndata: [DONE]", [ServerSentEvent("", "a"), ServerSentEvent("", "[DONE]")]),
        (b"data: a\r", [ServerSentEvent("", "a")]),
        ("data: \u2028 \x85 \x0b ü\n\n".encode(), [ServerSentEvent("", "\u2028 \x85 \x0b ü")]),
        (b"", []),
    ],
    ids=repr,
)
def test_events_are_read_as_the_standard_says(stream: bytes, events: list[ServerSentEvent]) -> None:
    assert decoded(stream) == events


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "x"]), st.text(st.characters(exclude_characters="\r\n", codec="utf-8"))
        )
    ),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_chunks_of_any_size_give_the_same_events(
    events: list[tuple[str, str]], end: str, sizes: list[int]
) -> None:
    text = "".join(f"event: {name}{end}data: {data}{end}{end}" for name, data in events).encode()
    chunks: list[bytes] = []
    at = 0
    while at < len(text):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(text[at : at + size])
        at += size
    assert decoded(*chunks) == [ServerSentEvent(name, data) for name, data in events if data.strip()]


def test_what_is_no_text_is_said_so() -> None:
    with pytest.raises(UnicodeDecodeError):
        decoded(b"data: \xff\n\n")


class CountingPattern:
    """Counts the bytes that are searched for line ends."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.searched = 0

    def split(self, chunk: bytes) -> list[bytes]:
        self.searched += len(chunk)
        return self._pattern.split(chunk)


@pytest.mark.parametrize("megabytes", [1, 2, 4, 8])
def test_each_byte_of_a_long_line_is_searched_once(megabytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = CountingPattern(reading._LINE_END)
    monkeypatch.setattr(reading, "_LINE_END", counting)
    stream = b"data: " + b"x" * (megabytes * 2**20) + b"\n\n"
    (event,) = decoded(*(stream[at : at + 1_400] for at in range(0, len(stream), 1_400)))
    assert len(event.data) == megabytes * 2**20
    assert counting.searched == len(stream)


@pytest.mark.parametrize(
    "stream",
    [
        b"data: " + b"x" * 100,  # a line that does not end
        b": " + b"x" * 100,  # a comment that does not end
        b"data: x\n" * 20,  # an event that does not end
        b"event: x\n" * 20,
    ],
    ids=["line", "comment", "event", "names"],
)
def test_an_event_beyond_the_limit_is_refused_before_it_ends(stream: bytes) -> None:
    decoder = EventDecoder(100)
    events = (event for at in range(len(stream)) for event in decoder.feed(stream[at : at + 1]))
    with pytest.raises(EventTooLarge, match="one event of the stream has more than 100 bytes"):
        list(events)


def test_the_limit_is_of_each_event_and_comments_count_for_none() -> None:
    stream = (b": keep-alive\nid: 1\ndata: " + b"x" * 94 + b"\n\n") * 3
    decoder = EventDecoder(100)
    assert [len(event.data) for event in decoder.feed(stream)] == [94, 94, 94]
    assert [len(event.data) for event in EventDecoder(0).feed(b"data: " + b"x" * 1_000 + b"\n\n")] == [1_000]
