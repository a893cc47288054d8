"""The Triton kernels compile for GPUs that need not be there, and fit in their registers and shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip('triton', reason='triton is not installed')

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KIB_OF_SHARED_MEMORY = 99  # a program of any GPU since Ampere has so much, those of data centres more
COUNTED_WITH = '3.7.1'  # another may take more registers
CUOBJDUMP = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin' / 'cuobjdump'


def compile_for(tmp_path, *arguments):
    environment = {key: value for key, value in os.environ.items() if key != 'TRITON_INTERPRET'}
    environment |= dict(PYTHONPATH=str(ROOT), TRITON_CACHE_DIR=str(tmp_path))
    command = [sys.executable, HERE / 'compile_kernels.py', *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.skipif(not CUOBJDUMP.is_file(), reason='this triton brings no cuobjdump')
@pytest.mark.parametrize('capability', [80, pytest.param(90, marks=pytest.mark.slow)])
def test_swins_kernels_fit(tmp_path, capability):
    found = compile_for(tmp_path, '--capability', str(capability))
    assert [kernel['window'] for kernel in found] == [7, 7, 12, 12, 12]
    for kernel in found:
        assert kernel['shared'] <= KIB_OF_SHARED_MEMORY * 1024, kernel
        if triton.__version__ == COUNTED_WITH and kernel['kernel'] != 'attend_backward':
            assert kernel['stack'] == 0, kernel
        if triton.__version__ == COUNTED_WITH:
            assert kernel['stack'] <= 200, kernel  # bytes a thread: some 50 registers


@pytest.mark.slow
@pytest.mark.skipif(not CUOBJDUMP.is_file(), reason='this triton brings no cuobjdump')
@pytest.mark.parametrize('dtype', ['float16', 'float32'])
def test_all_compile(tmp_path, dtype):
    arguments = ['--capability', '80', '90', '120', '--window', '4', '8', '16', '--head-dim', '16', '24', '64']
    assert len(compile_for(tmp_path, *arguments, '--dtype', dtype)) == 3 * 3 * (2 + 2 + 3)
