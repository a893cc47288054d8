"""--epochs, --batch, --shape and --lr change all dependent settings."""

import copy

import pytest
from mmengine.config import Config, ConfigDict
from mmengine.dataset import RepeatDataset
from mmengine.optim import LinearLR
from mmengine.registry import PARAM_SCHEDULERS
from torch import nn, optim

from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.swap.backbone import swap_backbone
from swin_backbone.options import Options
from swin_backbone.workbench.configs.cfg_options import get_setting
from swin_backbone.workbench.configs.training_settings import (
    apply_settings,
    describe_lr,
    scale_schedule,
)

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
YOLOX = 'mmdet::yolox/yolox_tiny_8xb8-300e_coco.py'
RTMDET = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'
TOOD = 'mmdet::tood/tood_r50_fpn_1x_coco.py'
VOC = 'mmdet::pascal_voc/retinanet_r50_fpn_1x_voc0712.py'
SOLO = 'mmdet::condinst/condinst_r50_fpn_ms-poly-90k_coco_instance.py'
FCN = 'mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py'
SEGFORMER = 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'
CITYSCAPES = 'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'
SLIDE = 'mmseg::vit/vit_vit-b16_mln_upernet_8xb2-80k_ade20k-512x512.py'


def put(cfg, pictures=100, **settings):
    """Put settings into a config as a job with as many pictures."""
    apply_settings(cfg, Options(**settings))
    if 'epochs' in settings:
        scale_schedule(cfg, pictures, epochs=settings['epochs'])
    return cfg


def set_(config, pictures=100, **settings):
    return put(read_config(config), pictures, **settings)


def rates(cfg, steps):
    """Return the learning rates of all steps of a training, computed with mmengine's schedulers."""
    lr = cfg.optim_wrapper.optimizer.lr
    optimizer = optim.SGD(nn.Linear(1, 1).parameters(), lr=lr)
    by_epoch = 'max_epochs' in cfg.train_cfg
    epochs = cfg.train_cfg.get('max_epochs', 1)
    schedulers = []
    for one in cfg.param_scheduler:
        one = dict(one, optimizer=optimizer)
        cls = PARAM_SCHEDULERS.get(one.pop('type'))
        converts = one.pop('convert_to_iter_based', False)
        build = cls.build_iter_from_epoch if converts else cls
        schedulers.append(build(**one, **(dict(epoch_length=steps // epochs) if converts else {})))
    results = []
    for step in range(1, steps + 1):
        results.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            if not scheduler.by_epoch or (by_epoch and step % (steps // epochs) == 0):
                scheduler.step()
    return results


def test_epochs_of_a_step_schedule():
    cfg = set_(RETINANET, epochs=6)  # 6 of 12 epochs, 50 steps an epoch
    assert (cfg.train_cfg.max_epochs, cfg.train_cfg.val_interval) == (6, 1)
    warm_up, steps = cfg.param_scheduler
    assert (warm_up.end, steps.end, steps.milestones) == (30, 6, [4, 6])
    assert cfg.default_hooks.logger.interval == 50
    assert rates(cfg, 300)[31] == pytest.approx(cfg.optim_wrapper.optimizer.lr)
    longer = set_(RETINANET, epochs=36)
    assert (longer.train_cfg.val_interval, longer.param_scheduler[1].milestones) == (1, [24, 33])


def test_epochs_of_a_config_that_counts_iterations():
    cfg = set_(FCN, epochs=4, batch=5)  # 20 steps an epoch
    assert cfg.train_cfg.max_iters == cfg.param_scheduler[0].end == 80
    assert (cfg.train_cfg.val_interval, cfg.default_hooks.checkpoint.interval) == (20, 20)
    assert cfg.default_hooks.logger.interval == 8
    results = rates(cfg, 80)
    assert results[0] == cfg.optim_wrapper.optimizer.lr
    assert results[-1] < 0.1 * results[0]


@pytest.mark.parametrize(('epochs', 'interval'), [(1, 12), (10, 12), (25, 24), (1000, 1200), (10_000, 8004)])
def test_iterations_are_validated_and_saved_at_ends_of_epochs(epochs, interval):
    """The config validates and saves ten times, every 8000 iterations."""
    cfg = set_(FCN, 48, epochs=epochs)
    assert cfg.train_cfg.val_interval == cfg.default_hooks.checkpoint.interval == interval


def test_an_epoch_repeats_no_picture():
    """The Pascal VOC config repeats pictures three times in an epoch. An epoch of --epochs repeats no picture."""
    assert read_config(VOC).train_dataloader.dataset.times == 3
    cfg = set_(VOC, epochs=6)
    assert (cfg.train_dataloader.dataset.times, cfg.train_cfg.max_epochs) == (1, 6)
    assert set_(VOC, batch=4).train_dataloader.dataset.times == 3
    cfg.train_dataloader.dataset = ConfigDict(type=RepeatDataset, times=5, dataset=cfg.train_dataloader.dataset)
    put(cfg, epochs=6)  # a class, like in Python-style configs
    assert cfg.train_dataloader.dataset.times == 1


def test_a_warm_up_in_front_of_a_schedule_is_a_tenth_at_most():
    cfg = set_(SEGFORMER, epochs=2)  # batch of 2: 100 steps
    warm_up, poly = cfg.param_scheduler
    assert warm_up.end == poly.begin == 10
    assert poly.end == cfg.train_cfg.max_iters == 100
    results = rates(cfg, 100)
    assert max(results) == pytest.approx(cfg.optim_wrapper.optimizer.lr)
    assert results[-1] < 0.05 * max(results)


@pytest.mark.parametrize('config', [YOLOX, RTMDET])
def test_what_changes_late_in_a_training_still_does(config):
    cfg = set_(config, epochs=30)  # 30 of 300 epochs
    late = next(one for one in cfg.custom_hooks if 'num_last_epochs' in one or 'switch_epoch' in one)
    assert (late.get('num_last_epochs', 2), late.get('switch_epoch', 28)) == (2, 28)
    assert cfg.train_cfg.max_epochs == 30
    assert max(one.end for one in cfg.param_scheduler if one.get('by_epoch')) == 30
    results = rates(cfg, 30 * 13)
    assert max(results) == pytest.approx(cfg.optim_wrapper.optimizer.lr, rel=0.05)
    assert results[-1] < 0.2 * max(results)


@pytest.mark.parametrize('epochs', [1, 2, 5])
def test_a_short_training_still_switches(epochs):
    assert set_(RTMDET, epochs=epochs).custom_hooks[1].switch_epoch == epochs - 1
    assert set_(YOLOX, epochs=epochs).custom_hooks[0].num_last_epochs == 0


def test_each_hook_that_names_an_epoch_or_an_iteration_follows():
    schedule = [dict(action_epoch=4, pipeline=[]), dict(action_epoch=11, pipeline=[])]
    hooks = [dict(type='SwitchRecipeHook', schedule=schedule), dict(type='EMAHook', begin_iter=45_000)]
    cfg = read_config(TOOD)  # 12 epochs
    cfg.custom_hooks, cfg.default_hooks.checkpoint.save_begin = copy.deepcopy(hooks), 9
    scale_schedule(cfg, 100, epochs=3)
    assert [step.action_epoch for step in cfg.custom_hooks[0].schedule] == [1, 2]
    assert (cfg.custom_hooks[1].begin_iter, cfg.default_hooks.checkpoint.save_begin) == (45_000, 2)
    by_iteration = read_config(SOLO)
    by_iteration.custom_hooks = [*hooks, dict(type='Own', by_epoch=True)]
    old = by_iteration.train_cfg.max_iters
    scale_schedule(by_iteration, 100, epochs=1)
    assert by_iteration.custom_hooks[0] == hooks[0]
    assert by_iteration.custom_hooks[1].begin_iter == round(45_000 * by_iteration.train_cfg.max_iters / old)
    assert by_iteration.custom_hooks[2].by_epoch is True


def test_a_head_that_changes_after_some_epochs():
    assert set_(TOOD, epochs=24).model.train_cfg.initial_epoch == 8
    assert set_(SOLO, epochs=3).train_cfg.max_iters == 150


@pytest.mark.parametrize('config', [RETINANET, YOLOX, RTMDET, FCN, SEGFORMER, SOLO])
@pytest.mark.parametrize(('epochs', 'pictures'), [(1, 1), (3, 7), (1000, 500)])
def test_any_length_is_a_schedule(config, epochs, pictures):
    cfg = set_(config, pictures, epochs=epochs)
    total = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters
    assert 1 <= cfg.train_cfg.val_interval <= total
    for one in cfg.param_scheduler:
        assert one.get('begin', 0) < one.get('end', float('inf'))
    batch = cfg.train_dataloader.batch_size
    steps = epochs * -(-pictures // batch)
    if steps < 300:
        results = rates(cfg, steps)
        assert all(0 <= rate <= 1.01 * cfg.optim_wrapper.optimizer.lr for rate in results)


def test_the_learning_rate_does_not_follow_the_batch():
    """RetinaNet's 0.01 is for 16 pictures: 8 processes of 2."""
    hint = '; the config has it for 16 pictures: --auto-scale-lr scales it in proportion, --lr sets another'
    cfg = set_(RETINANET, batch=4)
    assert (cfg.optim_wrapper.optimizer.lr, cfg.train_dataloader.batch_size) == (0.01, 4)
    assert describe_lr(cfg) == f'learning rate 0.01, 4 pictures per step{hint}'
    assert describe_lr(cfg, is_set_by_user=True) == 'learning rate 0.01, 4 pictures per step'
    assert describe_lr(cfg, world_size=2) == f'learning rate 0.01, 8 pictures per step{hint}'
    cfg.optim_wrapper.accumulative_counts = 4
    assert describe_lr(cfg) == 'learning rate 0.01, 16 pictures per step'
    assert describe_lr(read_config(FCN)) == 'learning rate 0.01, 4 pictures per step'
    assert describe_lr(Config(dict(optim_wrapper=dict(gen=dict(), disc=dict())))) == ''
    assert set_(RETINANET, batch=8, lr=0.5).optim_wrapper.optimizer.lr == 0.5
    assert set_(FCN, lr=0.1).param_scheduler[0].eta_min == pytest.approx(1e-3)


@pytest.mark.parametrize(('config', 'rate'), [(RETINANET, 1e-4), (FCN, 6e-5)])
def test_a_swap_names_the_batch_of_its_rate(config, rate):
    cfg = read_config(config)
    cfg.auto_scale_lr = dict(base_batch_size=64)  # for the old optimizer
    cfg = swap_backbone(cfg, 'swin-t')
    put(cfg, auto_scale_lr=True)
    assert cfg.optim_wrapper.optimizer.lr == rate
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=16)
    cfg.optim_wrapper.accumulative_counts = 8  # mmengine counts the pictures of an iteration
    put(cfg, auto_scale_lr=True)
    assert cfg.auto_scale_lr.base_batch_size == 2
    with pytest.raises(ValueError, match='base_batch_size'):
        set_(FCN, auto_scale_lr=True)


@pytest.mark.parametrize(('config', 'pictures'), [(RETINANET, 32), (RETINANET, 2), (SEGFORMER, 20)])
def test_the_shortest_training_reaches_its_learning_rate(config, pictures):
    """A warm-up of 1 iteration would keep its first rate to the end."""
    cfg = set_(config, pictures=pictures, batch=2, epochs=1)
    assert max(rates(cfg, max(1, pictures // 2))) == pytest.approx(cfg.optim_wrapper.optimizer.lr)


def test_a_warm_up_of_epochs_that_becomes_an_iteration_is_left_out():
    """As the 20 of 300 epochs of mmpretrain's Swin in a training of 20 iterations."""
    cfg = read_config(RETINANET)
    cfg.train_cfg.max_epochs = 300
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.001, by_epoch=True, end=20, convert_to_iter_based=True),
        dict(type='CosineAnnealingLR', by_epoch=True, begin=20, end=300, T_max=280),
    ]
    put(cfg, pictures=20, batch=2, epochs=2)
    assert max(rates(cfg, 20)) == pytest.approx(cfg.optim_wrapper.optimizer.lr)


def test_a_linear_decay_is_no_warm_up():
    cfg = read_config(RETINANET)
    cfg.param_scheduler = [dict(type='LinearLR', start_factor=1.0, end_factor=0.01, by_epoch=True, end=12)]
    put(cfg, epochs=6)
    assert cfg.param_scheduler == [dict(type='LinearLR', start_factor=1.0, end_factor=0.01, by_epoch=True, end=6)]


def test_a_schedule_without_a_length_names_the_keys_of_a_length():
    cfg = read_config(RETINANET)
    cfg.train_cfg.pop('max_epochs')
    with pytest.raises(ValueError, match=r'train_cfg.max_epochs or max_iters, and the config has neither'):
        scale_schedule(cfg, 100)


def test_other_schedules_of_mmengine_follow():
    """mmpretrain's MobileNets have StepLR; EMAHook may begin late."""
    cfg = read_config(RETINANET)
    cfg.param_scheduler = [
        dict(type='StepLR', step_size=4), dict(type='CosineRestartLR', periods=[6, 6]),
        dict(type='OneCycleLR', eta_max=0.02, total_steps=12),
    ]  # fmt: skip
    cfg.custom_hooks = [dict(type='EMAHook', begin_epoch=6)]
    put(cfg, epochs=6, lr=0.1)
    assert cfg.param_scheduler == [
        dict(type='StepLR', step_size=2), dict(type='CosineRestartLR', periods=[3, 3]),
        dict(type='OneCycleLR', eta_max=0.2, total_steps=6),
    ]  # fmt: skip
    assert cfg.custom_hooks[0].begin_epoch == 3


@pytest.mark.parametrize('kind', ['LinearLR', LinearLR])  # a class, like in Python-style configs
def test_few_pictures_shorten_a_warm_up_alone(kind):
    cfg = read_config(RETINANET)
    cfg.param_scheduler[0].type = kind
    scale_schedule(cfg, 10)
    assert cfg.train_cfg == read_config(RETINANET).train_cfg
    assert [one.end for one in cfg.param_scheduler] == [6, 12]


@pytest.mark.parametrize(('config', 'scale', 'expected'), [
    (RETINANET, (640, 480), {'test_dataloader.dataset.pipeline.1.scale': (640, 480),
                             'train_dataloader.dataset.pipeline.2.scale': (640, 480)}),
    (FCN, (640, 256), {'test_dataloader.dataset.pipeline.1.scale': (640, 256),
                       'train_dataloader.dataset.pipeline.3.crop_size': (256, 256),
                       'model.data_preprocessor.size': (256, 256)}),
    (CITYSCAPES, (1024, 512), {'train_dataloader.dataset.pipeline.3.crop_size': (256, 512),
                               'model.data_preprocessor.size': (256, 512)}),
    (YOLOX, (320, 320), {'test_dataloader.dataset.pipeline.1.scale': (320, 320),
                         'train_dataloader.dataset.pipeline.0.img_scale': (480, 480),
                         'train_dataloader.dataset.pipeline.1.border': (-240, -240)}),
    (SLIDE, (1024, 256), {'model.test_cfg.crop_size': None}),
])  # fmt: skip
def test_whatever_has_a_size_in_pixels_follows_the_scale(config, scale, expected):
    cfg = set_(config, shape=scale[::-1])
    for key, value in expected.items():
        results = get_setting(cfg, key)
        assert (tuple(results) if results else results) == value, key


@pytest.mark.parametrize(('cfg', 'settings', 'key'), [
    (dict(train_dataloader=dict(batch_size=2), train_cfg=dict()), dict(epochs=2), 'train_cfg.max_epochs'),
    (dict(), dict(batch=2), 'train_dataloader.batch_size'),
    (dict(), dict(lr=1.0), 'optim_wrapper.optimizer.lr'),
    (dict(optim_wrapper=dict(gen=dict(), disc=dict())), dict(lr=1.0), 'optim_wrapper.optimizer.lr'),
    (dict(test_dataloader=dict(dataset=dict(pipeline=[]))), dict(shape=(8, 8)), 'test_dataloader'),
])  # fmt: skip
def test_what_a_config_lacks_is_named(cfg, settings, key, record_fault):
    with pytest.raises(ValueError, match=key):
        put(Config(copy.deepcopy(cfg)), **settings)
    record_fault('bad_commands')
