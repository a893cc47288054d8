"""Accuracy by class, classes taken for others and worst pictures, of segmentors and classifiers."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from .detection import Array

SIDE = 280  # pixels of a kept label map
WORST = 24  # pictures with a thumbnail


class PixelCounts:
    """The pixels of pictures by label and prediction.

    Args:
        classes: names.
        ignored: label of pixels that are not counted.

    Attributes:
        worst: (share of wrong pixels, -number, labels, predictions) of `WORST` pictures, reduced to `SIDE` pixels.
    """

    def __init__(self, classes: Sequence[str], ignored: int = 255):
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
        wrong = 1 - float(counts.trace() / max(counts.sum(), 1)) if counts.any() else 0.0
        row, column = divmod(int((counts - np.diag(counts.diagonal())).argmax()), number)
        mainly = f'{self.classes[row]} as {self.classes[column]}' if wrong else ''
        self.pictures.append(dict(file=file, wrong=wrong, mainly=mainly))
        scale = min(1.0, SIDE / max(label_HW.shape))
        size = [max(1, round(side * scale)) for side in label_HW.shape[::-1]]
        label, predicted = (
            cv2.resize(part.astype(np.int32), size, interpolation=cv2.INTER_NEAREST)
            for part in (label_HW, predicted_HW)
        )
        self.worst.append((wrong, -len(self.pictures), label, predicted))
        self.worst = sorted(self.worst, reverse=True)[:WORST]

    def report(self) -> dict[str, Any]:
        """Return the part of the report, the worst pictures first."""
        rows = class_rows(self.counts, self.classes, 'pixels')
        ious, accuracies = ([row[name] for row in rows if row[name] is not None] for name in ('IoU', 'accuracy'))
        overall = dict(mIoU=float(np.mean(ious)), mAcc=float(np.mean(accuracies)))
        overall['aAcc'] = float(self.counts.trace() / self.counts.sum())
        pictures = sorted(self.pictures, key=lambda picture: -picture['wrong'])
        confusion = triples(self.counts, self.classes)
        return dict(
            task='segmentation', metric='IoU', overall=overall, classes=rows, confusion=confusion, pictures=pictures
        )


def classification_report(
    files: Sequence[str], labels: Array, scores_NK: Array, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the part of the report of a classifier, the surest mistakes first.

    Args:
        labels: (N,).
    """
    predicted, number = scores_NK.argmax(1), len(classes)
    counts = np.zeros((number, number), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    of_label = scores_NK[np.arange(len(labels)), labels]
    overall = dict(top1=float((predicted == labels).mean()))
    if number > 5:
        overall['top5'] = float(((scores_NK > of_label[:, None]).sum(1) < 5).mean())
    score = scores_NK.max(1)
    pictures = [
        dict(
            file=files[row],
            label=classes[labels[row]],
            predicted=classes[predicted[row]],
            score=float(score[row]),
            of_label=float(of_label[row]),
        )
        for row in np.argsort(-score, kind='stable')
        if predicted[row] != labels[row]
    ]
    rows, confusion = class_rows(counts, classes, 'pictures'), triples(counts, classes)
    return dict(
        task='classification', metric='accuracy', overall=overall, classes=rows, confusion=confusion, pictures=pictures
    )


def class_rows(counts: Array, names: Sequence[str], unit: str) -> list[dict[str, Any]]:
    """Return number, IoU, accuracy and precision of each class; None for a share of nothing.

    Args:
        counts: (labels, predictions).
        unit: what is counted. Pictures have no IoU.
    """
    right, labelled, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    wholes = dict(IoU=labelled + predicted - right, accuracy=labelled, precision=predicted)
    if unit == 'pictures':
        del wholes['IoU']
    return [
        {'name': name, unit: int(labelled[index])}
        | {key: float(right[index] / whole[index]) if whole[index] else None for key, whole in wholes.items()}
        for index, name in enumerate(names)
    ]


def triples(counts: Array, names: Sequence[str]) -> dict[str, Any]:
    """Return a matrix for the report: names, and the (label, prediction, count) that are not 0."""
    return dict(
        names=[*names],
        counts=[(int(row), int(column), int(counts[row, column])) for row, column in np.argwhere(counts)],
    )
