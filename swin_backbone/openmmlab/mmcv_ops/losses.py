"""The focal loss of (N, classes) scores, as mmcv computes it on a GPU; here on any device.

A target is a class, or any other number for a row without a class. `weight` is empty, or has a number for each class.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .bags import differentiate, widen


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the loss of each score into `output`, (N, classes)."""
    output.copy_(_focal_loss(widen(input), target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the gradient in the scores into `grad_input`."""
    scores = widen(input)
    (grad,) = differentiate(lambda x: _focal_loss(x, target, weight, gamma, alpha), (scores,), torch.ones_like(scores))
    grad_input.copy_(grad)


def _focal_loss(scores: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float) -> Tensor:
    right = -alpha * torch.sigmoid(-scores) ** gamma * F.logsigmoid(scores)
    wrong = -(1 - alpha) * torch.sigmoid(scores) ** gamma * F.logsigmoid(-scores)
    is_class = target[:, None] == torch.arange(scores.shape[1], device=scores.device)
    loss = torch.where(is_class, right, wrong)
    if not weight.numel():
        return loss
    has_weight = (target >= 0) & (target < len(weight))
    return loss * torch.where(has_weight, widen(weight)[target.clamp(0, len(weight) - 1)], 1)[:, None]
