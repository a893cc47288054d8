"""Predictions that do not depend on the other pictures of a batch."""

from collections.abc import Callable
from typing import Any

import torch


def predict_by_shape(step: Callable[[Any], Any], batch: Any) -> Any:
    """Call a model's `test_step` for the pictures of each shape in turn. Samples have the order of the batch.

    Toolboxes pad the pictures of a batch to one shape. A model sees the padding, so predictions would depend on the
    other pictures of the batch.

    Args:
        step: `val_step` or `test_step`.
        batch: a batch as `pseudo_collate` of mmengine makes it; for test-time augmentation, each value is a list of
            views, and a view has an entry for each picture. A batch of another form is one call.
    """
    inputs: Any = batch.get('inputs') if isinstance(batch, dict) else None
    has_views = _is_list(inputs) and all(map(_is_list, inputs))
    views = inputs if has_views else [inputs]
    if not all(_is_list(view) and all(isinstance(picture, torch.Tensor) for picture in view) for view in views):
        return step(batch)
    groups: dict[Any, list[int]] = {}
    for index, pictures in enumerate(zip(*views)):
        groups.setdefault(tuple(picture.shape for picture in pictures), []).append(index)
    if len(groups) < 2:
        return step(batch)
    samples: dict[int, Any] = {}
    for indices in groups.values():

        def select(values: Any, indices: list[int] = indices) -> list[Any]:
            return [values[index] for index in indices]

        group = {name: list(map(select, values)) if has_views else select(values) for name, values in batch.items()}
        samples.update(zip(indices, step(group)))
    return [samples[index] for index in range(len(samples))]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
