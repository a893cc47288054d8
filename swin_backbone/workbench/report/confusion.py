"""Accuracy by class, classes taken for others and worst pictures, of segmentors and classifiers."""

from collections.abc import Sequence
from typing import Any, Optional

import cv2
import numpy as np

from .detection import Array
from .thumbnails import reduce

KEPT_SIDE = 280  # pixels of a kept label map
DEFAULT_IGNORED = 255  # label of pixels that are not counted, unless the evaluator has another
WORST = 24  # pictures with a thumbnail


class PixelCounts:
    """The pixels of pictures by label and prediction.

    Args:
        classes: names.
        ignored: label of pixels that are not counted.

    Attributes:
        worst: (share of wrong pixels, -number, labels, predictions) of `WORST` pictures, reduced to `KEPT_SIDE` pixels.
    """

    def __init__(self, classes: Sequence[str], ignored: int = DEFAULT_IGNORED):
        self.classes, self.ignored = classes, ignored
        self.counts = np.zeros((len(classes), len(classes)), np.int64)  # (labels, predictions)
        self.pictures: list[dict[str, Any]] = []
        self.worst: list[tuple[float, int, Array, Array]] = []

    def add(self, file: str, label_HW: Array, predicted_HW: Array) -> None:
        """Count a picture."""
        counted, number = label_HW != self.ignored, len(self.classes)
        pairs = label_HW[counted].astype(np.int64) * number + predicted_HW[counted]
        counts = np.bincount(pairs, minlength=number**2).reshape(number, number)
        self.counts += counts
        errors = counts - np.diag(counts.diagonal())
        names = (self.classes[index] for index in divmod(int(errors.argmax()), number))
        wrong = float(errors.sum() / max(counts.sum(), 1))
        self.pictures.append(dict(file=file, wrong=wrong, mainly=' as '.join(names) if wrong else ''))
        label_map, predicted_map = (
            reduce(labels.astype(np.int32), KEPT_SIDE, cv2.INTER_NEAREST) for labels in (label_HW, predicted_HW)
        )
        self.worst.append((wrong, -len(self.pictures), label_map, predicted_map))
        self.worst = sorted(self.worst, reverse=True)[:WORST]

    def summarize(self) -> dict[str, Any]:
        """Return the part of the report, the worst pictures first."""
        pictures = sorted(self.pictures, key=lambda picture: -picture['wrong'])
        report = dict(task='segmentation', pictures=pictures, **_by_class('IoU', self.counts, self.classes, 'pixels'))
        rows = {key: [row[key] for row in report['classes'] if row[key] is not None] for key in ('IoU', 'accuracy')}
        mIoU, mAcc = (_share(sum(values), len(values)) for values in rows.values())
        return dict(report, overall=dict(mIoU=mIoU, mAcc=mAcc, **report['overall']))


def classification_report(
    files: Sequence[str], labels_N: Array, scores_NK: Array, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the part of the report of a classifier, the surest mistakes first."""
    predicted, counts = scores_NK.argmax(1), np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (labels_N, predicted), 1)
    report = dict(task='classification', **_by_class('accuracy', counts, classes, 'pictures'))
    score, of_label = scores_NK.max(1), scores_NK[np.arange(len(labels_N)), labels_N]
    if len(classes) > 5:
        report['overall']['top5'] = float(((scores_NK > of_label[:, None]).sum(1) < 5).mean())
    wrong = np.flatnonzero(predicted != labels_N)
    report['pictures'] = [
        dict(file=files[row], label=classes[labels_N[row]], predicted=classes[predicted[row]], score=float(score[row]),
             score_of_label=float(of_label[row]))
        for row in wrong[np.argsort(-score[wrong], kind='stable')]
    ]  # fmt: skip
    return report


def _by_class(metric: str, counts: Array, names: Sequence[str], unit: str) -> dict[str, Any]:
    """Return IoU (of pixels), accuracy and precision of each class, None without any, of (label, prediction) counts."""
    right, labelled, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    wholes = dict(IoU=labelled + predicted - right, accuracy=labelled, precision=predicted)
    overall = {'aAcc' if unit == 'pixels' else 'top1': _share(right.sum(), counts.sum())}
    if unit == 'pictures':
        del wholes['IoU']
    rows = [
        {'name': name, unit: int(labelled[index])}
        | {key: _share(right[index], whole[index]) for key, whole in wholes.items()}
        for index, name in enumerate(names)
    ]
    return dict(metric=metric, unit=unit, overall=overall, classes=rows, confusion=triples(counts, names))


def _share(part: float, whole: float) -> Optional[float]:
    return float(part / whole) if whole else None


def triples(counts: Array, names: Sequence[str]) -> dict[str, Any]:
    """Return a matrix for the report: names, and the (label, prediction, count) that are not 0."""
    counted = [(int(row), int(column), int(counts[row, column])) for row, column in np.argwhere(counts)]
    return dict(names=[*names], counts=counted)
