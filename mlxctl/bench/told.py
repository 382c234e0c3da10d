"""What a server tells about itself: MLX's memory, and tokens computed on its own account."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Told:
    """MLX's memory in bytes and background work in tokens; None where a server does not tell."""

    mlx_active: int | None = None
    mlx_peak: int | None = None
    background_tokens: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return asdict(self)


def ask(url: str) -> Told:
    """Ask a server that has mlxceld's metrics; any other tells nothing."""
    metrics = _get(f"{url}/metrics") or ""
    stats = re.search(r'"background_tokens_computed":\s*(\d+)', _get(f"{url}/v1/cache/stats") or "")
    return Told(
        _series(metrics, "mlxcel_memory_active_bytes"),
        _series(metrics, "mlxcel_memory_peak_bytes"),
        int(stats.group(1)) if stats else None,
    )


def _series(metrics: str, name: str) -> int | None:
    found = re.search(rf"^{name} (\S+)$", metrics, re.M)
    return int(float(found.group(1))) if found else None


def _get(url: str) -> str | None:
    import requests

    try:
        response = requests.get(url, timeout=_TIMEOUT_SECONDS)
    except requests.RequestException:
        return None
    return response.text if response.status_code == 200 else None
