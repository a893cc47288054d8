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
# The allowed error of maps, see `map_error`. 'int8 by swin' is of nodes of the library: an error of 0.02 is expected.
MAP_TOLERANCE = {'fp32': 1e-4, 'fp16': 2e-2, 'bf16': 2e-1, 'int8': 2e-1, 'int8 by swin': 1e-1}
# The least share of equal labels and of matched objects.
# Rounding decides if an object near the threshold of suppression is dropped.
LEAST = {
    'equal_labels': {'fp32': 0.999, 'fp16': 0.99, 'bf16': 0.95, 'int8': 0.8, 'int8 by swin': 0.9},
    'matched': {'fp32': 0.95, 'fp16': 0.9, 'bf16': 0.8, 'int8': 0.5, 'int8 by swin': 0.7},
}
MATCH_IOU = {'fp32': 0.99, 'fp16': 0.9, 'bf16': 0.8, 'int8': 0.5, 'int8 by swin': 0.7}
# Rounding decides pixels at the edge of a mask.
MATCH_MASK_IOU = {**MATCH_IOU, 'fp32': 0.95}
SCORE_TOLERANCE = {'fp32': 1e-3, 'fp16': 2e-2, 'bf16': 1e-1, 'int8': 0.25, 'int8 by swin': 0.15}
SAME_CORNERS = 0.05  # pixels
CLEAR_SCORE = 0.05  # rounding may add or remove an object with a lower score
FEW_OBJECTS = 10  # the best are compared if no object is clear
TIE = 1e-6  # difference of equal logits, relative to the largest logit or 1
REMEDY = 'give --pictures with objects'
FEW_PIXELS = 400  # least pixels of a mask in an IoU: rounding decides pixels at a probability of 0.5

Run = Callable[..., Sequence[NDArray[Any]]]


class Sample(NamedTuple):
    """A picture for the verification of a whole model.

    Args:
        name: of the picture in messages.
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
    if graph.free:
        shapes = [(batch, channels, *size) for size in VERIFIED_SIZES for batch in BATCHES]
    else:
        shapes = [graph.inputs[0].shape]
    figures = []
    generator = torch.Generator().manual_seed(0)
    for image in map(torch.from_numpy, images) if images else (torch.randn(s, generator=generator) for s in shapes):
        shape = image.shape
        with torch.no_grad():
            expected = [tensor.numpy() for tensor in graph.module(image)]
        got = run([image.numpy()])
        errors = [map_error(*pair, precision) for pair in zip(got, expected)]
        figures.append(dict(shape=list(shape), error=max(errors)))
        worst = int(np.argmax(errors))
        if not errors[worst] <= MAP_TOLERANCE[precision]:
            raise ExportError(
                f'verification failed: for an input of {"x".join(map(str, shape))} the output '
                f'{graph.outputs[worst].name} is {errors[worst]:.1e} off PyTorch, and {precision} allows '
                f'{MAP_TOLERANCE[precision]:.0e}'
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
    most = model.info['limits'].get('objects')
    is_free = isinstance(model.info['inputs'][0]['shape'][0], str)
    for sample in samples:
        expected = reference(sample.pixels)
        for batch in BATCHES if is_free else (1,):
            for got in model.predict([sample.pixels] * batch, batch):
                figure: dict[str, Any] = dict(name=sample.name, picture=list(sample.pixels.shape[:2]), batch=batch)
                figure.update(compare(got, expected, precision, most))
                difference = _difference(figure, precision)
                if difference and not sample.is_generated:
                    raise ExportError(f'verification failed in {sample.name}: {difference}: {figure}')
                figures.append({**figure, 'difference': difference} if difference else figure)
    return figures


def _difference(figure: dict[str, Any], precision: str) -> Optional[str]:
    """Return the difference that is too large for the precision, as a sentence; None: there is none."""
    for name, parts in (('equal_labels', 'labels'), ('matched', 'objects')):
        least = LEAST[name][precision]
        if figure.get(name, 1.0) < least:
            return f'{figure[name]:.2%} of the {parts} are those of PyTorch, and {precision} takes {least:.1%}'
    return None


def outcome(figures: Sequence[dict[str, Any]]) -> str:
    """Return the outcome of a verification in words: how many pictures compared something, and what differs."""
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


def compare(got: Result, expected: Result, precision: str = 'fp32', most: Optional[int] = None) -> dict[str, Any]:
    """Compare two results.

    Args:
        most: the model's largest number of objects. Of a full list, the last objects may differ.

    Returns:
        `compared`, the number of compared pixels or objects; 0 for pixels of a single class, which tell nothing. For
        labels, the share of labels with PyTorch's largest logit. For objects, the numbers in PyTorch and in the file,
        the share of both lists' objects `matched` in the other list within the precision's IoU of boxes and masks and
        its score, and the worst IoUs and score error.
    """
    if 'boxes' not in expected:
        labels = expected['labels']
        compared = labels.size if np.ptp(labels) else 0
        return dict(compared=compared, equal_labels=float(_agrees(got['labels'], expected).mean()))
    tolerance, scores = SCORE_TOLERANCE[precision], np.concatenate([expected['scores'], got['scores']])
    full = [side['scores'].min() for side in (expected, got) if most and len(side['scores']) == most]
    # Rounding may move an object over the end of a list: the model's threshold, or the largest number of objects.
    least = max([CLEAR_SCORE, *full]) + tolerance
    if len(scores) and not (scores >= least).any():
        least = max(np.sort(scores)[-FEW_OBJECTS:][0], scores.min() + tolerance)
    pairs = [(expected, got, index) for index in _clear(expected, least)]
    pairs += [(got, expected, index) for index in _clear(got, least)]
    figure: dict[str, Any] = dict(objects=len(expected['scores']), found=len(got['scores']), compared=len(pairs))
    if pairs:
        ious, errors, mask_ious = np.array([_best_match(other, side, index) for side, other, index in pairs]).T
        matched = (ious >= MATCH_IOU[precision]) & (errors <= tolerance) & (mask_ious >= MATCH_MASK_IOU[precision])
        figure.update(matched=float(matched.mean()), least_iou=float(ious.min()), score_error=float(errors.max()))
        if 'masks' in expected:
            figure.update(least_mask_iou=float(mask_ious.min()))
    return figure


def _clear(result: Result, least: float) -> NDArray[Any]:
    """Return the indices of objects with a score of at least `least` and an area; without an area there is no IoU."""
    return np.flatnonzero((result['scores'] >= least) & (result['boxes'][:, :2] < result['boxes'][:, 2:]).all(1))


def _agrees(labels_HW: NDArray[Any], expected: Result) -> NDArray[np.bool_]:
    """Return the places with PyTorch's label or an equal logit: (H, W). Without objects, Mask2Former's logits tie."""
    logits_KHW = expected.get('logits')
    equal_HW: NDArray[np.bool_] = labels_HW == expected['labels']
    if logits_KHW is None or len(logits_KHW) == 1:  # a single logit is compared with a threshold
        return equal_HW
    logits_HW = np.take_along_axis(logits_KHW, labels_HW[None].astype(np.int64), 0)[0]
    ties_HW: NDArray[np.bool_] = logits_HW >= logits_KHW.max(0) - TIE * max(1.0, float(np.abs(logits_KHW).max()))
    return equal_HW | ties_HW


def _best_match(got: Result, expected: Result, index: int) -> tuple[float, float, float]:
    """Return box IoU, score error and mask IoU of the best match in `got` for an object of `expected`, by class."""
    from mmdet.evaluation import bbox_overlaps

    same = np.flatnonzero(got['labels'] == expected['labels'][index])
    if not len(same):
        return 0.0, float('inf'), 0.0
    (ious,) = bbox_overlaps(expected['boxes'][index : index + 1], got['boxes'][same])
    shifts = np.abs(expected['boxes'][index] - got['boxes'][same]).max(1)
    ious = np.where(shifts <= SAME_CORNERS, 1.0, ious)  # the IoU of a box of few pixels falls with rounding
    errors = np.abs(got['scores'][same] - expected['scores'][index])
    best = same[np.lexsort((errors, -np.round(ious, 3)))[0]]
    mask_iou = 1.0
    if 'masks' in expected:
        mask, other = expected['masks'][index], got['masks'][best]
        mask_iou = 0.0
        if mask.shape == other.shape:
            mask_iou = 1 - float((mask ^ other).sum()) / max(FEW_PIXELS, (mask | other).sum())
    return float(ious.max()), float(abs(got['scores'][best] - expected['scores'][index])), mask_iou


def map_error(got: NDArray[Any], expected: NDArray[Any], precision: str = 'fp32') -> float:
    """Return the largest difference, relative to the largest value or 1; infinite for unequal shapes.

    In int8, both are root mean squares: a rare outlier does not count.
    """
    if got.shape != expected.shape:
        return float('inf')
    difference = got.astype(np.float32) - expected
    if precision.startswith('int8'):
        return float(np.linalg.norm(difference) / max(np.linalg.norm(expected), np.finfo(np.float32).tiny))
    return float(np.abs(difference).max() / max(1.0, np.abs(expected).max()))
