"""The table of options: each value that a help text names is taken, and the table makes the keywords of Python."""

import inspect
import json
import re
from types import SimpleNamespace

import pytest
from helpers.in_process import error_of, run_well
from helpers.openmmlab.own_data import DETECTION, detection, make_own_data

from swin_backbone import load
from swin_backbone.commands import Parser
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.options import ARGUMENTS, OPTION_FIELDS, Options, describe_unused_options
from swin_backbone.workbench.configs.training_settings import apply_settings, set_workers
from swin_backbone.workbench.predict.thresholds import SCORE_THR

# Command lines with the values that help texts name, and the values in Python
NAMED = {
    '--backbone swin-t': 'swin-t', '--backbone swinv2-b': 'swinv2-b',
    '--shape 64': (64, 64), '--shape 64 96': (64, 96),
    '--seed 0': 0, '--workers 0': 0, '--patience 1': 1,
    '--recipe swin': 'swin', '--recipe keep': 'keep',
    '--classes road,traffic light': ['road', 'traffic light'],
    '--resume': 'auto', '--resume a.pth': 'a.pth',
    '--amp': 'auto', '--amp auto': 'auto', '--amp float16': 'float16', '--amp bfloat16': 'bfloat16',
    '--precision int8': 'int8',
    '--score-thr 0': 0, '--score-thr 1': 1, '--score-thr 0.3': 0.3, '--score-thr report.json': dict(nut=0.5),
    '--device cpu': 'cpu', '--device cuda:0': 'cuda:0',
    '--first-label 0': 0, '--first-label 1': 1,
    '--cfg-options key=value': dict(key='value'), '--cfg-options key=[a,b]': dict(key=['a', 'b']),
    '--cfg-options key=a,b': dict(key=['a', 'b']), '--cfg-options +key=value': {'+key': 'value'},
    '--cfg-options a.b=1': {'a.b': 1},
    '--launcher none': 'none', '--launcher pytorch': 'pytorch', '--launcher slurm': 'slurm', '--launcher mpi': 'mpi',
    '--vis tensorboard': 'tensorboard', '--vis wandb': 'wandb', '--timeout 30': 30.0, '--dpi 100': 100,
}  # fmt: skip


@pytest.mark.parametrize('words', NAMED)
def test_a_value_that_a_help_names_is_taken(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classes = [dict(name='nut', threshold=0.5)]
    report = dict(task='detection', classes=classes, best=dict(threshold=0.5, F1=1.0))
    (tmp_path / 'report.json').write_text(json.dumps(report))
    name, _, value = words.partition(' ')
    parser = Parser()
    parser.add(f'config epochs {name[2:].replace("-", "_")}')
    values = value.split() if name == '--shape' else [value] if value else []
    args = parser.parse_args(['a.py', name, *values])
    assert getattr(args, name[2:].replace('-', '_')) == NAMED[words]


def test_a_missing_report_is_named(capsys):
    parser = Parser()
    parser.add('config score_thr')
    for value, message in (
        ('runs/report.jsn', "a number from 0 to 1, or a report.json, and there is no 'runs/report.jsn'"),
        ('1.5', "it takes a number from 0 to 1, got '1.5'"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(['a.py', '--score-thr', value])
        assert message in capsys.readouterr().err


def test_all_values_that_a_help_names_are_in_this_list():
    for name, settings in ARGUMENTS.items():
        tried = {words.partition(' ')[2] for words in NAMED if words.partition(' ')[0] == name}
        assert {*settings.get('choices', ())} <= tried, name
        assert set(re.findall(r'\(default: ([\d.]+|\w+)\)', settings['help'])) <= tried, name
        assert set(re.findall(r'(\d) \(default\)', settings['help'])) <= tried, name


def test_options_that_a_kind_of_model_does_not_use_are_named():
    given = SimpleNamespace(score_thr=0.5, first_label=1, batch=3)
    assert describe_unused_options(given, 'mmseg') == 'without effect on a segmentor: --score-thr'
    assert describe_unused_options(given, 'mmdet') == 'without effect on a detector: --first-label'
    assert describe_unused_options(given, 'mmpretrain') == 'without effect on a classifier: --score-thr, --first-label'
    assert describe_unused_options(given, 'mmdet', 'segmentor') == describe_unused_options(Options(), 'mmseg') == ''
    assert describe_unused_options(given, None) == ''


@pytest.mark.parametrize(('words', 'message'), [
    ('test a.py b.pth --first-label 1', '--first-label 1 takes --out'),
    ('export a.py b.pth --out-dir c --part neck --score-thr 0.5', '--score-thr 0.5 takes --part model'),
])  # fmt: skip
def test_an_option_without_the_option_that_uses_it_is_refused(words, message):
    name, *arguments = words.split()
    assert message in error_of(f'tools/{name}.py', *arguments, status=2)


def test_defaults_in_help_texts_are_those_of_the_table():
    for name, field in OPTION_FIELDS.items():
        for text in re.findall(r'(?:(?<=\(default: )[\d.]+(?=\))|[\d.]+(?= \(default\)))', ARGUMENTS_OF[name]):
            assert float(text) == (SCORE_THR if name == 'score_thr' else field.default), name


ARGUMENTS_OF = {name: field.metadata['settings']['help'] for name, field in OPTION_FIELDS.items()}


def test_keywords_of_python_are_those_of_the_table():
    parameters = inspect.signature(load).parameters
    assert {*parameters} - {*OPTION_FIELDS} == {'config', 'checkpoint', 'options'}
    assert all(parameters[name].default == OPTION_FIELDS[name].default for name in {*parameters} & {*OPTION_FIELDS})
    with pytest.raises(TypeError, match=r"load\(\) got an unexpected keyword argument 'out_dir'"):
        load('a.py', out_dir='b')
    assert f'recipe: {ARGUMENTS_OF["recipe"].replace("--", "")}.' in load.__doc__


def test_seed_and_workers_in_a_config():
    cfg = read_config(DETECTION)
    cfg.train_dataloader.prefetch_factor = 2
    apply_settings(cfg, Options(seed=7))
    set_workers(cfg, 0)
    assert cfg.randomness == dict(seed=7)
    for phase in ('train', 'val', 'test'):
        loader = cfg[f'{phase}_dataloader']
        assert (loader.num_workers, loader.persistent_workers, 'prefetch_factor' in loader) == (0, False, False)
    cfg.randomness = dict(deterministic=True)
    apply_settings(cfg, Options(seed=8))
    set_workers(cfg, 3)
    assert cfg.randomness == dict(deterministic=True, seed=8)
    assert cfg.val_dataloader.num_workers == 3


@pytest.mark.parametrize(('best', 'evaluator', 'monitor'), [
    ('auto', dict(type='CocoMetric', metric=['segm', 'bbox']), 'coco/bbox_mAP'),
    (None, dict(type='CocoMetric', metric='segm'), 'coco/segm_mAP'),
    (None, [dict(type='mmdet.VOCMetric', metric='mAP'), dict(type='CocoMetric')], 'pascal_voc/mAP'),
    ('mDice', dict(type='IoUMetric', iou_metrics=['mIoU', 'mDice']), 'mDice'),
    (None, dict(type='IoUMetric'), 'mIoU'),
    (None, dict(type='Accuracy', topk=(1, 5)), 'accuracy/top1'),
    (['val_loss', 'x'], dict(type='Own'), 'val_loss'),
    (None, dict(type='Own'), None),
])  # fmt: skip
def test_patience_watches_the_metric_of_the_config(best, evaluator, monitor):
    cfg = read_config(DETECTION)
    cfg.default_hooks.checkpoint.save_best, cfg.val_evaluator, cfg.custom_hooks = best, evaluator, None
    if monitor is None:
        with pytest.raises(ConfigError, match='--patience watches a metric of the validation: name it by'):
            apply_settings(cfg, Options(patience=3))
        return
    apply_settings(cfg, Options(patience=3))
    apply_settings(cfg, Options(patience=4))
    assert cfg.custom_hooks == [dict(type='EarlyStoppingHook', monitor=monitor, patience=4, min_delta=1e-4)]


@pytest.mark.parametrize('rule', ['less', ['less', 'greater']])
def test_patience_has_the_direction_of_the_best_checkpoint(rule):
    """mmengine cannot infer it for any name, and takes 'accuracy_drop' for an accuracy."""
    cfg = read_config(DETECTION)
    cfg.default_hooks.checkpoint.update(save_best=['accuracy_drop', 'mIoU'], rule=rule)
    cfg.custom_hooks = None
    apply_settings(cfg, Options(patience=3))
    assert cfg.custom_hooks[0]['rule'] == 'less'


def validations_of(work):
    logs = sorted(work.glob('*/vis_data/scalars.json'))
    rows = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [row['step'] for row in rows if 'coco/bbox_mAP' in row]


def test_patience_ends_a_training_also_after_a_resume(tmp_path):
    """A model that learns nothing has one score: the best of the first validation, and two that are no better."""
    words = [word for word in detection(make_own_data(tmp_path / 'own')) if 'max_epochs' not in str(word)]
    words += ['optim_wrapper.optimizer.lr=0.0', '+default_hooks.checkpoint.save_best=coco/segm_mAP', '--seed', 1]
    words += ['--patience', 2, '--workers', 0, '--work-dir', tmp_path / 'work']
    words = [word for word in words if 'num_workers' not in str(word) and 'persistent_workers' not in str(word)]
    run_well('tools/train.py', *words, '--epochs', 2)
    run_well('tools/train.py', *words, '--resume', '--epochs', 6)
    assert validations_of(tmp_path / 'work') == [1, 2, 2, 3]  # a resume validates again


def test_a_seed_repeats_a_training(tmp_path):
    root, losses = make_own_data(tmp_path / 'own'), []
    for number, seed in enumerate((3, 3, 4)):
        work = tmp_path / str(number)
        run_well('tools/train.py', *detection(root), '--seed', seed, '--work-dir', work)
        (log,) = work.glob('*/vis_data/scalars.json')
        losses.append([json.loads(line).get('loss') for line in log.read_text().splitlines()])
    assert losses[0] == losses[1] != losses[2]
