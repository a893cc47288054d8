"""The choice of a library, and the reasons without a library."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import apart
from helpers.backends.native_blocks import by_operator, by_reference, gradients, random_weights, rms
from torch._subclasses import FakeTensorMode

import swin_backbone.backends.native
from swin_backbone.backends.native import availability, convolution, library, why_not_in
from swin_backbone.backends.native.library import NAME, load

REGISTERS = {  # registers and instructions outside an instruction set
    'avx2': r'%[xy]mm(1[6-9]|2\d|3[01])|%zmm|%k[0-7]',
    'avx512': r'\t(v\w*bf16|tdp|tile|ldtilecfg)',  # after a tab: addresses may contain the letters too
    'avx512_bf16': r'\t(tdp|tile|ldtilecfg)',
    '': r'%[yz]mm|\tv',  # compiled once, for every processor
}
LIBRARY = Path(swin_backbone.backends.native.__file__).with_name(NAME)


def answer() -> str:
    return f'{load()[0] and load()[0].isa} | {why_not_in(torch.float32)} | {why_not_in(torch.bfloat16)}'


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
        isa = next((isa for isa in ('avx512_bf16', 'avx512', 'avx2', 'amx') if f'{len(isa)}{isa}' in name), '')
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
    assert {f'swin_{name}' for name in vars(load()[0]) if not name.startswith('_')} < declared


@pytest.mark.parametrize(
    'structure',
    [library.Block, library.BlockGradients, library.Projection, library.ProjectionGradients]
    + [library.Images, library.Maps, library.RoiAlign],
)
def test_a_structure_is_that_of_the_header(structure):
    name = 'swin' + re.sub('([A-Z])', lambda found: '_' + found[1].lower(), structure.__name__)
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


def compute_blocks() -> str:
    for v2 in (False, True):
        case = torch.randn(1, 17, 20, 96), random_weights(96, 3, (7, 7), v2), 3, (7, 7), (3, 3), False
        assert (by_operator(*case) - by_reference(*case)).abs().max() < 1e-5
        x, weights, *how = case
        ours, truth = (
            gradients(lambda x, w, f=f, how=how: f(x, w, *how), x, weights, x.cos())
            for f in (by_operator, by_reference)
        )
        for name in truth:
            assert (ours[name] - truth[name]).abs().max() < 3e-5 * max(1e-3, truth[name].abs().max()), name
    return load()[0].isa


def compute_in_bfloat16() -> str:
    """Compare the errors of blocks and of a convolution with the size of bfloat16's rounding."""

    def compute(x, w, save):
        return by_operator(x, w, *how, torch.bfloat16, save=save)

    def check(v2, save):
        x, weights = torch.randn(1, 17, 20, 96), random_weights(96, 3, (7, 7), v2)
        truth = gradients(lambda x, w: by_reference(x, w, *how), x, weights, x.cos())
        ours = gradients(lambda x, w: compute(x, w, save), x, weights, x.cos())
        for name in truth:
            assert rms(ours[name] - truth[name]) < 2e-2 * max(1e-3, rms(truth[name])), name
        y = compute(x, weights, save)
        assert 1e-4 < rms(y - by_reference(x, weights, *how)) / rms(y) < 1e-2

    how = 3, (7, 7), (3, 3), False
    for v2 in (False, True):
        for save in (False, True):
            check(v2, save)
    x, weight = torch.randn(1, 32, 40, 50).bfloat16(), torch.randn(40, 32, 3, 3, requires_grad=True)
    found = convolution.convolve(x.requires_grad_(), weight, None)
    expected = F.conv2d(x.float(), weight, padding=1)
    assert found.dtype == torch.bfloat16
    grad = expected.detach().cos()
    grads = [torch.autograd.grad(y, [x, weight], grad.to(y.dtype)) for y in (found, expected)]
    for ours, truth in zip((found, *grads[0]), (expected, *grads[1])):
        assert rms(ours.float() - truth.float()) < 1e-2 * rms(truth)
    return load()[0].isa


SETS = ('avx512_bf16', 'avx512', 'avx2', 'neon_bf16', 'neon')


@pytest.mark.parametrize('isa', SETS)
def test_each_instruction_set_equals_the_reference(isa):
    isas, best = load()[0].isas, load()[0].isa  # the processor has the later sets of the list too
    if isa not in isas[isas.index(best) :]:
        pytest.skip(f'this processor has no {isa}')
    assert apart.call(compute_blocks, SWIN_BACKBONE_ISA=isa) == isa
    assert apart.call(compute_in_bfloat16, SWIN_BACKBONE_ISA=isa) == isa


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_products_that_are_wrong_on_amx_are_not_used(monkeypatch, dtype):
    found, reason = library.load()
    if found is None or found.why_not(dtype):
        pytest.skip(reason or 'there are no products of this dtype')
    with FakeTensorMode(), torch.device('meta'):
        assert availability.multiplies(dtype)
    monkeypatch.setattr(library.Library, 'isa', 'amx')
    ask = availability.why_not_in.__wrapped__
    assert ask(dtype) is None
    pack = availability.pack_linear
    monkeypatch.setattr(availability, 'pack_linear', lambda weight, dtype, unit: pack(-weight, dtype, unit))
    assert 'AMX multiplies wrongly here' in ask(dtype)
