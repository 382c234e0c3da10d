"""The scenarios' names, apart from the scenarios, so that the help of mlxctl stays quick."""

from __future__ import annotations

_BURSTS = ("shared_prefix_burst_cold", "shared_prefix_burst_warm")
_LEVELS = ("decode_1", "decode_2", "decode_4", "decode_8")

SCENARIOS = (
    *("idle", *_BURSTS, "seqshare", "multiturn", "churn", "agent_loop", "mixed"),
    *_LEVELS,
)
"""In the order in which they run."""

GROUPS = {"shared_prefix_burst": _BURSTS, "decode": _LEVELS}
"""Names that stand for several."""


def process_of(name: str) -> str:
    """What names the server process that a scenario runs in: its own, but for some."""
    return "decode" if name in _LEVELS else name
