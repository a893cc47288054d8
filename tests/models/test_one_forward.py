"""The distance from `forward` to the mathematics, by backend. A low count of functions keeps the code readable."""

import inspect
import sys
from pathlib import Path

import pytest
import torch
from helpers.kernels import refusal

import swin_backbone
from swin_backbone import SwinBackbone, SwinV2Backbone

PACKAGE = Path(swin_backbone.__file__).parent
CONTRIBUTING = PACKAGE.parent / 'CONTRIBUTING.md'
# ctypes calls `_check` after every function of the library.
CHECK = 'kernels/native/library.py', '_check'


def is_ours(frame):
    return frame.f_code.co_filename.startswith(str(PACKAGE))


def name_of(frame):
    return str(Path(frame.f_code.co_filename).relative_to(PACKAGE)), frame.f_code.co_name


def trace(run):
    """Return the package's functions on the stack at every softmax or block, and the code of all called functions."""
    at_arithmetic, functions = [], set()

    def ours(frame):
        stack = []
        while frame is not None:
            if is_ours(frame):
                stack.append(name_of(frame))
            frame = frame.f_back
        return stack

    def profile(frame, event, arg):
        if event == 'call' and is_ours(frame) and not frame.f_code.co_name.startswith('<'):
            functions.add(frame.f_code)
            if name_of(frame) == CHECK and frame.f_locals['_'][0].__name__ == 'swin_block_forward':
                at_arithmetic.append(ours(frame.f_back))
        if event == 'c_call' and getattr(arg, '__name__', '') == 'softmax':
            at_arithmetic.append(ours(frame))

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return at_arithmetic, functions


def make(backbone, backend):
    """Return a backbone with the backend, or skip the test."""
    sizes = dict(embed_dims=32, depths=(2,), num_heads=(2,), out_indices=(0,), window_size=4)
    reason = refusal(torch.float32)
    if backend == 'native' and reason is not None:
        pytest.skip(reason)
    return backbone(**sizes, drop_path_rate=0.0, backend=backend)


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize(('backend', 'most'), [('native', 6), ('torch', 8)])
def test_frames_from_forward_to_the_mathematics(backend, most, backbone, training):
    model, x = make(backbone, backend).train(training), torch.randn(1, 3, 24, 20)
    with torch.set_grad_enabled(training):
        model(x)  # tables are made, and weights packed
        at_arithmetic = trace(lambda: model(x))[0]
    assert len(at_arithmetic) >= 2
    for stack in at_arithmetic:
        assert len(stack) <= most + 3 * (training and backend == 'native'), stack  # by an autograd.Function


@pytest.mark.parametrize(('backend', 'most'), [('native', (30, 400, 10)), ('torch', (19, 238, 7))])
@torch.no_grad()
def test_one_warm_forward_is_short(backend, most):
    """Limit functions, lines of functions, and files of a forward of eight blocks."""
    model, x = SwinBackbone(arch='nano', backend=backend).eval(), torch.randn(1, 3, 128, 128)
    if backend == 'native':
        make(SwinBackbone, backend)
    model(x)
    functions = trace(lambda: model(x))[1]
    lines = sum(len(inspect.getsourcelines(code)[0]) for code in functions)
    names = sorted(f'{Path(code.co_filename).name}:{code.co_qualname}' for code in functions)
    files = {code.co_filename for code in functions}
    for count, limit in zip((len(functions), lines, len(files)), most):
        assert count <= limit, (count, names)


@pytest.mark.parametrize(('backend', 'start'), [('torch', 'One image'), ('native', 'A stage')])
def test_contributing_names_the_files_an_image_meets(backend, start):
    paragraphs = CONTRIBUTING.read_text(encoding='utf-8').split('\n\n')
    way = next(text for text in paragraphs if text.startswith(start))
    model, x, files = make(SwinBackbone, backend).eval(), torch.randn(1, 3, 90, 70), []
    if backend == 'native':
        model, x = model.stages[0], torch.randn(1, 23, 18, 32)

    def profile(frame, event, arg):
        if event == 'call' and is_ours(frame) and name_of(frame)[0] not in files:
            files.append(name_of(frame)[0])

    with torch.no_grad():
        model(x)
    sys.setprofile(profile)
    try:
        with torch.no_grad():
            model(x)
    finally:
        sys.setprofile(None)
    named = [
        part.split('`')[0] for part in way.split('`')[1::2] if part.endswith('.py') and not part.startswith('tests')
    ]
    assert named
    assert [name for name in files if name in named] == named
