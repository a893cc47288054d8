"""A process keeps freed memory."""

import os
import platform

import pytest
from helpers import run_python

COUNT = """
import resource
import torch
from swin_backbone.devices import keep_freed_memory

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        for size in (10 << 20, 20 << 20):  # more than 32 MB each, which is what glibc keeps at most
            torch.empty(size).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(4))
keep_freed_memory()
faults(4)
print(faults(4))
"""
PAGES = 4 * (120 << 20) // 4096  # pages of all blocks; a fragmented heap may grow by some blocks


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='malloc is not glibc here')
def test_freed_memory_is_used_again_without_page_faults(monkeypatch):
    for name in [name for name in os.environ if name.startswith('MALLOC_')]:
        monkeypatch.delenv(name)
    returned, kept = map(int, run_python('-c', COUNT).stdout.split())
    assert PAGES <= returned < 2 * PAGES
    assert kept <= PAGES // 4
