"""The report of a detector: numbers by class, kinds of errors, worst pictures and labels to check."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.media import read_picture
from .confusion import WORST, triples
from .detection import FOUND_IOU, Evaluation, mean_precision, stats_of, track
from .errors import KINDS, Errors, costs, doubtful_labels, find_errors
from .thumbnails import Load, Shape, draw, outline

AREAS = ('all', 'small', 'medium', 'large')  # pycocotools' areas, between 32^2 and 96^2 pixels
STATS = ('AP', 'AP50', 'AP75', *(f'AP {size}' for size in AREAS[1:]))  # of `stats_of`
THRESHOLDS = np.arange(101) / 100  # of scores
CHECKED = 12  # labels of a kind with a thumbnail


def detection_report(
    evaluations: Sequence[Evaluation], files: Mapping[Any, str], load: Load = read_picture
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the report, and thumbnails of its first pictures and of the first labels of each kind.

    Args:
        evaluations: of boxes, masks or both. The errors are those of the last.
        files: paths of the tested pictures, by image_id. Others are not listed.
        load: reads a picture in the orientation of the boxes.
    """
    main = evaluations[-1]
    best, curves, errors = _compare(main)
    threshold = best[-1]['threshold']
    counts = [*np.bincount(errors.kind, minlength=len(KINDS)).tolist(), int(errors.is_missed.sum())]
    number, gains = dict(zip([*KINDS, 'missed'], counts)), costs(main, errors)
    # Poor masks would make right labels look wrong. The kind with the higher AP at IoU 0.5 judges labels.
    judge = max(evaluations, key=lambda evaluation: (evaluation.stats[1] or 0, evaluation is main))
    judged, _, contradictions = (best, curves, errors) if judge is main else _compare(judge)
    on_objects = main.predictions.result[errors.pairs[0, errors.pairs[2] >= FOUND_IOU].astype(int)]
    labels = doubtful_labels(judge, contradictions, np.array([row['threshold'] for row in judged]), on_objects)
    lists = dict(labels, pictures=_pictures(main, threshold))
    tested = {
        kind: [dict(row, file=files[row['image_id']]) for row in rows if row['image_id'] in files]
        for kind, rows in lists.items()
    }
    pictures = tested.pop('pictures')
    classes = [dict(name=name, objects=int(total)) for name, total in zip(main.names, main.totals)]
    for label, row in enumerate(classes):
        row.update(zip(STATS, stats_of(main.precision[:, :, [label]], main.params)))
        row.update(best[label] if row['objects'] else dict.fromkeys(best[label]))
        if not row['F1']:
            row['threshold'] = None  # none is better than another
        for other in evaluations[:-1]:
            row['AP of boxes'] = mean_precision(other.precision[:, :, label, 0, -1])
    sizes, by_iou = {}, {}
    for evaluation in evaluations:
        kind, parts = evaluation.params.iouType, zip(evaluation.params.iouThrs, evaluation.precision)
        sizes[kind] = dict(zip(STATS, evaluation.stats))
        by_iou[kind] = [(float(iou), mean_precision(part[..., 0, -1])) for iou, part in parts]
    costliest = sorted(gains, key=lambda kind: -gains[kind])
    report = dict(
        task='detection', metric='AP', unit='objects', classes=classes, sizes=sizes, by_iou=by_iou,
        overall={stat: sizes[main.params.iouType][stat] for stat in STATS[:3]},
        per_picture=dict(
            objects=int(np.bincount(main.objects.picture, minlength=1).max()), predictions=main.params.maxDets[-1]
        ),
        best=best[-1], curves=curves, pictures=pictures, labels=tested,
        errors=[dict(kind=kind, count=number[kind], cost=gains[kind]) for kind in costliest],
        confusion=triples(errors.confusion, [*main.names, 'background']),
    )  # fmt: skip
    drawn = [_draw_picture(main, threshold, row, load) for row in track(pictures[:WORST], 'drawing')]
    labels_drawn = {kind: [_draw_label(row, load) for row in rows[:CHECKED]] for kind, rows in tested.items()}
    return report, labels_drawn | dict(pictures=drawn)


def _compare(evaluation: Evaluation) -> tuple[list[dict[str, float]], dict[str, Any], Errors]:
    """Return the best thresholds and the curves, see `_thresholds`, and the errors at the best threshold of all."""
    best, curves = _thresholds(evaluation)
    return best, curves, find_errors(evaluation, best[-1]['threshold'])


def _thresholds(evaluation: Evaluation) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return threshold, F1, precision and recall at the best F1 of each class and, last, of all; and the curves.

    A prediction counts from the threshold on. Ties take the middle threshold.
    """
    predictions, totals, names = evaluation.predictions, evaluation.totals, evaluation.names
    objects, counts = np.append(totals, totals.sum())[:, None], []
    for kept in (predictions.match >= -1, predictions.match >= 0):
        label, score = predictions.label[kept], predictions.score[kept]
        groups = [np.sort(score[label == number]) for number in range(len(names))] + [np.sort(score)]
        counts.append([len(group) - np.searchsorted(group, THRESHOLDS) for group in groups])
    predicted, right = np.array(counts)  # (K + 1, 101)
    f1, best = 2 * right / np.maximum(predicted + objects, 1), []
    values = dict(F1=f1, precision=right / np.maximum(predicted, 1), recall=right / np.maximum(objects, 1))
    for row, equal in enumerate(f1 == f1.max(1, keepdims=True)):
        at = np.flatnonzero(equal)[(equal.sum() - 1) // 2]
        best.append(
            dict(
                threshold=float(THRESHOLDS[at]),
                **{key: float(figures[row, at]) for key, figures in values.items()},
            )
        )
    curves = evaluation.precision[np.abs(evaluation.params.iouThrs - FOUND_IOU).argmin(), :, :, 0, -1].T  # (K, 101)
    labelled = np.flatnonzero(totals)
    rows = [(names[row], curves[row], f1[row]) for row in labelled]
    rows += [('all', curves[labelled].mean(0), f1[-1])] if rows else []
    return best, {
        name: dict(precision=precision.round(4).tolist(), F1=f1.round(4).tolist()) for name, precision, f1 in rows
    }


def _pictures(evaluation: Evaluation, threshold: float) -> list[dict[str, Any]]:
    """Return counts of the pictures with objects or predictions, the lowest F1 first, then the most errors."""
    objects, predictions, pictures = evaluation.objects, evaluation.predictions, evaluation.params.imgIds
    strong, right = predictions.score >= threshold, predictions.match >= 0
    parts = (objects.picture[~objects.is_crowd], predictions.picture[strong], predictions.picture[strong & right])
    labelled, predicted, hits = (np.bincount(part, minlength=len(pictures)) for part in parts)
    f1, errors = 2 * hits / np.maximum(labelled + predicted, 1), labelled + predicted - 2 * hits
    columns = dict(F1=f1, right=hits, wrong=predicted - hits, missed=labelled - hits)
    return [
        dict(image_id=pictures[row], **{name: values[row].item() for name, values in columns.items()})
        for row in np.lexsort((-errors, f1))
        if labelled[row] + predicted[row]
    ]


def _draw_picture(evaluation: Evaluation, threshold: float, row: Mapping[str, Any], load: Load) -> dict[str, Any]:
    """Draw labels and predictions of a picture."""
    objects, predictions, names = evaluation.objects, evaluation.predictions, evaluation.names
    number, strong = evaluation.params.imgIds.index(row['image_id']), predictions.score >= threshold
    panels: tuple[list[Shape], list[Shape]] = ([], [])

    def add(panel: int, item: Mapping[str, Any], text: str, is_right: Any) -> None:
        path = outline(item['segmentation']) if evaluation.params.iouType == 'segm' else ''
        panels[panel].append(Shape(item['bbox'], text, bool(is_right), path))

    for row_number in np.flatnonzero((objects.picture == number) & ~objects.is_crowd):
        annotation = evaluation.truth.anns[objects.id[row_number]]
        add(0, annotation, names[objects.label[row_number]], (predictions.match[strong] == row_number).any())
    for row_number in np.flatnonzero((predictions.picture == number) & strong):
        text = f'{names[predictions.label[row_number]]} {predictions.score[row_number]:.2f}'
        add(1, evaluation.results[predictions.result[row_number]], text, predictions.match[row_number] >= 0)
    return draw(row['file'], load, panels)


def _draw_label(row: Mapping[str, Any], load: Load) -> dict[str, Any]:
    """Draw a label, a prediction or both, with their surroundings."""
    shapes = [Shape(row[f'{part}_box'], row[part], part == 'label') for part in ('predicted', 'label') if part in row]
    return draw(row['file'], load, (shapes,), is_cropped=True)
