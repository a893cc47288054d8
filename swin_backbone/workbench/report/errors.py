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
    missed='objects without a prediction right or wrong in class or place alone',
)
KINDS = ('right', *MEANING)[:-1]  # of predictions
RIGHT, CLASS, PLACE, BOTH, DOUBLE, BACKGROUND = range(len(KINDS))
DOUBTS = {BACKGROUND: 'no label', CLASS: 'other class', PLACE: 'beside'}  # of sure predictions
LISTED = 1000  # doubtful labels of a kind


class Errors(NamedTuple):
    """The kinds of D predictions and N objects of an `Evaluation` with K classes."""

    kind: Array  # (D,), index in KINDS
    target: Array  # (D,), the object of the largest IoU, of CLASS and PLACE
    is_on_crowd: Array  # (D,)
    is_missed: Array  # (N,)
    is_seen: Array  # (N,), whether the IoU of any prediction is at least BACKGROUND_IOU
    confusion: Array  # (K + 1, K + 1) of labels and predictions; the last is background


def find_errors(evaluation: Evaluation, threshold: float) -> Errors:
    """Compare the predictions with all objects of their picture. The confusion counts scores from `threshold` on."""
    objects, found, classes = evaluation.objects, evaluation.found, len(evaluation.totals)
    is_found, is_right, is_strong = evaluation.is_found, found.match >= 0, found.score >= threshold
    is_free = ~np.isin(np.arange(len(objects.id)), found.match[is_strong])
    kind, target, is_on_crowd = np.zeros_like(found.label), found.match.copy(), np.zeros_like(is_right)
    is_seen, confusion = np.zeros_like(is_free), np.zeros((classes + 1, classes + 1), int)
    np.add.at(confusion, (found.label[is_strong & is_right],) * 2, 1)
    order = np.lexsort((-found.score, found.picture))
    ends = np.arange(len(evaluation.params.imgIds) + 1)
    of_found, of_objects = (np.searchsorted(pictures, ends) for pictures in (found.picture[order], objects.picture))
    for picture in track(ends[:-1], 'comparing with the labels'):
        rows, inside = order[slice(*of_found[picture:][:2])], np.arange(*of_objects[picture:][:2])
        iou, is_crowd = evaluation.overlaps(rows, inside), objects.is_crowd[inside]
        is_seen[inside] = (iou >= BACKGROUND_IOU).any(0)
        is_on_crowd[rows] = (iou[:, is_crowd] >= BACKGROUND_IOU).any(1)
        iou, inside = iou[:, ~is_crowd], inside[~is_crowd]
        same = found.label[rows, None] == objects.label[inside]
        kind[rows], nearest = _kinds(iou, same, is_found[inside], is_right[rows])
        target[rows] = np.append(inside, -1)[nearest]
        free = is_free[inside]
        for row in np.flatnonzero(is_strong[rows] & ~is_right[rows]):  # by falling score
            shared = np.append(np.where(free & ~same[row], iou[row], 0), 0)
            hit = shared.max() >= FOUND_IOU
            confusion[objects.label[inside[shared.argmax()]] if hit else classes, found.label[rows[row]]] += 1
            free[shared.argmax() : shared.argmax() + hit] = False
        np.add.at(confusion[:, classes], objects.label[inside[free]], 1)
    is_missed = ~is_found & ~objects.is_crowd
    is_missed[target[np.isin(kind, (CLASS, PLACE))]] = False
    return Errors(kind, target, is_on_crowd, is_missed, is_seen, confusion)


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

    A fixed error of class or place finds its object. Of several for an object, and for a found object, the surest is
    fixed and the others are removed. Errors of other kinds are removed, and missed objects are not counted.
    """
    objects, found, totals = evaluation.objects, evaluation.found, evaluation.totals
    is_right, is_open = found.match >= 0, np.append(~evaluation.is_found, False)[errors.target]
    gains = {}
    before = mean_ap(found.label, found.score, is_right, totals)
    for kind in range(1, len(KINDS)):
        fixed = np.zeros(len(found.score), bool)
        if kind in (CLASS, PLACE):
            rows = np.flatnonzero((errors.kind == kind) & is_open)
            rows = rows[np.argsort(-found.score[rows], kind='stable')]
            fixed[rows[np.unique(errors.target[rows], return_index=True)[1]]] = True
        kept = (errors.kind != kind) | fixed
        label = np.where(fixed, np.append(objects.label, -1)[errors.target], found.label)
        gains[KINDS[kind]] = mean_ap(label[kept], found.score[kept], (is_right | fixed)[kept], totals) - before
    missed = np.bincount(objects.label[errors.is_missed], minlength=len(totals))
    return gains | dict(missed=mean_ap(found.label, found.score, is_right, totals, missed) - before)


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
        places = np.searchsorted(right / max(counted[number], 1), Params('bbox').recThrs)
        values.append(precision[places].mean() if counted[number] else 1.0)
    return float(np.mean(values)) if values else 0.0


def doubtful_labels(evaluation: Evaluation, errors: Errors, thresholds: Array) -> dict[str, list[dict[str, Any]]]:
    """Return up to `LISTED` labels of a kind that look wrong, the surest first.

    - 'no label': a sure prediction where no object is labelled.
    - 'other class': a sure prediction of another class on an object that is not found.
    - 'beside': a sure prediction beside an object of its class that is not found.
    - 'not found': no prediction is near the object. As sure as the share of found objects of its class.

    Args:
        thresholds: predictions with at least this score are sure, by class.
    """
    objects, found, names = evaluation.objects, evaluation.found, evaluation.names
    is_open = np.append(~evaluation.is_found, False)[errors.target] | (errors.kind == BACKGROUND)
    is_sure = (found.score >= thresholds[found.label]) & np.isin(errors.kind, [*DOUBTS]) & is_open & ~errors.is_on_crowd
    doubts: dict[str, list[dict[str, Any]]] = {kind: [] for kind in (*DOUBTS.values(), 'not found')}
    doubted = set()
    for row in np.flatnonzero(is_sure)[np.argsort(-found.score[is_sure], kind='stable')]:
        kind, target, result = errors.kind[row], errors.target[row], evaluation.results[found.result[row]]
        if kind == BACKGROUND or target not in doubted:
            label = {} if kind == BACKGROUND else _label(evaluation, target)
            doubted.update([target] * bool(label))
            predicted = dict(predicted=names[found.label[row]], predicted_box=result['bbox'], **label)
            doubts[DOUBTS[kind]].append(
                dict(image_id=result['image_id'], sureness=float(found.score[row]), **predicted)
            )
    share = np.bincount(objects.label[evaluation.is_found], minlength=len(names)) / np.maximum(evaluation.totals, 1)
    missing = np.flatnonzero(~errors.is_seen & ~objects.is_crowd)
    for row in missing[np.argsort(-share[objects.label[missing]], kind='stable')]:
        image_id = evaluation.params.imgIds[objects.picture[row]]
        sureness = float(share[objects.label[row]])
        doubts['not found'].append(dict(image_id=image_id, sureness=sureness, **_label(evaluation, row)))
    return {kind: rows[:LISTED] for kind, rows in doubts.items()}


def _label(evaluation: Evaluation, row: int) -> dict[str, Any]:
    label = evaluation.truth.anns[evaluation.objects.id[row]]
    name = evaluation.truth.cats[label['category_id']]['name']
    return dict(label=name, annotation_id=label['id'], label_box=label['bbox'])
