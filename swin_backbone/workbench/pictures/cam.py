"""Class activation maps on the outputs of a backbone: Grad-CAM and EigenCAM.

Layout: B batch, C channels, H W height and width of a map.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .attention import find_backbone


def reshape_transform(x_BHWC: Tensor) -> Tensor:
    """Return the output of a block or output norm as maps (B, C, H, W).

    For the package grad-cam: `GradCAM(model, [backbone.norm3], reshape_transform=reshape_transform)`.
    """
    return x_BHWC.permute(0, 3, 1, 2)


def grad_cam(activations_BCHW: Tensor, gradients_BCHW: Tensor) -> Tensor:
    """Return the positive sum of channels, weighted by mean gradients (Selvaraju et al. 2017, equations 1, 2)."""
    weights_BC11 = gradients_BCHW.mean((2, 3), keepdim=True)
    return (weights_BC11 * activations_BCHW).sum(1).relu()


def eigen_cam(activations_BCHW: Tensor) -> Tensor:
    """Return the first principal component of the channels (Muhammad and Yeasin 2020, arXiv 2008.00299): (B, H, W)."""
    map_BT = find_principal_components(activations_BCHW, 1)[..., 0]
    map_BHW: Tensor = map_BT.relu().unflatten(1, activations_BCHW.shape[2:])
    return map_BHW


def find_principal_components(maps_BCHW: Tensor, count: int) -> Tensor:
    """Return the first principal components of the channels: (B, H * W, count) in float32.

    The sign makes the largest deviation positive.
    """
    features_BTC = maps_BCHW.flatten(2).transpose(1, 2).float()
    centred_BTC = features_BTC - features_BTC.mean(1, keepdim=True)
    axes_BCN = torch.linalg.svd(centred_BTC, full_matrices=False).Vh[:, :count].transpose(1, 2)
    values_BTN: Tensor = centred_BTC @ axes_BCN
    return values_BTN * values_BTN.gather(1, values_BTN.abs().argmax(1, keepdim=True)).sign()


def class_activation_map(model: nn.Module, score: Callable[[], Tensor], stage: int, method: str = 'grad') -> Tensor:
    """Return the influence of each place of a stage's map on a score: (B, H, W), from 0 to 1.

    Args:
        model: a model with a `SwinBackbone` or `SwinV2Backbone`.
        score: runs the model and returns the score. EigenCAM does not use the score.
        stage: number of the stage, from 1. The map is the output after the norm or, if the score depends on that alone,
            before the norm.
        method: 'grad' or 'eigen'.

    Raises:
        ValueError: for another stage, or if the score has no gradient at the stage.
    """
    backbone = find_backbone(model)
    last = max(backbone.out_indices) + 1
    if not 1 <= stage <= last:
        raise ValueError(f'stage must be from 1 to {last}, got {stage}')
    # The map after the norm comes first: before the norm, a few very large tokens hide the rest.
    modules = [getattr(backbone, f'norm{stage - 1}', None), backbone.stages[stage - 1].blocks[-1]]
    outputs: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, _inputs: tuple[Any, ...], x_BHWC: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not x_BHWC.requires_grad:  # the layers before are frozen
            x_BHWC = x_BHWC.detach().requires_grad_()
        outputs.setdefault(module, x_BHWC)
        return x_BHWC

    handles = [module.register_forward_hook(keep) for module in modules if module is not None]
    try:
        with torch.set_grad_enabled(method == 'grad'):
            value = score()
    finally:
        for handle in handles:
            handle.remove()
    maps_BHWC = [outputs[module] for module in modules if module in outputs]
    if method == 'eigen':
        return _scale_to_one(eigen_cam(reshape_transform(maps_BHWC[0])))
    gradients = torch.autograd.grad(value, maps_BHWC, allow_unused=True) if value.requires_grad else ()
    for map_BHWC, gradient_BHWC in zip(maps_BHWC, gradients):
        if gradient_BHWC is not None and gradient_BHWC.any():
            return _scale_to_one(grad_cam(reshape_transform(map_BHWC.detach()), reshape_transform(gradient_BHWC)))
    raise ValueError(f"the score has no gradient at stage {stage}; method 'eigen' needs none")


def _scale_to_one(map_BHW: Tensor) -> Tensor:
    return map_BHW / map_BHW.amax((1, 2), keepdim=True).clamp(min=torch.finfo(map_BHW.dtype).tiny)
