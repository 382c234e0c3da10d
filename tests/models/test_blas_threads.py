"""The number of OpenBLAS's threads follows what else the machine does."""

from __future__ import annotations

import threading

import pytest

from mlxceld.models.blas_threads import GovernorThread, ThreadGovernor, waited_seconds


class Machine:
    """A clock, and threads that wait for the processor while others are busy."""

    def __init__(self, most: int) -> None:
        self.now = 100.0
        self.waited = 7.0
        self.others_busy = False
        self.set: list[int] = []
        self.governor = ThreadGovernor(most, self.set.append, lambda: self.waited, lambda: self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(4 * seconds)):
            self.now += 0.25
            # One thread alone has nobody to wait for.
            contended = self.others_busy and self.governor.threads > 1
            self.waited += 0.25 * (0.7 if contended else 0.05)
            self.governor.sample()


def test_a_quiet_machine_keeps_all_threads():
    machine = Machine(8)
    machine.run(600)
    assert machine.set == []


def test_threads_are_halved_while_others_are_busy():
    machine = Machine(8)
    machine.others_busy = True
    machine.run(3)
    assert machine.set == [4, 2, 1]


def test_all_threads_are_tried_again_less_and_less_often():
    machine = Machine(2)
    machine.others_busy = True
    machine.run(3600)
    tries = machine.set.count(2)
    assert machine.set[:3] == [1, 2, 1]
    assert 3600 / 62 < tries < 3600 / 55
    machine.others_busy = False
    machine.run(62)
    assert machine.governor.threads == 2


def test_a_later_load_has_the_first_pause_again():
    machine = Machine(2)
    machine.others_busy = True
    machine.run(300)
    machine.others_busy = False
    machine.run(300)
    machine.others_busy = True
    machine.run(2)
    assert machine.governor.threads == 1
    machine.others_busy = False
    machine.run(5)
    assert machine.governor.threads == 2


def test_one_contended_sample_is_no_load():
    machine = Machine(2)
    for _ in range(100):
        machine.others_busy = True
        machine.run(0.25)
        machine.others_busy = False
        machine.run(0.25)
    assert machine.set == []


def test_idle_time_is_no_measure():
    machine = Machine(2)
    machine.run(1)
    machine.waited += 1000
    machine.governor.skip()
    machine.run(10)
    assert machine.set == []


def test_the_kernel_tells_how_long_threads_waited():
    before = waited_seconds()
    if not before:
        pytest.skip("this kernel does not tell")
    assert waited_seconds() >= before


def test_an_engine_that_computes_again_is_sampled_again():
    sampled = threading.Event()

    def waited() -> float:
        sampled.set()
        return 0.0

    thread = GovernorThread(ThreadGovernor(2, lambda _: None, waited), seconds=0.001)
    thread.start()
    assert sampled.wait(60)
    thread.computing(False)
    thread.computing(True)
    sampled.clear()
    assert sampled.wait(60)
    thread.computing(False)
    thread.close()
