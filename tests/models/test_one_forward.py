"""How far it is from `forward` to the mathematics, by each backend: counted, so that it stays readable."""

import sys
from pathlib import Path

import pytest
import torch

import swin_backbone
from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.backends import BACKENDS
from swin_backbone.models.layers import SwinBlock

PACKAGE = Path(swin_backbone.__file__).parent
CONTRIBUTING = PACKAGE.parent / 'CONTRIBUTING.md'
OPERATORS = ('block', 'block_', 'block_saving', 'attend_in_windows')  # behind which a library computes
LIBRARY = 'backends/native/operators.py'  # its functions call the library
OF_V2 = {'backends/functions/cosine.py', 'models/layers/swin_v2_block.py'}
BIAS_OF_V2 = 'models/layers/swin_v2_block.py', 'position_bias'  # an MLP of its own


def is_ours(frame):
    return frame.f_code.co_filename.startswith(str(PACKAGE))


def name_of(frame):
    return str(Path(frame.f_code.co_filename).relative_to(PACKAGE)), frame.f_code.co_name


def called_operator(frame):
    """The name of the operator that a frame calls, torch's or the compiled library's; None: it calls none."""
    if is_ours(frame) and name_of(frame)[0] == LIBRARY:
        return frame.f_locals.get('name', frame.f_code.co_name)  # `directly` calls the operator of that name
    if frame.f_code.co_name != '__call__' or not frame.f_code.co_filename.endswith('_ops.py'):
        return None
    name = getattr(frame.f_locals['self'], '__name__', '').split('.')[0]
    return name if name in OPERATORS else None


def trace(run):
    """The package's functions on the stack at each softmax or operator, and all functions of each block's forward."""
    at_arithmetic, blocks = [], []

    def ancestors(frame):
        while frame is not None:
            yield frame
            frame = frame.f_back

    operator = None  # the frame of one that is being called: what is behind it is a library's

    def profile(frame, event, arg):
        nonlocal operator
        if operator is not None:
            operator = None if event == 'return' and frame is operator else operator
            return
        if event == 'call' and called_operator(frame):
            operator = frame
        if operator is frame:
            if called_operator(frame) in OPERATORS:
                at_arithmetic.append([name_of(f) for f in reversed(list(ancestors(frame.f_back))) if is_ours(f)])
            return
        if event == 'c_call' and getattr(arg, '__name__', '') == 'softmax':
            at_arithmetic.append([name_of(f) for f in reversed(list(ancestors(frame))) if is_ours(f)])
        if event == 'call' and is_ours(frame) and not frame.f_code.co_name.startswith('<'):
            stack = [f for f in ancestors(frame) if is_ours(f)]
            if frame.f_code is SwinBlock.forward.__code__:
                blocks.append(set())
            in_bias = any(name_of(f) == BIAS_OF_V2 for f in stack)
            if not in_bias and any(f.f_code is SwinBlock.forward.__code__ for f in stack):
                blocks[-1].add(name_of(frame))

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return at_arithmetic, blocks


def make(backbone, backend, **arguments):
    """A backbone by this backend, where it runs here."""
    sizes = dict(embed_dims=32, depths=(2,), num_heads=(2,), out_indices=(0,), window_size=4)
    model = backbone(**sizes, drop_path_rate=0.0, backend=backend, **arguments)
    reason = BACKENDS[backend].why_not(model.stages[0].request(torch.randn(1, 3, 90, 70)))
    if reason is not None:
        pytest.skip(reason)
    return model


@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize(('backend', 'strip_tokens'), [*((name, 'auto') for name in BACKENDS), ('eager', None)])
@torch.no_grad()
def test_a_block_is_at_most_20_functions_of_4_files(backend, backbone, strip_tokens):
    model = make(backbone, backend, strip_tokens=strip_tokens).eval()
    x = torch.randn(1, 3, 24, 20)
    model(x)  # tables are made, and weights packed
    at_arithmetic, blocks = trace(lambda: model(x))
    assert len(at_arithmetic) >= len(blocks) == 2
    for stack in at_arithmetic:
        assert len(stack) <= (6 if backend == 'native' else 7), stack
    of_v2 = OF_V2 if backbone is SwinV2Backbone else set()
    for functions in blocks:
        functions = {(file, name) for file, name in functions if file not in of_v2}
        assert len(functions) <= 20, sorted(functions)
        assert len({file for file, _ in functions}) <= 4, sorted(functions)


@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize('backend', ['native', 'eager'])
def test_a_training_step_is_as_near_to_the_mathematics(backend, backbone):
    model = make(backbone, backend, strip_tokens=None).train()
    x = torch.randn(1, 3, 40, 70)
    model(x)
    at_arithmetic, blocks = trace(lambda: model(x))
    assert len(at_arithmetic) >= len(blocks) == 2
    for stack in at_arithmetic:
        assert len(stack) <= (6 if backend == 'native' else 7), stack


def test_contributing_names_the_files_an_image_meets():
    paragraphs = CONTRIBUTING.read_text(encoding='utf-8').split('\n\n')
    way = next(text for text in paragraphs if 'test_one_forward.py' in text)
    model, files = SwinBackbone(arch='nano', backend='eager').eval(), []

    def profile(frame, event, arg):
        if event == 'call' and is_ours(frame) and name_of(frame)[0] not in files:
            files.append(name_of(frame)[0])

    sys.setprofile(profile)
    try:
        with torch.no_grad():
            model(torch.randn(1, 3, 90, 70))
    finally:
        sys.setprofile(None)
    named = [
        part.split('`')[0] for part in way.split('`')[1::2] if part.endswith('.py') and not part.startswith('tests')
    ]
    assert named
    assert [name for name in files if name in named] == named
