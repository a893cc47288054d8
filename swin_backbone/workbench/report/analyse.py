"""The report of a detector: numbers by class, kinds of errors, worst pictures and labels to check."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..data.media import read_picture
from .confusion import WORST, list_counts
from .detection import FOUND_IOU, Evaluation, compute_stats, mean_precision, track
from .errors import KINDS, Errors, find_costs, find_doubtful_labels, find_errors
from .thumbnails import Read, Shape, draw, trace_outline

# Names of what `compute_stats` returns. pycocotools' sizes differ at areas of 32^2 and 96^2 pixels.
STATS = ('AP', 'AP50', 'AP75', 'AP small', 'AP medium', 'AP large')
THRESHOLDS = np.arange(101) / 100  # of scores
CHECKED = 12  # labels of a kind with a thumbnail


def report_detection(
    evaluations: Sequence[Evaluation], files: Mapping[Any, str], read: Read = read_picture
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the report, and thumbnails of its first pictures and of the first labels of each kind.

    Args:
        evaluations: evaluations of boxes, masks or both. The errors are those of the last.
        files: paths of the tested pictures, by image_id. Other pictures are not listed.
        read: reads a picture in the orientation of the boxes.
    """
    main = evaluations[-1]
    best, curves, errors = _compare(main)
    threshold = best[-1]['threshold']
    counts = dict(zip(KINDS, np.bincount(errors.kind, minlength=len(KINDS)).tolist()))
    counts['missed'] = int(errors.is_missed.sum())
    costs = find_costs(main, errors)
    # Poor masks would make right labels look wrong: boxes or masks, what has the higher AP at IoU 0.5 judges labels
    judge = max(evaluations, key=lambda evaluation: (evaluation.stats[1] or 0, evaluation is main))
    best_of_judge, _, errors_of_judge = (best, curves, errors) if judge is main else _compare(judge)
    on_objects = main.predictions.result[errors.pairs[0, errors.pairs[2] >= FOUND_IOU].astype(int)]
    thresholds = np.array([row['threshold'] for row in best_of_judge])
    doubts = find_doubtful_labels(judge, errors_of_judge, thresholds, on_objects)
    labels = {
        kind: [dict(row, file=files[row['image_id']]) for row in rows if row['image_id'] in files]
        for kind, rows in dict(doubts, pictures=_rank_pictures(main, threshold)).items()
    }
    pictures = labels.pop('pictures')
    classes = [dict(name=name, objects=int(total)) for name, total in zip(main.names, main.totals)]
    for label, row in enumerate(classes):
        row.update(zip(STATS, compute_stats(main.precision[:, :, [label]], main.params)))
        row.update(best[label] if row['objects'] else dict.fromkeys(best[label]))
        if not row['F1']:
            row['threshold'] = None  # none is better than another
        for other in evaluations[:-1]:
            row['AP of boxes'] = mean_precision(other.precision[:, :, label, 0, -1])
    sizes, by_iou = {}, {}
    for evaluation in evaluations:
        iou_type, ious = evaluation.params.iouType, evaluation.params.iouThrs
        sizes[iou_type] = dict(zip(STATS, evaluation.stats))
        by_iou[iou_type] = [
            (float(iou), mean_precision(precision[..., 0, -1])) for iou, precision in zip(ious, evaluation.precision)
        ]
    costliest = sorted(costs, key=lambda kind: -costs[kind])
    report = dict(
        task='detection', metric='AP', unit='objects', classes=classes, sizes=sizes, by_iou=by_iou,
        overall={stat: sizes[main.params.iouType][stat] for stat in STATS[:3]},
        per_picture=dict(
            objects=int(np.bincount(main.objects.picture, minlength=1).max()), predictions=main.params.maxDets[-1]
        ),
        best=best[-1], curves=curves, pictures=pictures, labels=labels,
        errors=[dict(kind=kind, count=counts[kind], cost=costs[kind]) for kind in costliest],
        confusion=list_counts(errors.confusion, [*main.names, 'background']),
    )  # fmt: skip
    drawn_pictures = [_draw_picture(main, threshold, row, read) for row in track(pictures[:WORST], 'drawing')]
    drawn_labels = {kind: [_draw_label(row, read) for row in rows[:CHECKED]] for kind, rows in labels.items()}
    return report, drawn_labels | dict(pictures=drawn_pictures)


def _compare(evaluation: Evaluation) -> tuple[list[dict[str, float]], dict[str, Any], Errors]:
    """Return the best thresholds and the curves, see `_find_thresholds`, and the errors at the best of all classes."""
    best, curves = _find_thresholds(evaluation)
    return best, curves, find_errors(evaluation, best[-1]['threshold'])


def _find_thresholds(evaluation: Evaluation) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return threshold, F1, precision and recall at the best F1 of each class and, last, of all; and the curves.

    A prediction counts from the threshold on. Of several best thresholds, the middle one is taken.
    """
    predictions, totals, names = evaluation.predictions, evaluation.totals, evaluation.names
    counts = []
    for kept in (predictions.match >= -1, predictions.match >= 0):
        scores, labels = predictions.score[kept], predictions.label[kept]
        groups = [np.sort(scores[labels == label]) for label in range(len(names))] + [np.sort(scores)]
        counts.append([len(group) - np.searchsorted(group, THRESHOLDS) for group in groups])
    predicted, right = np.array(counts)  # (K + 1, 101), the last of all classes
    objects = np.append(totals, totals.sum())[:, None]
    f1 = 2 * right / np.maximum(predicted + objects, 1)
    values = dict(F1=f1, precision=right / np.maximum(predicted, 1), recall=right / np.maximum(objects, 1))
    best = []
    for row, is_best in enumerate(f1 == f1.max(1, keepdims=True)):
        middle = np.flatnonzero(is_best)[(is_best.sum() - 1) // 2]
        figures = {name: float(value[row, middle]) for name, value in values.items()}
        best.append(dict(threshold=float(THRESHOLDS[middle]), **figures))
    curves = evaluation.precision[np.abs(evaluation.params.iouThrs - FOUND_IOU).argmin(), :, :, 0, -1].T  # (K, 101)
    labelled = np.flatnonzero(totals)
    rows = [(names[row], curves[row], f1[row]) for row in labelled]
    rows += [('all', curves[labelled].mean(0), f1[-1])] if rows else []
    return best, {
        name: dict(precision=precision.round(4).tolist(), F1=f1.round(4).tolist()) for name, precision, f1 in rows
    }


def _rank_pictures(evaluation: Evaluation, threshold: float) -> list[dict[str, Any]]:
    """Return counts of the pictures with objects or predictions, the lowest F1 first, then the most errors."""
    objects, predictions, pictures = evaluation.objects, evaluation.predictions, evaluation.params.imgIds
    is_strong, is_right = predictions.score >= threshold, predictions.match >= 0
    count = partial(np.bincount, minlength=len(pictures))
    labelled = count(objects.picture[~objects.is_crowd])
    predicted = count(predictions.picture[is_strong])
    right = count(predictions.picture[is_strong & is_right])
    f1 = 2 * right / np.maximum(labelled + predicted, 1)
    errors = labelled + predicted - 2 * right
    columns = dict(F1=f1, right=right, wrong=predicted - right, missed=labelled - right)
    return [
        dict(image_id=pictures[row], **{name: values[row].item() for name, values in columns.items()})
        for row in np.lexsort((-errors, f1))
        if labelled[row] + predicted[row]
    ]


def _draw_picture(evaluation: Evaluation, threshold: float, row: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """Draw labels and predictions of a picture."""
    objects, predictions, names = evaluation.objects, evaluation.predictions, evaluation.names
    picture = evaluation.params.imgIds.index(row['image_id'])
    is_strong = predictions.score >= threshold
    panels: tuple[list[Shape], list[Shape]] = ([], [])

    def add(panel: int, item: Mapping[str, Any], text: str, is_right: Any) -> None:
        outline = trace_outline(item['segmentation']) if evaluation.params.iouType == 'segm' else ''
        panels[panel].append(Shape(item['bbox'], text, bool(is_right), outline))

    for index in np.flatnonzero((objects.picture == picture) & ~objects.is_crowd):
        annotation = evaluation.truth.anns[objects.id[index]]
        add(0, annotation, names[objects.label[index]], (predictions.match[is_strong] == index).any())
    for index in np.flatnonzero((predictions.picture == picture) & is_strong):
        text = f'{names[predictions.label[index]]} {predictions.score[index]:.2f}'
        add(1, evaluation.results[predictions.result[index]], text, predictions.match[index] >= 0)
    return draw(row['file'], read, panels)


def _draw_label(row: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """Draw a label, a prediction or both, with their surroundings."""
    shapes = [Shape(row[f'{key}_box'], row[key], key == 'label') for key in ('predicted', 'label') if key in row]
    return draw(row['file'], read, (shapes,), is_cropped=True)
