"""Which library is taken, and what is said where none is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import swin_backbone.backends.native

TESTS = str(Path(__file__).parents[2])
CODE = """
import torch
from swin_backbone.backends.native.library import _load, why_not_in
print(_load()[0], '|', why_not_in(torch.float32), '|', why_not_in(torch.bfloat16))
"""
BLOCK = """
import torch
from helpers.native_blocks import by_operator, by_reference, gradients, random_weights
for v2 in (False, True):
    case = torch.randn(1, 17, 20, 96), random_weights(96, 3, (7, 7), v2), 3, (7, 7), (3, 3), False
    assert (by_operator(*case) - by_reference(*case)).abs().max() < 1e-5
    x, weights, *how = case
    ours, truth = (gradients(lambda x, w: f(x, w, *how), x, weights, x.cos()) for f in (by_operator, by_reference))
    for name in truth:
        assert (ours[name] - truth[name]).abs().max() < 3e-5 * max(1e-3, truth[name].abs().max()), name
"""
AS_AVX512 = """
from swin_backbone.backends.native import library
library._processor_flags = frozenset
assert library._load()[0] == 'avx512'
"""


FOREIGN = {  # registers and instructions that a library's processors do not have
    'avx2': r'%[xy]mm(1[6-9]|2\d|3[01])|%zmm|%k[0-7]',
    'avx512': r'\t(v\w*bf16|tdp|tile|ldtilecfg)',  # after a tab: an address may have these letters, too
}


def answer(code: str = CODE, **environment: str) -> str:
    command = [sys.executable, '-c', code]
    environment['PYTHONPATH'] = os.pathsep.join(filter(None, [TESTS, os.environ.get('PYTHONPATH')]))
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(
    ('environment', 'taken', 'said'),
    [
        (dict(SWIN_BACKBONE_NATIVE='0'), 'None', 'SWIN_BACKBONE_NATIVE=0 is set'),
        (dict(ATEN_CPU_CAPABILITY='default'), 'None', 'need AVX2'),
        (dict(ATEN_CPU_CAPABILITY='avx2', ONEDNN_MAX_CPU_ISA='AVX2'), 'avx2', 'need AVX-512 with bf16'),
    ],
)
def test_environment_decides(environment, taken, said):
    found = answer(**environment)
    assert found.startswith(taken)
    assert said in found


@pytest.mark.skipif(not shutil.which('objdump'), reason='objdump is not installed')
@pytest.mark.parametrize('name', list(FOREIGN))
def test_a_library_has_the_instructions_of_its_own_set_alone(name):
    libraries = list(Path(swin_backbone.backends.native.__file__).parent.glob(f'_{name}_torch_*.so'))
    if not libraries:
        pytest.skip('the compiled operators are not built')
    for library in libraries:
        code = subprocess.run(['objdump', '-d', '--no-show-raw-insn', library], stdout=subprocess.PIPE).stdout.decode()
        assert 'vfmadd' in code
        assert not re.search(FOREIGN[name], code.split('Disassembly of section .text')[1])


def test_avx2_computes_what_the_reference_computes():
    answer(BLOCK, ATEN_CPU_CAPABILITY='avx2', ONEDNN_MAX_CPU_ISA='AVX2')


@pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith('AVX512'), reason='this processor has no AVX-512'
)
def test_avx512_without_bf16_computes_what_the_reference_computes():
    answer(AS_AVX512 + BLOCK, ONEDNN_MAX_CPU_ISA='AVX512_CORE')
