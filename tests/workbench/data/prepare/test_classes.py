"""`--data` with a classifier: a folder for each class, or lists of names and numbers."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from helpers.openmmlab.layouts import write, write_picture
from helpers.openmmlab.own_folders import fill

from swin_backbone.workbench.data.check_data import check_data
from swin_backbone.workbench.data.datasets import BuiltDatasets

CONFIG = ROOT / 'configs' / 'swin_transformer' / 'swin-tiny_16xb64_in1k.py'
SIMMIM = ROOT / 'configs' / 'simmim' / 'simmim_swin-tiny_100e_own-192px.py'


def pets(*folders, classes=('cat', 'dog'), number=4):
    return [f'{folder}/{name}/{index}.jpg' for folder in folders for name in classes for index in range(number)]


def make(root, pictures, **texts):
    for picture in map(Path, pictures):
        write_picture(root / picture.parent, picture.stem, np.full((9, 9, 3), 7, np.uint8), picture.suffix)
    for name, text in texts.items():
        write(root / f'{name}.txt', text)
    return root


def lines_of(cfg, phase):
    """Return the class of each picture, and check that the pictures exist."""
    dataset = cfg[f'{phase}_dataloader'].dataset
    pairs = [line.rpartition(' ')[::2] for line in Path(dataset.ann_file).read_text().splitlines()]
    assert all(Path(dataset.data_root, name).is_file() for name, _ in pairs)
    return {name: dataset.metainfo.classes[int(number)] for name, number in pairs}


NUMBERED = ''.join(f'{name.removeprefix("train/")} {int("dog" in name)}\n' for name in pets('train'))
VAL = 'x_1.JPEG 0\nx_2.JPEG 1\n'
FLAT = ['val/x_1.JPEG', 'val/x_2.JPEG']


@pytest.mark.parametrize(('pictures', 'texts', 'numbers', 'classes', 'line'), [
    (pets('.'), {}, (6, 2), ['cat', 'dog'], 'a fifth of the pictures'),
    (pets('.', classes=('bus', 'train')), {}, (6, 2), ['bus', 'train'], 'a fifth of the pictures'),
    (pets('train', 'val', classes=('bus', 'train')), {}, (8, 8), ['bus', 'train'], 'the names of folders'),
    ([*pets('train', 'valid'), 'test/1.jpg', 'samples/2.jpg'], {}, (8, 8), ['cat', 'dog'],
     'left out    2 pictures in no folder of a class, as samples/2.jpg'),
    ([*pets('own/train'), 'own/test/1.jpg'], {}, (6, 2), ['cat', 'dog'], '1 pictures in no folder of a class'),
    (pets('own/training_set/training_set', 'own/test_set/test_set'), {}, (8, 8), ['cat', 'dog'], ''),
    (pets('train', classes=('big cat (1)', 'dog')), {}, (6, 2), ['big cat (1)', 'dog'], ''),
    (pets('train', classes=('cat/black', 'dog')) + pets('val'), {}, (8, 8), ['cat', 'dog'], ''),
    (pets('.'), {'classes': 'dog\ncat\nbird\n'}, (6, 2), ['dog', 'cat', 'bird'], ''),
    (pets('.'), {'train': 'cat/0.jpg\ndog/0.jpg\n', 'val': 'cat/1.jpg\ndog/2.jpg\n'}, (2, 2), ['cat', 'dog'],
     '4 pictures that no list names'),
    (pets('train') + FLAT, {'meta/train': NUMBERED, 'meta/val': VAL}, (8, 2), ['cat', 'dog'], 'lists of pictures'),
    (pets('train') + FLAT, {'val': VAL}, (8, 2), ['cat', 'dog'], 'lists of pictures'),
    ([f'{n}.jpg' for n in range(4)], {'train': '0.jpg 0\n1.jpg 1\n', 'val': '2.jpg 0\n3.jpg 1\n'}, (2, 2),
     ['class 0', 'class 1'], ''),
])  # fmt: skip
def test_folders_of_classes_as_people_have_them(pictures, texts, numbers, classes, line, tmp_path, record_fault):
    root = make(tmp_path / 'own', pictures, **texts)
    cfg, report = fill(CONFIG, root, tmp_path / 'work')
    train, val = lines_of(cfg, 'train'), lines_of(cfg, 'val')
    assert (len(train), len(val)) == numbers
    assert not train.keys() & val.keys()
    assert list(cfg.train_dataloader.dataset.metainfo.classes) == classes
    for name, kind in {**train, **val}.items():
        if not re.match('class|big', kind) and 'x_' not in name:
            assert kind in Path(name).parts
    if FLAT[0] in pictures:
        assert val == dict(zip(FLAT, ['cat', 'dog']))
    assert len(set(val.values())) == 2
    assert line in report
    assert cfg.model.head.num_classes == cfg.data_preprocessor.num_classes == len(classes)
    assert cfg.val_evaluator.topk == cfg.test_evaluator.topk == (1,)
    record_fault('bad_data')


def test_the_best_five_of_six_classes_are_scored(tmp_path):
    cfg, _ = fill(CONFIG, make(tmp_path / 'own', pets('.', classes='abcdef', number=2)), tmp_path / 'work')
    assert cfg.val_evaluator == dict(type='Accuracy', topk=(1, 5))


@pytest.mark.parametrize(('config', 'pictures', 'texts', 'message'), [
    (CONFIG, pets('.', classes=['cat']), {}, 'no annotations .* looked for a folder of pictures for each class'),
    (CONFIG, ['1.jpg', '2.jpg'], {}, 'no annotations .* looked for a folder of pictures for each class'),
    (CONFIG, pets('.'), {'classes': 'dog\nbird\n'}, r"classes\.txt has no class 'cat', which is a folder of pictures"),
    (CONFIG, pets('.'), {'train': 'cat/7.jpg 0\n'}, r"train\.txt: 'cat/7\.jpg' is the name of no picture below"),
    (CONFIG, pets('.'), {'train': 'cat/0.jpg 0\ndog/1.jpg 2\n', 'classes': 'cat\ndog\n'},
     r'classes\.txt has no class 2, of \[0, 1\], as a list has'),
    (SIMMIM, pets('.'), {}, 'takes a classifier, whose model.head has num_classes, and model is SimMIM'),
])  # fmt: skip
def test_what_is_no_folder_of_classes_is_said(config, pictures, texts, message, tmp_path, record_fault):
    with pytest.raises(ValueError, match=message):
        fill(config, make(tmp_path / 'own', pictures, **texts), tmp_path / 'work')
    record_fault('bad_data')


@pytest.mark.toolboxes
def test_classes_without_pictures_are_warnings(tmp_path, record_fault):
    pytest.importorskip('mmpretrain', reason='mmpretrain is not installed: make install EXTRAS=cls')
    root = make(tmp_path / 'own', [*pets('train'), 'val/cat/0.jpg', 'val/cow/0.jpg'])
    train, val = check_data(BuiltDatasets(fill(CONFIG, root, tmp_path / 'work')[0], ()))
    assert train.classes == dict(cat=4, cow=0, dog=4)
    assert train.rows['pictures by class'] == '0 to 4'
    assert train.warnings.sentences() == ['classes without training data: 1, as cow']
    assert val.warnings.sentences() == ['classes without validation data, which have no score: 1, as dog']
    (root / 'val' / 'cat' / '0.jpg').write_text('no picture')
    assert 'pictures or labels that cannot be used: 1' in str(
        check_data(BuiltDatasets(fill(CONFIG, root, tmp_path / 'work')[0], ()))[1].errors.sentences()
    )
    record_fault('bad_data', 2)


def test_a_toolbox_without_a_reader_is_refused(tmp_path):
    cfg = tmp_path / 'config.py'
    cfg.write_text("default_scope = 'mmocr'\n")
    with pytest.raises(ValueError, match="takes a config of mmdet, mmseg or mmpretrain, got default_scope='mmocr'"):
        fill(cfg, tmp_path, tmp_path / 'work')
