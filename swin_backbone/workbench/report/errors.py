"""The kinds of errors of a detector, what each costs, classes taken for others, and labels that look wrong.

Kinds, order of the checks and costs are those of TIDE (Bolya et al., A General Toolbox for Identifying Object Detection
Errors, ECCV 2020), at IoU 0.5 and 0.1.
"""

from typing import Any, NamedTuple, Union

import numpy as np
from pycocotools.cocoeval import Params

from .detection import FOUND_IOU, Array, Evaluation, track

BACKGROUND_IOU = 0.1  # a prediction with less is on background
MEANING = dict(
    **{'class': 'on an object of another class'},
    place='of the right class, beside its object: IoU 0.1 to 0.5',
    both='of a wrong class, beside an object',
    double='on an object that a surer prediction finds',
    background='where no object is: IoU below 0.1',
    missed='objects that no prediction finds, not even with a wrong class or a wrong place alone',
)
KINDS = ('right', 'class', 'place', 'both', 'double', 'background')  # of predictions
RIGHT, CLASS, PLACE, BOTH, DOUBLE, BACKGROUND = range(len(KINDS))
DOUBTS = ('no label', 'other class', 'beside', 'not found')
LISTED = 1000  # doubtful labels of a kind
SURE, UNSURE = 0.75, 0.5  # parts of the best threshold of a class, which wrong labels raise


class Errors(NamedTuple):
    """The kinds of D predictions and N objects of an `Evaluation` with K classes."""

    kind: Array  # (D,), index in KINDS
    target: Array  # (D,), the object with the largest IoU, used for CLASS and PLACE
    is_on_crowd: Array  # (D,)
    is_missed: Array  # (N,)
    pairs: Array  # (3, P): prediction, object and IoU of pairs from BACKGROUND_IOU on, without crowds
    confusion: Array  # (K + 1, K + 1) of labels and predictions; the last is background


def find_errors(evaluation: Evaluation, threshold: float) -> Errors:
    """Compare the predictions with all objects of their picture. The confusion counts scores from `threshold` on."""
    objects, predictions, classes = evaluation.objects, evaluation.predictions, len(evaluation.totals)
    is_found, is_right, is_strong = evaluation.is_found, predictions.match >= 0, predictions.score >= threshold
    is_free = ~np.isin(np.arange(len(objects.id)), predictions.match[is_strong])
    kind, target, is_on_crowd = (
        np.zeros_like(predictions.label),
        np.zeros_like(predictions.match),
        np.zeros_like(is_right),
    )
    pairs, confusion = [np.empty((3, 0))], np.zeros((classes + 1, classes + 1), int)
    np.add.at(confusion, (predictions.label[is_strong & is_right],) * 2, 1)
    order = np.lexsort((-predictions.score, predictions.picture))
    ends = np.arange(len(evaluation.params.imgIds) + 1)
    first_predictions, first_objects = (
        np.searchsorted(pictures, ends) for pictures in (predictions.picture[order], objects.picture)
    )
    for picture in track(ends[:-1], 'comparing with the labels'):
        rows, inside = order[slice(*first_predictions[picture:][:2])], np.arange(*first_objects[picture:][:2])
        iou, is_crowd = evaluation.overlaps(rows, inside), objects.is_crowd[inside]
        is_on_crowd[rows] = (iou[:, is_crowd] >= BACKGROUND_IOU).any(1)
        iou, inside = iou[:, ~is_crowd], inside[~is_crowd]
        near = np.nonzero(iou >= BACKGROUND_IOU)
        pairs.append(np.array([rows[near[0]], inside[near[1]], iou[near]]))
        same = predictions.label[rows, None] == objects.label[inside]
        kind[rows], nearest = _kinds(iou, same, is_found[inside], is_right[rows])
        target[rows] = np.append(inside, -1)[nearest]
        free = is_free[inside]
        for row in np.flatnonzero(is_strong[rows] & ~is_right[rows]):  # by falling score
            shared = np.append(np.where(free & ~same[row], iou[row], 0), 0)
            hit = shared.max() >= FOUND_IOU
            confusion[objects.label[inside[shared.argmax()]] if hit else classes, predictions.label[rows[row]]] += 1
            free[shared.argmax() : shared.argmax() + hit] = False
        np.add.at(confusion[:, classes], objects.label[inside[free]], 1)
    is_missed = ~is_found & ~objects.is_crowd
    is_missed[target[np.isin(kind, (CLASS, PLACE))]] = False
    return Errors(kind, target, is_on_crowd, is_missed, np.concatenate(pairs, axis=1), confusion)


def _kinds(iou_DN: Array, is_class_DN: Array, is_found_N: Array, is_right_D: Array) -> tuple[Array, Array]:
    """Return the kind of each prediction of a picture, and the object of its largest IoU for CLASS or PLACE."""
    if not iou_DN.shape[1]:
        return np.where(is_right_D, RIGHT, BACKGROUND), np.full(len(iou_DN), -1)
    of_class, of_others = np.where(is_class_DN, iou_DN, 0), np.where(is_class_DN, 0, iou_DN)
    best = of_class.max(1)
    checks = {
        RIGHT: is_right_D,
        PLACE: (best >= BACKGROUND_IOU) & (best <= FOUND_IOU),
        CLASS: of_others.max(1) >= FOUND_IOU,
        DOUBLE: (of_class * is_found_N).max(1) >= FOUND_IOU,
        BACKGROUND: iou_DN.max(1) <= BACKGROUND_IOU,
    }
    kind = np.select([*checks.values()], [*checks], BOTH)
    return kind, np.where(kind == PLACE, of_class.argmax(1), of_others.argmax(1))


def costs(evaluation: Evaluation, errors: Errors) -> dict[str, float]:
    """Return the mean AP at IoU 0.5 that is gained if all errors of a kind are fixed.

    A fixed error of class or place finds its object. Of several errors at one object, the surest is fixed and the
    others are removed. Errors at an object that is already found are removed. Errors of other kinds are removed, and
    missed objects are not counted.
    """
    objects, predictions, totals = evaluation.objects, evaluation.predictions, evaluation.totals
    is_right, is_open = predictions.match >= 0, np.append(~evaluation.is_found, False)[errors.target]
    gains = {}
    before = mean_ap(predictions.label, predictions.score, is_right, totals)
    for kind in range(1, len(KINDS)):
        fixed = np.zeros(len(predictions.score), bool)
        if kind in (CLASS, PLACE):
            rows = np.flatnonzero((errors.kind == kind) & is_open)
            rows = rows[np.argsort(-predictions.score[rows], kind='stable')]
            fixed[rows[np.unique(errors.target[rows], return_index=True)[1]]] = True
        kept = (errors.kind != kind) | fixed
        label = np.where(fixed, np.append(objects.label, -1)[errors.target], predictions.label)
        gains[KINDS[kind]] = mean_ap(label[kept], predictions.score[kept], (is_right | fixed)[kept], totals) - before
    missed = np.bincount(objects.label[errors.is_missed], minlength=len(totals))
    return gains | dict(missed=mean_ap(predictions.label, predictions.score, is_right, totals, missed) - before)


def mean_ap(label: Array, score: Array, is_right: Array, totals: Array, left_out: Union[int, Array] = 0) -> float:
    """Return the AP that COCOeval computes, averaged over the classes with objects; 0 without objects.

    Args:
        label, score, is_right: of predictions, (D,).
        totals: objects by class, (K,).
        left_out: objects by class that are not counted, (K,). A class without any other has AP 1.
    """
    counted, values = totals - left_out, []
    for number in np.flatnonzero(totals):
        rows = np.flatnonzero(label == number)
        right = np.cumsum(is_right[rows[np.argsort(-score[rows], kind='mergesort')]])
        precision = right / (np.arange(1, len(rows) + 1) + np.spacing(1))
        precision = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
        indices = np.searchsorted(right / max(counted[number], 1), Params('bbox').recThrs)
        values.append(precision[indices].mean() if counted[number] else 1.0)
    return float(np.mean(values)) if values else 0.0


def doubtful_labels(
    evaluation: Evaluation, errors: Errors, thresholds: Array, on_objects: Array
) -> dict[str, list[dict[str, Any]]]:
    """Return up to `LISTED` labels of a kind that look wrong, the surest first.

    - 'no label': a sure prediction on no object. Sureness: score x (1 - largest IoU with an object).
    - 'other class': a sure prediction of another class on an object. Sureness: the score less the score of the
      prediction that finds the object, if any does. It is above 0.
    - 'beside': a sure prediction of the class beside an object. Sureness: as of 'other class'.
    - 'not found': all predictions near the object are unsure or find another object. Sureness: share of found objects
      of the class x (1 - highest score near the object).

    Args:
        thresholds: the best of each class. `SURE` and `UNSURE` are parts of these.
        on_objects: indices of results that overlap an object by `FOUND_IOU` in another kind, which have a label.
    """
    objects, predictions, names, score = (
        evaluation.objects,
        evaluation.predictions,
        evaluation.names,
        evaluation.predictions.score,
    )

    def entry_of_prediction(row: int) -> dict[str, Any]:
        result = evaluation.results[predictions.result[row]]
        return dict(image_id=result['image_id'], predicted=names[predictions.label[row]], predicted_box=result['bbox'])

    def entry_of_truth(row: int) -> dict[str, Any]:
        item, name = evaluation.truth.anns[objects.id[row]], names[objects.label[row]]
        return dict(
            image_id=item['image_id'], label=name, annotation_id=item.get('own_id', item['id']), label_box=item['bbox']
        )

    is_right, (rows, targets), iou = predictions.match >= 0, errors.pairs[:2].astype(int), errors.pairs[2]
    is_sure = (score >= SURE * thresholds[predictions.label]) & ~is_right & ~errors.is_on_crowd
    score_of, near = np.zeros((2, len(objects.id)))  # highest score of what finds an object, and of what is near
    score_of[predictions.match[is_right]] = score[is_right]
    is_own = ~is_right[rows] | (predictions.match[rows] == targets)
    np.maximum.at(near, targets[is_own], score[rows[is_own]])
    margin, is_on = score[rows] - score_of[targets], iou >= FOUND_IOU
    contradicts = is_sure[rows] & (margin > 0) & (is_on != (predictions.label[rows] == objects.label[targets]))
    doubts: dict[str, list[dict[str, Any]]] = {kind: [] for kind in DOUBTS}
    listed, doubted = set(), set()
    for pair in np.flatnonzero(contradicts)[np.lexsort((-iou[contradicts], -margin[contradicts]))]:
        if rows[pair] not in listed and targets[pair] not in doubted:
            listed.add(rows[pair])
            doubted.add(targets[pair])
            kind = 'other class' if is_on[pair] else 'beside'
            doubts[kind].append(
                entry_of_prediction(rows[pair]) | entry_of_truth(targets[pair]) | dict(sureness=float(margin[pair]))
            )
    is_sure[rows[contradicts | is_on]] = False
    is_sure &= ~np.isin(predictions.result, on_objects)
    largest = np.zeros(len(score))  # IoU with a label
    np.maximum.at(largest, rows, iou)
    free = score * (1 - largest)
    sure = sorted(np.flatnonzero(is_sure), key=lambda row: -free[row])
    doubts['no label'] = [entry_of_prediction(row) | dict(sureness=float(free[row])) for row in sure]
    share = np.bincount(objects.label[evaluation.is_found], minlength=len(names)) / np.maximum(evaluation.totals, 1)
    lonely, is_missing = share[objects.label] * (1 - near), near < UNSURE * thresholds[objects.label]
    for row in np.argsort(-lonely, kind='stable'):
        if is_missing[row] and not objects.is_crowd[row] and row not in doubted:
            doubts['not found'].append(entry_of_truth(row) | dict(sureness=float(lonely[row])))
    return {kind: rows[:LISTED] for kind, rows in doubts.items()}
