"""Measured memory and spread."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.timing import peak_rss_growth

STATUS = Path('/proc/self/status')


@pytest.mark.skipif(
    not STATUS.is_file() or 'VmHWM:' not in STATUS.read_text(), reason="this system has no peak of a process's own"
)
def test_growth_excludes_the_memory_of_the_parent_process():
    torch.ones(2**27)  # 512 MiB, more than the new process ever takes
    grown = peak_rss_growth(partial(nn.Upsample, scale_factor=16), (1, 1, 256, 256), threads=1)
    assert 48 * 2**20 < grown < 128 * 2**20  # the output has 64 MiB
