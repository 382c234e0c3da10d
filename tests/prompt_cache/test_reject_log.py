"""The closed list of refusals and its counters."""

from __future__ import annotations

import dataclasses

from mlxceld.prompt_cache.rejects import LastReject, RejectLog, RejectReason
from mlxceld.telemetry.cache_stats import CacheStats


def test_every_reason_starts_at_zero_without_a_last_one():
    log = RejectLog(lambda: 5)
    assert log.counts == dict.fromkeys(RejectReason, 0)
    assert log.last is None
    assert log.insert_rejects == 0


def test_recording_moves_one_counter_and_replaces_the_last():
    log = RejectLog(lambda: 5)
    log.record(RejectReason.EMPTY_SET, seq_id=1, context_len=10, donation=True)
    log.record(RejectReason.MODE_MISMATCH, seq_id=None, context_len=20, donation=False)
    assert {reason: n for reason, n in log.counts.items() if n} == {
        RejectReason.EMPTY_SET: 1,
        RejectReason.MODE_MISMATCH: 1,
    }
    assert log.last == LastReject(RejectReason.MODE_MISMATCH, None, 20, 5)
    assert log.insert_rejects == 1


def test_every_reason_has_its_published_field_and_no_other_has_one():
    fields = {f.name for f in dataclasses.fields(CacheStats) if f.name.startswith("reject_")}
    assert fields == {f"reject_{reason.value}" for reason in RejectReason}
