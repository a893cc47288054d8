"""An error of a toolbox has a single line: key of the config part, file of the config, message."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import Registry
from torch import nn

from swin_backbone.openmmlab.errors import describe_error

LAYERS = Registry('layers of these tests')


@LAYERS.register_module()
class Layer(nn.Module):
    def __init__(self, width=1, inner=None):
        super().__init__()
        if width < 0:
            raise AssertionError
        self.width, self.inner = width, inner and LAYERS.build(inner)

    def forward(self, value):
        if self.width == 3:
            raise RuntimeError('two\n   lines')
        return self.inner(value) if self.inner else {}[value]


def failure(model, value=None):
    """Return the line of an error in building a model, or in its forward if there is a value."""
    cfg = Config(dict(model=dict(type='Layer', **model)), filename='a.py', cfg_text=' ')
    with pytest.raises((AssertionError, LookupError, RuntimeError, TypeError)) as caught:
        LAYERS.build(cfg.model)(value)
    return describe_error(caught.value)


def test_the_part_that_cannot_be_built_is_named():
    line = failure(dict(inner=dict(type='Layer', width=2, inner=dict(type='Layer', width=-1))))
    assert line == 'model.inner.inner of a.py: AssertionError: `raise AssertionError` failed'
    assert failure(dict(inner=dict(type='Layer', heigth=2))).startswith('model.inner of a.py: ')
    assert failure(dict(inner=dict(type='Lare'))).startswith('model.inner of a.py: KeyError: ')


def test_the_part_that_fails_at_work_is_named():
    parts = dict(width=5, inner=dict(type='Layer', width=3))
    assert failure(parts, 7) == 'model.inner of a.py: RuntimeError: two lines'
    assert failure(dict(width=4), 'key') == 'model of a.py: KeyError: key'


def test_a_function_that_reads_a_part_names_it():
    cfg = Config(dict(optim_wrapper=dict(optimizer=dict(type='SGDD', lr='abc'))))

    def scale(cfg, optimizer):
        return optimizer['lr'] * 0.5

    with pytest.raises(TypeError) as caught:
        scale(cfg, cfg.optim_wrapper.optimizer)
    assert describe_error(caught.value).startswith("optim_wrapper.optimizer: can't multiply")


def test_errors_without_a_config_are_their_message():
    assert describe_error(ValueError('a\nb')) == 'a b'
    assert describe_error(KeyError('a')) == 'KeyError: a'
    assert describe_error(FileNotFoundError(2, 'No such file', 'a.png')) == 'a.png (No such file)'
    assert len(describe_error(ValueError('x' * 5000))) < 1100


def test_an_error_of_cut_pictures_names_the_tiles(record_fault):
    """Masks of mmseg's Mask2Former have the size of the padded picture, not of the cut."""
    from mmseg.models import EncoderDecoder

    model = SimpleNamespace(
        test_cfg=SimpleNamespace(stride=(4, 4), crop_size=(8, 8)),
        out_channels=2,
        encode_decode=lambda inputs, metas: torch.zeros(1, 2, *metas[0]['pad_shape']),
    )
    with pytest.raises(RuntimeError, match='size of tensor') as caught:
        EncoderDecoder.slide_inference(model, torch.zeros(1, 3, 12, 12), [dict(pad_shape=(12, 12))])
    assert describe_error(caught.value).endswith('tools/infer_tiles.py cuts pictures for every head')
    record_fault('bad_commands')
