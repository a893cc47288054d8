"""All tools name wrong annotations before pycocotools or mmdet reads the file."""

import json
import os
import random
import re
from functools import partial

import numpy as np
import pytest
from helpers.openmmlab.bad_annotations import (
    CASES,
    MASKS,
    SHORT,
    SIDE,
    SQUARE,
    browse,
    evaluate,
    good_coco,
    make_data,
    rle,
    train,
)
from pycocotools import mask as coco_mask

from swin_backbone.checks import DataError
from swin_backbone.workbench.data.annotations import scan_annotation_file
from swin_backbone.workbench.data.check_data import check_data
from swin_backbone.workbench.data.datasets import BuiltDatasets
from swin_backbone.workbench.data.masks import SHORT_POLYGON, decode_run_lengths, find_mask_fault

SIZE = (SIDE, SIDE)


@pytest.fixture
def data(tmp_path):
    """Return a function that changes an annotation file and returns a config."""
    return partial(make_data, tmp_path / 'data')


def errors_of(cfg):
    return [sentence for check in check_data(BuiltDatasets(cfg, ())) for sentence in check.sentences(check.errors)]


def test_good_annotations_pass_every_way(data):
    cfg = data(lambda coco: None)
    assert not errors_of(cfg)
    assert len(train(cfg)) == 2
    scores = evaluate(cfg)
    assert scores['coco/bbox_mAP'] == scores['coco/segm_mAP'] == 1
    assert [item['data_samples'].gt_instances.masks.masks.sum() for item in browse(cfg)] == [24 * 24, 24 * 24]


@pytest.mark.parametrize('name', CASES)
def test_wrong_annotations_are_named_every_way(record_fault, data, name):
    """Without the check, pycocotools ends the process at some of these masks."""
    change, named = CASES[name]
    cfg = data(change)
    assert named in ' '.join(errors_of(cfg))
    is_mask = name.startswith('mask: ')
    is_skipped = name.removeprefix('mask: ') in SHORT  # by mmdet, in training
    if is_mask:  # of the first picture alone
        errors = [str(item) for item in browse(cfg) if isinstance(item, DataError)]
        assert len(errors) == 1 - is_skipped
        assert all('images/0.png' in error and 'number 0 of the picture' in error for error in errors)
    for way in [evaluate] + [train] * (not is_skipped) + [browse] * (not is_mask):
        with pytest.raises(DataError, match=r'coco\.json (has|is) |are no categories of \S+coco\.json') as error:
            way(cfg)
        assert named in str(error.value)
        assert 'Error' not in str(error.value)
    record_fault('annotations', 4)


def test_masks_are_looked_at_only_where_they_are_used(data):
    """Training on boxes ignores polygons: some exports have no polygons."""
    for mask in (MASKS['far'], [], None, 'polygon'):
        cfg = data(lambda coco, mask=mask: coco['annotations'][0].update(segmentation=mask))
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            loader.dataset.pipeline[1].with_mask = False
        cfg.val_evaluator.metric = 'bbox'
        assert not errors_of(cfg)
        assert len(train(cfg)) == 2
        assert evaluate(cfg)['coco/bbox_mAP'] == 1


def test_a_short_polygon_warns_in_training_alone(record_fault, data, caplog):
    line = f'{SHORT_POLYGON}, which LoadAnnotations(poly2mask=True) leaves out of losses: 1, as number 0 of 0.png'
    for name, polygons in SHORT.items():
        cfg = data(lambda coco, polygons=polygons: coco['annotations'][0].update(segmentation=polygons))
        caplog.clear()
        train(cfg)
        is_left_out = name == 'an empty polygon'  # the other has a second polygon, which is trained on
        assert (f'coco.json has {line}' in caplog.text) == is_left_out
        checks = check_data(BuiltDatasets(cfg, ()))
        assert not checks[0].errors
        assert (line in checks[0].warnings.sentences()) == is_left_out
        assert checks[0].rows['objects trained on'] == str(2 - is_left_out)
        assert len(checks[1].errors) == 1
        record_fault('annotations', 2)


def test_objects_that_evaluation_alone_cannot_take(record_fault, data):
    cfg = data(lambda coco: coco['annotations'][0].pop('iscrowd'))
    assert len(train(cfg)) == 2
    (error,) = errors_of(cfg)  # of validation alone
    assert "objects without 'iscrowd', which COCO's evaluation reads: 1, as annotation 10" in error
    with pytest.raises(DataError, match="objects without 'iscrowd'"):
        evaluate(cfg)
    cfg = data(lambda coco: coco['annotations'][0].update(id=0))
    assert evaluate(cfg)['coco/bbox_mAP'] < 1  # though the predictions are perfect
    check = check_data(BuiltDatasets(cfg, ()))[1]
    message = check.warnings.sentences()[0]
    assert message.endswith("objects with the id 0, which COCO's evaluation counts as not found: 1, as annotation 0")
    record_fault('annotations', 3)


@pytest.mark.parametrize(
    'change',
    [
        dict(iscrowd=1),  # a crowd of polygons
        dict(segmentation=[SQUARE, [30.5, 31.5, 40, 31, 35, 40]]),
        dict(segmentation=[[-3, 6, 28, 6, 28, 50]]),  # a polygon beyond the picture
        dict(segmentation=rle(coco_mask.frPyObjects([SQUARE], *SIZE)[0]['counts'].decode())),
        dict(category_id=3.0), dict(area=0.5), dict(extra=[MASKS['far']]),
    ],
)  # fmt: skip
def test_what_can_be_taken_is(data, change):
    cfg = data(lambda coco: coco['annotations'][0].update(change))
    assert not errors_of(cfg)
    assert len(train(cfg)) == 2
    evaluate(cfg)


def test_masks_of_other_formats_are_looked_at_with_their_picture(record_fault, data, tmp_path):
    """Write a file in mmengine's format, for a data set of mmdet's base class."""
    cfg = data(lambda coco: None)
    for mask in MASKS.values():
        instance = dict(bbox=[4, 6, 28, 30], bbox_label=0, ignore_flag=0, mask=mask)
        items = [dict(img_path='0.png', height=SIDE, width=SIDE, img_id=0, instances=[instance])]
        cfg.train_dataloader.dataset.update(type='BaseDetDataset', ann_file='list.json')
        cfg.train_dataloader.dataset.data_prefix = dict(img_path='images')
        written = dict(metainfo=dict(classes=['nut', 'bolt']), data_list=items)
        (tmp_path / 'data' / 'list.json').write_text(json.dumps(written))
        with pytest.raises(DataError, match=r'0\.png: objects with .*: number 0 of the picture '):
            train(cfg)
        record_fault('annotations')


def test_an_rle_must_have_the_size_of_its_picture(record_fault, data):
    """mmdet would read a turned RLE pixel by pixel, without an error."""
    turned = rle([10, 20, SIDE * 24 - 30], (24, SIDE))

    def change(coco):
        coco['images'][1].update(height=24)
        coco['annotations'][1].update(segmentation=turned, bbox=[0, 0, 24, 20])

    with pytest.raises(DataError, match=r'images/1\.png: .*has the size \[24, 48\], its picture is \[48, 48\]'):
        train(data(change))
    record_fault('annotations')


def test_lvis_annotations_may_lack_file_name(tmp_path):
    path = tmp_path / 'lvis.json'
    coco = good_coco()
    for image in coco['images']:
        image['coco_url'] = f'http://images/{image.pop("file_name")}'
    path.write_text(json.dumps(coco))
    assert not scan_annotation_file(path, 'LVIS', True).errors


def test_the_annotations_of_test_pictures_may_be_absent(data):
    cfg = data(lambda coco: coco.pop('annotations'))
    assert scan_annotation_file(cfg.val_evaluator.ann_file, 'COCO', True).num_empty == 2
    assert len(train(cfg)) == 2


FILES = {
    'nothing': lambda path: path.write_bytes(b''),
    'a list': lambda path: path.write_bytes(b'[]'),
    'no UTF-8': lambda path: path.write_bytes(b'{"a": "\xff"}'),
    'nested lists': lambda path: path.write_bytes(b'[' * 100000),
    'a pipe': os.mkfifo,
}


@pytest.mark.parametrize('way', [train, evaluate, browse])
@pytest.mark.parametrize('kind', FILES)
def test_a_file_that_holds_no_annotations_is_named(record_fault, data, way, kind, tmp_path):
    cfg = data(lambda coco: None)
    path = tmp_path / 'data' / 'coco.json'
    path.unlink()
    FILES[kind](path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        way(cfg)
    record_fault('annotations')


def test_the_file_is_read_once_until_it_changes(data, monkeypatch):
    from swin_backbone.workbench.data import annotations

    cfg = data(lambda coco: None)
    reads = []
    read = annotations.read_annotations
    monkeypatch.setattr(annotations, 'read_annotations', lambda *given: reads.append(given) or read(*given))
    check_data(BuiltDatasets(cfg, ()))
    train(cfg)
    evaluate(cfg)
    browse(cfg)
    assert len(reads) == 1
    cfg = data(lambda coco: coco['annotations'].pop())
    train(cfg)
    assert len(reads) == 2


def test_run_lengths_are_those_that_pycocotools_wrote():
    rng = np.random.default_rng(0)
    for number in range(200):
        height, width = rng.integers(1, 60, 2)
        mask = np.asfortranarray(rng.random((height, width)) < rng.random(), np.uint8)
        if number % 3:
            mask = np.asfortranarray(np.repeat(np.repeat(mask, 5, 0), 7, 1))
        encoded = coco_mask.encode(mask)
        flat = mask.ravel(order='F')
        changes = np.flatnonzero(np.diff(flat)) + 1
        runs = np.diff([0, *changes, len(flat)])
        expected = [0, *runs] if flat[0] else list(runs)
        assert decode_run_lengths(encoded['counts']) == expected
        assert decode_run_lengths(encoded['counts'].decode() + '\ud800') is None  # JSON can hold half a surrogate pair
        assert find_mask_fault(dict(encoded, counts=encoded['counts'].decode()), mask.shape) is None
        assert find_mask_fault(rle([int(run) for run in expected], mask.shape), mask.shape) is None
    assert find_mask_fault(rle([2**24, 2**24], (2**13, 2**12)), (2**13, 2**12)) is None
    assert [number for number in (5, 6, 12, 13, 30) if decode_run_lengths('o' * number + '04')] == [5]
    assert find_mask_fault(rle('04', (10**12, 10**12)), (10**12, 10**12)) is not None


def test_pycocotools_takes_every_mask_that_passes(record_fault):
    """Decode random masks without a fault. Half of the generated masks are mutated."""
    number = 2000
    rng = random.Random(number)
    passed = [case for case in (random_mask(rng) for _ in range(number)) if find_mask_fault(*case) is None]
    assert number / 5 < len(passed) < number * 4 / 5
    for mask, (height, width) in passed:
        encoded = mask
        if isinstance(mask, list):
            encoded = coco_mask.merge(coco_mask.frPyObjects(mask, height, width))
        elif isinstance(mask['counts'], list):
            encoded = coco_mask.frPyObjects(mask, height, width)
        assert coco_mask.decode(encoded).shape == (height, width)
        assert coco_mask.iou([encoded], [encoded], [1]).shape == (1, 1)
        coco_mask.area(encoded), coco_mask.toBbox(encoded)
    record_fault('annotations', number)


def random_mask(rng):
    """Return a segmentation, and the size of the picture."""
    size = rng.randint(1, 70), rng.randint(1, 70)
    odd = [0, -1, 1e8, 1e12, float('nan'), float('inf'), 2**31, 10**20, 0.5, None, 'a', [], True]
    kind = rng.randrange(3)
    if kind == 0:
        mask = [
            [rng.uniform(-5, 75) for _ in range(2 * rng.randint(3, 9))] for _ in range(rng.randint(1, 3))
        ]  # fmt: skip
        if rng.random() < 0.5:
            polygon = rng.choice(mask)
            if rng.random() < 0.5:
                polygon[rng.randrange(len(polygon))] = rng.choice(odd)
            else:
                del polygon[rng.randrange(len(polygon)) :]
        return mask, size
    pixels = np.asfortranarray(np.random.default_rng(rng.randrange(2**32)).random(size) < rng.random(), np.uint8)
    encoded = coco_mask.encode(pixels)
    counts = encoded['counts'].decode() if kind == 1 else decode_run_lengths(encoded['counts'])
    if rng.random() < 0.5:
        place = rng.randrange(len(counts))
        new = rng.choice('0OPo~ \0' if kind == 1 else odd)
        counts = counts[:place] + (new if kind == 1 else [new]) + counts[place + rng.randrange(2) :]
    if rng.random() < 0.1:
        size = (*size[::-1],)
    return rle(counts, size if rng.random() < 0.9 else (rng.choice(odd), size[1])), size
