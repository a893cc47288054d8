"""What the report measures of whole models, on a CPU; functions of torch.cuda are replaced, since there is no GPU."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config

from swin_backbone.analysis import gpu_models

SMALL = dict(embed_dims=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda, as far as a graph is captured and timed: what happens, in order."""
    events = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            events.append('record')

        def elapsed_time(self, end):
            return 2.5

    class Graph:
        def replay(self):
            events.append('replay')

    @contextmanager
    def captured(graph):
        events.append('capture')
        yield
        events.append('captured')

    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = dict(Event=Event, CUDAGraph=Graph, graph=captured, Stream=lambda: stream, current_stream=lambda: stream)
    fakes.update(stream=contextmanager(lambda s: (yield)), synchronize=lambda *device: None, current_device=lambda: 0)
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return events


def test_a_graph_is_captured_after_a_warm_up_and_replayed(cuda):
    assert gpu_models._graph_milliseconds(lambda: cuda.append('run'), 4) == 2.5
    assert cuda[:6] == ['run'] * 3 + ['capture', 'run', 'captured']
    assert cuda.count('replay') == 4 + 2
    assert cuda[6:9] == ['record', 'replay', 'record']


def test_what_cannot_be_captured_has_no_time(cuda):
    def run():
        if 'capture' in cuda:
            raise RuntimeError('operation not permitted when stream is capturing')

    assert gpu_models._graph_milliseconds(run, 4) is None
    assert 'replay' not in cuda


@pytest.mark.slow
@pytest.mark.parametrize('ours', [True, False])
def test_a_training_step_of_a_detector(monkeypatch, ours):
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    pytest.importorskip('mmcv._ext', reason='mmcv was built without its compiled operators')
    import swin_backbone
    from swin_backbone.analysis import timing

    monkeypatch.setitem(gpu_models.ARCHS, 'tiny', type(gpu_models.ARCHS['tiny'])(*SMALL.values()))
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
    (row,) = gpu_models.detector_step('step', cfg, ours, 1, (64, 96), torch.device('cpu'), 1)
    assert row.what == f'step, {"swin_backbone" if ours else "mmdet"}'
    assert row.values['ms'] > 0
    assert kinds == [ours]
