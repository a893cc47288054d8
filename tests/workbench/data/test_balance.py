"""`--balance`: repeated pictures of rare classes, and weights of a segmentor's loss."""

from collections import Counter
from dataclasses import replace

import pytest
from helpers import edited_json
from helpers.openmmlab import own_data
from helpers.openmmlab.jobs import training_of
from helpers.openmmlab.own_data import detection, make_own_data, segmentation

from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.options import Options
from swin_backbone.workbench.configs.cfg_options import parse_options
from swin_backbone.workbench.job import Job

BALANCED = Options(epochs=3, batch=4, balance=True)


def job_of(tmp_path, words, change=lambda cfg: None, options=BALANCED):
    config, _, *given = (word for word in words if options.epochs is None or 'max_epochs' not in str(word))
    cfg = read_config(str(config))
    change(cfg)
    return Job(cfg, replace(options, work_dir=str(tmp_path), cfg_options=parse_options(given)))


@pytest.fixture
def rare_bolts(tmp_path, monkeypatch):
    """12 pictures of a nut; 8 of these have a washer, and the last has a bolt too."""
    monkeypatch.setitem(own_data.COUNTS, 'train', 12)
    root = make_own_data(tmp_path)
    for split in own_data.COUNTS:
        with edited_json(root / f'{split}.json') as coco:
            coco['categories'].append(dict(id=9, name='washer'))
            nuts = [dict(one, category_id=3) for one in coco['annotations']]
            more = [dict(one, category_id=9, id=100 + one['id']) for one in nuts[:8]]
            coco['annotations'] = [*nuts, *more, dict(nuts[-1], category_id=7, id=200)]
    return root


def in_repetition(cfg):
    cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=3, dataset=cfg.train_dataloader.dataset)
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=90, val_interval=30)


def test_pictures_of_rare_classes_are_repeated(rare_bolts, tmp_path, capsys):
    """The limit is 4, half of the washer's 8 pictures: the bolt's picture repeats sqrt(4 / 1) times."""
    runner = job_of(tmp_path, detection(rare_bolts)).build_training()
    dataset = runner.cfg.train_dataloader.dataset
    assert (dataset.type, dataset.oversample_thr) == ('ClassBalancedDataset', 4 / 12)
    loader = runner.build_dataloader(runner.cfg.train_dataloader)
    drawn = Counter(sample.img_id for batch in loader for sample in batch['data_samples'])
    assert drawn == {**dict.fromkeys(range(12), 1), 11: 2}
    line = '--balance repeats pictures of classes in less than half as many pictures as the median class: bolt (1); '
    assert f'{line}an epoch has 13 pictures in place of 12' in capsys.readouterr().out


def test_epochs_count_the_repetitions(rare_bolts, tmp_path):
    """3 passes over 13 pictures, in steps of 4, also of a config that counts iterations and repeats pictures."""
    words = [word for word in detection(rare_bolts) if 'train_dataloader.dataset' not in str(word)]
    job = job_of(tmp_path, words, in_repetition)
    training = training_of(job)
    dataset = training.cfg.train_dataloader.dataset
    assert (dataset.dataset.type, dataset.times) == ('ClassBalancedDataset', 1)
    assert training.cfg.train_cfg.max_iters == 3 * 4
    assert len(training.datasets.build_phase('train')) == 13


def test_balanced_data_stays(tmp_path):
    job = job_of(tmp_path, detection(make_own_data(tmp_path)), options=Options(balance=True))
    cfg, _, changes = training_of(job)
    assert cfg.train_dataloader.dataset.type == 'CocoDataset'
    assert changes[0].startswith('--balance repeats nothing: ')


def test_the_loss_of_a_segmentor_weighs_rare_classes_more(tmp_path):
    """A quarter of the pixels is a nut, none is a bolt. Weights 1 / log(1.02 + share), with a mean of 1."""
    words = segmentation(make_own_data(tmp_path), classes=('ground', 'nut', 'bolt'))
    job = job_of(tmp_path, words, options=Options(balance=True))
    cfg, _, changes = training_of(job)
    losses = [cfg.model[head].loss_decode for head in ('decode_head', 'auxiliary_head')]
    for loss in losses:
        ground, nut, bolt = loss.class_weight
        assert 0.75 * ground + 0.25 * nut == pytest.approx(1, rel=1e-3)
        assert (nut / ground, bolt / ground) == (pytest.approx(2.389, rel=1e-3), pytest.approx(28.83, rel=1e-3))
    line = 'by class: bolt 21.4 (0.00% of the pixels), nut 1.77 (25.00% of the pixels), ground 0.742 (75.00% of'
    assert changes[0].startswith(f'--balance weighs the cross entropy {line}')
    assert job.build_training().model.decode_head.loss_decode.class_weight == [ground, nut, bolt]


def test_labels_are_counted_as_training_loads_them(tmp_path):
    """With reduce_zero_label, 0 is ignored, and all other pixels are a nut."""
    words = segmentation(make_own_data(tmp_path), classes=('nut', 'bolt'), reduce_zero_label=True)
    job = job_of(tmp_path, words, options=Options(balance=True))
    assert training_of(job).cfg.model.decode_head.loss_decode.class_weight[0] == 1


def test_labels_of_several_steps_are_counted(tmp_path):
    def load_twice(cfg):
        pipeline = cfg.train_dataloader.dataset.pipeline
        pipeline.insert(-1, dict(pipeline[1]))

    words = segmentation(make_own_data(tmp_path))
    weights = [
        training_of(
            job_of(tmp_path, words, change, Options(balance=True))
        ).cfg.model.decode_head.loss_decode.class_weight
        for change in (lambda cfg: None, load_twice)
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize('change', [dict(type='LovaszLoss'), dict(use_sigmoid=True)])
def test_a_loss_without_weights_is_named(tmp_path, change):
    def edit(cfg):
        for head in ('decode_head', 'auxiliary_head'):
            cfg.model[head].loss_decode.update(change)

    words = segmentation(make_own_data(tmp_path))
    with pytest.raises(ConfigError, match=r"needs loss_decode=dict\(type='CrossEntropyLoss'\)"):
        training_of(job_of(tmp_path, words, edit, Options(balance=True)))
