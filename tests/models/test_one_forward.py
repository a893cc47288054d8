"""How far it is from `forward` to the mathematics: counted, so that it stays readable."""

import sys
from pathlib import Path

import pytest
import torch

import swin_backbone
from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.backends import plan
from swin_backbone.models.layers import SwinBlock

PACKAGE = str(Path(swin_backbone.__file__).parent)
CONTRIBUTING = Path(__file__).parents[2] / 'CONTRIBUTING.md'


def is_ours(frame):
    return frame.f_code.co_filename.startswith(PACKAGE)


def trace(run):
    """The package's functions on the stack at each call of softmax, and all functions of each block's forward."""
    at_softmax, blocks = [], []

    def profile(frame, event, arg):
        if event == 'c_call' and getattr(arg, '__name__', '') == 'softmax':
            stack, f = [], frame
            while f is not None:
                if is_ours(f):
                    stack.append(f.f_code.co_qualname if hasattr(f.f_code, 'co_qualname') else f.f_code.co_name)
                f = f.f_back
            at_softmax.append(stack[::-1])
        if event == 'call' and is_ours(frame) and not frame.f_code.co_name.startswith('<'):
            if frame.f_code is SwinBlock.forward.__code__:
                blocks.append(set())
            if any(f.f_code is SwinBlock.forward.__code__ for f in ancestors(frame)):
                blocks[-1].add((frame.f_code.co_filename, frame.f_code.co_name))

    def ancestors(frame):
        while frame is not None:
            yield frame
            frame = frame.f_back

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return at_softmax, blocks


@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize('strip_tokens', ['auto', None])
@pytest.mark.usefixtures('by_torch')
@torch.no_grad()
def test_seven_frames_to_softmax_and_a_block_in_24_functions_of_5_files(monkeypatch, backbone, strip_tokens):
    model = backbone(arch='nano', drop_path_rate=0.0, strip_tokens=strip_tokens).eval()
    x = torch.randn(1, 3, 90, 70)
    monkeypatch.setattr(plan, 'takes_stage', lambda *_: False)  # the compiled operators have no softmax in Python
    model(x)  # tables are made
    at_softmax, blocks = trace(lambda: model(x))
    assert len(at_softmax) >= len(blocks) == 8
    for stack in at_softmax:
        assert len(stack) <= 7, stack
    of_v2 = {'position.py', 'cosine.py', 'swin_v2_block.py'} if backbone is SwinV2Backbone else set()
    for functions in blocks:
        files = {Path(file).name for file, _ in functions} - of_v2
        assert len([name for file, name in functions if Path(file).name not in of_v2]) <= 24, sorted(functions)
        assert len(files) <= 5, files


@pytest.mark.usefixtures('by_torch')
def test_contributing_names_the_files_an_image_meets(monkeypatch):
    monkeypatch.setattr(plan, 'takes_stage', lambda *_: False)
    paragraphs = CONTRIBUTING.read_text(encoding='utf-8').split('\n\n')
    way = next(text for text in paragraphs if 'test_one_forward.py' in text)
    model, files = SwinBackbone(arch='nano').eval(), []

    def profile(frame, event, arg):
        if event == 'call' and is_ours(frame):
            name = str(Path(frame.f_code.co_filename).relative_to(PACKAGE))
            if name not in files:
                files.append(name)

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
