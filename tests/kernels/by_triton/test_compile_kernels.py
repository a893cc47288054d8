"""The Triton kernels compile without a GPU, and fit in registers and shared memory of GPUs."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers import run_python

runtime = pytest.importorskip('triton.runtime', reason='triton is not installed')  # 'triton' is this folder too

COMPILE = 'tests/helpers/kernels/compile_kernels.py'
KIB_OF_SHARED_MEMORY = 99  # of a program on every GPU since Ampere; more in data centres
COUNTED_WITH = '3.7.1'  # a different version may take more registers
# Registers of a thread without spills, by window, kernel and capability. Heads have 32 channels in bfloat16.
LIMITS = {
    (7, 'attend'): {80: 168, 89: 168, 90: 158, 100: 180, 120: 207},
    (7, 'attend_backward'): {80: 255, 89: 255, 90: 240, 100: 253, 120: 254},
    (12, 'attend'): {80: 229, 89: 228, 90: 196, 100: 248, 120: 218},
    (12, 'attend_backward'): {80: 254, 89: 245, 90: 246, 100: 248, 120: 242},
    (12, 'attend_backward_queries'): {80: 234, 89: 234, 90: 167, 100: 128, 120: 232},
}
CUOBJDUMP = Path(runtime.__file__).parents[1] / 'backends' / 'nvidia' / 'bin' / 'cuobjdump'
pytestmark = [
    pytest.mark.slow,  # the interpreter runs the kernels in every run
    pytest.mark.skipif(not CUOBJDUMP.is_file(), reason='this triton brings no cuobjdump'),
]


def compile_for(tmp_path, *arguments):
    result = run_python(COMPILE, *arguments, TRITON_INTERPRET='0', TRITON_CACHE_DIR=str(tmp_path))
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize('capability', [80, 89, 90, 100, 120])
@pytest.mark.parametrize('window', [7, 12])
def test_swins_kernels_fit(tmp_path, window, capability):
    kernels = compile_for(tmp_path, '--capability', str(capability), '--window', str(window))
    assert {(window, kernel['kernel']) for kernel in kernels} == {limit for limit in LIMITS if limit[0] == window}
    for kernel in kernels:
        assert kernel['shared'] <= KIB_OF_SHARED_MEMORY * 1024, kernel
        if version('triton') == COUNTED_WITH:
            assert kernel['registers'] <= LIMITS[window, kernel['kernel']][capability], kernel
            assert kernel['stack'] == 0, kernel


@pytest.mark.parametrize('dtype', ['float16', 'float32'])
def test_all_compile(tmp_path, dtype):
    arguments = ['--capability', '80', '90', '120', '--window', '4', '8', '16', '--head-dim', '16', '24', '64']
    assert len(compile_for(tmp_path, *arguments, '--dtype', dtype)) == 2 * 3 * 3 * (2 + 2 + 3)
