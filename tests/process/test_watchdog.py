import asyncio
from collections.abc import Iterator

import pytest

from mlxceld.process.notify import Notifier
from mlxceld.process.watchdog import IDLE_SECONDS, engine_moves, keep_watchdog
from mlxceld.telemetry.status import EngineState, EngineStatus


@pytest.mark.parametrize("state", [EngineState.READY, EngineState.DRAINING])
def test_a_busy_engine_must_move_within_the_period(state: EngineState) -> None:
    snapshot = EngineStatus(state=state, busy=True, heartbeat=100.0)
    assert engine_moves(snapshot, 110.0, 10.0)
    assert not engine_moves(snapshot, 110.1, 10.0)


def test_an_idle_engine_turns_over_now_and_then() -> None:
    snapshot = EngineStatus(state=EngineState.READY, heartbeat=100.0)
    assert engine_moves(snapshot, 110.0 + IDLE_SECONDS, 10.0)
    assert not engine_moves(snapshot, 110.1 + IDLE_SECONDS, 10.0)


@pytest.mark.parametrize("state", [EngineState.LOADING, EngineState.STOPPED, EngineState.FAILED])
def test_outside_of_service_other_limits_hold(state: EngineState) -> None:
    assert engine_moves(EngineStatus(state=state, busy=True), 1e9, 10.0)


class Recorded(Notifier):
    def __init__(self, watchdog_seconds: float | None) -> None:
        super().__init__("@nobody", watchdog_seconds)
        self.pings = 0

    def watchdog(self) -> None:
        self.pings += 1


async def test_the_word_is_given_while_all_is_well_and_not_when_it_is_not() -> None:
    notifier, slept = Recorded(4.0), []
    well: Iterator[bool] = iter([True, False, True])

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_watchdog(notifier, lambda: next(well), sleep=sleep)
    assert notifier.pings == 2
    assert slept == [2.0, 2.0, 2.0]


async def test_without_a_watchdog_nothing_is_kept() -> None:
    notifier = Recorded(None)
    await keep_watchdog(notifier, lambda: True)
    assert notifier.pings == 0
