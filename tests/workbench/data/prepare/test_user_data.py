"""An index of a user's data: written once, shared by equal data, never changed; it keeps the user's own ids."""

import errno
import json
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import edited_json
from helpers.in_process import run_well
from helpers.openmmlab import layouts
from helpers.openmmlab.own_data import DETECTION, make_own_data, read_coco, write_coco
from PIL import Image

from swin_backbone.checks import DataError
from swin_backbone.workbench.data.prepare import user_data
from swin_backbone.workbench.data.prepare.user_data import UserData, index_user_data


@pytest.fixture(autouse=True)
def cache_of_a_test(tmp_path, monkeypatch):
    monkeypatch.setenv('SWIN_BACKBONE_DATA', str(tmp_path / 'indices'))


@pytest.fixture
def own(tmp_path):
    return make_own_data(tmp_path / 'own')


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob('*') if path.is_file()}


def test_a_changed_label_gives_another_index_and_keeps_the_first(own, tmp_path):
    """Two trainings at once, with other labels: neither changes what the other reads."""
    first = index_user_data(own)
    before = contents(tmp_path / 'indices')
    with edited_json(own / 'train.json') as coco:
        coco['annotations'][0]['bbox'][2] += 1
    second = index_user_data(own)
    after = contents(tmp_path / 'indices')
    assert second.splits['train'].file != first.splits['train'].file
    assert {path: after[path] for path in before} == before
    boxes = [
        json.loads(Path(data.splits['train'].file).read_text())['annotations'][0]['bbox'][2] for data in (first, second)
    ]
    assert boxes == [24, 25]


@pytest.mark.parametrize('change', [
    lambda own: (own / 'images' / 'train' / '0.png').write_bytes(b'another size'),
    lambda own: os.utime(own / 'train.json', (0, 0)),
    lambda own: (own / 'images' / 'train' / '9.png').write_bytes(b''),
])  # fmt: skip
def test_names_sizes_and_times_of_all_files_decide(own, change):
    first = index_user_data(own)
    assert index_user_data(own) == first
    change(own)
    assert index_user_data(own).splits['train'].file != first.splits['train'].file


def test_a_changed_list_outside_of_the_folder_gives_another_index(tmp_path):
    root = layouts.made('yolo', tmp_path)
    lists = tmp_path / 'lists'
    lists.mkdir()
    names = [str(path) for path in sorted((root / 'images').rglob('*.jpg'))]
    (root / 'data.yaml').write_text(f'train: {lists}/train.txt\nval: {lists}/val.txt\nnames: [nut, bolt]\n')
    for number in (1, 2):
        (lists / 'train.txt').write_text('\n'.join(names[number:]))
        (lists / 'val.txt').write_text('\n'.join(names[:number]))
        assert index_user_data(root).splits['val'].num_pictures == number


def test_equal_data_are_read_once(own, monkeypatch):
    """Also by several processes or threads that start together."""
    calls, find = [], user_data.read_data
    monkeypatch.setattr(user_data, 'read_data', lambda *given: calls.append(1) or find(*given))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: index_user_data(own), range(8)))
    assert len(calls) == 1
    assert all(data == found[0] for data in found)
    assert isinstance(found[0], UserData)
    with pytest.raises(AttributeError):
        found[0].classes = ()


def test_a_full_disk_is_an_error_that_names_the_folder_of_the_indices(own, tmp_path, monkeypatch, record_fault):
    def fail(path, *_, **__):
        raise OSError(errno.ENOSPC, 'No space left on device')  # as of a write, without a name

    monkeypatch.setattr(Path, 'write_text', fail)
    sentence = f'the index of --data cannot be written into {tmp_path}/indices (No space left on device); the '
    with pytest.raises(OSError, match=re.escape(sentence)):
        index_user_data(own)
    assert not list((tmp_path / 'indices').glob('*/'))
    record_fault('full_disks')


def test_an_index_of_a_process_that_died_is_written_again(own):
    data = index_user_data(own)
    index = Path(data.splits['train'].file)
    (index.parent / user_data.DATASET_FILE).unlink()
    index.write_text('half')
    assert index_user_data(own) == data
    assert len(json.loads(index.read_text())['images']) == 4
    last = index.parent / user_data.DATASET_FILE
    last.write_bytes(last.read_bytes()[:-9])  # half
    assert index_user_data(own) == data


def test_the_index_that_was_not_used_for_longest_is_removed(tmp_path, monkeypatch):
    """Never one that was used in the last month."""
    place, roots = tmp_path / 'indices', [make_own_data(tmp_path / f'own{number}') for number in range(5)]
    indices = [find_index(root) for root in roots[:3]]
    for days, path in zip((90, 80, 70), indices):
        for part in (path, *path.iterdir()):
            os.utime(part, (time.time() - 24 * 3600 * days,) * 2)
    assert find_index(roots[0]) == indices[0]  # used now
    monkeypatch.setattr(user_data, 'MAX_INDICES', 3)
    indices.append(find_index(roots[3]))
    assert {path.parent for path in place.glob('*/dataset.json')} == {indices[0], indices[2], indices[3]}
    monkeypatch.setattr(user_data, 'MAX_BYTES', 1)
    indices.append(find_index(roots[4]))
    assert {path.parent for path in place.glob('*/dataset.json')} == {indices[0], indices[3], indices[4]}
    assert find_index(roots[1]) == indices[1]  # is written again


def find_index(root):
    return Path(index_user_data(root).splits['train'].file).parent


def test_each_split_keeps_the_ids_of_its_categories(own):
    """Results of a test have the ids of the user's test data."""
    with edited_json(own / 'val.json') as coco:
        for item in (*coco['categories'], *coco['annotations']):
            key = 'category_id' if 'image_id' in item else 'id'
            item[key] += 10
    splits = index_user_data(own).splits
    written = {split: json.loads(Path(splits[split].file).read_text()) for split in splits}
    for split, ids in (('train', [3, 7]), ('val', [13, 17])):
        assert [category['id'] for category in written[split]['categories']] == ids
        assert {item['category_id'] for item in written[split]['annotations']} == {*ids}
    assert splits['val'].objects == dict(nut=1, bolt=1)


@pytest.mark.parametrize('name', ['instances_train.json', 'all.json', 'annotations.xml'])
def test_a_relative_file_is_read_as_its_whole_path(name, tmp_path, monkeypatch):
    """Its pictures are beside its folder."""
    root = layouts.made('coco', tmp_path)
    monkeypatch.chdir(root)
    Path('annotations/instances_train.json').rename(f'annotations/{name}')
    if name.endswith('.xml'):
        boxes = '<box label="nut" xtl="1" ytl="1" xbr="9" ybr="9"/>'
        images = [f'<image id="{n}" name="train_{n}.jpg" width="64" height="64">{boxes}</image>' for n in range(4)]
        Path('annotations', name).write_text(f'<annotations>{"".join(images)}</annotations>')
    shutil.rmtree('images/val')
    Path('annotations/instances_val.json').unlink()
    for given in (root, Path()):
        splits = index_user_data(given / 'annotations' / name).splits
        assert {split: index.num_pictures for split, index in splits.items()} == dict(train=3, val=1)


def test_objects_of_no_image_are_named_and_left_out(own):
    with edited_json(own / 'train.json') as coco:
        coco['annotations'].append(dict(coco['annotations'][0], id=99, image_id=1234))
    data = index_user_data(own)
    (line,) = [line for line in data.lines if 'that of no image' in line]
    assert line.endswith("objects whose 'image_id' is that of no image: 1, as 99 has 1234")
    assert sum(data.splits['train'].objects.values()) == 4


@pytest.mark.parametrize('scope', ['mmdet', 'mmpretrain'])
def test_classes_without_data_are_lines(tmp_path, record_fault, scope):
    """Before the first training, and in each that reads the index."""
    root = layouts.made('voc' if scope == 'mmdet' else 'classes', tmp_path)
    for _ in range(2):
        lines = index_user_data(root, None, ['nut', 'bolt', 'screw'], scope=scope).lines
        assert '  warning     classes without training data: 1, as screw' in lines
        assert '  warning     classes without validation data, which have no score: 1, as screw' in lines
    record_fault('bad_data')


def test_validation_data_without_an_object_are_a_line(own, record_fault):
    with edited_json(own / 'val.json') as coco:
        coco['annotations'].clear()
    lines = index_user_data(own).lines
    assert '  warning     classes without validation data, which have no score: 2, as nut; bolt' in lines
    record_fault('bad_data')


@pytest.mark.parametrize('form', ['coco', 'yolo'])
def test_names_of_a_command_line_do_not_replace_those_of_the_data(form, tmp_path, record_fault):
    root = layouts.made(form, tmp_path)
    index_user_data(root, classes=['nut', 'bolt'])
    with pytest.raises(DataError, match=r' names the classes nut, bolt: leave out --classes'):
        index_user_data(root, classes=['bolt'])
    record_fault('bad_data')


def test_pictures_that_are_not_there_are_a_line(own, record_fault):
    """They are not those of the same name of another split."""
    (own / 'images' / 'val' / '1.png').unlink()
    data = index_user_data(own)
    assert '  warning     1 pictures of val.json are not there, as images/val/1.png' in data.lines
    names = [image['file_name'] for image in json.loads(Path(data.splits['val'].file).read_text())['images']]
    assert names == ['images/val/0.png', 'images/val/1.png']
    record_fault('bad_data')


def test_pictures_of_two_files_are_named(own):
    with edited_json(own / 'val.json') as coco:
        for image in coco['images']:
            image['file_name'] = f'images/val/{image["file_name"]}'
    coco['images'].pop()
    write_coco(own, 'test', coco)
    line = '  warning     1 pictures of the test are in training or validation, as images/val/0.png'
    assert line in index_user_data(own).lines


@pytest.mark.parametrize('layout', layouts.LAYOUTS)
def test_a_relative_folder_is_read_as_its_whole_path(tmp_path, monkeypatch, layout):
    root, scope = layouts.made(layout, tmp_path), dict(labels='mmseg', classes='mmpretrain').get(layout, 'mmdet')
    monkeypatch.chdir(root.parent)
    texts = []
    for given in (root, root.name):
        data = index_user_data(given, scope=scope)
        index = Path(data.splits['train'].file)
        texts.append(index.read_text().replace(str(index.parent), '').replace(f'{root.parent}/', ''))
        for item in json.loads(index.read_text()).get('data_list', ()) if index.suffix == '.json' else ():
            assert Path(item['seg_map_path']).is_file()
    assert texts[0] == texts[1]


def test_wrong_data_leave_nothing(own, tmp_path):
    (own / 'train.json').write_text('{}')
    (own / 'val.json').unlink()
    with pytest.raises(DataError):
        index_user_data(own)
    assert not [path for path in (tmp_path / 'indices').iterdir() if path.is_dir()]


def test_a_folder_that_cannot_be_written_is_named_with_the_variable(own, tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('SWIN_BACKBONE_DATA', str(tmp_path / 'file'))
    with pytest.raises(
        OSError, match=rf'into {tmp_path}/file \(.*\); the environment variable SWIN_BACKBONE_DATA names'
    ):
        index_user_data(own)


def test_what_is_counted(own):
    data = index_user_data(own)
    train, val = data.splits['train'], data.splits['val']
    assert (train.num_pictures, val.num_pictures, train.most_objects, dict(train.objects)) == (
        4,
        2,
        1,
        dict(nut=2, bolt=2),
    )
    assert (data.classes, data.root, data.scope) == (('nut', 'bolt'), str(own), 'mmdet')


def test_ids_that_count_from_0_stay_those_of_the_user(own):
    """COCO's evaluation counts an object with the id 0 as not found."""
    with edited_json(own / 'val.json') as coco:
        for number, item in enumerate(coco['annotations']):
            item['id'] = number
    index = json.loads(Path(index_user_data(own).splits['val'].file).read_text())
    assert [(item['id'], item['own_id']) for item in index['annotations']] == [(1, 0), (2, 1)]


def test_objects_of_other_formats_have_their_file_and_place(tmp_path):
    root = layouts.made('yolo', tmp_path)
    index = json.loads(Path(index_user_data(root).splits['train'].file).read_text())
    files = {image['id']: Path(image['file_name']).stem for image in index['images']}
    for item in index['annotations']:
        file, _, place = item['own_id'].partition(', object ')
        assert Path(file).stem == files[item['image_id']]
        assert Path(file).read_text().splitlines()[int(place) - 1]


def test_a_test_stays_beside_equal_training_and_validation(own):
    (own / 'val.json').rename(own / 'test.json')
    coco = read_coco(own)
    for image in coco['images']:
        image['file_name'] = f'train/{image["file_name"]}'
    for split in ('train', 'val'):
        write_coco(own, split, coco)
    with edited_json(own / 'test.json') as coco:
        for image in coco['images']:
            image['file_name'] = f'val/{image["file_name"]}'
    data = index_user_data(own)
    assert {split: index.num_pictures for split, index in data.splits.items()} == dict(train=3, val=1, test=2)
    names = [image['file_name'] for image in json.loads(Path(data.splits['test'].file).read_text())['images']]
    assert names == ['images/val/0.png', 'images/val/1.png']


@pytest.mark.parametrize('layout', layouts.LAYOUTS)
def test_a_test_set_alone_is_tested_whole(layout, tmp_path):
    """As in `tools/test.py --data`, of a checkpoint that is trained on other data."""
    root, scope = layouts.made(layout, tmp_path), dict(labels='mmseg', classes='mmpretrain').get(layout, 'mmdet')
    for path in sorted(root.rglob('*'), reverse=True):
        if 'val' in path.name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif 'train' in path.name and not path.stem.startswith('train_'):
            path.rename(path.with_name(path.name.replace('train', 'test')))
    if layout == 'yolo':
        (root / 'data.yaml').write_text('test: images/test\nnames: [nut, bolt]\n')
    data = index_user_data(root, scope=scope)
    num_val = 2 if layout == 'classes' else 1  # one of each class
    num_pictures = {split: index.num_pictures for split, index in data.splits.items()}
    assert num_pictures == dict(train=4 - num_val, val=num_val, test=4)
    assert any('a test set alone: a test takes all of it; a training holds out a fifth' in line for line in data.lines)
    assert not any('pictures of the test are in training' in line for line in data.lines)


def test_a_test_of_all_pictures_of_the_training_is_a_line(tmp_path):
    """It is no test set alone: data.yaml names pictures for training too."""
    root = layouts.made('yolo', tmp_path)
    (root / 'data.yaml').write_text(
        'train: images/train\nval: images/val\ntest: [images/train, images/val]\nnames: [nut, bolt]\n'
    )
    data = index_user_data(root)
    num_pictures = data.splits['train'].num_pictures + data.splits['val'].num_pictures
    assert data.splits['test'].num_pictures == num_pictures
    assert not data.splits['test'].is_alone
    assert any(f'{num_pictures} pictures of the test are in training or' in line for line in data.lines)


def test_a_test_of_classes_alone_holds_out_pictures_of_each_class(tmp_path):
    for name, num_pictures in (('frequent', 40), ('rare', 2)):
        for number in range(num_pictures):
            layouts.write_picture(tmp_path / 'test' / name, f'{name}_{number}', np.zeros((8, 8, 3), np.uint8))
    splits = index_user_data(tmp_path, scope='mmpretrain').splits
    assert {split: dict(index.objects) for split, index in splits.items()} == dict(
        train=dict(frequent=32, rare=1), val=dict(frequent=8, rare=1), test=dict(frequent=40, rare=2)
    )


def test_pictures_of_lvis_are_found_by_their_addresses(own):
    for split in ('train', 'val'):
        with edited_json(own / f'{split}.json') as coco:
            for image in coco['images']:
                image['coco_url'] = f'http://images.cocodataset.org/{split}/{image.pop("file_name")}'
    data = index_user_data(own)
    names = [image['file_name'] for image in json.loads(Path(data.splits['val'].file).read_text())['images']]
    assert names == ['images/val/0.png', 'images/val/1.png']


@pytest.mark.parametrize('order', [1, -1])
def test_of_categories_of_one_name_the_used_one_stays(own, order):
    for split in ('train', 'val'):
        with edited_json(own / f'{split}.json') as coco:
            coco['categories'] = [*coco['categories'], dict(id=9, name='nut')][::order]
    data = index_user_data(own)
    assert sorted(data.classes) == ['bolt', 'nut']
    assert data.splits['train'].objects['nut'] > 0


def test_a_name_of_a_category_that_is_no_text_is_named(own):
    with edited_json(own / 'train.json') as coco:
        coco['categories'][0]['name'] = ['nut']
    with pytest.raises(DataError, match='name takes a string'):
        index_user_data(own)


def test_a_group_of_labelme_may_be_of_any_type(tmp_path):
    """labelme writes numbers. Of other programs, equal groups are one object."""
    root = tmp_path / 'own'
    root.mkdir()
    for number in range(2):
        Image.new('RGB', (40, 30)).save(root / f'{number}.png')
        points = [[[3, 4], [13, 16]], [[20, 4], [30, 16]]]
        shapes = [dict(label='nut', points=part, group_id=['a'], shape_type='rectangle') for part in points]
        (root / f'{number}.json').write_text(json.dumps(dict(shapes=shapes, imagePath=f'{number}.png')))
    assert index_user_data(root).splits['train'].objects == dict(nut=1)


def test_names_of_pictures_in_two_folders_are_a_warning(own):
    (own / 'train.json').rename(own / 'objects.json')
    (own / 'val.json').unlink()
    (own / 'images' / 'train').rename(own / 'images' / 'a')
    shutil.copytree(own / 'images' / 'a', own / 'images' / 'b')
    lines = index_user_data(own).lines
    assert '  warning     pictures of objects.json are in images/a and images/b: images/a is taken' in lines


def test_a_test_without_objects_is_left_out_with_a_line(own):
    write_coco(own, 'test', dict(read_coco(own, 'val'), annotations=[]))
    data = index_user_data(own)
    assert {*data.splits} == {'train', 'val'}
    assert f'  left out    {own}/test.json, a test without objects' in data.lines


def test_a_json_without_pictures_beside_a_full_one_is_a_warning(own):
    write_coco(own, 'val', dict(images=[], annotations=[], categories=read_coco(own)['categories']))
    data = index_user_data(own)
    assert f'  warning     {own}/val.json has no pictures: it is no file for val' in data.lines


@pytest.mark.parametrize(('tool', 'more'), [('check_data', []), ('print_config', ['--epochs', 2])])
def test_tools_that_only_look_write_nothing_where_they_run(own, tmp_path, monkeypatch, tool, more):
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    run_well(f'tools/{tool}.py', DETECTION, '--data', own, *more)
    assert not list((tmp_path / 'here').iterdir())
    assert sorted(path.name for path in own.iterdir()) == ['images', 'labels', 'train.json', 'val.json']


@pytest.mark.parametrize('layout', ['yolo', 'voc', 'coco'])
def test_skip_unreadable_holds_for_conversions(tmp_path, layout, record_fault):
    """A conversion needs the size of a picture, as COCO's JSON does without sizes."""
    root = layouts.made(layout, tmp_path)
    if layout == 'coco':
        for path in root.rglob('*.json'):
            with edited_json(path) as content:
                for image in content['images']:
                    del image['height'], image['width']
    (broken,) = root.rglob('train_1.jpg')
    broken.write_bytes(b'no picture')
    with pytest.raises(
        DataError, match=r'train_1\.jpg cannot be read as a picture.*; --skip-unreadable goes on without'
    ):
        index_user_data(root)
    own = index_user_data(root, skip_unreadable=True)
    assert [own.splits[split].num_pictures for split in ('train', 'val')] == [3, 2]
    assert sum(own.splits['train'].objects.values()) == 6
    (left_out,) = [line for line in own.lines if 'cannot be read' in line]
    assert 'pictures that cannot be read, with their objects: 1, as ' in left_out
    assert 'train_1.jpg' in left_out
    record_fault('bad_data')


@pytest.mark.parametrize('layout', ['cvat_coco', 'yolo'])
def test_a_picture_of_two_splits_has_its_objects_in_both(tmp_path, layout):
    """Rotated boxes are turned once."""
    root, names = tmp_path / 'own', [f'{number}.png' for number in range(4)]
    (root / 'images').mkdir(parents=True)
    for name in names:
        Image.new('RGB', (100, 60)).save(root / 'images' / name)
    for split, chosen in dict(train=names[:3], val=names[3:], test=names[2:3]).items():
        (root / f'{split}.txt').write_text('\n'.join(f'images/{name}' for name in chosen))
    if layout == 'yolo':
        (root / 'data.yaml').write_text('names: [nut, bolt]\ntrain: train.txt\nval: val.txt\ntest: test.txt\n')
        (root / 'labels').mkdir()
        for name in names:
            (root / 'labels' / name).with_suffix('.txt').write_text('1 0.5 0.5 0.2 0.4\n')
    else:
        box = dict(category_id=2, bbox=[38, 20, 24, 20], area=480, iscrowd=0, attributes=dict(rotation=90.0))
        images = [dict(id=number, file_name=name, height=60, width=100) for number, name in enumerate(names, 1)]
        objects = [dict(box, id=number, image_id=number) for number in range(1, 5)]
        categories = [dict(id=1, name='nut'), dict(id=2, name='bolt')]
        (root / 'all.json').write_text(json.dumps(dict(images=images, annotations=objects, categories=categories)))
    data = index_user_data(root)
    for split in ('train', 'test'):
        items = json.loads(Path(data.splits[split].file).read_text())['annotations']
        assert [item['category_id'] for item in items] == [2] * len(items)
        assert [item['bbox'] for item in items] == [[40, 18, 20, 24]] * len(items)
    assert data.splits['test'].objects == dict(nut=0, bolt=1)
    assert '  warning     classes without test data, which have no score: 1, as nut' in data.lines
    assert not [text for text in data.lines if 'rotated' in text and '4 boxes' not in text]
