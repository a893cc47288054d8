"""What the report measures of whole models."""

import pytest
import torch
from mmengine.config import Config

from benchmarks.gpu import models

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
SMALL = dict(embed_dims=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))


@needs_cuda
def test_a_graph_is_captured_after_a_warm_up_and_replayed():
    runs = torch.zeros((), device='cuda')
    assert models._graph_milliseconds(lambda: runs.add_(1), 4) > 0
    assert runs.item() == 3 + 4 + 2  # to warm up, timed, and to warm up the timing; a capture computes nothing


@needs_cuda
def test_what_cannot_be_captured_has_no_time():
    assert models._graph_milliseconds(lambda: torch.zeros((), device='cuda').item(), 4) is None


@pytest.mark.slow
@pytest.mark.parametrize('ours', [True, False])
def test_a_training_step_of_a_detector(monkeypatch, ours):
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    pytest.importorskip('mmcv._ext', reason='mmcv was built without its compiled operators')
    import swin_backbone
    from benchmarks import timing

    monkeypatch.setitem(models.ARCHS, 'tiny', type(models.ARCHS['tiny'])(*SMALL.values()))
    cfg = Config.fromfile('configs/mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py')
    cfg.model.neck.in_channels = [16, 32, 64, 128]
    kinds, alternate = [], timing.alternate

    def seen(runs, *arguments):
        (run,) = runs.values()
        models = [cell.cell_contents for cell in run.__closure__ if hasattr(cell.cell_contents, 'backbone')]
        model, weight = models[0], models[0].backbone.patch_embed.projection.weight
        kinds.append(isinstance(model.backbone, swin_backbone.SwinBackbone))
        before = weight.detach().clone()
        found = alternate(runs, *arguments)
        assert not torch.equal(weight, before), 'the optimizer has changed it'
        return found

    monkeypatch.setattr(timing, 'alternate', seen)
    (row,) = models.detector_step('step', cfg, ours, 1, (64, 96), torch.device('cpu'), 1)
    assert row.what == f'step, {"swin_backbone" if ours else "mmdet"}'
    assert row.values['ms'] > 0
    assert kinds == [ours]
