"""`--val-loss`: the losses on the validation set, of a training that has the same bits without them."""

import copy
import random
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.openmmlab import toy_training
from helpers.openmmlab.jobs import build_runner
from helpers.openmmlab.own_data import SIDE, detection, make_own_data, read_coco, segmentation
from helpers.openmmlab.toy_training import call_in_ranks, differing, run_ranks
from mmengine.config import ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS, HOOKS, MODELS

from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.options import Options
from swin_backbone.workbench.configs.cfg_options import parse_options
from swin_backbone.workbench.data.seeds import LOSS, seed_rng
from swin_backbone.workbench.job import Job
from swin_backbone.workbench.pictures.curves import read_log
from swin_backbone.workbench.runner import rank_errors
from swin_backbone.workbench.runner.hooks.val_loss import ValLossHook, make_loss_pipeline

HOOKS.register_module(module=ValLossHook, force=True)  # for configs of toy trainings


@HOOKS.register_module(force=True)
class Draws(Hook):
    """Compare the generators before and after the validation's losses, and keep the metrics."""

    priority = 'VERY_HIGH'  # behind ValLossHook
    metrics, kept = None, True

    def states(self):
        return str((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))

    def after_val_iter(self, *_, **__):
        self.before = self.states()

    def after_val_epoch(self, runner, metrics=None):
        type(self).metrics = [*(type(self).metrics or ()), dict(metrics)]
        type(self).kept &= self.before == self.states()


@pytest.fixture(autouse=True)
def _new_loggers():
    MMLogger._instance_dict.clear()
    yield
    MMLogger._instance_dict.clear()


def run(work_dir, *hooks, **more):
    Draws.metrics, Draws.kept = None, True
    runner = toy_training.train(
        toy_training.config(work_dir, epochs=2, val=1, hooks=[dict(type=kind) for kind in (*hooks, 'Draws')], **more)
    )
    assert Draws.kept
    return runner, Draws.metrics


def test_a_training_has_the_same_bits_with_and_without(tmp_path, capsys):
    """With drop path, batch norm, random pictures and losses, a moving average, and a model that counts its losses."""
    with_, metrics = run(tmp_path / 'with', 'EMAHook', 'ValLossHook')
    _, without = run(tmp_path / 'without', 'EMAHook')
    assert differing(tmp_path / 'with' / 'epoch_2.pth', tmp_path / 'without' / 'epoch_2.pth') == []
    assert [set(values) for values in (metrics[0], without[0])] == [
        {'val_loss', 'val_loss_a', 'val_loss_b', 'val_iter'},
        set(),
    ]
    assert metrics[0]['val_loss'] != metrics[1]['val_loss']
    assert f'val_loss: {metrics[1]["val_loss"]:.4f}' in capsys.readouterr().out  # no mean over validations
    (_, last) = read_log(tmp_path / 'with').losses['val_loss']
    assert last == (16, pytest.approx(metrics[1]['val_loss']))
    again = {}, {}
    for values in again:
        next(hook for hook in with_.hooks if isinstance(hook, ValLossHook)).after_val_epoch(with_, values)
    assert again[0] == again[1] != {}  # equal weights, equal draws


@MODELS.register_module(force=True)
class Mean(toy_training.Toy):
    """The loss is the mean of the numbers of the pictures."""

    def forward(self, inputs, data_samples=None, mode='tensor'):
        losses = super().forward(inputs, data_samples, mode)
        if mode == 'loss':
            numbers = [int(sample.img_path[8:-4]) for sample in data_samples]
            self.kept = [dict(losses)]  # with their graph, which cannot be copied
            losses = dict(loss_a=sum(numbers) / len(numbers) + 0 * losses['loss_a'], other=losses['loss_b'])
        return losses


WEIGHED = dict(model__type='Mean', train_dataloader__batch_size=6, default_hooks__logger__interval=5)


def test_the_mean_weighs_batches_by_their_pictures(tmp_path):
    """16 pictures in batches of 6, 6 and 4. mmengine logs an iteration in five."""
    _, metrics = run(tmp_path, 'ValLossHook', **WEIGHED)
    assert metrics[0] == dict(val_loss=7.5, val_loss_a=7.5, val_iter=3)
    assert [iteration for iteration, _ in read_log(tmp_path).losses['val_loss']] == [3, 6]  # of the validations


@pytest.mark.parametrize(('images', 'mean'), [(16, 7.5), (13, 6)])
def test_each_picture_of_two_processes_counts_once(tmp_path, images, mean):
    """In batches of 6 and 2. Of 13 pictures, the second process loads another batch for the sake of the first."""
    more = dict(WEIGHED, val_dataloader__dataset__images=images)
    cfg = toy_training.config(tmp_path, epochs=1, val=1, hooks=[dict(type='ValLossHook')], **more)
    assert run_ranks(cfg, log=tmp_path / 'log') == [0, 0], (tmp_path / 'log0').read_text()[-3000:]
    assert read_log(tmp_path).losses['val_loss'][0][1] == mean


@DATASETS.register_module(force=True)
class OwnPipeline(BaseDataset):
    """A data set whose class has the pipeline, and the config none."""

    def __init__(self):
        self.pictures = toy_training.NoisyImages()
        super().__init__(pipeline=[lambda item: self.pictures[item['number']]], serialize_data=False)

    def load_data_list(self):
        return [dict(number=number) for number in range(4)]


def test_a_data_set_without_a_pipeline_in_its_config_gets_one_warning(tmp_path):
    cfg = toy_training.config(tmp_path, epochs=1, val=1, hooks=[dict(type='ValLossHook'), dict(type='Draws')])
    Draws.metrics = None
    cfg.val_dataloader.dataset = dict(type='OwnPipeline')
    runner = build_runner(cfg)
    runner.train()
    assert Draws.metrics == [{}]
    log = Path(runner.logger.log_file).read_text()
    assert log.count('--val-loss has no effect: val_dataloader.dataset has no pipeline in the config') == 1


def test_a_model_without_losses_gets_one_warning(tmp_path):
    def forward(self, inputs, data_samples=None, mode='tensor'):
        if mode == 'loss' and not torch.is_grad_enabled():
            raise RuntimeError('no loss in eval')
        return toy_training.Toy.forward(self, inputs, data_samples, mode)

    MODELS.register_module(module=type('Refuses', (toy_training.Toy,), dict(forward=forward)), force=True)
    runner, metrics = run(tmp_path, 'ValLossHook', model__type='Refuses')
    assert metrics == [{}, {}]
    log = Path(runner.logger.log_file).read_text()
    assert log.count('--val-loss has no effect: model: RuntimeError: no loss in eval') == 1
    cfg = toy_training.config(tmp_path / 'no', epochs=1, hooks=[dict(type='ValLossHook')])
    with pytest.raises(ConfigError, match='--val-loss needs val_dataloader'):
        build_runner(cfg).train()


def test_an_error_of_another_process_ends_the_losses_here_too(tmp_path, monkeypatch):
    """A process that goes on alone would wait for the others."""
    monkeypatch.setattr(rank_errors, 'all_gather_object', lambda errors, group=None: [errors, ['no memory']])
    runner, metrics = run(tmp_path, 'ValLossHook')
    assert metrics == [{}, {}]
    assert Path(runner.logger.log_file).read_text().count('--val-loss has no effect: no memory') == 1


READINGS = Counter()  # of each picture


@DATASETS.register_module(force=True)
class BrokenLabels(toy_training.NoisyImages):
    """The second reading of a picture in a process, that of the losses, is an error."""

    def __getitem__(self, index):
        READINGS[index] += 1
        if index == 5 and READINGS[index] > 1:
            raise OSError(f'label_{index}.png is truncated')
        return super().__getitem__(index)


@MODELS.register_module(force=True)
class Shares(toy_training.Toy):
    """The processes share a number in the loss, as mmdet's `reduce_mean`.

    Args:
        fails_at: number of the validation's batch whose loss is an error in the second process, counted from 1.
        in_validation: the processes share a number there too.
    """

    def __init__(self, fails_at=-1, in_validation=True):
        super().__init__()
        self.fails_at, self.in_validation, self.batches = fails_at, in_validation, 0

    def forward(self, inputs, data_samples=None, mode='tensor'):
        losses = super().forward(inputs, data_samples, mode)
        if mode == 'loss':
            self.batches += not torch.is_grad_enabled()
            if self.batches == self.fails_at and torch.distributed.get_rank() == 1:
                raise RuntimeError('no memory')
            number = torch.ones(())
            if torch.is_grad_enabled() or self.in_validation:
                torch.distributed.all_reduce(number)
            losses['loss_a'] = losses['loss_a'] / number
        return losses


@HOOKS.register_module(force=True)
class Limit(ValLossHook):
    """Compute the losses, and end a process that waits without an end."""

    timeout = timedelta(seconds=10)

    def before_train(self, runner):
        signal.alarm(60)
        super().before_train(runner)


def train_ranks(tmp_path, dataset='NoisyImages', **model):
    cfg = toy_training.config(tmp_path, epochs=1, val=1, hooks=[dict(type='Limit')])
    cfg.model = dict(type='Shares', **model)
    cfg.val_dataloader = dict(cfg.val_dataloader, dataset=dict(type=dataset))
    cfg.launcher = 'pytorch'
    codes = call_in_ranks(toy_training.train_and_say, cfg, log=tmp_path / 'log')
    return codes, *[(tmp_path / f'log{rank}').read_text() for rank in (0, 1)]


def test_a_wrong_file_of_a_process_stops_no_other_in_a_loss_that_they_share(tmp_path):
    codes, log, other = train_ranks(tmp_path, 'BrokenLabels')
    assert codes == [0, 0], other[-3000:]
    assert log.count('val_dataloader.dataset: label_5.png is truncated') == 1


def test_an_error_of_a_process_in_a_loss_that_they_share_ends_the_training(tmp_path):
    codes, log, other = train_ranks(tmp_path, fails_at=1)
    assert codes == [1, 1], log[-3000:]
    reason = 'it cannot compute --val-loss (model: RuntimeError: no memory), and another process has ended or waits'
    assert f'rank 1 stops, because {reason} for it; --resume goes' in other
    assert 'rank 0 stops, because it cannot compute --val-loss (' in log


def test_an_error_of_a_process_in_a_loss_of_its_own_ends_the_losses_of_all(tmp_path):
    codes, log, other = train_ranks(tmp_path, fails_at=3, in_validation=False)
    assert codes == [0, 0], other[-3000:]
    assert log.count('--val-loss has no effect: model: RuntimeError: no memory') == 1


def own_training(tmp_path, kind):
    config, _, *words = kind(make_own_data(tmp_path / 'own'))
    options = Options(work_dir=str(tmp_path / 'work'), cfg_options=parse_options(words), val_loss=True)
    runner = Job(str(config), options).build_training()
    hook = next(hook for hook in runner.hooks if isinstance(hook, ValLossHook))
    return runner, hook


@pytest.mark.parametrize('kind', [detection, segmentation])
def test_the_losses_are_those_of_the_training_on_the_set(tmp_path, kind):
    runner, hook = own_training(tmp_path, kind)
    metrics = {}
    keep = Hook()
    keep.after_val_epoch = lambda runner, metrics=metrics, into=metrics: into.update(metrics)
    runner.register_hook(keep)
    model = runner.train()
    for batch in hook.loader:
        for inputs, sample in zip(batch['inputs'], batch['data_samples']):
            assert inputs.shape == (3, SIDE, SIDE)
            if kind is detection:  # twice as large as in the file
                (box,) = sample.gt_instances.bboxes.tensor.tolist()
                x, y, width, height = read_coco(tmp_path / 'own', 'val')['annotations'][sample.img_id]['bbox']
                assert box == [2 * x, 2 * y, 2 * (x + width), 2 * (y + height)]
                (mask,) = sample.gt_instances.masks.to_ndarray()
                assert (mask.shape, mask.sum()) == ((SIDE, SIDE), pytest.approx(4 * width * height, rel=0.1))
            else:
                assert sample.gt_sem_seg.data.shape == (1, SIDE, SIDE)
                assert int(sample.gt_sem_seg.data.sum()) == 48 * 48
    model.eval()
    seed_rng(runner.seed, LOSS, 0)
    with torch.no_grad():
        batches = (model.data_preprocessor(batch, True) for batch in hook.loader)
        losses = [float(model.parse_losses(model(**batch, mode='loss'))[0]) for batch in batches]
    assert metrics['val_loss'] == pytest.approx(sum(losses) / len(losses), rel=1e-6)


def test_labels_are_loaded_before_the_picture_is_resized():
    """Nested pipelines of mosaics, and classifiers, which load no labels."""
    names = 'LoadImageFromFile', 'Resize', 'LoadAnnotations', 'PackDetInputs'
    load, resize, boxes, pack = (dict(type=name) for name in names)
    loading = [load, dict(type='mmdet.LoadAnnotations', with_bbox=True)]
    packs = dict(type='PackDetInputs', meta_keys=('flip',))
    inner = dict(type='CocoDataset', pipeline=loading)
    train = dict(type='MultiImageMixDataset', dataset=inner, pipeline=[dict(type='Mosaic'), packs])
    for node in (train, dict(type='ConcatDataset', datasets=[train, copy.deepcopy(train)])):
        assert make_loss_pipeline([load, resize, boxes, pack], ConfigDict(node)) == [load, loading[1], resize, packs]
    classes = dict(type='ImageNet', pipeline=[load, dict(type='RandomFlip'), dict(type='PackInputs')])
    val = [load, dict(type='ResizeEdge'), dict(type='CenterCrop'), dict(type='PackInputs')]
    assert make_loss_pipeline(val, classes) == val
