"""Focal losses of (N, classes) scores, as mmcv computes them on a GPU; here on any device.

A target is a class, or for the sigmoid any other number, for the softmax a negative one, where none of them is right.
`weight` has one number a class, or is empty.
"""

import torch
from torch import Tensor

from .bags import wide


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """The loss of each score, into `output`, (N, classes)."""
    p = wide(input).sigmoid()
    right = -alpha * (1 - p) ** gamma * _log(p)
    wrong = -(1 - alpha) * p**gamma * _log(1 - p)
    output.copy_(torch.where(_is_class(input, target), right, wrong) * _weight_of(target, weight)[:, None])


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Its gradient in the scores, into `grad_input`."""
    p = wide(input).sigmoid()
    right = -alpha * (1 - p) ** gamma * (1 - p - gamma * p * _log(p))
    wrong = -(1 - alpha) * p**gamma * (gamma * (1 - p) * _log(1 - p) - p)
    grad_input.copy_(torch.where(_is_class(input, target), right, wrong) * _weight_of(target, weight)[:, None])


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """The loss of each row of `input`, which are probabilities (N, classes), into `output`, (N,)."""
    p = wide(input).gather(1, target.clamp(min=0)[:, None])[:, 0]
    loss = -alpha * (1 - p) ** gamma * _log(p)
    output.copy_(torch.where(target >= 0, loss, 0) * _weight_of(target, weight))


def softmax_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, buff: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Its gradient in the scores before the softmax, into `grad_input`; `buff` (N,) gets the part that a row shares."""
    probabilities = wide(input)
    p = probabilities.gather(1, target.clamp(min=0)[:, None])[:, 0]
    shared = alpha * (gamma * (1 - p) ** (gamma - 1) * p * _log(p) - (1 - p) ** gamma)
    buff.copy_(torch.where(target >= 0, shared, 0) * _weight_of(target, weight))
    grad_input.copy_(wide(buff)[:, None] * (_is_class(input, target).to(probabilities) - probabilities))


def _log(p: Tensor) -> Tensor:
    return p.clamp(min=torch.finfo(torch.float32).tiny).log()


def _is_class(scores: Tensor, target: Tensor) -> Tensor:
    return target[:, None] == torch.arange(scores.shape[1], device=scores.device)


def _weight_of(target: Tensor, weight: Tensor) -> Tensor:
    if not weight.numel():
        return torch.ones(len(target), device=target.device)
    known = (target >= 0) & (target < len(weight))
    return torch.where(known, wide(weight)[target.clamp(0, len(weight) - 1)], 1)
