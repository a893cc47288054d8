"""YOLO's data.yaml and text files as programs on other machines write them."""

import shutil

import numpy as np
import pytest
from helpers.openmmlab import layouts
from helpers.openmmlab.own_folders import BOXES, MASKS, boxes, fill, read

from swin_backbone.checks import DataError


def write_folder(root, lines, yaml='names: [nut, bolt]\n', count=2):
    """Write pictures of 100 x 50 pixels, each with the same lines."""
    for number in range(count):
        layouts.write_picture(root / 'images', str(number), np.zeros((50, 100, 3), np.uint8))
        layouts.write(root / 'labels' / f'{number}.txt', ''.join(f'{line}\n' for line in lines))
    layouts.write(root / 'data.yaml', yaml)
    return root


@pytest.mark.parametrize('form', ['list', 'items', 'numbered'])
def test_names_stay_text(form, tmp_path, record_fault):
    names = ['yes', 'Yes', 'on', 'off', 'no', 'null', '~', '0x1F', '1_000', '12:30', '2024-01-01', '.5', '.inf', 'true',
             '0o7', '+1', '007', '1e3']  # fmt: skip
    numbered = ', '.join(f'{number}: {name}' for number, name in enumerate(names))
    text = dict(list=f'[{", ".join(names)}]', items='\n- ' + '\n- '.join(names), numbered=f'{{{numbered}}}')[form]
    root = write_folder(tmp_path / 'own', ['0 .5 .5 .2 .2'], f'names: {text}\ntest: null\nval: ~\n')
    cfg, _ = fill(BOXES, root, tmp_path / 'work')
    assert list(cfg.train_dataloader.dataset.metainfo.classes) == names
    record_fault('bad_data')


def test_points_of_a_pose_are_whole_numbers(tmp_path, record_fault):
    root = write_folder(tmp_path / 'own', ['0 .5 .5 .2 .2 .1 .1'], 'names: [nut]\nkpt_shape: [1, 2]\n')
    assert len(boxes(read(fill(BOXES, root, tmp_path / 'work')[0]))) == 1
    layouts.write(root / 'data.yaml', 'names: [nut]\nkpt_shape: [one, 2]\n')
    with pytest.raises(DataError, match=r"kpt_shape takes whole numbers, as \[17, 3\], got \['one', '2'\]"):
        fill(BOXES, root, tmp_path / 'work')
    record_fault('bad_data')


def splits_of(root, work):
    """Return the names of the pictures of each split, and the report."""
    cfg, report = fill(BOXES, root, work)
    return {
        phase: {name.removesuffix('.jpg') for name in boxes(read(cfg, phase))} for phase in ('train', 'val')
    }, report


TRUE = {'train': {'train_0', 'train_1', 'train_2', 'train_3'}, 'val': {'val_0', 'val_1'}}


@pytest.mark.parametrize('form', [
    '../{}/images', '..\\{}\\images', '/content/proj-1/{}/images', 'C:\\Users\\me\\own\\{}\\images', './{}/images',
    '{}', '/content/proj-1/{}', '/kaggle/input/{}/Images/', '../../own/{}/images', 'own\\{}\\images',
])  # fmt: skip
def test_folders_of_other_machines_are_found_by_their_ends(form, tmp_path, record_fault):
    root = layouts.made('yolo', tmp_path)
    for split, folder in (('train', 'train'), ('val', 'valid')):
        for part in ('images', 'labels'):
            (root / folder).mkdir(exist_ok=True)
            shutil.move(root / part / split, root / folder / part)
    text = f"train: '{form.format('train')}'\nval: '{form.format('valid')}'\nnames: [nut, bolt]\n"
    layouts.write(root / 'data.yaml', text)
    found, report = splits_of(root, tmp_path / 'work')
    assert found == TRUE
    assert ('is no path here' in report) == (form not in ('../{}/images', './{}/images', '{}'))
    record_fault('bad_data')


def test_lists_of_other_machines_are_found_by_their_names(tmp_path):
    root = layouts.made('yolo', tmp_path)
    swapped = dict(train=['val_0', 'val_1', 'train_0'], val=['train_1'])
    for split, names in swapped.items():
        layouts.write(root / 'lists' / f'{split}.txt', ''.join(f'D:\\own\\images\\x\\{name}.jpg\n' for name in names))
    layouts.write(root / 'data.yaml', 'train: D:\\own\\train.txt\nval: D:\\own\\val.txt\nnames: [nut, bolt]\n')
    found, _ = splits_of(root, tmp_path / 'work')
    assert found == {split: set(names) for split, names in swapped.items()}


@pytest.mark.parametrize('other', ['a/train/images', 'b/train/images'])
def test_several_folders_with_the_end_are_none(other, tmp_path, record_fault):
    root = layouts.made('yolo', tmp_path)
    for folder in ('c', other[0]):
        shutil.copytree(root / 'images' / 'train', root / folder / 'train' / 'images')
    layouts.write(root / 'data.yaml', 'train: D:\\own\\train\\images\nnames: [nut, bolt]\n')
    with pytest.raises(DataError, match=r'none of the 14 pictures .* is among those that `train: D:'):
        fill(BOXES, root, tmp_path / 'work')
    record_fault('bad_data')


def test_a_folder_of_another_split_is_not_taken(tmp_path, record_fault):
    """The pictures for training are missing."""
    root = layouts.made('yolo', tmp_path)
    for part in ('images', 'labels'):
        shutil.rmtree(root / part / 'train')
    (root / 'valid').mkdir()
    for part in ('images', 'labels'):
        shutil.move(root / part / 'val', root / 'valid' / part)
    layouts.write(root / 'data.yaml', 'train: /content/train/images\nval: /content/valid/images\nnames: [nut, bolt]\n')
    with pytest.raises(DataError, match=r'none of the 2 pictures .* is among those that `train: /content'):
        fill(BOXES, root, tmp_path / 'work')
    record_fault('bad_data')


BOX = '0 .5 .5 .2 .4'
TRIANGLE = '1 .1 .2 .3 .4 .9 .5'


@pytest.mark.parametrize(('lines', 'objects'), [
    ([f'{BOX} .91 1'], [4]), ([f'{BOX} .91 7', f'{BOX} .9 1', '1 .5 .5 .4 .2 1 0'], [4, 4, 4]),
    ([f'{BOX} .91', BOX, f'{BOX} .5 12'], [4, 4, 4]),
    ([f'{TRIANGLE} .91 3', f'{BOX} .7 4'], [3, 4]),  # outlines with a score and a track
    ([TRIANGLE], [3]), ([TRIANGLE, BOX], [3, 4]), ([TRIANGLE, '1 .1 .2 .3 .4 .9 1'], [3, 3]),
    (['0 .1 .2 .9 .4 .5 1'], [3]),  # no box in the picture
    (['0 .1 .2 .5 .2 .5 1 .1 1'], [4]),  # an outline to the lower edge
])  # fmt: skip
def test_a_score_and_a_track_are_no_point(lines, objects, tmp_path, record_fault):
    cfg, report = fill(MASKS, write_folder(tmp_path / 'own', lines), tmp_path / 'work')
    items = read(cfg)['annotations']
    corners = [len(item['segmentation'][0]) // 2 if 'segmentation' in item else 4 for item in items]
    assert corners == objects
    for line, item in zip(lines, items):
        if line.startswith(BOX):
            assert item['bbox'] == pytest.approx([40, 15, 20, 20])
    assert ('not read' in report) == any(line.startswith(f'{BOX} ') for line in lines)
    record_fault('bad_data')
