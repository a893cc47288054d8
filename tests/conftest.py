"""Helpers that several test files share."""

import dataclasses
import gc
import json
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from helpers.faults import KINDS
from hypothesis import HealthCheck, settings

from swin_backbone.devices import keep_freed_memory

keep_freed_memory()  # as the tools do: a tenth less processor time
os.environ.setdefault('OMP_NUM_THREADS', '2')
if not torch.cuda.is_available():  # read where a kernel is defined: before any is
    os.environ.setdefault('TRITON_INTERPRET', '1')
    if find_spec('triton'):
        from triton.runtime.interpreter import interpreter_builder

        # A GPU does not look for sums of integers that overflow either; it takes half of the interpreter's time.
        interpreter_builder.options = dataclasses.replace(interpreter_builder.options, sanitize_overflow=False)

if find_spec('torchvision'):  # which mmdet imports by way of mmpretrain, where both are installed
    from swin_backbone.compat import import_torchvision

    import_torchvision()

# Each run draws the same examples: a failure is the fault of the last change. `make test TESTS=nightly` draws others.
# A busy machine draws slowly, and this is no fault of the code.
settings.register_profile('same', derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile('nightly', settings.get_profile('same'), derandomize=False, print_blob=True)
settings.load_profile('same')

FAULT = 'fault'  # the property of a test's report that record_fault adds
FAULTS = {}  # what the tests that passed tried, by their ids


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_of_an_earlier_runner():
    """As its scope, which decides where mmengine looks names up."""
    from helpers.in_process import forget_instances

    forget_instances()


@pytest.fixture
def one_process(tmp_path):
    """A process group of this process alone."""
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
        help='write what tests/openmmlab/swap/test_swap_every_config.py found to docs/guides/swap.md',
    )
    parser.addoption(
        '--faults-json',
        type=Path,
        metavar='F',
        help='write what the tests of faults tried to F: see tests/helpers/faults.py',
    )


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    for item in items:
        if 'record_fault' in item.fixturenames:
            item.add_marker('faults')


def pytest_collection_finish():
    """What was imported to find the tests stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def record_fault(request):
    """`record_fault(kind, count=1)`: so many faults of a kind were tried, and came out as promised.

    The kinds are those of tests/helpers/faults.py. They count if the test passes.
    """

    def record(kind: str, count: int = 1) -> None:
        if kind not in KINDS or count < 0:
            raise ValueError(f'record_fault takes one of {", ".join(KINDS)} and a number, got {kind!r} and {count}')
        request.node.user_properties.append((FAULT, (kind, count)))

    return record


def pytest_runtest_logreport(report):
    """Runs in the process that collects what the others found, if tests run in several."""
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
