"""Bytes of a step of training, counted from shapes, against what torch's allocator gives out in a real one."""

import json
import subprocess
import sys

import pytest
import torch
from helpers import ROOT
from mmengine.registry import MODELS
from torch.profiler import ProfilerActivity, profile

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.cost.flops import build
from swin_backbone.cost.memory import DeformableAttention, count_memory, kept_by_strips, memory_report
from swin_backbone.cost.meta import on_device

SHAPE = (2, 3, 256, 320)


def allocated(model, shape):
    """Bytes that a real step has allocated when forward is through, and at the most; not the images and parameters."""
    x = torch.rand(shape)

    def step(after_forward=lambda: None):
        maps = model(x)
        after_forward()
        torch.autograd.backward(maps, [torch.empty_like(y) for y in maps])
        model.zero_grad()

    step()  # fills caches
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step(lambda: torch.empty(12345, dtype=torch.uint8))  # which marks the place
    now = peak = kept = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == '[memory]']
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.nbytes() == 12345:
            kept = now
        now += event.nbytes()
        peak = max(peak, now)
    return kept, peak


def counted(arch, shape, **settings):
    """The same, of what is counted: without images, parameters and moments."""
    with on_device('meta'):
        model = SwinBackbone(arch=arch, **settings)
    memory = count_memory(model, shape)
    images = 4 * shape[0] * shape[1] * shape[2] * shape[3]
    return memory.activations - images, memory.peak - memory.parameters - memory.optimizer - images


@pytest.mark.parametrize(
    ('arch', 'with_cp'),
    [('nano', False), ('nano', True), pytest.param('tiny', False, marks=pytest.mark.slow)]
    + [pytest.param('tiny', True, marks=pytest.mark.slow)],
)
def test_a_real_step_takes_what_is_counted(arch, with_cp):
    kept, peak = allocated(SwinBackbone(arch=arch, backend='graph', with_cp=with_cp).train(), SHAPE)
    expected_kept, expected_peak = counted(arch, SHAPE, with_cp=with_cp)
    assert expected_kept == pytest.approx(kept, rel=0.1)
    assert expected_peak == pytest.approx(peak, rel=0.1)


@pytest.mark.slow
def test_strips_keep_the_inputs_of_layers():
    shape = (2, 3, 512, 640)
    for settings in (dict(strip_tokens=2048, backend='eager'), dict()):
        model = SwinBackbone(arch='nano', **settings).train()
        kept, _ = allocated(model, shape)
        assert kept == pytest.approx(kept_by_strips(model, shape), rel=0.1)


@pytest.mark.slow
def test_recomputing_and_half_precision_take_less():
    whole, half = counted('nano', SHAPE)[0], count_half(False)
    assert half < 0.65 * whole
    assert counted('nano', SHAPE, with_cp=True)[0] < 0.3 * whole
    assert count_half(True) < 0.5 * half


def count_half(with_cp):
    with on_device('meta'):
        model = SwinBackbone(arch='nano', with_cp=with_cp)
    return count_memory(model, SHAPE, torch.bfloat16).activations


def test_frozen_stages_take_no_gradients():
    with on_device('meta'):
        model = SwinBackbone(arch='nano', frozen_stages=4)
    memory = count_memory(model, SHAPE)
    assert memory.gradients == memory.optimizer == 0
    assert memory.activations < 0.2 * counted('nano', SHAPE)[0]


@pytest.mark.parametrize(('arch', 'millions'), [('huge', 658), ('giant', 3000)])
def test_the_largest_have_the_parameters_that_were_published(arch, millions):
    """Liu et al. 2022, section 3.5: 658 M and 3 B; nothing of them is in memory."""
    with on_device('meta'):
        model = SwinV2Backbone(arch=arch)
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert all(parameter.is_meta for parameter in model.parameters())
    assert parameters == pytest.approx(millions, rel=0.02)


@pytest.mark.slow
def test_the_tool_prints_and_writes_it(tmp_path):
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    config = 'configs/demo/mask-rcnn_swin-nano_fpn_shapes.py'
    command = [
        sys.executable,
        'tools/flops.py',
        config,
        '--shape',
        '256',
        '--memory',
        '1',
        '--json',
        tmp_path / 'a.json',
    ]
    result = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert 'a step of training on 1 images, in GiB' in result.stdout
    memory = json.loads((tmp_path / 'a.json').read_text())['memory']
    assert memory['whole maps, fp32']['peak'] > memory['with_cp, fp32']['peak'] > memory['with_cp, bf16']['peak']
    assert memory['with_cp, fp32']['activations'] > memory['strips, fp32']['activations']


class Judge(torch.nn.Module):
    """A head that looks at a value."""

    def __init__(self, **_):
        super().__init__()
        self.backbone = SwinBackbone(arch='nano')

    def forward(self, x):
        return [y for y in self.backbone(x) if y.sum() > 0]


def test_a_head_that_needs_values_is_a_sentence(monkeypatch):
    monkeypatch.setitem(MODELS.module_dict, 'Judge', Judge)
    with pytest.raises(ValueError, match='--memory needs shapes alone, and a head needs values: --backbone-only'):
        memory_report(dict(type='Judge'), 'mmengine', (64, 64), 1)


DETECTORS = {
    'Mask R-CNN': 'mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
    'Cascade': 'cascade_rcnn/cascade-mask-rcnn_swin-t-p4-w7_fpn_4conv1fc-giou_ms-crop-3x_coco.py',
    'Mask2Former': 'mask2former/mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco.py',
}


@pytest.mark.slow
@pytest.mark.parametrize('size', ['nano', 't'])
@pytest.mark.parametrize('name', DETECTORS)
def test_a_whole_detector_takes_what_is_counted(monkeypatch, name, size):
    """Forward and backward of a real detector, through the parts that are counted."""
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    from mmcv.ops import multi_scale_deform_attn

    from swin_backbone.cost.flops import forward
    from swin_backbone.openmmlab.config.files import read_config
    from swin_backbone.openmmlab.swap.replace import swap_backbone

    cfg = swap_backbone(read_config(ROOT / 'configs' / DETECTORS[name]), f'swin-{size}', verbose=False)
    cfg.model.backbone.update(backend='graph', init_cfg=None)
    real = build(cfg.model, 'mmdet', 'cpu').train()
    monkeypatch.setattr(multi_scale_deform_attn, 'multi_scale_deformable_attn_pytorch', DeformableAttention.apply)
    shape = (1, 3, 256, 256)

    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = real

        def forward(self, x):
            found = forward(self.model, x, 512, 128)
            return [y for y in torch.utils._pytree.tree_leaves(found) if y.requires_grad]

    kept, peak = allocated(Parts(), shape)
    memory = count_memory(build(cfg.model, 'mmdet'), shape)
    images = 4 * 3 * 256 * 256
    assert memory.activations - images == pytest.approx(kept, rel=0.1)
    assert memory.peak - memory.parameters - memory.optimizer - images == pytest.approx(peak, rel=0.1)
