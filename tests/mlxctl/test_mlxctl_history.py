"""Hit rates as a line."""

from __future__ import annotations

from mlxctl.history import HitRates


def reading(hits: int, lookups: int) -> dict[str, int]:
    return {"hits": hits, "lookups": lookups, "snapshot_hits": 0, "snapshot_lookups": 0}


def test_each_interval_has_its_own_rate_and_none_is_a_gap():
    rates = HitRates()
    for hits, lookups in ((5, 10), (5, 20), (10, 25), (10, 25), (11, 27)):
        rates.add(reading(hits, lookups))
    assert rates.line(encoding="utf-8") == "▁█ ▅"
    assert rates.line(encoding="ascii") == "_@ +"


def test_a_daemon_that_was_started_anew_begins_anew():
    rates = HitRates()
    for hits, lookups in ((5, 10), (0, 0), (1, 1)):
        rates.add(reading(hits, lookups))
    assert rates.line(encoding="utf-8") == "█"


def test_only_the_last_intervals_are_drawn():
    rates = HitRates(cells=3)
    for n in range(9):
        rates.add(reading(n, n))
    assert rates.line(encoding="utf-8") == "███"
