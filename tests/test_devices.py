"""What a process does with memory that it freed."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from swin_backbone.devices import keep_freed_memory

if sys.argv[1] == 'keep':
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(30 << 20).sum()
before = faults()
for _ in range(5):
    for size in (10 << 20, 20 << 20, 30 << 20):  # more than 32 MB each, which is what glibc keeps at most
        torch.ones(size).sum()
print(faults() - before)
"""
PAGES = 5 * (240 << 20) // 4096  # of all


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='malloc is not glibc here')
@pytest.mark.parametrize(('does', 'least', 'most'), [('keep', 0, PAGES // 8), ('return', PAGES // 2, 2 * PAGES)])
def test_freed_memory_is_used_again_without_page_faults(does, least, most):
    done = subprocess.run([sys.executable, '-c', FAULTS, does], capture_output=True, text=True, check=True)
    assert least <= int(done.stdout) <= most
