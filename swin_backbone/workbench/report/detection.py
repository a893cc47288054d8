"""Average precision by class, size and IoU from pycocotools' own arrays, and precision, recall and F1 by threshold."""

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

FOUND_IOU = 0.5  # a prediction with this IoU finds an object
THRESHOLDS = np.arange(101) / 100  # of scores

Array = NDArray[Any]
Results = Sequence[dict[str, Any]]  # COCO results: image_id, category_id, score, bbox and, for masks, segmentation
Track = Callable[[Iterable[Any], str], Iterable[Any]]  # shows progress


def untracked(items: Iterable[Any], _description: str = '') -> Iterable[Any]:
    """Return the items themselves."""
    return items


class Objects(NamedTuple):
    """The labelled objects of all pictures, in the order of pictures: arrays of length N.

    `picture` and `label` count from 0, by the order of ids. Crowds (`is_crowd`) are neither found nor missed.
    """

    id: Array
    picture: Array
    label: Array
    area: Array
    is_crowd: Array


class Found(NamedTuple):
    """The predictions that pycocotools counts, at IoU `FOUND_IOU`, by class, then picture, then falling score.

    Predictions on crowds are left out.
    """

    result: Array  # (D,), index in the results
    picture: Array
    label: Array
    score: Array
    match: Array  # (D,), index of the found object, or -1


class Evaluation(NamedTuple):
    """What pycocotools counts for boxes or masks.

    Shapes have T values of IoU, R = 101 of recall, K classes, A = 4 sizes and M numbers of predictions a picture.
    """

    precision: Array  # (T, R, K, A, M), -1 for a class without objects
    stats: Array  # (12,), of `COCOeval.summarize`
    ious: Array  # (T,)
    objects: Objects
    found: Found

    @property
    def totals(self) -> Array:
        """Return the number of objects of each class, (K,)."""
        return np.bincount(self.objects.label[~self.objects.is_crowd], minlength=self.precision.shape[2])

    @property
    def is_found(self) -> Array:
        """Return for each object whether a prediction finds it, (N,)."""
        return np.isin(np.arange(len(self.objects.id)), self.found.match)


def evaluate(
    truth: COCO,
    results: Results,
    iou_type: str,
    categories: Optional[Sequence[int]] = None,
    max_dets: Sequence[int] = (1, 10, 100),
    ious: Optional[Sequence[float]] = None,
    track: Track = untracked,
) -> Evaluation:
    """Evaluate predictions as `COCOeval` does, a class at a time, in a fraction of its memory.

    Args:
        truth: its annotations get the keys of COCOeval, and masks become RLE.
        iou_type: 'bbox' or 'segm'.
        categories: ids. Default: all of `truth`.
        max_dets, ious: COCOeval's `maxDets` and `iouThrs`.
    """
    categories = np.unique(truth.getCatIds() if categories is None else categories).tolist()
    pictures = np.unique(truth.getImgIds()).tolist()
    objects = _objects(truth, pictures, categories)
    params = COCOeval(iouType=iou_type).params
    params.maxDets = sorted(max_dets)
    wanted = params.iouThrs if ious is None else np.atleast_1d(np.asarray(ious, float))
    params.iouThrs = np.union1d(wanted, FOUND_IOU)
    shape = (len(params.iouThrs), len(params.recThrs), len(categories), len(params.areaRng), len(max_dets))
    precision, recall = -np.ones(shape), -np.ones((shape[0], *shape[2:]))
    by_class: dict[int, list[int]] = defaultdict(list)
    for index, result in enumerate(results):
        by_class[result['category_id']].append(index)
    row_of = dict(zip(objects.id.tolist(), range(len(objects.id))))
    parts = []
    for label, category in enumerate(track(categories, f'evaluating {iou_type}')):
        indices = by_class[category]
        seen = {results[index]['image_id'] for index in indices}
        seen.update(pictures[row] for row in objects.picture[objects.label == label])
        if not seen:
            continue
        with redirect_stdout(io.StringIO()):
            evaluation = COCOeval(truth, _as_coco(truth, results, indices, iou_type), iou_type)
            evaluation.params = params
            params.catIds, params.imgIds = [category], sorted(seen)
            evaluation.evaluate()
            evaluation.accumulate()
        precision[:, :, label] = evaluation.eval['precision'][:, :, 0]
        recall[:, label] = evaluation.eval['recall'][:, 0]
        at = int(np.searchsorted(params.iouThrs, FOUND_IOU))
        entries = [entry for entry in evaluation.evalImgs[: len(seen)] if entry is not None]
        of_entries = ((entry['dtIds'], entry['dtMatches'][at], entry['dtIgnore'][at]) for entry in entries)
        ids, matches, ignored = (np.concatenate(part) for part in zip(*of_entries))
        rows = np.array([row_of[int(match)] if match else -1 for match in matches], int)
        counted = ~ignored.astype(bool)
        parts.append((ids[counted].astype(int) - 1, np.full(counted.sum(), label), rows[counted]))
    index, labels, match = (np.concatenate([np.empty(0, int), *part]) for part in (list(zip(*parts)) or [()] * 3))
    number_of = dict(zip(pictures, range(len(pictures))))
    picture = np.array([number_of[results[i]['image_id']] for i in index], int)
    score = np.array([results[i]['score'] for i in index], float)
    kept = np.isin(params.iouThrs, wanted)
    summary = COCOeval(iouType=iou_type)
    params.iouThrs = wanted
    summary.params, summary.eval = params, dict(precision=precision[kept], recall=recall[kept])
    with redirect_stdout(io.StringIO()):
        summary.summarize()
    return Evaluation(precision[kept], summary.stats, wanted, objects, Found(index, picture, labels, score, match))


def mean_precision(precision: Array) -> Optional[float]:
    """Return the mean of a part of COCOeval's precision, or None without objects."""
    counted = precision[precision > -1]
    return float(np.mean(counted)) if counted.size else None


def overlaps(truth: COCO, results: Results, rows: Array, ids: Array, iou_type: str) -> Array:
    """Return the IoU of predictions (D,) and objects (N,) of a picture, (D, N). With a crowd: the covered share."""
    annotations = [truth.anns[number] for number in ids]
    if not len(rows) or not annotations:
        return np.zeros((len(rows), len(annotations)))
    key = 'bbox' if iou_type == 'bbox' else 'segmentation'
    crowds = [int(annotation['iscrowd']) for annotation in annotations]
    found = [results[row][key] for row in rows]
    shared: Array = coco_mask.iou(found, [annotation[key] for annotation in annotations], crowds)
    return shared


def _objects(truth: COCO, pictures: Sequence[int], categories: Sequence[int]) -> Objects:
    number_of, label_of = dict(zip(pictures, range(len(pictures)))), dict(zip(categories, range(len(categories))))
    rows = [
        (item['id'], number_of[item['image_id']], label_of[item['category_id']], item['area'], bool(item['iscrowd']))
        for item in truth.anns.values()
        if item['image_id'] in number_of and item['category_id'] in label_of
    ]
    rows.sort(key=lambda row: row[1])
    kinds = (int, int, int, float, bool)
    return Objects(*(np.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)))


def _as_coco(truth: COCO, results: Results, indices: Sequence[int], iou_type: str) -> COCO:
    """Return some results as `COCO.loadRes` does, also if there are none."""
    found = COCO()
    annotations = [dict(results[index], id=index + 1, iscrowd=0) for index in indices]
    for annotation in annotations:
        width, height = annotation['bbox'][2:]
        is_mask = iou_type == 'segm'
        annotation['area'] = coco_mask.area(annotation['segmentation']) if is_mask else width * height
    found.dataset = dict(images=truth.dataset['images'], annotations=annotations)
    found.createIndex()
    return found
