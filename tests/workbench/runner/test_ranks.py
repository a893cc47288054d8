"""Several processes of a training: equal statistics of batch norm in a validation, and SyncBN without CUDA."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.openmmlab.jobs import build_runner
from helpers.openmmlab.toy_training import config, run_ranks
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch import nn

from swin_backbone.openmmlab.errors import TrainingStopped
from swin_backbone.workbench.runner import build


@HOOKS.register_module(force=True)
class SaveBuffers(Hook):
    """Save the buffers of a validating model, a file for each rank and validation."""

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        if batch_idx == 0:
            buffers = dict(runner.model.module.named_buffers())
            torch.save(buffers, f'{runner.work_dir}/{runner.iter}_{runner.rank}.pt')


def buffers_of(work_dir, iteration, rank):
    return torch.load(work_dir / f'{iteration}_{rank}.pt')


def test_all_ranks_validate_with_the_checkpoints_statistics(tmp_path):
    hooks = [dict(type='SaveBuffers')]
    for name, more in (('epochs', dict(epochs=2)), ('iterations', dict(iterations=4, interval=2))):
        work_dir = tmp_path / name
        cfg = config(work_dir, **more, val=1 if name == 'epochs' else 2, hooks=hooks,
                     default_hooks__checkpoint__max_keep_ckpts=-1)  # fmt: skip
        assert run_ranks(cfg, log=tmp_path / 'log') == [0, 0], (tmp_path / 'log0').read_text()
        iterations = {int(path.name.partition('_')[0]) for path in work_dir.glob('*_0.pt')}
        assert len(iterations) == 2
        saved = [torch.load(path, weights_only=False) for path in work_dir.glob('*.pth')]
        for iteration in iterations:
            first, second = (buffers_of(work_dir, iteration, rank) for rank in (0, 1))
            (checkpoint,) = (one for one in saved if one['meta']['iter'] == iteration)
            assert first['norm.running_mean'].abs().sum() > 0
            for name, buffer in first.items():
                assert torch.equal(buffer, second[name]), name
                assert name not in checkpoint['state_dict'] or torch.equal(buffer, checkpoint['state_dict'][name])


@pytest.mark.skipif(torch.cuda.is_available(), reason='SyncBN computes on CUDA')
def test_sync_bn_without_cuda_is_bn_and_a_line(tmp_path, monkeypatch, record_fault):
    for name, more in (('sync_bn', dict(sync_bn='torch')), ('norm_cfg', {})):
        if not more:
            monkeypatch.setattr(nn, 'BatchNorm2d', nn.SyncBatchNorm)  # of the toy model
        log = tmp_path / name
        assert run_ranks(config(tmp_path / 'work', iterations=1, **more), log=log) == [0, 0]
        assert 'SyncBN computes on GPUs alone: BN takes its place' in Path(f'{log}0').read_text()
        record_fault('bad_commands')


def test_a_process_that_is_lost_while_the_runner_is_built(monkeypatch):
    def lose_a_peer(*_):
        raise RuntimeError('[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4321')

    monkeypatch.setattr(build, 'make_runner_class', lambda *_: SimpleNamespace(from_cfg=lose_a_peer))
    monkeypatch.setattr(build, 'require_class_counts', lambda _: None)
    monkeypatch.setattr(build, 'LEAD_S', 0)
    monkeypatch.setattr(torch.distributed, 'is_initialized', lambda: True)
    monkeypatch.setattr(torch.distributed, 'get_rank', lambda: 1)
    with pytest.raises(TrainingStopped, match='rank 1 stops, because another process of the run is gone') as stopped:
        build_runner(Config(dict(launcher='none')))
    assert '--resume' not in str(stopped.value)  # no training, or none with a further checkpoint
    lost = SimpleNamespace(train=lose_a_peer, test=lose_a_peer, register_hook=lambda *_, **__: None)
    for what in ('train', 'test'):
        with pytest.raises(TrainingStopped, match='rank 1 stops') as stopped:
            build.run_loop(lost, what)
        assert ('--resume goes on' in str(stopped.value)) == (what == 'train')
