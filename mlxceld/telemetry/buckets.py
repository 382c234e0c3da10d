"""The bucket bounds of every histogram, in one place, since dashboards depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_LATENCY = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
_STEP = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

BUCKETS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "time_to_first_token_seconds": _LATENCY,
        "inter_token_latency_seconds": _STEP,
        "request_queue_seconds": _LATENCY,
        "request_prefill_seconds": _LATENCY,
        "request_decode_seconds": _LATENCY,
        "request_seconds": _LATENCY,
        "batch_size": (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0),
        "engine_step_seconds": _STEP,
    }
)
"""Upper bounds, inclusive and rising, by the metric's name without prefix."""
