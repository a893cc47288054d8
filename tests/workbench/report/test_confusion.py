"""Segmentors are counted as mmseg's IoUMetric does; classifiers by their best class."""

import cv2
import numpy as np
import pytest
import torch
from mmseg.evaluation import IoUMetric

from swin_backbone.workbench.report import confusion
from swin_backbone.workbench.report.confusion import PixelCounts, classification_report

CLASSES = ('sky', 'road', 'tree', 'boat')  # no boat is labelled or predicted


def labelled_pictures(number):
    rng = np.random.default_rng(0)
    for index in range(number):
        label = rng.integers(0, 3, (30 + index, 40), np.uint8)
        predicted = np.where(rng.random(label.shape) < index / number, (label + 1) % 3, label)
        label[rng.random(label.shape) < 0.1] = 255
        yield f'/data/{index}.png', label, predicted


def test_iou_and_accuracy_are_those_of_mmseg():
    counts, metric = PixelCounts(CLASSES), IoUMetric()
    metric.dataset_meta = dict(classes=CLASSES)
    for file, label, predicted in labelled_pictures(6):
        counts.add(file, label, predicted)
        maps = {f'{name}_sem_seg': dict(data=torch.tensor(one)) for name, one in (('gt', label), ('pred', predicted))}
        metric.process({}, [maps])
    report, expected = counts.report(), metric.evaluate(6)
    assert {name: round(100 * value, 2) for name, value in report['overall'].items()} == pytest.approx(expected)
    assert report['classes'][3] == dict(name='boat', pixels=0, IoU=None, accuracy=None, precision=None)
    assert [row['file'] for row in report['pictures']] == [f'/data/{index}.png' for index in (5, 4, 3, 2, 1, 0)]
    assert report['pictures'][-1]['wrong'] == 0
    assert sum(count for *_, count in report['confusion']['counts']) == counts.counts.sum()


def test_label_maps_of_the_worst_pictures_are_kept_small(monkeypatch):
    monkeypatch.setattr(confusion, 'WORST', 2)
    monkeypatch.setattr(confusion, 'SIDE', 20)
    counts = PixelCounts(CLASSES)
    pictures = [*labelled_pictures(6)]
    for file, label, predicted in [pictures[5], *pictures[:5]]:
        counts.add(file, label, predicted)
    assert [row['file'] for row in counts.report()['pictures'][:2]] == ['/data/5.png', '/data/4.png']
    assert [label.shape for _, _, label, _ in counts.worst] == [(18, 20), (17, 20)]
    shown = cv2.resize(pictures[5][1].astype(np.int32), (20, 18), interpolation=cv2.INTER_NEAREST)
    assert (counts.worst[0][2] == shown).all()


def test_a_classifier_has_its_surest_mistakes_first():
    names = [f'c{index}' for index in range(6)]
    scores = np.full((4, 6), 0.02)
    for row, (label, score) in enumerate([(0, 0.9), (1, 0.6), (2, 0.8), (0, 0.5)]):
        scores[row, label] = score
    scores[3, 4] = 0.3
    report = classification_report(['a', 'b', 'c', 'd'], np.array([0, 2, 1, 4]), scores, names)
    assert report['overall'] == dict(top1=0.25, top5=1.0)
    assert [row['file'] for row in report['pictures']] == ['c', 'b', 'd']
    assert report['pictures'][2] == dict(file='d', label='c4', predicted='c0', score=0.5, score_of_label=0.3)
    assert report['classes'][0] == dict(name='c0', pictures=1, accuracy=1.0, precision=0.5)
    assert report['confusion']['counts'] == [(0, 0, 1), (1, 2, 1), (2, 1, 1), (4, 0, 1)]
