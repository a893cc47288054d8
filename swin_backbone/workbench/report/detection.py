"""Which predictions of a detector find which objects, and average precision, by pycocotools."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional

import numpy as np
import rich.progress
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval, Params
from rich.console import Console

from ...silence import silent

FOUND_IOU = 0.5  # a prediction with this IoU, or the next one of iouThrs, finds an object
Array = NDArray[Any]
track = partial(rich.progress.track, console=Console(stderr=True))  # shows progress


class Objects(NamedTuple):
    """The N labelled objects, in the order of pictures. `picture` and `label` count from 0, by the order of ids."""

    id: Array
    picture: Array
    label: Array
    is_crowd: Array  # neither found nor missed


class Predictions(NamedTuple):
    """The D predictions that COCOeval counts at IoU `FOUND_IOU`, by class, then picture, then falling score."""

    result: Array  # index in the results
    picture: Array
    label: Array
    score: Array
    match: Array  # index of the found object, or -1


class Evaluation(NamedTuple):
    """The COCOeval of boxes or masks.

    Arrays have T values of IoU, R = 101 of recall, K classes, 4 areas and M numbers of predictions in a picture.
    """

    truth: COCO
    results: Sequence[Mapping[str, Any]]
    params: Params  # catIds and imgIds are sorted
    names: list[str]  # of the classes
    totals: Array  # (K,), objects of each class without crowds
    precision: Array  # (T, R, K, 4, M), -1 for a class without objects
    stats: list[Optional[float]]  # AP, at IoU 0.5, at 0.75, and of small, medium and large objects: see `compute_stats`
    objects: Objects
    predictions: Predictions
    is_found: Array  # (N,), objects that a prediction finds

    def overlaps(self, predictions: Array, objects: Array) -> Array:
        """Return the IoU of predictions and objects of a picture, (D, N). With a crowd: the covered share.

        Args:
            predictions, objects: indices of the fields `predictions` and `objects`.
        """
        annotations = [self.truth.anns[annotation_id] for annotation_id in self.objects.id[objects]]
        key = 'bbox' if self.params.iouType == 'bbox' else 'segmentation'
        predicted = [self.results[index][key] for index in self.predictions.result[predictions]]
        if not (predicted and annotations):
            return np.zeros((len(predicted), len(annotations)))
        shared: Array = coco_mask.iou(
            predicted,
            [annotation[key] for annotation in annotations],
            [int(annotation['iscrowd']) for annotation in annotations],
        )
        return shared


class _FastCOCOeval(COCOeval):
    """COCOeval, in a fraction of its time for pictures without an object of the class, where nothing is compared."""

    def computeIoU(self, imgId: Any, catId: Any) -> Any:
        return super().computeIoU(imgId, catId) if self._gts[imgId, catId] else []

    def evaluateImg(self, imgId: Any, catId: Any, aRng: Any, maxDet: int) -> Any:
        if self._gts[imgId, catId] or not self._dts[imgId, catId]:
            return super().evaluateImg(imgId, catId, aRng, maxDet)
        results = sorted(self._dts[imgId, catId], key=lambda result: -result['score'])[:maxDet]
        is_other_size = np.array([not aRng[0] <= result['area'] <= aRng[1] for result in results])
        num_thresholds = len(self.params.iouThrs)
        return dict(
            dtIds=[result['id'] for result in results],
            dtScores=[result['score'] for result in results],
            dtMatches=np.zeros((num_thresholds, len(results))),
            dtIgnore=is_other_size[None].repeat(num_thresholds, 0),
            gtIgnore=np.zeros(0),
        )


def evaluate(truth: COCO, results: Sequence[Mapping[str, Any]], params: Params) -> Evaluation:
    """Evaluate predictions as COCOeval, a class at a time, in a fraction of its memory.

    Args:
        truth: its annotations get the keys of COCOeval, and masks become RLE.
        results: COCO results, with bbox and, for masks, segmentation.
        params: iouType, iouThrs, maxDets; catIds and imgIds, if they are not all of `truth`.
    """
    category_ids = np.unique(params.catIds or truth.getCatIds()).tolist()
    image_ids = np.unique(params.imgIds or truth.getImgIds()).tolist()
    picture_of, label_of = ({key: index for index, key in enumerate(ids)} for ids in (image_ids, category_ids))
    rows = [
        (item['id'], picture_of[item['image_id']], label_of[item['category_id']], item['iscrowd'])
        for item in truth.anns.values()
        if item['image_id'] in picture_of and item['category_id'] in label_of
    ]
    rows.sort(key=lambda row: row[1])
    id_N, picture_N, label_N, crowd_N = np.array(rows, int).reshape(-1, 4).T
    objects = Objects(id_N, picture_N, label_N, crowd_N.astype(bool))
    object_of = {annotation_id: index for index, annotation_id in enumerate(id_N.tolist())}
    by_category: dict[int, list[int]] = defaultdict(list)
    for index, result in enumerate(results):
        by_category[result['category_id']].append(index)
    evaluation = _FastCOCOeval(iouType=params.iouType)
    params.iouThrs = np.asarray(params.iouThrs, float)
    evaluation.cocoGt, evaluation.params = truth, params
    iou_index = np.abs(params.iouThrs - FOUND_IOU).argmin()
    shape = len(params.iouThrs), len(params.recThrs), len(category_ids), len(params.areaRng), len(params.maxDets)
    precision = -np.ones(shape)
    counted: list[Array] = [np.empty((3, 0), int)]  # index in the results, label and match, by class and picture
    for label, category_id in enumerate(track(category_ids, f'evaluating {params.iouType}')):
        seen_ids = {results[index]['image_id'] for index in by_category[category_id]}
        seen_ids.update(image_ids[picture] for picture in objects.picture[objects.label == label])
        if not seen_ids:
            continue
        params.catIds, params.imgIds = [category_id], sorted(seen_ids)
        unused = 'bbox' if params.iouType == 'segm' else 'segmentation'  # loadRes would take the area from it
        results_of_class = [
            {key: value for key, value in results[index].items() if key != unused} for index in by_category[category_id]
        ]
        with silent():  # pycocotools prints
            evaluation.cocoDt = truth.loadRes(results_of_class) if results_of_class else COCO()
            evaluation.evaluate()
            evaluation.accumulate()
        precision[:, :, label] = evaluation.eval['precision'][..., 0, :, :]
        for entry in filter(None, evaluation.evalImgs[: len(seen_ids)]):  # of all areas
            kept = entry['dtIgnore'][iou_index] == 0
            matches = [object_of[int(match)] if match else -1 for match in entry['dtMatches'][iou_index][kept]]
            indices = [by_category[category_id][result_id - 1] for result_id in np.array(entry['dtIds'], int)[kept]]
            counted.append(np.array([indices, [label] * len(indices), matches], int))
    index_D, label_D, match_D = np.concatenate(counted, axis=1)
    params.catIds, params.imgIds = category_ids, image_ids
    picture_D = np.array([picture_of[results[index]['image_id']] for index in index_D], int)
    score_D = np.array([results[index]['score'] for index in index_D], float)
    predictions = Predictions(index_D, picture_D, label_D, score_D, match_D)
    names = [truth.cats[category_id]['name'] for category_id in category_ids]
    totals = np.bincount(label_N[~objects.is_crowd], minlength=len(category_ids))
    is_found = np.isin(np.arange(len(id_N)), match_D)
    stats = compute_stats(precision, params)
    return Evaluation(truth, results, params, names, totals, precision, stats, objects, predictions, is_found)


def compute_stats(precision: Array, params: Params) -> list[Optional[float]]:
    """Return AP, AP at IoU 0.5 and 0.75, and AP of small, medium and large objects; None without objects.

    All predictions of a picture count, up to the last of maxDets. `summarize` of COCOeval counts a hundred.

    Args:
        precision: COCOeval's precision of all or some classes, (T, R, K, 4, M).
    """
    precision = precision[..., -1]
    by_iou = [precision[np.isclose(params.iouThrs, iou), ..., 0] for iou in (0.5, 0.75)]
    return [*map(mean_precision, (precision[..., 0], *by_iou, *(precision[..., area] for area in (1, 2, 3))))]


def mean_precision(precision: Array) -> Optional[float]:
    """Return the mean of a part of COCOeval's precision, or None without objects."""
    counted = precision[precision > -1]
    return float(np.mean(counted)) if counted.size else None
