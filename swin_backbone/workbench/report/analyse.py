"""The report of a detector: numbers by class, kinds of errors, worst pictures and labels to check."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from pycocotools.coco import COCO

from .confusion import WORST, triples
from .detection import FOUND_IOU, THRESHOLDS, Evaluation, Results, Track, evaluate, mean_precision, untracked
from .errors import KINDS, costs, doubtful_labels, find_errors
from .thumbnails import Drawing, Shape

SIZES = ('all', 'small', 'medium', 'large')  # pycocotools' areas, between 32^2 and 96^2 pixels
STATS = ('AP', 'AP50', 'AP75', *(f'AP {size}' for size in SIZES[1:]))  # the first of COCOeval
CHECKED = 12  # labels of a kind with a thumbnail


def detection_report(
    truth: COCO,
    results: Mapping[str, Results],
    files: Mapping[Any, str],
    categories: Optional[Sequence[int]] = None,
    max_dets: Sequence[int] = (1, 10, 100),
    ious: Optional[Sequence[float]] = None,
    track: Track = untracked,
) -> tuple[dict[str, Any], dict[str, list[Drawing]]]:
    """Return the report, and drawings for the first of its pictures and of each kind of its labels.

    Args:
        results: by 'bbox' and, with masks, 'segm'. The errors are those of the last.
        files: paths of the pictures, by image_id.
        categories, max_dets, ious: see `evaluate`.
    """
    ids = np.unique(truth.getCatIds() if categories is None else categories).tolist()
    names = [truth.cats[number]['name'] for number in ids]
    evaluations = {kind: evaluate(truth, one, kind, ids, max_dets, ious, track) for kind, one in results.items()}
    kind, evaluation = [*evaluations.items()][-1]
    best, curves = _thresholds(evaluation, names)
    threshold = best[-1]['threshold']
    errors = find_errors(truth, results[kind], evaluation, kind, threshold, track)
    gains = costs(evaluation, errors)
    counts = dict(
        zip(KINDS, np.bincount(errors.kind, minlength=len(KINDS)).tolist()), missed=int(errors.is_missed.sum())
    )
    sure = np.array([row['threshold'] for row in best])
    labels = doubtful_labels(truth, results[kind], evaluation, errors, sure, names)
    pictures = _pictures(evaluation, np.unique(truth.getImgIds()).tolist(), threshold)
    for row in (row for rows in (pictures, *labels.values()) for row in rows):
        row['file'] = files[row['image_id']]
    classes = [dict(name=name, objects=int(total)) for name, total in zip(names, evaluation.totals)]
    for label, row in enumerate(classes):
        row.update(_precisions(evaluation, label), **(best[label] if row['objects'] else dict.fromkeys(best[label])))
        for other in [name for name in evaluations if name != kind]:
            row[f'AP of {other}'] = mean_precision(evaluations[other].precision[:, :, label, 0, -1])
    sizes = {
        name: {stat: value if value > -1 else None for stat, value in zip(STATS, one.stats.tolist())}
        for name, one in evaluations.items()
    }
    report = dict(
        task='detection',
        metric='AP',
        overall={stat: sizes[kind][stat] for stat in STATS[:3]},
        classes=classes,
        sizes=sizes,
        by_iou={name: _by_iou(one) for name, one in evaluations.items()},
        best=best[-1],
        curves=curves,
        errors=[
            dict(kind=one, count=counts[one], cost=gains[one]) for one in sorted(gains, key=lambda one: -gains[one])
        ],
        confusion=triples(errors.confusion, [*names, 'background']),
        pictures=pictures,
        labels=labels,
    )
    drawings = {doubt: [_of_label(row) for row in rows[:CHECKED]] for doubt, rows in labels.items()}
    worst = _of_pictures(truth, results[kind], evaluation, names, threshold, pictures[:WORST])
    return report, dict(drawings, pictures=[*worst])


def _precisions(evaluation: Evaluation, label: int) -> dict[str, Optional[float]]:
    """Return the AP of a class by `STATS`."""
    precision = evaluation.precision[:, :, label, :, -1]
    parts = [precision[..., 0], *(precision[np.isclose(evaluation.ious, iou), :, 0] for iou in (0.5, 0.75))]
    parts += [precision[..., area] for area in range(1, len(SIZES))]
    return {stat: mean_precision(part) for stat, part in zip(STATS, parts)}


def _by_iou(evaluation: Evaluation) -> list[tuple[str, Optional[float], str]]:
    parts = zip(evaluation.ious, evaluation.precision)
    return [(f'IoU {iou:.2f}', mean_precision(part[..., 0, -1]), '') for iou, part in parts]


def _thresholds(evaluation: Evaluation, names: Sequence[str]) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return threshold, F1, precision and recall at the best F1, of each class and, last, of all; and the curves.

    A prediction counts from the threshold on. Of equal thresholds the middle is the best.
    """
    found, objects = evaluation.found, np.append(evaluation.totals, evaluation.totals.sum())[:, None]
    counts = []
    for kept in (found.match >= -1, found.match >= 0):
        label, score = found.label[kept], found.score[kept]
        groups = [np.sort(score[label == one]) for one in range(len(names))] + [np.sort(score)]
        counts.append([len(group) - np.searchsorted(group, THRESHOLDS) for group in groups])
    predicted, right = np.array(counts)  # (K + 1, 101)
    f1, best = 2 * right / np.maximum(predicted + objects, 1), []
    values = dict(F1=f1, precision=right / np.maximum(predicted, 1), recall=right / np.maximum(objects, 1))
    for row, equal in enumerate(f1 == f1.max(1, keepdims=True)):
        at = np.flatnonzero(equal)[(equal.sum() - 1) // 2]
        best.append(dict(threshold=float(THRESHOLDS[at]), **{key: float(one[row, at]) for key, one in values.items()}))
    curves = evaluation.precision[np.isclose(evaluation.ious, FOUND_IOU), :, :, 0, -1][:1].sum(0).T  # (K, 101)
    there = np.flatnonzero(evaluation.totals)
    rows = [(names[row], curves[row], f1[row]) for row in there]
    if rows:
        rows.append(('all', curves[there].mean(0), f1[-1]))
    return best, {name: dict(precision=one.round(4).tolist(), F1=two.round(4).tolist()) for name, one, two in rows}


def _pictures(evaluation: Evaluation, pictures: Sequence[Any], threshold: float) -> list[dict[str, Any]]:
    """Return counts of the pictures with objects or predictions, the lowest F1 first, then the most errors."""
    objects, found = evaluation.objects, evaluation.found
    strong = found.score >= threshold
    there = np.bincount(objects.picture[~objects.is_crowd], minlength=len(pictures))
    predicted = np.bincount(found.picture[strong], minlength=len(pictures))
    right = np.bincount(found.picture[strong & (found.match >= 0)], minlength=len(pictures))
    f1 = 2 * right / np.maximum(there + predicted, 1)
    order = np.lexsort((2 * right - there - predicted, f1))
    columns = dict(F1=f1, right=right, wrong=predicted - right, missed=there - right)
    return [
        dict(image_id=pictures[row], **{name: values[row].item() for name, values in columns.items()})
        for row in order
        if there[row] + predicted[row]
    ]


def _of_pictures(
    truth: COCO,
    results: Results,
    evaluation: Evaluation,
    names: Sequence[str],
    threshold: float,
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[Drawing]:
    """Yield labels and predictions of pictures."""
    objects, found = evaluation.objects, evaluation.found
    strong = found.score >= threshold
    hits = np.isin(np.arange(len(objects.id)), found.match[strong])
    numbers = {number: index for index, number in enumerate(np.unique(truth.getImgIds()).tolist())}
    for row in rows:
        number = numbers[row['image_id']]
        labels = [
            Shape.of(truth.anns[objects.id[one]], names[objects.label[one]], hits[one])
            for one in np.flatnonzero((objects.picture == number) & ~objects.is_crowd)
        ]
        predictions = [
            Shape.of(
                results[found.result[one]], f'{names[found.label[one]]} {found.score[one]:.2f}', found.match[one] >= 0
            )
            for one in np.flatnonzero((found.picture == number) & strong)
        ]
        yield Drawing(row['file'], (labels, predictions))


def _of_label(row: Mapping[str, Any]) -> Drawing:
    """Return a label, a prediction or both, with their surroundings."""
    shapes = [Shape(row[f'{part}_box'], row[part], part == 'label') for part in ('predicted', 'label') if part in row]
    return Drawing(row['file'], (shapes,), is_cropped=True)
