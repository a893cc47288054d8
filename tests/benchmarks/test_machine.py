"""A quiet machine runs no other program, and equal work takes equal time."""

import itertools
import os

import pytest
from helpers.in_process import run

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


@pytest.mark.skipif(not hasattr(os, 'sched_getaffinity'), reason='this system keeps no process on some CPUs')
def test_a_tool_that_the_tests_run_leaves_them_all_cpus(tmp_path):
    cpus, tool = os.sched_getaffinity(0), tmp_path / 'tool.py'
    tool.write_text(f'import os; os.sched_setaffinity(0, {{{min(cpus)}}}); print(os.sched_getaffinity(0))')
    assert run(str(tool)).stdout == f'{{{min(cpus)}}}\n'
    assert os.sched_getaffinity(0) == cpus
