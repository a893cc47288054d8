"""Verify an exported file: run the file in a runtime and compare the results with PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from numpy.typing import NDArray

from .graph import ExportError, Graph
from .runtime import Result, RuntimeModel

VERIFIED_SIZES = ((224, 224), (97, 130), (250, 333))
BATCHES = (1, 2)
SAME_CORNERS = 0.05  # pixels
CLEAR_SCORE = 0.05  # rounding may add or remove an object with a lower score
FEW_OBJECTS = 10  # compared if no object is clear
TIE = 1e-6  # difference of equal logits, relative to the largest logit or 1
REMEDY = 'give --pictures with objects'
FEW_PIXELS = 400  # a smaller union of masks counts as so many: rounding decides pixels at a probability of 0.5

Run = Callable[..., Sequence[NDArray[Any]]]


class Tolerance(NamedTuple):
    """The largest difference between a file and PyTorch.

    Args:
        maps: largest error of a map, see `compute_map_error`.
        labels: smallest share of equal labels of pixels.
        objects: smallest share of objects with a match in the other result. Rounding may decide whether an object is
            suppressed.
        iou: smallest IoU of the boxes of a match.
        mask_iou: smallest IoU of the masks of a match. Rounding decides pixels at the edge of a mask.
        score: largest difference of the scores of a match.
    """

    maps: float
    labels: float
    objects: float
    iou: float
    mask_iou: float
    score: float


TOLERANCES = {
    'fp32': Tolerance(1e-4, labels=0.999, objects=0.95, iou=0.99, mask_iou=0.95, score=1e-3),
    'fp16': Tolerance(2e-2, labels=0.99, objects=0.9, iou=0.9, mask_iou=0.9, score=2e-2),
    'bf16': Tolerance(2e-1, labels=0.95, objects=0.8, iou=0.8, mask_iou=0.8, score=1e-1),
    'int8': Tolerance(2e-1, labels=0.8, objects=0.5, iou=0.5, mask_iou=0.5, score=0.25),
    'int8 by swin': Tolerance(1e-1, labels=0.9, objects=0.7, iou=0.7, mask_iou=0.7, score=0.15),  # maps: 0.02 expected
}


class Sample(NamedTuple):
    """A picture for the verification of a whole model.

    Args:
        name: name of the picture in messages.
        pixels: BGR, (h, w, bands).
        is_generated: not a photograph. A detector may find anything in noise, so a difference refuses no file.
    """

    name: str
    pixels: NDArray[Any]
    is_generated: bool = False


def verify_maps(run: Run, graph: Graph, precision: str, images: Sequence[NDArray[Any]] = ()) -> list[dict[str, Any]]:
    """Run images through a file and through PyTorch, and compare the maps.

    Args:
        images: inputs of the graph; empty: noise of several sizes.

    Returns:
        The errors of the maps by size and batch.

    Raises:
        ExportError: if an error is too large for the precision.
    """
    channels = graph.inputs[0].shape[1]
    if graph.is_free:
        shapes = [(batch, channels, *size) for size in VERIFIED_SIZES for batch in BATCHES]
    else:
        shapes = [graph.inputs[0].shape]
    figures = []
    generator = torch.Generator().manual_seed(0)
    for image in map(torch.from_numpy, images) if images else (torch.randn(s, generator=generator) for s in shapes):
        shape = image.shape
        with torch.no_grad():
            expected = [tensor.numpy() for tensor in graph.module(image)]
        errors = [compute_map_error(*pair, precision) for pair in zip(run([image.numpy()]), expected)]
        figures.append(dict(shape=list(shape), error=max(errors)))
        worst = int(np.argmax(errors))
        if not errors[worst] <= TOLERANCES[precision].maps:
            raise ExportError(
                f'verification failed: for an input of {"x".join(map(str, shape))} the output '
                f'{graph.outputs[worst].name} is {errors[worst]:.1e} off PyTorch, and {precision} allows '
                f'{TOLERANCES[precision].maps:.0e}'
            )
    return figures


def verify_results(
    model: RuntimeModel, reference: Callable[[NDArray[Any]], Result], samples: Sequence[Sample], precision: str
) -> list[dict[str, Any]]:
    """Run pictures through a file and through PyTorch, in batches of one and two, and compare the results.

    Args:
        reference: PyTorch's result for a picture.

    Returns:
        A figure for each run: name and size of the picture, and the result of `compare`. The figure of a generated
        picture with a difference that is too large has the key `difference`, a sentence.

    Raises:
        ExportError: if a difference in a picture that is not generated is too large for the precision.
    """
    figures = []
    max_objects = model.manifest['limits'].get('objects')
    is_free = isinstance(model.manifest['inputs'][0]['shape'][0], str)
    for sample in samples:
        expected = reference(sample.pixels)
        for batch in BATCHES if is_free else (1,):
            for result in model.predict([sample.pixels] * batch, batch):
                figure: dict[str, Any] = dict(name=sample.name, picture=list(sample.pixels.shape[:2]), batch=batch)
                figure.update(compare(result, expected, precision, max_objects))
                difference = _describe_difference(figure, precision)
                if difference and not sample.is_generated:
                    raise ExportError(
                        f'verification failed in {sample.name}: {difference}; --pictures compares others: {figure}'
                    )
                figures.append({**figure, 'difference': difference} if difference else figure)
    return figures


def _describe_difference(figure: dict[str, Any], precision: str) -> Optional[str]:
    """Return the difference that is too large for the precision, as a sentence; None without one."""
    tolerance = TOLERANCES[precision]
    for key, things, share in (
        ('equal_labels', 'labels', tolerance.labels),
        ('matched', 'objects', tolerance.objects),
    ):
        if figure.get(key, 1.0) < share:
            return f'{figure[key]:.2%} of the {things} are those of PyTorch, and {precision} takes {share:.1%}'
    return None


def describe_outcome(figures: Sequence[dict[str, Any]]) -> str:
    """Return the outcome of a verification in words: in how many pictures something is compared, and what differs."""
    names = {figure['name'] for figure in figures if 'name' in figure}
    if not names:  # of maps
        return 'verified'
    differences = {figure['name']: figure['difference'] for figure in figures if 'difference' in figure}
    equal = {figure['name'] for figure in figures if figure.get('compared')} - set(differences)
    if not equal and not differences:
        return f'not verified: nothing was compared, since PyTorch finds nothing in the pictures: {REMEDY}'
    words = 'verified' if equal == names else f'verified in {len(equal)} of {len(names)} pictures'
    if not equal:
        words = f'not verified: {REMEDY}'
    return '; '.join([words, *(f'{name}: {difference}' for name, difference in differences.items())])


def compare(
    result: Result, expected: Result, precision: str = 'fp32', max_objects: Optional[int] = None
) -> dict[str, Any]:
    """Compare the result of a file with PyTorch's.

    Args:
        max_objects: largest number of objects of the model. The last objects of a list of this length may differ.

    Returns:
        `compared`, the number of compared pixels or objects; 0 for pixels of a single class, which tell nothing. For
        labels, the share of labels with PyTorch's largest logit. For objects, the numbers in PyTorch and in the file,
        the share of both lists' objects `matched` in the other list within the tolerance, and the worst IoUs and score
        error.
    """
    if 'boxes' not in expected:
        labels = expected['labels']
        compared = labels.size if np.ptp(labels) else 0
        return dict(compared=compared, equal_labels=float(_find_agreement(result['labels'], expected).mean()))
    tolerance = TOLERANCES[precision]
    scores = np.concatenate([expected['scores'], result['scores']])
    full = [each['scores'].min() for each in (expected, result) if max_objects and len(each['scores']) == max_objects]
    # Rounding may move an object across the end of a list: the model's threshold, or the largest number of objects.
    min_score = max([CLEAR_SCORE, *full]) + tolerance.score
    if len(scores) and not (scores >= min_score).any():
        min_score = max(np.sort(scores)[-FEW_OBJECTS:][0], scores.min() + tolerance.score)
    matches = [
        *_match_objects(expected, result, min_score, tolerance),
        *_match_objects(result, expected, min_score, tolerance),
    ]
    figure: dict[str, Any] = dict(objects=len(expected['scores']), found=len(result['scores']), compared=len(matches))
    if matches:
        ious, mask_ious, errors, matched = np.array(matches).T
        figure.update(matched=float(matched.mean()), min_iou=float(ious.min()), score_error=float(errors.max()))
        if 'masks' in expected:
            figure.update(min_mask_iou=float(mask_ious.min()))
    return figure


def _find_agreement(labels_HW: NDArray[Any], expected: Result) -> NDArray[np.bool_]:
    """Return whether a pixel has PyTorch's label, or an equal logit: (H, W). Mask2Former's logits tie off objects."""
    logits_KHW = expected.get('logits')
    equal_HW: NDArray[np.bool_] = labels_HW == expected['labels']
    if logits_KHW is None or len(logits_KHW) == 1:  # a single logit is compared with a threshold
        return equal_HW
    logits_HW = np.take_along_axis(logits_KHW, labels_HW[None].astype(np.int64), 0)[0]
    ties_HW: NDArray[np.bool_] = logits_HW >= logits_KHW.max(0) - TIE * max(1.0, float(np.abs(logits_KHW).max()))
    return equal_HW | ties_HW


def _match_objects(
    result: Result, other: Result, min_score: float, tolerance: Tolerance
) -> list[tuple[float, float, float, bool]]:
    """Compare each object of a result with the most similar object of its class in another result.

    Objects have a score from `min_score` on, and an area: without one there is no IoU.

    Returns:
        IoU of boxes, IoU of masks, difference of scores, and whether these are within the tolerance, by object. Two
        objects never match the same one.
    """
    from mmdet.evaluation import bbox_overlaps

    has_area = (result['boxes'][:, :2] < result['boxes'][:, 2:]).all(1)
    is_free = np.ones(len(other['scores']), bool)
    matches = []
    for index in np.flatnonzero((result['scores'] >= min_score) & has_area):
        candidates = np.flatnonzero(is_free & (other['labels'] == result['labels'][index]))
        if not len(candidates):
            matches.append((0.0, 0.0, 1.0, False))  # 1: no two scores differ by more
            continue
        (ious,) = bbox_overlaps(result['boxes'][index : index + 1], other['boxes'][candidates])
        shifts = np.abs(result['boxes'][index] - other['boxes'][candidates]).max(1)
        ious = np.where(shifts <= SAME_CORNERS, 1.0, ious)  # the IoU of a box of few pixels falls with rounding
        errors = np.abs(other['scores'][candidates] - result['scores'][index])
        best = np.lexsort((errors, -np.round(ious, 3)))[0]
        iou, error = float(ious[best]), float(errors[best])
        mask_iou = 1.0
        if 'masks' in result:
            mask_iou = _compute_mask_iou(result['masks'][index], other['masks'][candidates[best]])
        matched = iou >= tolerance.iou and mask_iou >= tolerance.mask_iou and error <= tolerance.score
        is_free[candidates[best]] = not matched
        matches.append((iou, mask_iou, error, matched))
    return matches


def _compute_mask_iou(mask_HW: NDArray[Any], other_HW: NDArray[Any]) -> float:
    if mask_HW.shape != other_HW.shape:
        return 0.0
    return 1 - float((mask_HW ^ other_HW).sum()) / max(FEW_PIXELS, int((mask_HW | other_HW).sum()))


def compute_map_error(result: NDArray[Any], expected: NDArray[Any], precision: str = 'fp32') -> float:
    """Return the largest difference, relative to the largest value or 1; infinite for unequal shapes.

    In int8, both are root mean squares: a rare outlier does not count.
    """
    if result.shape != expected.shape:
        return float('inf')
    difference = result.astype(np.float32) - expected
    if precision.startswith('int8'):
        return float(np.linalg.norm(difference) / max(np.linalg.norm(expected), np.finfo(np.float32).tiny))
    return float(np.abs(difference).max() / max(1.0, np.abs(expected).max()))
