"""Parameters and multiply-adds against the published tables, and against closed forms."""

import json

import pytest
import torch
from helpers import ROOT
from helpers.in_process import run_well
from mmengine.config import Config

from swin_backbone import ARCHS_V2, SwinBackbone, SwinV2Backbone
from swin_backbone.devices import on_device
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.workbench.cost.flops import build, count_costs, count_flops

CASCADE = 'cascade_rcnn/cascade-mask-rcnn_swin-{}-p4-w7_fpn_4conv1fc-giou_ms-crop-3x_coco'
HTC = 'htc/htc_swin-{}-p4-w7-in22k-pre_fpn_instaboost-ms-400-1400-6x_coco'
UPERNET = 'upernet/swin-{}_upernet_8xb2-160k_ade20k-{}'

# The tables of Liu et al. 2021: config, millions of parameters and billions of multiply-adds as printed, input.
# test_tool_writes_text_and_json has the first row, of Mask R-CNN with Swin-T. In every run each detector and segmentor
# is counted once.
PUBLISHED = [
    (CASCADE.format('t'), 86, 745, (800, 1280)),
    ('atss/atss_swin-t-p4-w7_fpn_ms-crop-3x_coco', 36, 215, (800, 1280)),
    (HTC.format('b'), 160, 1043, (800, 1280)),
    (UPERNET.format('tiny-patch4-window7-in1k-pre', '512x512'), 60, 945, (512, 2048)),
]
OF_OTHER_SIZES = [
    ('mask_rcnn/mask-rcnn_swin-s-p4-w7_fpn_ms-crop-3x_coco', 69, 359, (800, 1280)),
    (CASCADE.format('s'), 107, 838, (800, 1280)),
    (CASCADE.format('b'), 145, 982, (800, 1280)),
    (HTC.format('l'), 284, 1470, (800, 1280)),
    (UPERNET.format('small-patch4-window7-in1k-pre', '512x512'), 81, 1038, (512, 2048)),
    (UPERNET.format('base-patch4-window7-in1k-pre', '512x512'), 121, 1188, (512, 2048)),
    (UPERNET.format('base-patch4-window7-in22k-pre', '640x640'), 121, 1841, (640, 2560)),
]


def counts_of(name, shape):
    cfg = read_config(ROOT / 'configs' / f'{name}.py')
    pytest.importorskip(cfg.default_scope, reason=f'{cfg.default_scope} is not installed')
    return count_flops(build(cfg.model, cfg.default_scope), *shape)


def slow(rows):
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


@pytest.mark.parametrize(('name', 'params', 'flops', 'shape'), PUBLISHED + slow(OF_OTHER_SIZES))
def test_published(name, params, flops, shape):
    cost = counts_of(name, shape).cost()
    assert round(cost.params / 1e6) == params
    assert cost.flops / 1e9 == pytest.approx(flops, rel=0.01)


def test_sparse_rcnn_is_printed_without_products_of_activations():
    """Published: 172 G. The whole model has 1.9 % more: the authors' tool counts modules, not products in forward."""
    counts = counts_of('sparse_rcnn/sparse-rcnn_swin-t-p4-w7_fpn_300-proposals_ms-crop-3x_coco', (800, 1280))
    cost = counts.cost()
    assert round(cost.params / 1e6) == 110
    assert cost.flops / 1e9 == pytest.approx(172 * 1.019, rel=0.002)
    proposals, places, C, hidden, stages = 300, 49, 256, 64, 6
    dynamic = 2 * places * C * hidden * proposals  # the dynamic convolution's two products of activations
    attention = 3 * proposals * C * C + 2 * proposals**2 * C  # query, key and value, and the attention itself
    assert (cost.flops - stages * (dynamic + attention)) / 1e9 == pytest.approx(172, rel=0.01)


@pytest.mark.slow
def test_upernet_swin_l_is_printed_for_a_larger_picture():
    """Published: 3230 G at 640x2560. The model has 2563 G at this size, and 3230 G for a quarter more pixels."""
    name = UPERNET.format('large-patch4-window12-in22k-384x384-pre', '640x640')
    cost = counts_of(name, (640, 2560)).cost()
    assert round(cost.params / 1e6) == 234
    assert cost.flops / 1e9 == pytest.approx(2563, rel=0.001)
    for shape in ((640, 3200), (800, 2560)):
        assert counts_of(name, shape).cost().flops / 1e9 == pytest.approx(3230, rel=0.012)


# Classifiers of microsoft/Swin-Transformer: size, window, millions of parameters, billions of multiply-adds.
CLASSIFIERS = [('tiny', 7, 28, 4.5), ('tiny', 8, 28.35, 5.9), ('tiny', 16, 28.35, 6.6)]
LARGER = [('small', 7, 50, 8.7), ('base', 7, 88, 15.4), ('large', 7, 197, 34.5), ('small', 8, 49.73, 11.5),
          ('small', 16, 49.73, 12.6), ('base', 8, 87.92, 20.3), ('base', 16, 87.92, 21.8)]  # fmt: skip


@pytest.mark.parametrize(('arch', 'window', 'params', 'flops'), CLASSIFIERS + slow(LARGER))
def test_published_classifiers(arch, window, params, flops):
    """V1 at 224x224 pixels, V2 at 256x256; the table of V2 leaves out the position bias."""
    kind, side = (SwinBackbone, 224) if window == 7 else (SwinV2Backbone, 256)
    with on_device('meta'):
        backbone = kind(arch=arch, window_size=window, small_map='shrink', out_indices=(3,)).eval()
    cost = count_flops(backbone, side, side).cost()
    classifier = 1000 * backbone.num_features[-1]  # a linear layer behind the mean over the last map
    biases = 0
    if kind is SwinV2Backbone:
        sizes = zip(backbone.stages, (min(window, 64 >> stage) for stage in range(4)), ARCHS_V2[arch].num_heads)
        biases = sum(len(stage.blocks) * (2 * side - 1) ** 2 * 512 * (2 + heads) for stage, side, heads in sizes)
    parameters = (cost.params + classifier + 1000) / 1e6
    assert parameters == pytest.approx(params, abs=0.006) if biases else round(parameters) == params
    within = dict(abs=0.08) if biases else dict(rel=0.01)
    assert (cost.flops + classifier - biases) / 1e9 == pytest.approx(flops, **within)


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize('windows', [(8, 8, 8, 8), (16, 16, 16, 8), (8, (4, 16), 2, (1, 8))])
def test_attention_is_the_closed_form_and_v2s_position_bias(kind, windows):
    """With windows that divide the maps."""
    with on_device('meta'):
        backbone = kind(arch='nano', window_size=windows).eval()
    counts = count_flops(backbone, 256, 512)
    for i in range(4):
        hw, C, heads, (wh, ww) = (64 >> i) * (128 >> i), 32 << i, 2 << i, backbone.window_size[i]
        windowed = 4 * hw * C**2 + 2 * wh * ww * hw * C  # equation 2 of the paper
        bias = (2 * wh - 1) * (2 * ww - 1) * 512 * (2 + heads) if kind is SwinV2Backbone else 0
        assert [counts.cost(f'stages.{i}.blocks.{j}.attn').flops for j in range(2)] == [windowed + bias] * 2


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone, 'layers'])
def test_what_is_counted_is_what_mmengine_counts(kind):
    """A backbone at a size without padding, and a model of other layers."""
    from mmengine.analysis import get_model_complexity_info
    from torch import nn

    if kind == 'layers':
        layers = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.Upsample(scale_factor=2), nn.Flatten(2)
        model = nn.Sequential(*layers, nn.Linear(32004, 10))
    else:
        model = kind(arch='nano', window_size=4, drop_path_rate=0.0)
    with torch.no_grad():
        theirs = get_model_complexity_info(model.eval(), (3, 128, 256), show_table=False, show_arch=False)
    ours = count_flops(model, 128, 256, 'cpu').cost()
    assert (ours.params, ours.flops) == (theirs['params'], theirs['flops'])


def test_more_than_three_bands():
    def count(**backbone):
        backbone = dict(type='swin_backbone.SwinBackbone', arch='nano', **backbone)
        cfg = Config(dict(model=dict(backbone=backbone), default_scope='mmengine'))
        return count_costs(cfg, (64, 96), backbone_only=True)['total']

    weights = 7 * 32 * 4 * 4  # of seven more bands in the patch embedding
    of_three, of_ten = count(), count(in_channels=10)
    assert of_ten['params'] - of_three['params'] == weights
    assert of_ten['flops'] - of_three['flops'] == weights * 16 * 24


def test_tool_writes_text_and_json(tmp_path, monkeypatch):
    monkeypatch.setenv('COLUMNS', '120')
    config, file = ROOT / 'configs' / 'mask_rcnn' / 'mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py', tmp_path / 'flops.json'
    printed = run_well('tools/flops.py', config, '--shape', '800', '1280', '--json', file).stdout
    data = json.loads(file.read_text())
    assert '47.79 M' in printed
    assert '266.09 G' in printed
    assert data['total'] == {'params': 47794602, 'flops': 266086365184}
    assert sum(part['flops'] for part in data['parts'].values()) == data['total']['flops']
    assert list(data['stages']) == [f'stages.{i}' for i in range(4)]


def test_a_config_is_counted_without_its_data():
    config = ROOT / 'configs' / 'demo' / 'mask-rcnn_swin-nano_fpn_own.py'
    assert 'backbone' in run_well('tools/flops.py', config, '--shape', 64).stdout
