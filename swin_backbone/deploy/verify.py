"""Whether what was exported computes what PyTorch does: the file in its own runtime, against the model it is of."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from .graph import ExportError, Graph
from .runtime import Model, Result

SIZES = ((224, 224), (97, 130), (250, 333))
BATCHES = (1, 2)
# How far maps may be off, in units of the largest value, or of 1 if that is less.
MAP_TOLERANCE = {'fp32': 1e-4, 'fp16': 2e-2, 'bf16': 2e-1, 'int8': float('inf')}
LABEL_TOLERANCE = {'fp32': 0.999, 'fp16': 0.99, 'bf16': 0.95, 'int8': 0.0}  # share of pixels that must be equal
MATCH_IOU = 0.99
SCORE_TOLERANCE = {'fp32': 1e-3, 'fp16': 2e-2, 'bf16': 1e-1, 'int8': float('inf')}
CLEAR_SCORE = 0.05  # an object below may come or go with the last digit

Run = Callable[..., Sequence[np.ndarray]]


def verify_maps(run: Run, graph: Graph, precision: str) -> list[dict]:
    """Made images through a file and through PyTorch.

    Returns:
        For each size and batch how far the maps are off.

    Raises:
        ExportError: if one is further off than its precision allows.
    """
    channels = graph.inputs[0].shape[1]
    if graph.free:
        shapes = [(batch, channels, *size) for size in SIZES for batch in BATCHES]
    else:
        shapes = [graph.inputs[0].shape]
    figures = []
    generator = torch.Generator().manual_seed(0)
    for shape in shapes:
        image = torch.randn(shape, generator=generator)
        with torch.no_grad():
            wanted = [one.numpy() for one in graph.module(image)]
        got = run([image.numpy()])
        errors = [map_error(*pair) for pair in zip(got, wanted)]
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
    model: Model, wanted: Callable[[np.ndarray], Result], pictures: Sequence, precision: str
) -> list[dict]:
    """Pictures through a file and through PyTorch, one at a time and two, whose results must be alike.

    Args:
        wanted: what PyTorch sees on a picture.

    Raises:
        ExportError: if a result is further off than its precision allows.
    """
    figures = []
    for picture in pictures:
        truth = wanted(picture)
        free = isinstance(model.info['inputs'][0]['shape'][0], str)
        for batch in BATCHES if free else (1,):
            for got in model.predict([picture] * batch, batch):
                figure = dict(picture=list(picture.shape[:2]), batch=batch, **compare(got, truth))
                figures.append(figure)
                _judge(figure, precision)
    return figures


def compare(got: Result, wanted: Result) -> dict:
    """How alike two results are."""
    if 'boxes' not in wanted:
        return dict(equal_labels=float((got['labels'] == wanted['labels']).mean()))
    clear = np.flatnonzero(wanted['scores'] >= CLEAR_SCORE)
    ious = [_best_match(got, wanted, index) for index in clear]
    figure = dict(objects=len(clear), found=len(got['scores']))
    if ious:
        figure.update(
            least_iou=float(min(iou for iou, _, _ in ious)), score_error=float(max(error for _, error, _ in ious))
        )
        if 'masks' in wanted:
            figure.update(least_mask_iou=float(min(mask for _, _, mask in ious)))
    return figure


def _judge(figure: dict, precision: str) -> None:
    where = f'on a picture of {"x".join(map(str, figure["picture"]))}, batch {figure["batch"]}, '
    if 'equal_labels' in figure and figure['equal_labels'] < LABEL_TOLERANCE[precision]:
        raise ExportError(
            f'verification failed: {where}{figure["equal_labels"]:.2%} of the labels are those of PyTorch, and '
            f'{precision} asks for {LABEL_TOLERANCE[precision]:.1%}'
        )
    if precision == 'int8' or 'least_iou' not in figure:
        return
    if figure['least_iou'] < (MATCH_IOU if precision == 'fp32' else 0.9):
        raise ExportError(
            f'verification failed: {where}an object of PyTorch is matched at IoU {figure["least_iou"]:.3f}'
        )
    if figure['score_error'] > SCORE_TOLERANCE[precision]:
        raise ExportError(f'verification failed: {where}a score is {figure["score_error"]:.1e} off PyTorch')


def _best_match(got: Result, wanted: Result, index: int) -> tuple[float, float, float]:
    """Of the object in `got` most like one of `wanted`, of its class: box IoU, how far the score is off, mask IoU."""
    same = np.flatnonzero(got['labels'] == wanted['labels'][index])
    if not len(same):
        return 0.0, float('inf'), 0.0
    ious = box_iou(wanted['boxes'][index], got['boxes'][same])
    errors = np.abs(got['scores'][same] - wanted['scores'][index])
    best = same[np.lexsort((errors, -np.round(ious, 3)))[0]]
    mask_iou = 1.0
    if 'masks' in wanted:
        one, other = wanted['masks'][index], got['masks'][best]
        union = (one | other).sum()
        mask_iou = float((one & other).sum() / union) if union else 1.0
    return float(ious.max()), float(abs(got['scores'][best] - wanted['scores'][index])), mask_iou


def box_iou(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Intersection over union of one box (4,) with each of others (n, 4)."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    intersection = np.clip(sides, 0, None).prod(1)
    area = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(1) - intersection
    return intersection / np.maximum(area, 1e-9)


def map_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, in units of the largest value, or of 1 if that is less; infinite for another shape."""
    if got.shape != wanted.shape:
        return float('inf')
    return float(np.abs(got.astype(np.float32) - wanted).max() / max(1.0, np.abs(wanted).max()))
