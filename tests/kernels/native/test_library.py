"""The choice of a library, and the reasons without a library."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from helpers import apart
from helpers.kernels import refusal
from torch._subclasses import FakeTensorMode

import swin_backbone.kernels.native
from swin_backbone.kernels.native import availability, library, memory
from swin_backbone.kernels.native.library import FILE_NAME, load_library
from swin_backbone.replace import Unsupported

REGISTERS = {  # registers and instructions outside an instruction set
    'avx2': r'%[xy]mm(1[6-9]|2\d|3[01])|%zmm|%k[0-7]|\tvpdp',
    'avx2_vnni': r'%[xy]mm(1[6-9]|2\d|3[01])|%zmm|%k[0-7]',
    'avx512': r'\t(v\w*bf16|vpdp|tdp|tile|ldtilecfg)',  # after a tab: addresses may contain the letters too
    'avx512_vnni': r'\t(v\w*bf16|tdp|tile|ldtilecfg)',
    'avx512_bf16': r'\t(tdp|tile|ldtilecfg)',
    '': r'%[yz]mm|\tv',  # compiled once, for every processor
}
LIBRARY = Path(swin_backbone.kernels.native.__file__).with_name(FILE_NAME)


def answer() -> str:
    return f'{load_library()[0] and load_library()[0].isa} | {refusal(torch.float32)} | {refusal(torch.bfloat16)}'


@pytest.mark.parametrize(
    ('environment', 'taken', 'said'),
    [
        (dict(SWIN_BACKBONE_NATIVE='0'), 'None', 'SWIN_BACKBONE_NATIVE=0 is set'),
        (dict(ATEN_CPU_CAPABILITY='default'), 'None', 'no instruction set named "default"'),
        (dict(SWIN_BACKBONE_ISA='sse9'), 'None', 'no instruction set named "sse9"'),
        (dict(ATEN_CPU_CAPABILITY='avx2'), 'avx2', '| None | None'),
        (dict(SWIN_BACKBONE_ISA='avx2'), 'avx2', '| None | None'),
    ],
)
def test_environment_decides(environment, taken, said, monkeypatch):
    for name in ('SWIN_BACKBONE_NATIVE', 'SWIN_BACKBONE_ISA', 'ATEN_CPU_CAPABILITY'):
        monkeypatch.delenv(name, raising=False)
    found = apart.call(answer, **environment)
    assert found.startswith(taken)
    assert said in found


@pytest.mark.skipif(not shutil.which('objdump'), reason='objdump is not installed')
def test_a_function_has_the_instructions_of_its_own_set_alone():
    """The linker can take a function from a wrong instruction set. The processor may lack the instructions."""
    code = subprocess.run(['objdump', '-d', '--no-show-raw-insn', LIBRARY], capture_output=True, text=True).stdout
    seen = dict.fromkeys(REGISTERS, 0)
    for function in code.split('\n\n'):
        name, _, body = function.partition('\n')
        # A name contains the namespace's name with the length: 4avx2
        isa = next((isa for isa in [*REGISTERS, 'amx'] if isa and f'{len(isa)}{isa}' in name), '')
        if isa in REGISTERS and '@plt' not in name:
            seen[isa] += 1
            assert not re.search(REGISTERS[isa], body), name
    assert min(seen.values()) > 10


@pytest.mark.skipif(not shutil.which('nm'), reason='nm is not installed')
def test_the_library_knows_neither_torch_nor_python():
    def names(*options):
        listed = subprocess.run(['nm', '-D', *options, LIBRARY], capture_output=True, text=True, check=True).stdout
        return {line.split()[-1] for line in listed.splitlines()}

    assert not [name for name in names() if re.search('torch|c10|at3vec|Py[A-Z_]|omp_', name)]
    csrc = Path(__file__).parents[3] / 'csrc'
    headers = [(csrc / name).read_text() for name in ('swin.h', 'runtimes/operators.h', 'runtimes/onnxruntime.h')]
    declared = set(re.findall(r'^(?:SWIN_API|extern "C" ORT_EXPORT) [^(;]*?(\w+)\(', '\n'.join(headers), re.M))
    assert names('--defined-only') == declared
    assert {f'swin_{name}' for name in vars(load_library()[0]) if not name.startswith('_')} < declared


@pytest.mark.parametrize('structure', [value for name, value in vars(library).items() if name.endswith('Struct')])
def test_a_structure_is_that_of_the_header(structure):
    name = 'swin' + re.sub('([A-Z])', lambda found: '_' + found[1].lower(), structure.__name__.removesuffix('Struct'))
    header = re.sub(r'/\*.*?\*/', '', (Path(__file__).parents[3] / 'csrc' / 'swin.h').read_text(), flags=re.DOTALL)
    (body,) = re.findall(rf'typedef struct {name} {{(.*?)}} {name};', header, re.DOTALL)
    fields = []
    for declaration in filter(None, map(str.strip, body.split(';'))):
        kind, names = re.fullmatch(r'(?:const )?(\w+) ?(.*)', declaration, re.DOTALL).groups()
        for field in names.split(','):
            pointer, field, count = re.fullmatch(r'\s*(\**)\s*(\w+)(?:\[(\w+)\])?', field).groups()
            of_header = (
                ctypes.c_void_p if pointer else getattr(ctypes, {'float': 'c_float'}.get(kind, f'c_{kind[:-2]}'))
            )
            fields.append((field, of_header * 4 if count else of_header))
    assert [(field, kind) for field, kind in structure._fields_] == fields


def test_an_older_build_without_a_function_is_of_another_version(monkeypatch):
    monkeypatch.setitem(library.SIGNATURES, 'swin_function_of_a_later_version', [])
    monkeypatch.setattr(library, 'VERSION', library.VERSION + 1)
    loaded, reason = load_library.__wrapped__()
    assert loaded is None
    assert 'built for another version' in reason


@pytest.mark.parametrize(
    'make', [lambda x: x.T, lambda x: x._neg_view(), lambda x: x.to_sparse()], ids=['strides', 'negated', 'sparse']
)
def test_a_refusal_of_memory_names_the_memory(make):
    with pytest.raises(Unsupported, match='not a Tensor without contiguous, aligned memory of its own'):
        memory.require_address('x', make(torch.ones(3, 3)), [3, 3])


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_products_that_are_wrong_on_amx_are_not_used(monkeypatch, dtype):
    with FakeTensorMode(), torch.device('meta'):
        assert availability.is_gemm_correct(dtype)
    monkeypatch.setattr(library.Library, 'isa', 'amx')
    ask = availability.find_reason_against_dtype.__wrapped__
    assert ask(dtype) is None
    pack = availability.pack_linear
    monkeypatch.setattr(availability, 'pack_linear', lambda weight, dtype, unit: pack(-weight, dtype, unit))
    assert 'AMX multiplies wrongly here' in ask(dtype)
