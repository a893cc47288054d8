"""Segmentors are counted as mmseg's IoUMetric does; classifiers by their best class."""

import numpy as np
import pytest
import torch

from swin_backbone.workbench.report import confusion
from swin_backbone.workbench.report.confusion import PixelCounts, report_classification

CLASSES = ('sky', 'road', 'tree', 'boat')  # no boat is labelled or predicted


def test_iou_and_accuracy_are_those_of_mmseg(monkeypatch):
    evaluation = pytest.importorskip('mmseg.evaluation', reason='mmseg is not installed')
    monkeypatch.setattr(confusion, 'WORST', 2)
    monkeypatch.setattr(confusion, 'KEPT_SIDE', 20)
    rng, counts, metric = np.random.default_rng(0), PixelCounts(CLASSES, 255), evaluation.IoUMetric()
    metric.dataset_meta = dict(classes=CLASSES)
    for index in (5, 0, 1, 2, 3, 4):
        label = rng.integers(0, 3, (30 + index, 40), np.uint8)
        predicted = np.where(rng.random(label.shape) < index / 6, (label + 1) % 3, label)
        label[rng.random(label.shape) < 0.1] = 255
        counts.add(f'{index}.png', label, predicted)
        maps = {f'{name}_sem_seg': dict(data=torch.tensor(one)) for name, one in (('gt', label), ('pred', predicted))}
        metric.process({}, [maps])
    report, expected = counts.summarize(), metric.evaluate(6)
    assert {name: round(100 * value, 2) for name, value in report['overall'].items()} == pytest.approx(expected)
    assert report['classes'][3] == dict(name='boat', pixels=0, IoU=None, accuracy=None, precision=None)
    assert [row['file'] for row in report['pictures']] == [f'{index}.png' for index in (5, 4, 3, 2, 1, 0)]
    assert report['pictures'][-1]['wrong'] == 0
    assert sum(count for *_, count in report['confusion']['counts']) == counts.counts.sum()
    assert [label.shape for _, _, label, _ in counts.worst] == [(18, 20), (17, 20)]  # of 5.png and 4.png, reduced


def test_pictures_without_labels_have_no_means():
    counts = PixelCounts(CLASSES, 255)
    counts.add('0.png', np.full((3, 4), 255, np.uint8), np.zeros((3, 4), np.int64))
    assert counts.summarize()['overall'] == dict(mIoU=None, mAcc=None, aAcc=None)


def test_a_classifier_has_its_surest_mistakes_first():
    scores = np.full((4, 6), 0.02)
    scores[range(4), [0, 1, 2, 0]] = 0.9, 0.6, 0.8, 0.5
    scores[3, 4] = 0.3
    names = [f'c{index}' for index in range(6)]
    report = report_classification(['a', 'b', 'c', 'd'], np.array([0, 2, 1, 4]), scores, names)
    assert report['overall'] == dict(top1=0.25, top5=1.0)
    assert [row['file'] for row in report['pictures']] == ['c', 'b', 'd']
    assert report['pictures'][2] == dict(file='d', label='c4', predicted='c0', score=0.5, score_of_label=0.3)
    assert report['classes'][0] == dict(name='c0', pictures=1, accuracy=1.0, precision=0.5)
    assert report['confusion']['counts'] == [(0, 0, 1), (1, 2, 1), (2, 1, 1), (4, 0, 1)]
