"""mmdet computes panoptic quality, and reads panoptic labels, without panopticapi."""

import json
import sys
from importlib import import_module

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from swin_backbone.openmmlab import panoptic
from swin_backbone.workbench.data.guard import guard_dataset
from swin_backbone.workbench.process import prepare_process

SKY, CAR, GAP = 300, 70000, 0  # ids in the PNG, of all its three bytes
CLASSES = ('car', 'sky')


@pytest.fixture(autouse=True)
def _prepare():
    prepare_process()


@pytest.fixture
def labels(tmp_path):
    """Write a picture's segments: 24 pixels of sky, 16 of a car and 8 without a label."""
    ids_HW = np.repeat([SKY] * 3 + [CAR] * 2 + [GAP], 8).reshape(6, 8).T
    cv2.imwrite(str(tmp_path / 'a.png'), panoptic.id2rgb(ids_HW)[..., ::-1])
    segments = [dict(id=SKY, category_id=7, area=24, iscrowd=0, bbox=[0, 0, 3, 8]),
                dict(id=CAR, category_id=3, area=16, iscrowd=0, bbox=[3, 0, 2, 8])]  # fmt: skip
    categories = [dict(id=3, name='car', isthing=1), dict(id=7, name='sky', isthing=0)]
    images = [dict(id=5, file_name='a.jpg', height=8, width=6)]
    annotations = [dict(image_id=5, file_name='a.png', segments_info=segments)]
    coco = dict(images=images, annotations=annotations, categories=categories)
    (tmp_path / 'a.json').write_text(json.dumps(coco))
    return tmp_path


@pytest.mark.parametrize('prefix', [None, 'out'])
def test_panoptic_quality_is_that_of_the_paper(labels, prefix):
    metrics = pytest.importorskip('mmdet.evaluation', reason='mmdet is not installed')
    metric = metrics.CocoPanopticMetric(
        ann_file=str(labels / 'a.json'), seg_prefix=str(labels), nproc=1,
        outfile_prefix=prefix and str(labels / prefix),
    )  # fmt: skip
    metric.dataset_meta = dict(classes=CLASSES, thing_classes=CLASSES[:1], stuff_classes=CLASSES[1:])
    predicted_HW = torch.full((8, 6), 1)  # sky
    predicted_HW[:, 3:5], predicted_HW[:2, 3], predicted_HW[:, 5] = 1000, 1, 2000  # cars; the second is on the gap
    predicted_HW[0, 0] = 3000  # a third car, of a pixel
    sample = dict(img_id=5, img_path='a.jpg', ori_shape=(8, 6), pred_panoptic_seg=dict(sem_seg=predicted_HW[None]))
    metric.process({}, [sample])
    car, sky = 14 / 16, 23 / 26
    expected = dict(PQ_th=car / 1.5, SQ_th=car, RQ_th=1 / 1.5, PQ_st=sky, SQ_st=sky, RQ_st=1)
    expected |= {name: (expected[f'{name}_th'] + expected[f'{name}_st']) / 2 for name in ('PQ', 'SQ', 'RQ')}
    found = {key.partition('/')[2]: value / 100 for key, value in metric.evaluate(1).items()}
    assert found == pytest.approx(expected)


def test_a_category_without_segments_does_not_count():
    first, second, categories = panoptic.PQStat(), panoptic.PQStat(), {3: dict(isthing=1), 7: dict(isthing=0)}
    first[3].tp, first[3].iou, second[3].tp, second[3].iou, second[3].fn = 1, 0.75, 2, 1.5, 2
    first += second
    means, by_class = first.pq_average(categories, None)
    assert means == dict(pq=2.25 / 4, sq=0.75, rq=3 / 4, n=1)
    assert by_class == {3: dict(pq=2.25 / 4, sq=0.75, rq=3 / 4), 7: dict(pq=0, sq=0, rq=0)}
    assert first.pq_average(categories, False)[0] == dict(pq=0, sq=0, rq=0, n=0)  # panopticapi divides by 0


def test_mmdet_takes_the_functions_and_no_module_is_called_panopticapi():
    names = 'evaluation.functional.panoptic_utils', 'evaluation.metrics.coco_panoptic_metric'
    functions = [import_module(f'mmdet.{name}').rgb2id for name in names]
    functions.append(import_module('mmdet.datasets.transforms').LoadPanopticAnnotations().rgb2id)
    assert {function.__module__ for function in functions} == {panoptic.__name__}
    assert 'panopticapi' not in sys.modules


@pytest.mark.parametrize(('switch', 'is_installed', 'count'), [('', False, 3), ('0', False, 0), ('', True, 0)])
def test_mmdet_keeps_its_own_if_panopticapi_is_installed_or_by_the_switch(
    switch, is_installed, count, tmp_path, monkeypatch
):
    if is_installed:
        (tmp_path / 'panopticapi').mkdir()
        (tmp_path / 'panopticapi' / '__init__.py').touch()
    calls = []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv('SWIN_BACKBONE_STAND_INS', switch)
    monkeypatch.setattr(panoptic, 'call_after_import', lambda *words: calls.append(words))
    panoptic.give_functions_to_mmdet()
    assert len(calls) == count


def test_panoptic_labels_are_read(labels):
    """The check of masks stopped a training at the first picture: panoptic objects have no polygons."""
    cv2.imwrite(str(labels / 'a.jpg'), np.zeros((8, 6, 3), np.uint8))
    steps = [dict(type='LoadImageFromFile'), dict(type='LoadPanopticAnnotations', with_bbox=False, with_label=False)]
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(
            dict(type='CocoPanopticDataset', data_root=str(labels), ann_file='a.json', pipeline=steps,
                 data_prefix=dict(img='', seg=''), metainfo=dict(classes=CLASSES, thing_classes=CLASSES[:1],
                                                                 stuff_classes=CLASSES[1:]))
        )  # fmt: skip
        guard_dataset(dataset, Config(dict(model={}, default_scope='mmdet')), True, False)
        dataset.pipeline.are_stated_masks_checked = False
        item = dataset[0]
    assert item['gt_masks'].masks.sum() == 16
    assert (np.unique(item['gt_seg_map'], return_counts=True)[1] == [16, 24, 8]).all()  # car, sky and 255
