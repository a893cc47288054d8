"""Predict a batch of pictures of several shapes as each picture alone."""

from collections.abc import Callable
from typing import Any

import torch
from mmengine.model import BaseTTAModel, is_model_wrapper


def predict_by_shape(model: Any) -> None:
    """Let `val_step` and `test_step` of a model compute the pictures of each shape together, in place.

    Toolboxes pad the pictures of a batch to one shape. A model sees the padding, so predictions would depend on the
    other pictures of the batch.
    """
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    for name in ('val_step', 'test_step'):
        step = getattr(model, name, None)
        if step is not None and not isinstance(step, ByShape):
            setattr(model, name, ByShape(step))


class ByShape:
    """A `test_step` that is called for the pictures of each shape in turn. Samples have the order of the batch."""

    def __init__(self, step: Callable[[Any], Any]):
        self.step = step

    def __call__(self, data: Any) -> Any:
        inputs = data.get('inputs') if isinstance(data, dict) else None
        groups: dict[torch.Size, list[int]] = {}
        if isinstance(inputs, (list, tuple)) and all(isinstance(picture, torch.Tensor) for picture in inputs):
            for index, picture in enumerate(inputs):
                groups.setdefault(picture.shape, []).append(index)
        if len(groups) < 2:
            return self.step(data)
        samples: dict[int, Any] = {}
        for indices in groups.values():
            part = {name: [values[index] for index in indices] for name, values in data.items()}
            samples.update(zip(indices, self.step(part)))
        return [samples[index] for index in range(len(samples))]
