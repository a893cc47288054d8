"""A machine is quiet only if nothing else runs and the same work takes the same time."""

import itertools
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers.in_process import run

from benchmarks import machine
from swin_backbone.devices import processor


@pytest.fixture
def clock(monkeypatch):
    """Let each loop of the calibration take what is given, and nothing else run."""

    def tell(seconds):
        times = itertools.chain.from_iterable((0.0, s) for s in itertools.cycle(seconds))
        monkeypatch.setattr(machine.time, 'perf_counter', lambda: next(times))
        monkeypatch.setattr(machine, '_running_beside_this', lambda: 0.0)

    return tell


def test_even_times_are_quiet(clock):
    clock([1.0, 1.01])
    assert machine.why_not_quiet() is None


def test_uneven_times_are_not(clock):
    clock([1.0, 1.3])
    assert 'times that differ by' in machine.why_not_quiet()


def test_other_threads_are_said(clock, monkeypatch):
    clock([1.0])
    monkeypatch.setattr(machine, '_running_beside_this', lambda: 2.0)
    assert machine.why_not_quiet() == '2 other threads are running'


def test_what_it_ran_on_names_threads_and_torch():
    assert 'threads, torch ' in processor()


@pytest.mark.parametrize(
    ('clock_khz', 'bits', 'gbs'),
    [(2_619_000, 5120, 3352), (3_201_000, 6144, 4917), (9_751_000, 384, 936)],  # H100, H200, GeForce RTX 3090
)
def test_the_bandwidth_is_read_from_the_device(monkeypatch, clock_khz, bits, gbs):
    properties = SimpleNamespace(memory_clock_rate=clock_khz, memory_bus_width=bits)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: properties)
    assert machine.peak_bandwidth(torch.device('cuda', 0)) / 1e9 == pytest.approx(gbs, rel=1e-3)


def test_before_torch_tells_it_triton_asks_the_driver(monkeypatch):
    driver = pytest.importorskip('triton.runtime', reason='triton is not installed').driver
    told = dict(mem_clock_rate=1_215_000, mem_bus_width=5120)
    utils = SimpleNamespace(get_device_properties=lambda index: told)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: SimpleNamespace())
    monkeypatch.setattr(driver, '_active', SimpleNamespace(utils=utils), raising=False)
    assert machine.peak_bandwidth(torch.device('cuda', 0)) / 1e9 == pytest.approx(1555, rel=1e-3)  # A100


def test_where_nobody_tells_it_is_unknown(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: SimpleNamespace())
    monkeypatch.setitem(sys.modules, 'triton.runtime', None)
    assert machine.peak_bandwidth(torch.device('cuda', 0)) is None
    assert machine.peak_bandwidth(torch.device('cpu')) is None


@pytest.mark.skipif(not hasattr(os, 'sched_getaffinity'), reason='this system keeps no process on some CPUs')
def test_a_tool_that_the_tests_run_leaves_them_all_cpus(tmp_path):
    cpus, tool = os.sched_getaffinity(0), tmp_path / 'tool.py'
    tool.write_text(f'import os; os.sched_setaffinity(0, {{{min(cpus)}}}); print(os.sched_getaffinity(0))')
    assert run(str(tool)).stdout == f'{{{min(cpus)}}}\n'
    assert os.sched_getaffinity(0) == cpus
