"""The trace's lines, its ring and its switch."""

from __future__ import annotations

import logging

from mlxceld.prompt_cache.key import session_hash, session_matches
from mlxceld.prompt_cache.trace import RING_EVENTS, Trace


def test_an_event_is_logged_only_while_enabled_and_kept_always(caplog):
    caplog.set_level(logging.INFO, logger="mlxceld.apc")
    trace = Trace(lambda: 12)
    trace.emit("adopt", session="secret", seq_id=3, matched_len=0, store="kv")
    assert caplog.messages == []
    trace.enabled = True
    trace.emit("reject", session="secret", context_len=9, reason="oversized", nbytes=4, store="kv")
    hashed = session_hash("secret")
    assert caplog.messages == [
        f"apc_event=reject session={hashed} context_len=9 reason=oversized bytes=4 store=kv"
    ]
    first, second = trace.tail(10)
    assert first.line() == f"apc_event=adopt seq_id=3 session={hashed} matched_len=0 store=kv"
    assert (second.at_unix_ms, second.bytes) == (12, 4)


def test_the_ring_keeps_the_newest():
    trace = Trace(lambda: 0)
    for number in range(RING_EVENTS + 5):
        trace.emit("store", seq_id=number)
    tail = trace.tail(10_000)
    assert len(tail) == RING_EVENTS
    assert [event.seq_id for event in trace.tail(2)] == [RING_EVENTS + 3, RING_EVENTS + 4]
    assert trace.tail(0) == []


def test_a_session_is_named_by_its_key_or_its_hash_and_never_shown_raw():
    assert len(session_hash("k")) == 12
    assert session_hash("k") != session_hash("l")
    assert session_matches("k", "k")
    assert session_matches("k", session_hash("k"))
    assert not session_matches("k", "l")
    assert "\ud800" not in session_hash("\ud800")
