"""Configs, and changes of tools/train.py and tools/test.py to configs."""

import ast
import copy
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import ROOT
from helpers.openmmlab import toy_training
from helpers.openmmlab.jobs import build_runner, load_config, training_of
from helpers.openmmlab.own_data import make_own_data
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS
from mmengine.structures import InstanceData

from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.openmmlab.swap import backbone
from swin_backbone.options import Options
from swin_backbone.workbench import job
from swin_backbone.workbench.configs import amp
from swin_backbone.workbench.configs.cfg_options import get_setting
from swin_backbone.workbench.configs.initial_weights import find_weights, set_load_from
from swin_backbone.workbench.export import export, predictor
from swin_backbone.workbench.predict.predictor import Predictor
from swin_backbone.workbench.report import collect
from swin_backbone.workbench.runner import build, prediction_outputs

CONFIGS = ROOT / 'configs'
ADDRESS = 'https://x/a.pth'
RECIPE = 'mask-rcnn_swin-t-p4-w7_fpn_1x_coco'
MASK_RCNN = str(CONFIGS / 'mask_rcnn' / f'{RECIPE}.py')
FCN = 'mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py'
RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
DEMO = 'swin_backbone::demo/mask-rcnn_swin-nano_fpn_shapes.py'
OWN_SEGMENTOR = 'swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'
PUBLISHED = [
    ('mmdet', 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py', ('neck', 'rpn_head', 'roi_head')),
    ('mmdet', 'swin/mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py', ('neck', 'rpn_head', 'roi_head')),
    ('mmseg', OWN_SEGMENTOR, ('decode_head', 'auxiliary_head')),
]


@pytest.mark.parametrize(('toolbox', 'name', 'parts'), PUBLISHED)
def test_recipe_equals_the_toolboxs_own(toolbox, name, parts):
    package = pytest.importorskip(toolbox, reason=f'{toolbox} is not installed')
    theirs = Config.fromfile(Path(package.__file__).parent / '.mim' / 'configs' / name)
    folder = 'mask_rcnn' if toolbox == 'mmdet' else 'upernet'
    ours = Config.fromfile(CONFIGS / folder / Path(name).name)
    for key in ('param_scheduler', 'optim_wrapper', 'train_cfg', 'val_evaluator'):
        assert ours[key] == theirs[key], key
    for key in (*parts, 'train_cfg', 'test_cfg'):
        assert in_theirs(ours.model[key]) == theirs.model[key], key
    assert ours.model.backbone.drop_path_rate == theirs.model.backbone.drop_path_rate
    for key in ('train_dataloader', 'test_dataloader'):
        assert ours[key].dataset.pipeline == theirs[key].dataset.pipeline, key
        assert ours[key].batch_size == theirs[key].batch_size


def in_theirs(part):
    """Return a part of a model with the toolbox's own layers in place of ours."""
    return ast.literal_eval(repr(part.to_dict()).replace("'swin_backbone.", "'"))


def test_order_of_work_dirs():
    assert load_config(MASK_RCNN, 'x', {}, 'none').work_dir == 'x'
    assert load_config(MASK_RCNN, None, {'work_dir': 'y'}, 'none').work_dir == 'y'
    default = load_config(MASK_RCNN, None, None, 'none').work_dir
    assert Path(default) == Path('work_dirs', Path(MASK_RCNN).stem)


@pytest.mark.parametrize('rank', [0, 1])
def test_one_process_of_a_run_prints_what_changes(rank, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('RANK', str(rank))
    monkeypatch.setenv('WORLD_SIZE', '2')
    monkeypatch.setattr(backbone, 'print_log', lambda text, **_: print(text))  # a logger keeps another test's stdout
    load_config(RETINANET, str(tmp_path), {}, 'pytorch', 'swin-nano', data=make_own_data(tmp_path / 'own'))
    printed = capsys.readouterr().out
    assert ['swin-nano into this config' in printed, 'data in ' in printed] == [rank == 0] * 2


@pytest.mark.parametrize(('config', 'batch', 'options', 'end'), [
    (FCN, None, {'train_dataloader.batch_size': 1}, 12),
    (FCN, 2, {'+train_dataloader.dataset.indices': 2}, 3),
    (RETINANET, 4, {'param_scheduler.1.gamma': 0.5, 'param_scheduler.0.end': 9}, 3),  # loses the warm-up
])  # fmt: skip
def test_epochs_begin_with_the_options(record_fault, tmp_path, config, batch, options, end):
    data = make_own_data(tmp_path / 'own')  # 4 pictures
    cfg = load_config(config, str(tmp_path), options, 'none', data=data, epochs=3, batch=batch)
    assert [cfg.train_cfg.get('max_iters', end), cfg.param_scheduler[0].end] == [end, end]
    assert all(get_setting(cfg, key) == value or cfg.param_scheduler[0].gamma == 0.5 for key, value in options.items())
    record_fault('bad_commands')


@pytest.mark.parametrize(('times', 'end'), [(1, 4), (30, 144)])
def test_a_schedule_counts_the_repetitions_of_a_data_set(tmp_path, times, end):
    """Four pictures in 12 epochs: the warm-up is a tenth of the steps."""
    cfg = read_config(RETINANET)
    if times > 1:
        cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=times, dataset=cfg.train_dataloader.dataset)
    options = Options(data=str(make_own_data(tmp_path / 'own')), batch=1, work_dir=str(tmp_path))
    assert training_of(job.Job(cfg, options)).cfg.param_scheduler[0].end == end


@pytest.mark.parametrize('key', ['load_from', 'resume'])
def test_a_resume_is_no_second_value_of_a_checkpoint(key):
    with pytest.raises(ConfigError, match=f'--resume and --cfg-options {key} are one setting'):
        job.Job(FCN, Options(resume='auto', cfg_options={key: 'a.pth'}))


def test_a_schedule_counts_the_pictures_of_a_balanced_data_set(tmp_path):
    """As of LVIS: its length is known when it is built."""
    cfg = read_config(RETINANET)
    dataset = dict(type='ClassBalancedDataset', oversample_thr=4.0, dataset=cfg.train_dataloader.dataset)
    cfg.train_dataloader.dataset = dataset  # each of four pictures at least twice
    resolved = training_of(job.Job(cfg, Options(data=str(make_own_data(tmp_path / 'own')), batch=1)))
    assert len(resolved.datasets.build_phase('train')) >= 8
    assert resolved.cfg.param_scheduler[0].end == int(1.2 * len(resolved.datasets.build_phase('train')))


@pytest.mark.parametrize(('option', 'key'), [('seed', 'randomness.seed'), ('workers', 'train_dataloader.num_workers')])
def test_zero_is_a_setting(tmp_path, option, key):
    cfg = load_config(FCN, str(tmp_path), {}, 'none', **{option: 0})
    assert get_setting(cfg, key) == 0


@pytest.mark.parametrize('key', [
    'load_from', '+resume', 'optim_wrapper.type',
    'train_cfg.max_iters', '+train_cfg.max_iters', 'train_dataloader.batch_size', 'optim_wrapper.optimizer.lr',
    '+randomness.seed', 'val_dataloader.num_workers', 'work_dir',
])  # fmt: skip
def test_an_option_is_no_second_value_of_a_setting(record_fault, key):
    settings = dict(epochs=3, batch=4, lr=0.1, seed=1, workers=2, work_dir='x', amp='auto', weights='a.pth')
    options = Options(**settings, cfg_options={key: 1})
    with pytest.raises(ConfigError, match=re.escape(f'and --cfg-options {key} are one setting: leave out one of them')):
        job.Job(FCN, options)
    record_fault('bad_commands')


FLOAT16 = dict(type='AmpOptimWrapper', loss_scale='dynamic')
BFLOAT16 = dict(type='Bfloat16OptimWrapper')


@pytest.mark.parametrize(
    ('has_gpu', 'dtype', 'wrapper'),
    [
        (True, 'auto', FLOAT16),
        (True, 'float16', dict(FLOAT16, dtype='float16')),
        (True, 'bfloat16', BFLOAT16),
        (False, 'auto', BFLOAT16),
        (False, 'bfloat16', BFLOAT16),
    ],
)
@pytest.mark.parametrize('before', ['OptimWrapper', 'AmpOptimWrapper', 'Bfloat16OptimWrapper'])
def test_amp_takes_the_wrapper_of_dtype_and_machine(monkeypatch, has_gpu, dtype, wrapper, before):
    monkeypatch.setattr(amp, 'has_accelerator', lambda: has_gpu)
    cfg = Config.fromfile(MASK_RCNN)
    cfg.optim_wrapper.type = before
    kept = {key: cfg.optim_wrapper[key] for key in ('optimizer', 'paramwise_cfg')}
    if before == 'AmpOptimWrapper':
        cfg.optim_wrapper.loss_scale = 'dynamic'
    amp.enable_amp(cfg, dtype)
    assert cfg.optim_wrapper == {**kept, **wrapper}
    amp.enable_amp_of_test(cfg, dtype)
    assert cfg.custom_hooks[-1] == dict(type='MixedPrecisionHook', dtype=dtype)


def test_what_amp_refuses(monkeypatch):
    monkeypatch.setattr(amp, 'has_accelerator', lambda: False)
    cfg = Config.fromfile(MASK_RCNN)
    for enable in (amp.enable_amp, amp.enable_amp_of_test):
        with pytest.raises(ValueError, match="'float16' of mixed precision takes a GPU"):
            enable(cfg, 'float16')
    del cfg.optim_wrapper['type']  # as in mmpretrain's schedules: mmengine's default
    amp.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'Bfloat16OptimWrapper'
    cfg.optim_wrapper.type = OptimWrapper  # as in configs of pure Python
    amp.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'Bfloat16OptimWrapper'
    cfg.optim_wrapper.type = 'SomebodysWrapper'
    with pytest.raises(ValueError, match='SomebodysWrapper'):
        amp.enable_amp(cfg)


def training_with(**options):
    def start(made):
        made.options = Options(**options)
        return made.build_training()

    return start


def changed(change, *more):
    def start(made):
        change(made.cfg, *more)
        return made.cfg

    return start


@pytest.mark.parametrize(('start', 'expected'), [
    (training_with(), (True, 'epoch_4.pth')),
    (training_with(resume='auto'), (True, None)),
    (training_with(resume='epoch_1.pth'), (True, 'epoch_1.pth')),
    (training_with(weights=RECIPE), (False, find_weights(RECIPE))),
    (changed(set_load_from, 'epoch_1.pth'), (False, 'epoch_1.pth')),
    (changed(predictor.use_exported_model, 'exported'), (False, None)),
])  # fmt: skip
def test_where_weights_come_from(monkeypatch, start, expected):
    """A config of a resumed training has resume=True and load_from."""
    info = dict(classes=(), task='maps')
    monkeypatch.setattr(predictor, 'RuntimeModel', lambda *_: SimpleNamespace(manifest=info))
    monkeypatch.setattr(job, 'build_runner', lambda cfg, *_, **__: cfg)
    loader = dict(dataset=dict(type='CocoDataset'))
    cfg = start(job.Job(Config(dict(resume=True, load_from='epoch_4.pth', model=dict(), train_dataloader=loader))))
    assert (cfg.resume, cfg.load_from) == expected


@pytest.mark.parametrize(('option', 'error'), [
    (dict(device='meta:1'), 'a test runs on .*: CUDA_VISIBLE_DEVICES chooses another, got meta:1'),
    (dict(threads=2), '--threads 2 takes an exported model'),
])  # fmt: skip
def test_options_of_an_exported_model_with_a_checkpoint(option, error, tmp_path):
    resolved = job.Job(Config(dict(model=dict())), Options(work_dir=tmp_path, **option))
    with pytest.raises(ValueError, match=error), job.open_test(resolved, 'epoch_1.pth'):
        pass


def test_a_training_runs_on_the_default_device(tmp_path):
    made = job.Job(DEMO, Options(work_dir=tmp_path, device='meta:1'))
    with pytest.raises(ValueError, match=r'a training runs on .*, got meta:1'), job.open_training(made):
        pass


def test_a_test_needs_data_for_a_test(tmp_path):
    cfg = read_config(MASK_RCNN)
    cfg.pop('test_dataloader')
    resolved = job.Job(cfg, Options(work_dir=tmp_path))
    outputs = prediction_outputs.OutputOptions(tta=True)
    with pytest.raises(ValueError, match='no data set in test_dataloader'), job.open_test(resolved, ADDRESS, outputs):
        pass


def test_a_test_and_an_export_take_published_weights_by_name(monkeypatch):
    """As a prediction and a training do."""
    monkeypatch.setattr(job, 'require_data', lambda *_: None)
    monkeypatch.setattr(job, 'build_runner', lambda cfg, *_, **__: cfg)
    monkeypatch.setattr(export, 'export_model', lambda _, checkpoint, *__, **___: checkpoint)
    made = job.Job(MASK_RCNN)
    with job.open_test(made, RECIPE) as cfg:
        assert cfg.load_from == find_weights(RECIPE)
    assert job.export(made, RECIPE, 'out') == find_weights(RECIPE)


@pytest.mark.parametrize('amp', [None, 'bfloat16'])
def test_a_test_leaves_the_config_of_its_job(amp, monkeypatch):
    """Two tests of one job have equal configs."""
    monkeypatch.setattr(job, 'require_data', lambda *_: None)
    monkeypatch.setattr(job, 'build_runner', lambda cfg, *_, **__: cfg)
    tested = job.Job(MASK_RCNN, Options(amp=amp))
    before, configs = tested.cfg.to_dict(), []
    for _ in range(2):
        with job.open_test(tested, ADDRESS, prediction_outputs.OutputOptions(tta=True)) as cfg:
            configs.append(cfg.to_dict())
        assert tested.cfg.to_dict() == before
    assert configs[0] == configs[1] != before


def test_a_report_leaves_the_config_of_its_job(monkeypatch):
    """A CocoMetric is added to a copy."""
    reported = []
    monkeypatch.setattr(job, 'require_data', lambda *_: None)
    monkeypatch.setattr(job, 'build_runner', lambda cfg, *_, **__: cfg)
    monkeypatch.setattr(collect, 'report_on_test', lambda cfg, *_: reported.append(cfg) or {})
    cfg = read_config(MASK_RCNN)
    cfg.test_evaluator = dict(type='VOCMetric')
    tested = job.Job(cfg)
    before = tested.cfg.to_dict()
    job.report(tested, ADDRESS, 'report')
    assert [metric['type'] for metric in reported[0].test_evaluator] == ['VOCMetric', 'CocoMetric']
    assert tested.cfg.to_dict() == before


def test_a_test_of_several_data_sets():
    """Its metrics, views and predictions are those of the data sets in the wrapper."""
    cfg = read_config(DEMO)
    classes, dataset = cfg.test_dataloader.dataset.metainfo.classes, cfg.test_dataloader.dataset
    cfg.test_dataloader.dataset = dict(type='ConcatDataset', datasets=[dataset, copy.deepcopy(dataset)])
    cfg.test_evaluator = dict(type='Evaluator', metrics=[dict(type='VOCMetric')])
    before = cfg.to_dict()
    assert tuple(Predictor(cfg, None, 'cpu').meta['classes']) == tuple(classes)
    assert cfg.to_dict() == before
    collect.add_coco_metric(cfg)
    assert [metric['type'] for metric in cfg.test_evaluator] == ['VOCMetric', 'CocoMetric']
    assert all('instances' in tested.pipeline[-1].meta_keys for tested in cfg.test_dataloader.dataset.datasets)
    prediction_outputs.enable_tta(cfg)
    assert all(tested.pipeline[-1].type == 'TestTimeAug' for tested in cfg.test_dataloader.dataset.datasets)


def test_a_prediction_needs_the_pipeline_of_a_test():
    cfg = read_config(DEMO)
    cfg.pop('test_dataloader')
    with pytest.raises(ValueError, match='the config has no data set in test_dataloader'):
        Predictor(cfg, None, 'cpu')


@pytest.mark.parametrize('name', [MASK_RCNN, 'mmdet::rtmdet/rtmdet-ins_tiny_8xb32-300e_coco.py'])
def test_tta_of_masks(record_fault, name):
    """A view and its mirror image are the same objects. Of two overlapping objects, the surer keeps box and mask."""
    from mmdet.structures import DetDataSample

    cfg = read_config(name)
    prediction_outputs.enable_tta(cfg)
    assert cfg.test_dataloader.dataset.pipeline[-1].type == 'TestTimeAug'
    module = torch.nn.Identity()
    module.test_step = None
    model = MODELS.build(dict(cfg.model, module=module))
    masks = torch.zeros(2, 6, 10, dtype=torch.bool)
    masks[0, 1:3, 1:4] = masks[1, 4:6, 6:10] = True
    objects = dict(bboxes=torch.tensor([[1.0, 1, 4, 3], [6, 4, 10, 6]]), labels=torch.tensor([0, 1]), masks=masks)
    views = []
    for direction, scores in ((None, [0.9, 0.4]), ('horizontal', [0.8, 0.5])):
        flipped = InstanceData(**objects, scores=torch.tensor(scores))
        if direction:
            flipped.bboxes = flipped.bboxes.new_tensor([[6, 1, 9, 3], [0, 4, 4, 6]])
            flipped.masks = masks.flip(-1)
        views.append(
            DetDataSample(
                pred_instances=flipped, metainfo=dict(ori_shape=(6, 10), flip=bool(direction), flip_direction=direction)
            )
        )
    (merged,) = model.merge_preds([views])
    found = merged.pred_instances
    assert found.scores.tolist() == pytest.approx([0.9, 0.5])
    for key, value in objects.items():
        assert found[key].equal(value), key
    record_fault('bad_commands')


@pytest.mark.parametrize('accelerator', [False, True])
def test_a_runner_on_a_cpu_alone_keeps_freed_memory(accelerator, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(build, 'keep_freed_memory', lambda: kept.append(True))
    monkeypatch.setattr(build, 'has_accelerator', lambda: accelerator)
    build_runner(toy_training.config(tmp_path, epochs=1))
    assert kept == [True] * (not accelerator)
