"""The Triton kernels compile without a GPU, and fit in registers and shared memory of GPUs."""

import json
from pathlib import Path

import pytest
from helpers import run_python

triton = pytest.importorskip('triton', reason='triton is not installed')

COMPILE = 'tests/helpers/kernels/compile_kernels.py'
KIB_OF_SHARED_MEMORY = 99  # of a program on every GPU since Ampere; more in data centres
COUNTED_WITH = '3.7.1'  # a different version may take more registers
# Registers of a thread, and bytes of stack for spilled registers, by kernel, shift and capability. Windows are 7x7, and
# heads have 32 channels in bfloat16.
LIMITS = {
    ('attend', False): {80: (135, 0), 89: (135, 0), 90: (127, 0), 100: (134, 0), 120: (138, 0)},
    ('attend', True): {80: (194, 0), 89: (194, 0), 90: (146, 0), 100: (168, 8), 120: (200, 0)},
    ('attend_backward', False): {80: (255, 88), 89: (255, 120), 90: (255, 48), 100: (255, 160), 120: (255, 88)},
    ('attend_backward', True): {80: (255, 152), 89: (255, 120), 90: (255, 72), 100: (255, 256), 120: (255, 248)},
}
CUOBJDUMP = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin' / 'cuobjdump'


def compile_for(tmp_path, *arguments):
    result = run_python(COMPILE, *arguments, TRITON_INTERPRET='0', TRITON_CACHE_DIR=str(tmp_path))
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.skipif(not CUOBJDUMP.is_file(), reason='this triton brings no cuobjdump')
@pytest.mark.parametrize('capability', [80, *(pytest.param(c, marks=pytest.mark.slow) for c in (89, 90, 100, 120))])
def test_swins_kernels_fit(tmp_path, capability):
    kernels = compile_for(tmp_path, '--capability', str(capability), '--window', '7')
    assert {(kernel['kernel'], kernel['shifted']) for kernel in kernels} == LIMITS.keys()
    for kernel in kernels:
        assert kernel['shared'] <= KIB_OF_SHARED_MEMORY * 1024, kernel
        assert kernel['num_warps'] == 4, kernel
        if triton.__version__ == COUNTED_WITH:
            registers, stack = LIMITS[kernel['kernel'], kernel['shifted']][capability]
            assert kernel['registers'] <= registers, kernel
            assert kernel['stack'] <= stack, kernel


@pytest.mark.slow
@pytest.mark.skipif(not CUOBJDUMP.is_file(), reason='this triton brings no cuobjdump')
@pytest.mark.parametrize('capability', [80, 90])
def test_windows_of_several_tiles_fit(tmp_path, capability):
    for kernel in compile_for(tmp_path, '--capability', str(capability), '--window', '12'):
        assert kernel['shared'] <= KIB_OF_SHARED_MEMORY * 1024, kernel
        if triton.__version__ == COUNTED_WITH:
            assert kernel['stack'] <= (0 if kernel['kernel'] == 'attend' else 16), kernel


@pytest.mark.slow
@pytest.mark.skipif(not CUOBJDUMP.is_file(), reason='this triton brings no cuobjdump')
@pytest.mark.parametrize('dtype', ['float16', 'float32'])
def test_all_compile(tmp_path, dtype):
    arguments = ['--capability', '80', '90', '120', '--window', '4', '8', '16', '--head-dim', '16', '24', '64']
    assert len(compile_for(tmp_path, *arguments, '--dtype', dtype)) == 2 * 3 * 3 * (2 + 2 + 3)
