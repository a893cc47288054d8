"""A quiet machine runs no other program, and equal work takes equal time."""

import itertools

import pytest

from benchmarks import machine


@pytest.fixture
def clock(monkeypatch):
    """Set the times of the calibration loops, with no other programs."""

    def tell(seconds):
        times = itertools.chain.from_iterable((0.0, s) for s in itertools.cycle(seconds))
        monkeypatch.setattr(machine.time, 'perf_counter', lambda: next(times))
        monkeypatch.setattr(machine, '_running_beside_this', lambda: 0.0)

    return tell


def test_even_times_without_other_threads_are_quiet(clock, monkeypatch):
    clock([1.0, 1.01])
    assert machine.why_not_quiet() is None
    clock([1.0, 1.3])
    assert 'times that differ by' in machine.why_not_quiet()
    monkeypatch.setattr(machine, '_running_beside_this', lambda: 2.0)
    assert machine.why_not_quiet() == '2 other threads are running'
