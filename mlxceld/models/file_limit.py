"""The process's limit of open files, which importing mlx-lm would change."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_limit_kept() -> Iterator[None]:
    """Let nothing inside change how many files the process may open.

    mlx-lm sets 2048, and at most 4096, when it is first imported: fewer than the daemon takes for
    its connections, and for good; where the system allows fewer still, it fails.
    """
    real = resource.setrlimit

    def set_other(which: int, limits: tuple[int, int]) -> None:
        if which != resource.RLIMIT_NOFILE:
            real(which, limits)

    resource.setrlimit = set_other
    try:
        yield
    finally:
        resource.setrlimit = real
