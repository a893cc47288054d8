"""The focal loss of (N, classes) scores, as mmcv computes it on a GPU; here on any device.

A target is a class, or any other number for a row without a class. `weight` is empty, or has a number for each class.
"""

import torch
from torch import Tensor

from .bags import wide


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the loss of each score into `output`, (N, classes)."""
    p = wide(input).sigmoid()
    right = -alpha * (1 - p) ** gamma * _log(p)
    wrong = -(1 - alpha) * p**gamma * _log(1 - p)
    output.copy_(torch.where(_is_class(input, target), right, wrong) * _weight_of(target, weight)[:, None])


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the gradient in the scores into `grad_input`."""
    p = wide(input).sigmoid()
    right = -alpha * (1 - p) ** gamma * (1 - p - gamma * p * _log(p))
    wrong = -(1 - alpha) * p**gamma * (gamma * (1 - p) * _log(1 - p) - p)
    grad_input.copy_(torch.where(_is_class(input, target), right, wrong) * _weight_of(target, weight)[:, None])


def _log(p: Tensor) -> Tensor:
    return p.clamp(min=torch.finfo(torch.float32).tiny).log()


def _is_class(scores: Tensor, target: Tensor) -> Tensor:
    return target[:, None] == torch.arange(scores.shape[1], device=scores.device)


def _weight_of(target: Tensor, weight: Tensor) -> Tensor:
    if not weight.numel():
        return torch.ones(len(target), device=target.device)
    known = (target >= 0) & (target < len(weight))
    return torch.where(known, wide(weight)[target.clamp(0, len(weight) - 1)], 1)
