"""Reports on files of any program: they need no torch, and equal those of a test."""

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers import run_python
from helpers.in_process import error_of

pytest.importorskip('jinja2', reason='jinja2 is not installed')
from pycocotools import mask as coco_mask

from swin_backbone.workbench.report.files import (
    count_label_pixels,
    encode_csv,
    find_pictures,
    find_task,
    read_evaluations,
)
from swin_backbone.workbench.report.write import read_reports, write_report

NAMES = ['nut', 'bolt']
# A process in which nothing of torch and the toolboxes can be imported
WITHOUT_TORCH = """
import runpy, sys
sys.modules.update(dict.fromkeys(('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'matplotlib')))
sys.argv = ['tools/report.py', *sys.argv[1:]]
runpy.run_path('tools/report.py', run_name='__main__')
"""


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def square(x, y, side=20):
    return [[x, y, x + side, y, x + side, y + side, x, y + side]]


@pytest.fixture
def objects(tmp_path):
    """Write pictures, labels and results of a detector that knows no other program: ids are free, area is missing."""
    for name in ('a', 'b'):
        cv2.imwrite(str(tmp_path / f'{name}.jpg'), np.full((64, 64, 3), 90, np.uint8))
    images = [dict(id=f'{name}', file_name=f'{name}.jpg', width=64, height=64) for name in ('a', 'b')]
    images = [dict(image, id=number + 70) for number, image in enumerate(images)]
    labels = [
        dict(id=number, image_id=70 + number // 2, category_id=5 + 2 * (number % 2), bbox=[x, 10, 20, 20],
             segmentation=square(x, 10))
        for number, x in enumerate((4, 34, 4, 34))
    ]  # fmt: skip
    results = [
        dict(image_id=one['image_id'], category_id=one['category_id'], bbox=one['bbox'], score=0.9 - 0.1 * row)
        for row, one in enumerate(labels)
    ]
    results[-1]['category_id'] = 5  # a bolt as a nut
    categories = [dict(id=5, name='nut'), dict(id=7, name='bolt')]
    coco = dict(images=images, annotations=labels, categories=categories)
    return save(tmp_path / 'labels.json', coco), save(tmp_path / 'results.json', results)


def test_a_detector_of_another_program_without_torch(objects, tmp_path):
    labels, results = objects
    words = ['--labels', labels, '--results', results, '--pictures', tmp_path]
    for folder in ('one', 'two'):
        done = run_python('-c', WITHOUT_TORCH, *words, '--out-dir', tmp_path / folder)
        assert done.stdout == f'{tmp_path / folder / "index.html"}\n'
    first, second = ((tmp_path / folder / 'report.json').read_bytes() for folder in ('one', 'two'))
    assert first == second
    report = json.loads(first)
    assert (report['task'], report['tested'], [*report['sizes']]) == ('detection', 2, ['bbox'])
    assert [row['objects'] for row in report['classes']] == [2, 2]
    assert report['overall']['AP'] == pytest.approx((1 + 51 / 101) / 2, abs=0.01)
    assert (tmp_path / 'one/index.html').read_text().count('<image') > 0
    again = run_python('-c', WITHOUT_TORCH, *words, '--out-dir', tmp_path / 'one', status=1)
    assert 'report.json is there already' in again.stderr


def test_masks_alone(objects):
    """Their labels lack boxes and areas, which decide the sizes."""
    labels, results = objects
    coco = json.loads(labels.read_text())
    for label in coco['annotations']:
        del label['bbox']
    save(labels, coco)
    found = json.loads(results.read_text())
    for one in found:
        (x, y, side, _), _ = one.pop('bbox'), one.update(mask_score=0.5)
        one['segmentation'] = dict(size=[64, 64], counts=[64 * x + y, *[side, 64 - side] * (side - 1), side,
                                                          64 * 64 - 64 * (x + side - 1) - y - side])  # fmt: skip
    save(results, found)
    (evaluation,) = read_evaluations(labels, results)
    assert evaluation.params.iouType == 'segm'
    assert set(evaluation.predictions.score) == {0.5}
    assert evaluation.results[0]['bbox'] == [4, 10, 20, 20]
    assert [label['area'] for label in evaluation.truth.anns.values()] == [400] * 4


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(image_id=1), 'the labels have no image_id=1'),
        (dict(category_id='nut'), "the labels have no category_id='nut'"),
        (dict(bbox=..., score=0.5), r'results\.json takes a bbox in each of its objects, .*: 1 of 4 have none, as '),
        (dict(segmentation=square(4, 10)), r'results\.json takes a segmentation in each of .*: 3 of 4 have none, as '),
        (dict(score=87.5), 'score takes a number from 0 to 1, got 87.5'),
        (dict(score=-3), 'score takes a number from 0 to 1, got -3'),
        (dict(score=...), "it lacks 'score'"),
        (dict(score='high'), "could not convert string to float: 'high'"),
        (dict(score=float('nan')), 'it takes finite numbers, got nan'),
        (dict(bbox=[1, 2, 3]), r'bbox takes x, y, width and height, got \[1, 2, 3\]'),
        (dict(bbox=[1, 2, float('inf'), 4]), 'it takes finite numbers'),
        (dict(bbox=None), r'results\.json takes a bbox in each of its objects'),
        (dict(bbox=[1, 2, None, 4]), 'it takes finite numbers'),
    ],
)
def test_wrong_results_are_named(objects, change, message):
    labels, results = objects
    items = json.loads(results.read_text())
    items[1] = {key: value for key, value in (items[1] | change).items() if value is not ...}
    with pytest.raises(ValueError, match=message):
        read_evaluations(labels, save(results, items))


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda coco: coco['annotations'][1].pop('category_id'), "it lacks 'category_id'"),
        (lambda coco: coco['annotations'][1].pop('image_id'), "it lacks 'image_id'"),
        (lambda coco: coco['annotations'][1].update(category_id=6), 'the labels have no category_id=6'),
        (lambda coco: coco['categories'][1].pop('name'), "it lacks 'name'"),
        (lambda coco: coco['images'][1].update(file_name=None), 'labels.json: '),
        (lambda coco: coco['images'][1].update(id=coco['images'][0]['id']), 'labels.json: .*another has the id 70'),
        (lambda coco: coco['categories'][1].update(id=5), 'labels.json: .*another has the id 5'),
        (lambda coco: coco['categories'][1].update(name=None), 'name takes a string, got None'),
        (lambda coco: coco.update(images=3), 'takes a COCO JSON with lists of images, categories, annotations'),
        (lambda coco: coco['annotations'][1].update(bbox='1 2 3 4'), 'labels.json: '),
        (lambda coco: coco['annotations'].append(3), 'labels.json: 3: '),
        (lambda coco: coco['annotations'][1].update(iscrowd='0'), "iscrowd takes 0 or 1, got '0'"),
        (
            lambda coco: coco['annotations'][1].update(segmentation=[]),
            'takes a segmentation in each .*: 1 of 4 have none',
        ),
        (lambda coco: coco['images'].append(dict(coco['images'][0], id='b')), 'ids are all numbers or all strings'),
        (lambda coco: [image.pop('height') for image in coco['images']], "it lacks 'height'"),
        (lambda coco: coco['annotations'][1].update(segmentation=[[1, 2]]), 'labels.json: '),
        (lambda coco: coco['annotations'][1].update(segmentation=[[1, 2, 1e30, 4, 5, 6]]), 'must be finite'),
        (lambda coco: coco['annotations'][1].update(segmentation=dict(size=[64, 64], counts=[9])), 'do not add up'),
        (lambda coco: [image.update(height=1e30) for image in coco['images']], 'size takes a whole number'),
    ],
)
def test_wrong_labels_are_named(objects, change, message):
    labels, results = objects
    items = json.loads(results.read_text())
    for item in items:
        item['segmentation'] = square(*item['bbox'][:2])
    coco = json.loads(labels.read_text())
    change(coco)
    with pytest.raises(ValueError, match=message):
        read_evaluations(save(labels, coco), save(results, items))


def test_masks_of_two_sizes_in_one_picture_are_named(objects):
    """COCOeval gives them the IoU -1, and AP was 0. The labels may state another size than all masks have."""
    labels, results = objects
    coco, items = json.loads(labels.read_text()), json.loads(results.read_text())
    for item in (*coco['annotations'], *items):
        mask = np.zeros((32, 48), np.uint8, order='F')
        mask[10:20, item['image_id'] % 2 * 10 + 5 : 30] = 1
        item['segmentation'] = dict(size=[32, 48], counts=coco_mask.encode(mask)['counts'].decode())
    *_, masks = read_evaluations(save(labels, coco), save(results, items))
    assert masks.stats[1] > 0.5
    for image in coco['images']:
        del image['height'], image['width']
    *_, without_sizes = read_evaluations(save(labels, coco), results)
    assert without_sizes.stats == masks.stats
    items[2]['segmentation'] = dict(size=[64, 64], counts=[64 * 64])
    with pytest.raises(
        ValueError, match=r'results\.json: .*has \(64, 64\) pixels .*, and other masks of b\.jpg .*\(32, 48\)'
    ):
        read_evaluations(labels, save(results, items))
    coco['images'][1].update(height=64, width=64)
    coco['annotations'][3]['segmentation'] = square(4, 10)
    with pytest.raises(ValueError, match=r'labels\.json: .*has \(64, 64\) pixels .*, and other masks of b\.jpg'):
        read_evaluations(save(labels, coco), results)


@pytest.mark.parametrize('bits', [8, 16])
def test_label_pngs(tmp_path, bits):
    rng, dtype = np.random.default_rng(0), np.uint8 if bits == 8 else np.uint16
    labels, results = tmp_path / 'labels', tmp_path / 'results'
    for folder in (labels, results):
        folder.mkdir()
    truth = rng.integers(0, 2, (3, 40, 50)).astype(dtype)
    predicted = truth.copy()
    predicted[:, :10] = 1
    truth[:, -5:] = np.iinfo(dtype).max  # ignored
    for number in range(3):
        cv2.imwrite(str(labels / f'{number}.png'), truth[number])
        cv2.imwrite(str(results / f'{number}.png'), predicted[number])
    counts, _ = count_label_pixels(labels, results, NAMES)
    assert counts.counts.sum() == 3 * 35 * 50
    assert counts.counts[0, 1] == (truth[:, :10] == 0).sum()
    texts = ('nut\nbolt\n', 'nut\nbolt', '\ufeffnut\r\nbolt\r\n', '1 bolt\n0 nut\n', '__ignore__\n_background_\nbolt')
    for number, text in enumerate(texts):
        (labels / 'classes.txt').write_bytes(text.encode('utf-16' if number == 1 else 'utf-8'))
        report = write_report(tmp_path / f'out_{number}', labels, results)
        assert [row['name'] for row in report['classes']] == (['_background_', 'bolt'] if '_' in text else NAMES)
    (labels / 'classes.txt').write_text('0 nut\n128 bolt\n')
    with pytest.raises(ValueError, match=r'classes\.txt takes names of the values from 0 on, got 0, 128'):
        count_label_pixels(labels, results)
    assert report['overall']['aAcc'] == pytest.approx(1 - counts.counts[0, 1] / counts.counts.sum())
    cv2.imwrite(str(results / '1.png'), predicted[1] + 2)
    with pytest.raises(ValueError, match=r'1\.png takes the values 0 to 1, got [23]'):
        count_label_pixels(labels, results, NAMES)
    (results / '1.png').write_bytes((results / '0.png').read_bytes()[:60])
    with pytest.raises(OSError, match=r'1\.png cannot be read as a PNG'):
        count_label_pixels(labels, results, NAMES)
    (labels / 'classes.txt').write_bytes('nut\nbo\xeft\n'.encode('latin-1'))
    with pytest.raises(ValueError, match=r'classes\.txt cannot be read, save it in UTF-8'):
        count_label_pixels(labels, results)
    (results / '2.png').unlink()
    with pytest.raises(ValueError, match=r'takes a PNG for each of .*, got no 2\.png'):
        count_label_pixels(labels, results, NAMES)


def test_colours_of_labels_are_refused_with_a_replacement(tmp_path):
    for folder in ('labels', 'results'):
        (tmp_path / folder).mkdir()
        cv2.imwrite(str(tmp_path / folder / '0.png'), np.zeros((8, 9, 3), np.uint8))
    with pytest.raises(ValueError, match=r'0\.png takes one channel, .*, got colours \(8, 9, 3\): write labels with'):
        count_label_pixels(tmp_path / 'labels', tmp_path / 'results')


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ('a.py a.pth --pictures P', '--pictures P takes --labels and --results'),
        ('--labels L --results R --amp', '--amp auto is not used with --labels and --results'),
        ('--labels L --results R a.py', 'give CONFIG CKPT, or --labels L --results R'),
        ('--labels L --results R --recipe swin', '--recipe swin is not used with --labels and --results'),
    ],
)
def test_an_option_without_an_effect_is_refused(words, message):
    """A test has pictures of its own, and files have no model."""
    assert message in error_of('tools/report.py', *words.split(), '--out-dir', 'out', status=2)


def test_csv_files(tmp_path):
    labels, results = tmp_path / 'labels.csv', tmp_path / 'results.csv'
    labels.write_bytes(encode_csv([('file', 'class'), ('a,1.jpg', 'nut'), ('b.jpg', 'bolt')]))
    results.write_bytes(encode_csv([('file', *NAMES), ('b.jpg', 0.8, 0.2), ('a,1.jpg', 0.6, 0.4)]))
    report = write_report(tmp_path / 'out', labels, results)
    assert report['overall'] == dict(top1=0.5)
    assert [(row['file'], row['score']) for row in report['pictures']] == [('b.jpg', 0.8)]
    for score, message in (('high', "could not convert string to float: 'high'"), ('nan', 'it takes finite numbers')):
        results.write_bytes(encode_csv([('file', *NAMES), ('b.jpg', 0.8, 0.2), ('a,1.jpg', score, 0.4)]))
        with pytest.raises(ValueError, match=f'results.csv: .*a,1.jpg.*{message}'):
            write_report(tmp_path / 'new', labels, results)
    results.write_text('file,nut,bolt\na,0.5,"' + 'x' * 200_000)
    with pytest.raises(ValueError, match=r'results\.csv is no CSV'):
        write_report(tmp_path / 'new', labels, results)
    results.write_bytes(encode_csv([('file', *NAMES), ('b.jpg', 0.8, 0.2)]))
    with pytest.raises(ValueError, match=r'takes 2 scores of a,1\.jpg, got None'):
        write_report(tmp_path / 'new', labels, results)


@pytest.mark.parametrize(
    ('labels', 'results', 'message'),
    [
        ('a,nut\nb,bolt', 'file,nut,bolt\na,1,0\nb,1,0', r"labels\.csv takes the head line .*, got \['a', 'nut'\]"),
        ('file,class\na,nut\na,bolt', 'file,nut,bolt\na,1,0', r"labels\.csv takes each picture .*, got 'a' again"),
        ('file,class\na,nut', 'file,nut,bolt\na,1,0\na,0,1', r"results\.csv takes each picture .*, got 'a' again"),
        ('file,class\na,nut', 'file,nut,nut\na,1,0', r"results\.csv takes each .* class once, got 'nut' again"),
        ('file;class\na;nut', 'file;nut;bolt\na;1;0', r"results\.csv .* with commas, got \['file;nut;bolt'\]"),
    ],
)
def test_wrong_csv_files_are_named(labels, results, message, tmp_path):
    """The first picture was taken for the head line, and of two rows of a picture the last counted."""
    (tmp_path / 'labels.csv').write_text(labels)
    (tmp_path / 'results.csv').write_text(results)
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path / 'out', tmp_path / 'labels.csv', tmp_path / 'results.csv')


def test_a_class_may_be_called_class(tmp_path):
    (tmp_path / 'labels.csv').write_text('file,class\na,class\n')
    (tmp_path / 'results.csv').write_text('file,class,nut\na,0.8,0.2\n')
    assert write_report(tmp_path / 'out', tmp_path / 'labels.csv', tmp_path / 'results.csv')['overall']['top1'] == 1


def test_black_and_white_labels_are_refused(tmp_path):
    """255 is the value of ignored pixels: all pixels that counted were black."""
    for folder in ('labels', 'results'):
        (tmp_path / folder).mkdir()
        cv2.imwrite(str(tmp_path / folder / '0.PNG'), np.eye(8, dtype=np.uint8) * (255 if folder == 'labels' else 1))
    with pytest.raises(ValueError, match=r'takes labels of several classes, got 0 and ignored pixels .*: write 1 for'):
        count_label_pixels(tmp_path / 'labels', tmp_path / 'results')
    counts, _ = count_label_pixels(tmp_path / 'labels', tmp_path / 'results', NAMES)
    assert counts.counts.sum() == 56
    cv2.imwrite(str(tmp_path / 'results/0.PNG'), np.full((8, 8), 255, np.uint8))
    with pytest.raises(ValueError, match=r'0\.PNG takes the values 0 to 1, got that of ignored pixels'):
        count_label_pixels(tmp_path / 'labels', tmp_path / 'results', NAMES)


def test_objects_without_masks_in_one_file_have_a_report_on_boxes(objects):
    labels, results = objects
    coco = json.loads(labels.read_text())
    for item in coco['annotations']:
        item['segmentation'] = []
    items = [dict(item, segmentation=square(*item['bbox'][:2])) for item in json.loads(results.read_text())]
    (evaluation,) = read_evaluations(save(labels, coco), save(results, items))
    assert evaluation.params.iouType == 'bbox'


@pytest.mark.parametrize('lists', [('annotations',), ('predictions',), ('annotations', 'predictions')])
def test_files_without_objects_have_a_report(objects, lists, tmp_path):
    labels, results = objects
    if 'annotations' in lists:
        save(labels, dict(json.loads(labels.read_text()), annotations=[]))
    if 'predictions' in lists:
        save(results, [])
    report = write_report(tmp_path / 'out', labels, results)
    assert [row['objects'] for row in report['classes']] == ([0, 0] if 'annotations' in lists else [2, 2])


def test_a_json_that_is_too_deep_is_named(objects):
    labels, results = objects
    results.write_text('[' * 100_000)
    with pytest.raises(ValueError, match=r'results\.json is no JSON'):
        read_evaluations(labels, results)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{"task": "detec', r'report\.json is no JSON'),
        ('[]', 'of None'),
        ('{"task": "segmentation"}', 'of segmentation'),
    ],
)
def test_a_run_to_compare_is_a_report_of_the_task(content, message, tmp_path):
    (tmp_path / 'report.json').write_text(content)
    with pytest.raises(ValueError, match=message):
        read_reports([tmp_path], 'detection')


def test_files_of_two_kinds_are_refused(tmp_path, objects):
    labels, _ = objects
    with pytest.raises(ValueError, match='take two COCO JSON files, two folders of PNGs or two CSV files'):
        find_task(labels, tmp_path)
    with pytest.raises(ValueError, match=f'there is no {tmp_path}/absent.json'):
        find_task(labels, tmp_path / 'absent.json')
    done = run_python('-c', WITHOUT_TORCH, '--labels', labels, '--out-dir', tmp_path / 'out', status=2)
    assert 'give CONFIG CKPT, or --labels L --results R' in done.stderr


def test_names_that_are_not_utf_8(objects, tmp_path):
    labels, results = objects
    name = os.fsdecode(b'caf\xe9.jpg')
    (tmp_path / 'a.jpg').rename(tmp_path / name)
    coco = json.loads(labels.read_text())
    coco['images'][0]['file_name'] = name
    write_report(tmp_path / 'out', save(labels, coco), results, tmp_path)
    page = (tmp_path / 'out/index.html').read_text()
    assert 'caf%E9.jpg' in page


def test_names_in_csv_files_that_are_not_utf_8(tmp_path):
    name, labels, results = os.fsdecode(b'caf\xe9.jpg'), tmp_path / 'labels.csv', tmp_path / 'results.csv'
    cv2.imwrite(str(tmp_path / 'a.jpg'), np.full((64, 64, 3), 90, np.uint8))
    (tmp_path / 'a.jpg').rename(tmp_path / name)
    labels.write_bytes(encode_csv([('file', 'class'), (name, 'nut')]))
    results.write_bytes(encode_csv([('file', *NAMES), (name, 0.2, 0.8)]))
    report = write_report(tmp_path / 'out', labels, results, tmp_path)
    assert report['pictures'][0]['file'] == str(tmp_path / name)


def test_a_folder_is_listed_for_names_without_a_suffix_alone(tmp_path, monkeypatch):
    """The folder of a name is listed, once, and no folder below. Pictures on two disks share the root."""
    listed, iterdir = [], Path.iterdir
    monkeypatch.setattr(Path, 'iterdir', lambda folder: listed.append(folder) or iterdir(folder))
    monkeypatch.setattr(Path, 'rglob', None)
    files = [tmp_path / 'inner' / name for name in ('a.jpg', 'a.png', 'b.png')]
    (tmp_path / 'inner').mkdir()
    for path in files:
        path.touch()
    assert [*find_pictures(tmp_path, ['inner/a.png', 'inner/b.png'])] == [*map(str, files[1:])]
    assert not listed
    names = ['inner/a', 'inner/b', 'inner/b.jpg', 'inner/c', 'missing/a.jpg', r'inner\a.png']
    paths = [files[0], files[2], files[2], tmp_path / 'inner/c', tmp_path / 'missing/a.jpg', files[1]]
    assert [*find_pictures(tmp_path, names)] == [*map(str, paths)]
    assert listed == [tmp_path / 'inner', tmp_path / 'missing']
