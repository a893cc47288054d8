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
    objects, predictions = evaluation.objects, evaluation.predictions
    is_found, is_right, is_strong = evaluation.is_found, predictions.match >= 0, predictions.score >= threshold
    is_free = ~np.isin(np.arange(len(objects.id)), predictions.match[is_strong])
    kind = np.zeros_like(predictions.label)
    target = np.zeros_like(predictions.match)
    is_on_crowd = np.zeros_like(is_right)
    pairs = [np.empty((3, 0))]
    background = len(evaluation.totals)
    confusion = np.zeros((background + 1, background + 1), int)
    np.add.at(confusion, (predictions.label[is_strong & is_right],) * 2, 1)
    order = np.lexsort((-predictions.score, predictions.picture))
    pictures = np.arange(len(evaluation.params.imgIds))
    rows_by_picture = np.split(order, np.searchsorted(predictions.picture[order], pictures[1:]))
    objects_by_picture = np.split(np.arange(len(objects.id)), np.searchsorted(objects.picture, pictures[1:]))
    for rows, inside in zip(track(rows_by_picture, 'comparing with the labels'), objects_by_picture):
        iou = evaluation.overlaps(rows, inside)
        is_crowd = objects.is_crowd[inside]
        is_on_crowd[rows] = (iou[:, is_crowd] >= BACKGROUND_IOU).any(1)
        iou, inside = iou[:, ~is_crowd], inside[~is_crowd]
        near_pairs = np.nonzero(iou >= BACKGROUND_IOU)
        pairs.append(np.array([rows[near_pairs[0]], inside[near_pairs[1]], iou[near_pairs]]))
        is_class = predictions.label[rows, None] == objects.label[inside]
        kind[rows], nearest = _find_kinds(iou, is_class, is_found[inside], is_right[rows])
        target[rows] = np.append(inside, -1)[nearest]
        free = is_free[inside]
        for row in np.flatnonzero(is_strong[rows] & ~is_right[rows]):  # by falling score
            shared = np.append(np.where(free & ~is_class[row], iou[row], 0), 0)
            hit = shared.max() >= FOUND_IOU
            label = objects.label[inside[shared.argmax()]] if hit else background
            confusion[label, predictions.label[rows[row]]] += 1
            free[shared.argmax() : shared.argmax() + hit] = False
        np.add.at(confusion[:, background], objects.label[inside[free]], 1)
    is_missed = ~is_found & ~objects.is_crowd
    is_missed[target[np.isin(kind, (CLASS, PLACE))]] = False
    return Errors(kind, target, is_on_crowd, is_missed, np.concatenate(pairs, axis=1), confusion)


def _find_kinds(iou_DN: Array, is_class_DN: Array, is_found_N: Array, is_right_D: Array) -> tuple[Array, Array]:
    """Return the kind of each prediction of a picture, and the object of its largest IoU for CLASS or PLACE."""
    if not iou_DN.shape[1]:
        return np.where(is_right_D, RIGHT, BACKGROUND), np.full(len(iou_DN), -1)
    class_iou_DN = np.where(is_class_DN, iou_DN, 0)
    other_iou_DN = np.where(is_class_DN, 0, iou_DN)
    best = class_iou_DN.max(1)
    checks = {
        RIGHT: is_right_D,
        PLACE: (best >= BACKGROUND_IOU) & (best <= FOUND_IOU),
        CLASS: other_iou_DN.max(1) >= FOUND_IOU,
        DOUBLE: (class_iou_DN * is_found_N).max(1) >= FOUND_IOU,
        BACKGROUND: iou_DN.max(1) <= BACKGROUND_IOU,
    }
    kind = np.select([*checks.values()], [*checks], BOTH)
    return kind, np.where(kind == PLACE, class_iou_DN.argmax(1), other_iou_DN.argmax(1))


def find_costs(evaluation: Evaluation, errors: Errors) -> dict[str, float]:
    """Return the mean AP at IoU 0.5 that is gained if all errors of a kind are fixed.

    A fixed error of class or place finds its object. Of several errors at one object, the surest is fixed and the
    others are removed. Errors at an object that is already found are removed. Errors of other kinds are removed, and
    missed objects are not counted.
    """
    objects, predictions, totals = evaluation.objects, evaluation.predictions, evaluation.totals
    is_right = predictions.match >= 0
    is_open = np.append(~evaluation.is_found, False)[errors.target]
    costs = {}
    base_ap = mean_ap(predictions.label, predictions.score, is_right, totals)
    for kind in range(1, len(KINDS)):
        fixed = np.zeros(len(predictions.score), bool)
        if kind in (CLASS, PLACE):
            rows = np.flatnonzero((errors.kind == kind) & is_open)
            rows = rows[np.argsort(-predictions.score[rows], kind='stable')]
            fixed[rows[np.unique(errors.target[rows], return_index=True)[1]]] = True
        kept = (errors.kind != kind) | fixed
        label = np.where(fixed, np.append(objects.label, -1)[errors.target], predictions.label)
        costs[KINDS[kind]] = mean_ap(label[kept], predictions.score[kept], (is_right | fixed)[kept], totals) - base_ap
    missed = np.bincount(objects.label[errors.is_missed], minlength=len(totals))
    return costs | dict(missed=mean_ap(predictions.label, predictions.score, is_right, totals, missed) - base_ap)


def mean_ap(label: Array, score: Array, is_right: Array, totals: Array, left_out: Union[int, Array] = 0) -> float:
    """Return the AP that COCOeval computes, averaged over the classes with objects; 0 without objects.

    Args:
        label, score, is_right: values of the predictions, (D,).
        totals: objects by class, (K,).
        left_out: objects by class that are not counted, (K,). A class without any other has AP 1.
    """
    counted = totals - left_out
    values = []
    for class_index in np.flatnonzero(totals):
        rows = np.flatnonzero(label == class_index)
        right = np.cumsum(is_right[rows[np.argsort(-score[rows], kind='mergesort')]])
        precision = right / (np.arange(1, len(rows) + 1) + np.spacing(1))
        precision = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
        indices = np.searchsorted(right / max(counted[class_index], 1), Params('bbox').recThrs)
        values.append(precision[indices].mean() if counted[class_index] else 1.0)
    return float(np.mean(values)) if values else 0.0


def find_doubtful_labels(
    evaluation: Evaluation, errors: Errors, thresholds: Array, on_objects: Array
) -> dict[str, list[dict[str, Any]]]:
    """Return up to `LISTED` labels of a kind that look wrong, the surest first.

    - 'no label': a sure prediction on no object. Sureness: score x (1 - largest IoU with an object).
    - 'other class': a sure prediction of another class on an object. Sureness: the score less the score of the
      prediction that finds the object, if any does. It is above 0.
    - 'beside': a sure prediction of the class beside an object. Sureness: like that of 'other class'.
    - 'not found': all predictions near the object are unsure or find another object. Sureness: share of found objects
      of the class x (1 - highest score near the object).

    Args:
        thresholds: the best of each class. `SURE` and `UNSURE` are parts of these.
        on_objects: indices of results that overlap an object by `FOUND_IOU` in another kind, which have a label.
    """
    objects, predictions, names = evaluation.objects, evaluation.predictions, evaluation.names
    score = predictions.score

    def describe_prediction(row: int) -> dict[str, Any]:
        result = evaluation.results[predictions.result[row]]
        return dict(image_id=result['image_id'], predicted=names[predictions.label[row]], predicted_box=result['bbox'])

    def describe_object(row: int) -> dict[str, Any]:
        item = evaluation.truth.anns[objects.id[row]]
        own_id, name = item.get('own_id', item['id']), names[objects.label[row]]
        return dict(image_id=item['image_id'], label=name, annotation_id=own_id, label_box=item['bbox'])

    is_right = predictions.match >= 0
    rows, targets = errors.pairs[:2].astype(int)
    iou = errors.pairs[2]
    is_sure = (score >= SURE * thresholds[predictions.label]) & ~is_right & ~errors.is_on_crowd
    found_score, near_score = np.zeros((2, len(objects.id)))  # highest score of what finds an object, and is near
    found_score[predictions.match[is_right]] = score[is_right]
    is_own = ~is_right[rows] | (predictions.match[rows] == targets)
    np.maximum.at(near_score, targets[is_own], score[rows[is_own]])
    margin = score[rows] - found_score[targets]
    is_on = iou >= FOUND_IOU
    contradicts = is_sure[rows] & (margin > 0) & (is_on != (predictions.label[rows] == objects.label[targets]))
    doubts: dict[str, list[dict[str, Any]]] = {kind: [] for kind in DOUBTS}
    listed, doubted = set(), set()
    for pair in np.flatnonzero(contradicts)[np.lexsort((-iou[contradicts], -margin[contradicts]))]:
        if rows[pair] not in listed and targets[pair] not in doubted:
            listed.add(rows[pair])
            doubted.add(targets[pair])
            kind = 'other class' if is_on[pair] else 'beside'
            doubts[kind].append(
                describe_prediction(rows[pair]) | describe_object(targets[pair]) | dict(sureness=float(margin[pair]))
            )
    is_sure[rows[contradicts | is_on]] = False
    is_sure &= ~np.isin(predictions.result, on_objects)
    largest_iou = np.zeros(len(score))  # with a label
    np.maximum.at(largest_iou, rows, iou)
    sureness = score * (1 - largest_iou)
    sure_rows = sorted(np.flatnonzero(is_sure), key=lambda row: -sureness[row])
    doubts['no label'] = [describe_prediction(row) | dict(sureness=float(sureness[row])) for row in sure_rows]
    share = np.bincount(objects.label[evaluation.is_found], minlength=len(names)) / np.maximum(evaluation.totals, 1)
    sureness = share[objects.label] * (1 - near_score)
    is_missing = near_score < UNSURE * thresholds[objects.label]
    for row in np.argsort(-sureness, kind='stable'):
        if is_missing[row] and not objects.is_crowd[row] and row not in doubted:
            doubts['not found'].append(describe_object(row) | dict(sureness=float(sureness[row])))
    return {kind: rows[:LISTED] for kind, rows in doubts.items()}
