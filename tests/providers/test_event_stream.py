from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.providers.event_stream import Event, EventDecoder


def decoded(*chunks: bytes) -> list[Event]:
    decoder = EventDecoder()
    found = [event for chunk in chunks for event in decoder.feed(chunk)]
    return found + list(decoder.finish())


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [Event("", "a")]),
        (b"data:a\n\ndata:  b\n\n", [Event("", "a"), Event("", " b")]),
        (b"event: x\r\ndata: a\r\ndata: b\r\n\r\n", [Event("x", "a\nb")]),
        (b"data: a\r\rdata: b\r\r", [Event("", "a"), Event("", "b")]),
        (b": a comment\n\nid: 7\nretry: 3\n\ndata: a\n\n", [Event("", "a")]),
        (b"event: ping\n\ndata: a\n\n", [Event("", "a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event("", "a")]),
        (b"data\n\n", [Event("", "")]),
        (b"data: a\n", [Event("", "a")]),
        (b"data: a", []),
        (b"data: a\n\ndata: [DONE]", [Event("", "a"), Event("", "[DONE]")]),
        (b"data: a\r", [Event("", "a")]),
        ("data: \u2028 \x85 \x0b ü\n\n".encode(), [Event("", "\u2028 \x85 \x0b ü")]),
        (b"", []),
    ],
    ids=repr,
)
def test_events_are_read_as_the_standard_says(stream: bytes, events: list[Event]) -> None:
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
    assert decoded(*chunks) == [Event(name, data) for name, data in events]


def test_what_is_no_text_is_said_so() -> None:
    with pytest.raises(UnicodeDecodeError):
        decoded(b"data: \xff\n\n")
