"""The guards of a training are in the runner: each config of each toolbox has them, also by `load`."""

import pickle
import signal
from pathlib import Path

import pytest
import torch
from helpers.in_process import forget_instances
from helpers.openmmlab import layouts
from helpers.openmmlab.jobs import SMALL_RETINANET
from helpers.openmmlab.toy_training import differing
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS

from swin_backbone import NonFiniteGuardHook, load
from swin_backbone.checks import DataError
from swin_backbone.openmmlab.errors import TrainingStopped
from swin_backbone.options import Options
from swin_backbone.workbench.job import Job
from swin_backbone.workbench.runner.predict_by_shape import predict_by_shape

# config: the layout of the data, and options that make the model small
CONFIGS = {
    'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py': ('coco', SMALL_RETINANET),
    'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py': (
        'labels',
        {'model.decode_head.channels': 16, 'model.auxiliary_head.channels': 16},
    ),
    'mmpretrain::resnet/resnet50_8xb32_in1k.py': ('classes', {}),
}
NAN_AT, STOP_AT, LAST = 2, 3, 4  # iterations, counted from 1


@HOOKS.register_module(force=True)
class NotFinite(Hook):
    """Make the outputs of the backbone NaN in an iteration, counted from 1."""

    priority = 'LOWEST'

    def __init__(self, at):
        self.at = at

    def before_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == self.at:
            self.handle = runner.model.backbone.register_forward_hook(
                lambda _, __, maps: tuple(x * torch.nan for x in maps)
            )

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == self.at:
            self.handle.remove()


def options(*hooks):
    loaders = {
        f'{phase}_dataloader.{key}': value
        for phase in ('train', 'val', 'test')
        for key, value in (('num_workers', 0), ('persistent_workers', False))
    }
    more = {'+custom_hooks': list(hooks), '+randomness': dict(seed=5)}
    return {'model.backbone.init_cfg': None, **more, **loaders}


def loaded(config, data, work_dir, *hooks):
    forget_instances()
    checkpoint = {'default_hooks.checkpoint.max_keep_ckpts': -1, 'default_hooks.checkpoint.interval': 1}
    given = {**options(*hooks), **checkpoint, **CONFIGS[config][1]}
    return load(config, backbone='swin-nano', data=data, work_dir=work_dir, options=given)


def train(config, model, resume=False):
    """Train four steps, and return the last checkpoint."""
    sides = None if 'mmpretrain' in config else (64, 64)  # a classifier's pipeline has no Resize
    return model.train(epochs=2, batch=2, img_scale=sides, resume=resume).checkpoint


@pytest.mark.parametrize(
    'config', [pytest.param(name, marks=[pytest.mark.toolboxes] if 'mmpretrain' in name else []) for name in CONFIGS]
)
def test_each_toolbox_has_the_guards(tmp_path, config, record_fault):
    if 'mmpretrain' in config:
        pytest.importorskip('mmpretrain', reason='mmpretrain is not installed: make install EXTRAS=cls')
    root = layouts.made(CONFIGS[config][0], tmp_path)
    spoil = dict(type='NotFinite', at=NAN_AT)
    stop = dict(type='SendSignal', number=int(signal.SIGTERM), after=[STOP_AT])
    whole = train(config, loaded(config, root, tmp_path / 'whole', spoil))
    (log,) = (tmp_path / 'whole').glob('*/*.log')
    assert f'Iteration {NAN_AT}: step skipped, number 1 in a row' in log.read_text()
    model = loaded(config, root, tmp_path / 'cut', spoil, stop)
    with pytest.raises(TrainingStopped, match=f'SIGTERM: training stops after iteration {STOP_AT}'):
        train(config, model)
    assert model.checkpoint.endswith(f'iter_{STOP_AT}.pth')
    assert model.cfg.train_dataloader.batch_size == 2
    resumed = train(config, loaded(config, root, tmp_path / 'cut'), resume=True)
    assert Path(whole).name == Path(resumed).name
    assert differing(whole, resumed) == []
    assert (tmp_path / 'cut' / '.training.txt').exists()  # test_lock.py: another process is refused
    for picture in root.rglob('*train_0*.jpg'):
        picture.write_bytes(picture.read_bytes()[:400])
    with pytest.raises((DataError, ValueError), match='train_0'):
        train(config, loaded(config, root, tmp_path / 'bad'))
    record_fault('non_finite', 2)
    record_fault('signals')
    record_fault('resumes')
    record_fault('bad_data')


def guards_of(runner):
    return [hook.max_in_a_row for hook in runner.hooks if isinstance(hook, NonFiniteGuardHook)]


def test_a_config_sets_the_guard_of_losses_or_turns_it_off(tmp_path):
    root = layouts.made('coco', tmp_path)
    config = next(iter(CONFIGS))

    def build(more):
        forget_instances()
        given = {**options(), **more}
        job = Job(config, Options(data=root, work_dir=str(tmp_path / 'work'), cfg_options=given))
        return job.build_training()

    runner = build({})
    assert guards_of(runner) == [10]
    model = runner.model
    assert type(model) is MODELS.get('mmdet.RetinaNet')
    assert type(pickle.loads(pickle.dumps(model))) is type(model)
    assert guards_of(build({'+default_hooks.finite': None})) == []
    assert guards_of(build({'+default_hooks.finite': dict(type='NonFiniteGuardHook', max_in_a_row=3)})) == [3]
    assert guards_of(build({'+custom_hooks': [dict(type='NonFiniteGuardHook', max_in_a_row=4)]})) == [4]


def test_each_shape_of_a_batch_is_a_call():
    pictures = [torch.zeros(3, side, 4) for side in (4, 5, 4, 5, 5)]
    names, calls = list('abcde'), []

    def step(batch):
        calls.append(batch['data_samples'])
        return batch['data_samples']

    assert predict_by_shape(step, dict(inputs=pictures, data_samples=names)) == names
    assert calls == [['a', 'c'], ['b', 'd', 'e']]


def test_views_of_test_time_augmentation_stay_together():
    first = [torch.zeros(3, side, 4) for side in (4, 4, 5)]
    second = [torch.zeros(3, side, 4) for side in (4, 6, 5)]
    calls = []

    def step(batch):
        calls.append(batch['data_samples'])
        return [''.join(pair) for pair in zip(*batch['data_samples'])]

    batch = dict(inputs=[first, second], data_samples=[list('abc'), list('ABC')])
    assert predict_by_shape(step, batch) == ['aA', 'bB', 'cC']
    assert calls == [[['a'], ['A']], [['b'], ['B']], [['c'], ['C']]]
