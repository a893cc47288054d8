"""Fixtures and hooks of all tests."""

import gc
import json
import os
import re
import signal
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads the variable at the definition of each function, its own included. With a CUDA build of torch, the
    # next imports import Triton.
    os.environ.setdefault('TRITON_INTERPRET', '1')

from helpers.export.quick_exports import quick_exports  # noqa: F401 - a fixture
from helpers.faults import KINDS
from hypothesis import HealthCheck, settings

from swin_backbone.devices import keep_freed_memory

keep_freed_memory()  # saves a tenth of the processor time, as in the tools
# A forked process collects nothing of its parent: an ONNX Runtime session would wait for threads, and a fork has none.
os.register_at_fork(after_in_child=gc.freeze)
os.environ.setdefault('OMP_NUM_THREADS', '2')
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited by a job in the background: tools would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available() and find_spec('triton'):
    from helpers.triton_interpreter import shorten_interpretation

    shorten_interpretation()

if find_spec('yapf'):  # of mmengine
    # An import of yapf writes a file for all processes and reads it. A worker that starts later finds a whole file.
    import yapf  # noqa: F401

if find_spec('torchvision'):  # mmdet imports torchvision through mmpretrain
    from swin_backbone.compat import import_torchvision

    import_torchvision()

# Hypothesis draws equal examples in every run. `make test TESTS=nightly` draws new examples.
# A busy machine draws slowly, so slow draws are no failure.
settings.register_profile('same', derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile('nightly', settings.get_profile('same'), derandomize=False, print_blob=True)
settings.load_profile('same')

MISSING = [name for name in ('mmengine', 'mmcv', 'mmdet', 'mmseg') if find_spec(name) is None]
# What only an environment with OpenMMLab's packages can import
OF_OPENMMLAB = re.compile(
    r'^(?:from|import) (?:mm(?:engine|cv|det|seg|pretrain|rotate)|swin_backbone\.(?:openmmlab|workbench)|'
    r'helpers\.(?:openmmlab|in_process))\b',
    re.MULTILINE,
)

FAULT = 'fault'  # property of a test's report, added by record_fault
FAULTS = {}  # counts of passed tests, by test id


@pytest.fixture(autouse=True)
def _seed():
    """`torch.manual_seed` formats the stack twice for devices that are not there, in milliseconds."""
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)


@pytest.fixture(scope='session', autouse=True)
def _indices(tmp_path_factory):
    """Keep the indices of --data, also of tools that tests start, in a folder of the tests."""
    os.environ['SWIN_BACKBONE_DATA'] = str(tmp_path_factory.mktemp('indices'))


@pytest.fixture(autouse=True)
def _same_process():
    """Restore the threads, the CPUs and the default dtype, and forget compiled graphs.

    A second thread slows all later tests.
    """
    threads, cpus = torch.get_num_threads(), os.sched_getaffinity(0) if hasattr(os, 'sched_getaffinity') else None
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    if 'torch._dynamo' in sys.modules:
        torch._dynamo.reset()
    if cpus:
        os.sched_setaffinity(0, cpus)


@pytest.fixture(autouse=True)
def _nothing_of_an_earlier_runner():
    """Forget the scope and the loggers of an earlier test's runner."""
    if 'mmengine' in sys.modules:
        from helpers.in_process import forget_instances

        forget_instances()


@pytest.fixture(scope='session')
def own(tmp_path_factory):
    """A user's small data. Tests that change the data have a fixture of this name."""
    from helpers.openmmlab.own_data import make_own_data

    return make_own_data(tmp_path_factory.mktemp('data') / 'own')


@pytest.fixture
def one_process(tmp_path):
    """A process group with one process."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip('torch is built without gloo')
    distributed.init_process_group('gloo', init_method=f'file://{tmp_path / "store"}', rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def pytest_addoption(parser):
    parser.addoption(
        '--write-swap-list',
        action='store_true',
        help='write what tests/openmmlab/swap/test_swap_every_config.py found to docs/measurements/swap.md',
    )
    parser.addoption(
        '--faults-json',
        type=Path,
        metavar='F',
        help='write what the tests of faults tried to F: see tests/helpers/faults.py',
    )


def pytest_report_header():
    return f'not installed: {", ".join(MISSING)}. Files that import the toolboxes are left out.' if MISSING else None


def pytest_ignore_collect(collection_path):
    """Without a toolbox, ignore the files of tests that import toolboxes: all environments have all or none of them."""
    if collection_path.suffix == '.py' and MISSING:
        return bool(OF_OPENMMLAB.search(collection_path.read_text(encoding='utf-8'))) or None
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by markers
def pytest_collection_modifyitems(items):
    for item in items:
        if 'record_fault' in item.fixturenames:
            item.add_marker('faults')


def pytest_collection_finish():
    """Freeze the imported objects, which the garbage collector then skips, and collect seldom.

    Collections at Python's thresholds take a twelfth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def record_fault(request):
    """`record_fault(kind, count=1)` counts faults of a kind of tests/helpers/faults.py. Failed tests do not count."""

    def record(kind: str, count: int = 1) -> None:
        if kind not in KINDS or count < 0:
            raise ValueError(f'record_fault takes one of {", ".join(KINDS)} and a number, got {kind!r} and {count}')
        request.node.user_properties.append((FAULT, (kind, count)))

    return record


def pytest_runtest_logreport(report):
    """Collect the counts; pytest-xdist calls this hook in the main process."""
    if report.when == 'call' and report.passed:
        counts = Counter()
        for name, value in report.user_properties:
            if name == FAULT:
                kind, count = value
                counts[kind] += count
        if counts:
            FAULTS[report.nodeid] = dict(counts)


def pytest_sessionfinish(session):
    path = session.config.option.faults_json
    if path and not hasattr(session.config, 'workerinput'):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(FAULTS, indent=1))
