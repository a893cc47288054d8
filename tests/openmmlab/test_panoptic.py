"""mmdet computes panoptic quality, and reads panoptic labels, without panopticapi."""

import importlib
import json
import sys

import cv2
import numpy as np
import pytest
import torch
from helpers import run_python
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from swin_backbone.openmmlab import panoptic
from swin_backbone.workbench.data.guard import guard_dataset

SKY, CAR, GAP = 300, 70000, 0  # ids in the PNG, of all its three bytes
CLASSES = ('car', 'sky')


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


def test_panopticapi_itself_comes_first(tmp_path, monkeypatch):
    def module_of_ids():
        for name in [name for name in sys.modules if name.partition('.')[0] == 'panopticapi']:
            monkeypatch.delitem(sys.modules, name)
        panoptic.put_in_place()
        return importlib.import_module('panopticapi.utils').rgb2id.__module__

    assert module_of_ids() == 'swin_backbone.openmmlab.panoptic'
    with monkeypatch.context() as patch:
        patch.setenv('SWIN_BACKBONE_STAND_INS', '0')
        with pytest.raises(ModuleNotFoundError, match="No module named 'panopticapi'"):
            module_of_ids()
    (tmp_path / 'panopticapi').mkdir()
    (tmp_path / 'panopticapi' / '__init__.py').touch()
    (tmp_path / 'panopticapi' / 'utils.py').write_text('def rgb2id(pixels): ...\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert module_of_ids() == 'panopticapi.utils'


def test_an_import_puts_the_stand_in_in_place():
    program = 'import swin_backbone, panopticapi.utils as utils; print(utils.rgb2id.__module__)'
    assert run_python('-c', program).stdout.split() == ['swin_backbone.openmmlab.panoptic']


def test_panoptic_labels_are_read(labels):
    """The check of masks stopped a training at the first picture: panoptic objects have no polygons."""
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    cv2.imwrite(str(labels / 'a.jpg'), np.zeros((8, 6, 3), np.uint8))
    steps = [dict(type='LoadImageFromFile'), dict(type='LoadPanopticAnnotations', with_bbox=False, with_label=False)]
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(
            dict(type='CocoPanopticDataset', data_root=str(labels), ann_file='a.json', pipeline=steps,
                 data_prefix=dict(img='', seg=''), metainfo=dict(classes=CLASSES, thing_classes=CLASSES[:1],
                                                                 stuff_classes=CLASSES[1:]))
        )  # fmt: skip
        guard_dataset(dataset, Config(dict(model={}, default_scope='mmdet')), True, False, has_checked_masks=False)
        item = dataset[0]
    assert item['gt_masks'].masks.sum() == 16
    assert (np.unique(item['gt_seg_map'], return_counts=True)[1] == [16, 24, 8]).all()  # car, sky and 255
