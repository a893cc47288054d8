"""Helpers that several test files share."""

import os

import pytest
import torch

os.environ.setdefault('OMP_NUM_THREADS', '2')
if not torch.cuda.is_available():  # read where a kernel is defined: before any is
    os.environ.setdefault('TRITON_INTERPRET', '1')


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def pytest_addoption(parser):
    parser.addoption(
        '--write-swap-list',
        action='store_true',
        help='write what tests/openmmlab/test_swap_every_config.py found to docs/swap.md',
    )
