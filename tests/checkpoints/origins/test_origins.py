"""Load random weights under the names of origins. Compare with a direct load."""

import pytest
import torch
from helpers.checkpoints.origins import ORIGINS
from helpers.models.small_models import Detector, lines, randomised

from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import read_checkpoint

WHOLE = ('official_detector', 'mmdet_detector', 'averaged', 'teacher_and_student')


@pytest.mark.parametrize('origin', ['plain', *WHOLE])
def test_by_a_config_and_into_a_whole_model(tmp_path, origin):
    """`test_generated.py` loads every origin."""
    save, title, _ = ORIGINS[origin]
    source = randomised()
    torch.save(save(source.state_dict()), tmp_path / 'weights.pth')
    configured = SwinBackbone(arch='nano', init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'weights.pth')))
    configured.init_weights()
    detector = Detector(SwinBackbone(arch='nano'))
    report = load_checkpoint(detector, tmp_path / 'weights.pth')
    assert report.origin == title
    for key, value in source.state_dict().items():
        assert torch.equal(configured.state_dict()[key], value)
        assert torch.equal(detector.backbone.state_dict()[key], value)
    has_neck = origin in WHOLE
    assert detector.neck.fpn.weight.tolist() == [has_neck, has_neck]
    assert report.missing_elsewhere == ([] if has_neck else ['neck.fpn.weight'])
    convert_checkpoint(tmp_path / 'weights.pth', tmp_path / 'target.pth', 'mmdet')
    written = read_checkpoint(tmp_path / 'target.pth')['state_dict']
    if has_neck:  # a whole detector stays whole
        assert written['neck.fpn.weight'].tolist() == [1, 1]
    for key, value in source.state_dict().items():
        assert torch.equal(written[f'backbone.{key}' if has_neck else key], value)


def test_what_a_report_says(tmp_path, log):
    source = randomised(False)
    torch.save(ORIGINS['official'][0](source.state_dict()), tmp_path / 'weights.pth')
    report = load_checkpoint(SwinBackbone(arch='nano', window_size=(7, 12)), tmp_path / 'weights.pth')
    assert report.ignored['classification head'] == ['head.weight', 'head.bias']
    assert report.ignored['classification norm'] == ['norm.weight', 'norm.bias']
    assert len(report.ignored['index tables and masks']) == 8 + 1
    (line,) = [line for line in lines(log) if line.startswith('Loaded')]
    assert line == (
        f'Loaded {tmp_path}/weights.pth (microsoft/Swin-Transformer): 117 tensors, 8 of them resized (bias tables from '
        'window 7x7 to 7x12), 13 ignored (index tables and masks: layers.0.blocks.0.attn.relative_position_index, '
        'layers.0.blocks.1.attn.relative_position_index, layers.1.blocks.0.attn.relative_position_index and 6 more; '
        'classification norm: norm.weight, norm.bias; classification head: head.weight, head.bias), 8 missing'
    )
    (warning,) = lines(log, 'WARNING')
    assert warning.startswith('Left at their initialisation: norm0.weight, norm0.bias, norm1.weight')


def test_a_prefix_that_is_asked_for_is_taken(tmp_path):
    source = randomised()
    torch.save(ORIGINS['teacher_and_student'][0](source.state_dict()), tmp_path / 'weights.pth')
    checkpoint = str(tmp_path / 'weights.pth')
    for prefix, expected in (('student.backbone', 0), ('teacher.backbone.', source.norm0.weight[0])):
        cfg = dict(type='Pretrained', checkpoint=checkpoint, prefix=prefix)
        backbone = SwinBackbone(arch='nano', init_cfg=[cfg])
        backbone.init_weights()
        assert backbone.norm0.weight[0] == expected
    with pytest.raises(
        ValueError, match=r"at prefix 'neck\.', but at \['student\.backbone\.', 'teacher\.backbone\.'\]"
    ):
        load_checkpoint(backbone, checkpoint, prefix='neck')


def test_a_semi_supervised_model_gets_each_of_its_own(tmp_path):
    source = randomised()
    torch.save(ORIGINS['teacher_and_student'][0](source.state_dict()), tmp_path / 'weights.pth')
    model = torch.nn.ModuleDict({name: Detector(SwinBackbone(arch='nano')) for name in ('teacher', 'student')})
    report = load_checkpoint(model, tmp_path / 'weights.pth')
    assert torch.equal(model['teacher'].backbone.norm0.weight, source.norm0.weight)
    assert not model['student'].backbone.norm0.weight.any()
    assert model['teacher'].neck.fpn.weight.all()
    assert not report.missing
    assert not report.missing_elsewhere
    assert set(report.ignored) == {'index tables and masks'}


def test_the_official_detectors_position_map(tmp_path):
    """The official detectors store the absolute position embedding with shape (1, C, H, W), for any aspect ratio."""
    source = randomised(use_abs_pos_embed=True, pretrain_img_size=(32, 48))
    state = ORIGINS['official_detector'][0](source.state_dict())
    embedding = state['state_dict']['backbone.absolute_pos_embed']
    state['state_dict']['backbone.absolute_pos_embed'] = embedding.transpose(1, 2).unflatten(2, (8, 12))
    torch.save(state, tmp_path / 'weights.pth')
    same, larger = (SwinBackbone(arch='nano', use_abs_pos_embed=True, pretrain_img_size=s) for s in ((32, 48), 64))
    load_checkpoint(same, tmp_path / 'weights.pth')
    assert torch.equal(same.absolute_pos_embed, source.absolute_pos_embed)
    load_checkpoint(larger, tmp_path / 'weights.pth')
    expected = torch.nn.functional.interpolate(
        embedding.transpose(1, 2).unflatten(2, (8, 12)), (16, 16), mode='bicubic'
    )
    assert torch.equal(larger.absolute_pos_embed, expected.flatten(2).transpose(1, 2))
