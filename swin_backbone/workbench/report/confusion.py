"""Accuracy by class, classes taken for others and worst pictures, of segmentors and classifiers."""

from collections.abc import Sequence
from typing import Any, Optional

import cv2
import numpy as np

from .detection import Array
from .thumbnails import reduce

KEPT_SIDE = 280  # pixels of a kept label map
WORST = 24  # pictures with a thumbnail


class PixelCounts:
    """The pixels of pictures by label and prediction.

    Args:
        classes: names.
        ignored: label of pixels that are not counted.

    Attributes:
        pictures: file, share of wrong pixels and most frequent error of each picture.
        worst: (share of wrong pixels, -place in `pictures`, labels, predictions) of `WORST` pictures, with sides of up
            to `KEPT_SIDE` pixels.
    """

    def __init__(self, classes: Sequence[str], ignored: int):
        self.classes, self.ignored = classes, ignored
        self.counts = np.zeros((len(classes), len(classes)), np.int64)  # (labels, predictions)
        self.pictures: list[dict[str, Any]] = []
        self.worst: list[tuple[float, int, Array, Array]] = []

    def add(self, file: str, label_HW: Array, predicted_HW: Array) -> None:
        """Count a picture."""
        is_counted_HW = label_HW != self.ignored
        K = len(self.classes)
        pairs = label_HW[is_counted_HW].astype(np.int64) * K + predicted_HW[is_counted_HW]
        counts = np.bincount(pairs, minlength=K**2).reshape(K, K)
        self.counts += counts
        errors = counts - np.diag(counts.diagonal())
        names = (self.classes[index] for index in divmod(int(errors.argmax()), K))
        wrong_share = float(errors.sum() / max(counts.sum(), 1))
        self.pictures.append(dict(file=file, wrong=wrong_share, mainly=' as '.join(names) if wrong_share else ''))
        label_map, predicted_map = (
            reduce(labels.astype(np.int32), KEPT_SIDE, cv2.INTER_NEAREST) for labels in (label_HW, predicted_HW)
        )
        self.worst.append((wrong_share, -len(self.pictures), label_map, predicted_map))
        self.worst = sorted(self.worst, reverse=True)[:WORST]

    def summarize(self) -> dict[str, Any]:
        """Return the report of a segmentor, the worst pictures first."""
        pictures = sorted(self.pictures, key=lambda picture: -picture['wrong'])
        figures = _report_classes('IoU', self.counts, self.classes, 'pixels')
        report = dict(task='segmentation', pictures=pictures, **figures)
        columns = ([row[key] for row in report['classes'] if row[key] is not None] for key in ('IoU', 'accuracy'))
        mIoU, mAcc = (_compute_share(sum(values), len(values)) for values in columns)
        return dict(report, overall=dict(mIoU=mIoU, mAcc=mAcc, **report['overall']))


def report_classification(
    files: Sequence[str], labels_N: Array, scores_NK: Array, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the report of a classifier, the surest mistakes first."""
    predicted_N = scores_NK.argmax(1)
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (labels_N, predicted_N), 1)
    report = dict(task='classification', **_report_classes('accuracy', counts, classes, 'pictures'))
    score_N = scores_NK.max(1)
    label_score_N = scores_NK[np.arange(len(labels_N)), labels_N]
    if len(classes) > 5:
        report['overall']['top5'] = float(((scores_NK > label_score_N[:, None]).sum(1) < 5).mean())
    wrong = np.flatnonzero(predicted_N != labels_N)
    report['pictures'] = [
        dict(file=files[index], label=classes[labels_N[index]], predicted=classes[predicted_N[index]],
             score=float(score_N[index]), score_of_label=float(label_score_N[index]))
        for index in wrong[np.argsort(-score_N[wrong], kind='stable')]
    ]  # fmt: skip
    return report


def _report_classes(metric: str, counts: Array, names: Sequence[str], unit: str) -> dict[str, Any]:
    """Return the figures of each class and of all, of counts by label and prediction. A share of nothing is None."""
    right, labelled, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    wholes = dict(IoU=labelled + predicted - right, accuracy=labelled, precision=predicted)
    overall = {'aAcc' if unit == 'pixels' else 'top1': _compute_share(right.sum(), counts.sum())}
    if unit == 'pictures':
        del wholes['IoU']
    rows = [
        {'name': name, unit: int(labelled[index])}
        | {key: _compute_share(right[index], whole[index]) for key, whole in wholes.items()}
        for index, name in enumerate(names)
    ]
    return dict(metric=metric, unit=unit, overall=overall, classes=rows, confusion=list_counts(counts, names))


def _compute_share(part: float, whole: float) -> Optional[float]:
    return float(part / whole) if whole else None


def list_counts(counts: Array, names: Sequence[str]) -> dict[str, Any]:
    """Return a matrix for the report: names, and (label, prediction, count) of the counts that are not 0."""
    triples = [(int(row), int(column), int(counts[row, column])) for row, column in np.argwhere(counts)]
    return dict(names=[*names], counts=triples)
