"""Sizes and durations as click parameters."""

from __future__ import annotations

from typing import Any

import click

from mlxceld.config import kinds


class SizeParam(click.ParamType[int]):
    """``8GiB``, ``8GB`` or plain bytes, as an integer of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a size; a bad one is a usage error with an example."""
        if isinstance(value, int):
            return value
        try:
            return kinds.parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class DurationParam(click.ParamType[float]):
    """``90s``, ``15m``, ``2h`` or plain seconds, as a number of seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a duration; a bad one is a usage error with an example."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return float(kinds.parse_duration(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CountParam(click.ParamType[int]):
    """A number of entries; ``off`` and ``never`` are 0, as in the settings."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a count; a bad one is a usage error that tells the range."""
        if isinstance(value, int):
            return value
        try:
            return kinds.IntKind(0, 10**9, zero_words=True).parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = SizeParam()
COUNT = CountParam()
DURATION = DurationParam()
