"""A test stops with an error if the checkpoint lacks weights of the model."""

import numpy as np
import pytest
import torch
from helpers import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope, init_default_scope

from swin_backbone.checkpoints import CheckpointError
from swin_backbone.workbench.weights.completeness import (
    ALLOW_MISSING,
    adapt_checkpoint,
    compare_class_names,
    read_dataset_meta,
)

DETECTOR = ROOT / 'configs' / 'demo' / 'mask-rcnn_swin-nano_fpn_shapes.py'
SEGMENTOR = ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py'


def build(path, classes=None, swin='SwinBackbone'):
    cfg = Config.fromfile(str(path))
    scope = cfg.default_scope
    init_default_scope(scope)
    model = cfg.model
    if swin != 'SwinBackbone':
        model.backbone = dict(type=swin, embed_dims=32, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))
    if classes:
        heads = [model.roi_head.bbox_head, model.roi_head.mask_head] if scope == 'mmdet' else [model.decode_head]
        for head in heads:
            head.num_classes = classes
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(model)


@pytest.fixture(scope='module')
def detector():
    return build(DETECTOR)


@pytest.fixture(scope='module')
def segmentor():
    return build(SEGMENTOR)


def fits(model, loaded, strict=True):
    return adapt_checkpoint(model, loaded, 'weights.pth', strict, ALLOW_MISSING)


def test_a_whole_model_is_taken(detector):
    state = detector.state_dict()
    weights = fits(detector, {'state_dict': state})
    assert set(weights) == set(state)


def test_missing_weights_are_named(detector, segmentor):
    message = r"'weights\.pth' does not have \d+ of the \d+ weights of the model \(decode_head\.[\w.]+, .* more\)"
    with pytest.raises(CheckpointError, match=message + '.*--allow-missing'):
        fits(segmentor, {'state_dict': detector.state_dict()})
    assert fits(segmentor, {'state_dict': detector.state_dict()}, strict=False)


@pytest.mark.parametrize('bare', [True, False])
@pytest.mark.parametrize(('path', 'ours'), [(DETECTOR, 4), (SEGMENTOR, 5)])
def test_another_number_of_classes_is_said_with_both(request, path, ours, bare):
    model = request.getfixturevalue('detector' if path is DETECTOR else 'segmentor')
    loaded = {'state_dict': build(path, classes=7).state_dict()}
    if not bare:
        loaded['meta'] = {'dataset_meta': {'CLASSES': tuple('abcdefg')}}
    message = (
        r'in another shape \([\w.]+: \(\d+,.*\), not \(\d+,.*--allow-missing'
        if bare
        else f"'weights.pth' was trained with 7 classes, the model of the config has {ours}; --allow-missing"
    )
    with pytest.raises(CheckpointError, match=message):
        fits(model, loaded)


def test_a_weight_of_another_shape_is_named(detector):
    state = {key: value.clone() for key, value in detector.state_dict().items()}
    state['rpn_head.rpn_cls.bias'] = torch.ones(9)
    del state['rpn_head.rpn_reg.bias']
    with pytest.raises(
        CheckpointError,
        match=r'does not have 1 of the \d+ weights of the model \(rpn_head\.rpn_reg\.bias\) and has 1 in '
        r'another shape \(rpn_head\.rpn_cls\.bias: \(9,\), not \(\d+,\)\)',
    ):
        fits(detector, {'state_dict': state})


def test_the_toolboxes_own_swin_too():
    model = build(DETECTOR, swin='SwinTransformer')
    state = model.state_dict()
    wrapped = {f'module.{key}': value for key, value in state.items() if 'relative_position_index' not in key}
    assert fits(model, {'state_dict': wrapped}) is None
    state.pop('backbone.norm0.bias')
    with pytest.raises(CheckpointError, match=r'does not have 1 of the \d+ weights of the model \(backbone\.norm0'):
        fits(model, {'state_dict': state})


@pytest.mark.parametrize(
    'meta', [None, {}, {'dataset_meta': None}, {'dataset_meta': [dict(classes=('cat',))]}, ['cat']]
)
def test_metainfo_without_classes(meta):
    assert not read_dataset_meta({'meta': meta})


def test_classes_and_palettes_of_the_toolboxes():
    for palette in ([(1, 2, 3)], np.array([[1, 2, 3]]), 'coco', None, []):
        meta = read_dataset_meta({'meta': {'dataset_meta': dict(CLASSES=('cat',), PALETTE=palette)}})
        assert meta['classes'] == ('cat',)
        assert len(meta.get('palette', ())) in (0, 1)


@pytest.mark.parametrize(('saved', 'classes', 'warning'), [
    (['nut', 'bolt'], ('nut', 'bolt'), ''),
    ([], ('nut',), ''),  # bare weights
    (['nut', 'bolt'], ('nut',), ''),  # an error of the weights
    (['nut', 'bolt'], ('nut', 'pin'), 'has other classes, as bolt in place of pin: its classes are nut, bolt; '),
])  # fmt: skip
def test_other_names_are_a_warning(saved, classes, warning):
    found = compare_class_names(saved, classes, 'w.pth')
    assert warning in found
    assert bool(warning) == bool(found)
