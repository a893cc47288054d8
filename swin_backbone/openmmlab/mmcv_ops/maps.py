"""Operators on whole maps: CARAFE, masked convolution, PSA's masks, active rotating filters."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .bags import differentiate


def carafe_forward(
    features: Tensor, masks: Tensor, rfeatures: Tensor, routput: Tensor, rmasks: Tensor, output: Tensor, **sizes: int
) -> None:
    """Upsample as CARAFE: an output is a sum over the kernel around the source, with weights per output.

    Args:
        features: (B, C, H, W).
        masks: (B, group_size * kernel_size^2, H * scale_factor, W * scale_factor).
        rfeatures: receives the features for `carafe_backward`; `routput` and `rmasks` of mmcv are unused.
        output: (B, C, H * scale_factor, W * scale_factor).
    """
    rfeatures.copy_(features)
    output.copy_(_reassemble(features, masks, **sizes))


def carafe_backward(*tensors: Tensor, **sizes: int) -> None:
    """Write the gradients of `carafe_forward` into `grad_features` and `grad_masks`."""
    grad_output, features, masks, *_buffers, grad_features, grad_masks = tensors
    gradients = differentiate(lambda x, weights: _reassemble(x, weights, **sizes), (features, masks), grad_output)
    grad_features.copy_(gradients[0])
    grad_masks.copy_(gradients[1])


def _reassemble(features: Tensor, masks: Tensor, kernel_size: int, group_size: int, scale_factor: int) -> Tensor:
    batch, channels, height, width = features.shape
    around = F.unfold(features, kernel_size, padding=kernel_size // 2)
    around = around.view(batch, group_size, channels // group_size, kernel_size**2, height, width)
    weights = masks.view(batch, group_size, kernel_size**2, height, scale_factor, width, scale_factor)
    out = torch.einsum('bgckhw,bgkhiwj->bgchiwj', around, weights)
    return out.reshape(batch, channels, height * scale_factor, width * scale_factor)


def masked_im2col_forward(
    im: Tensor,
    mask_h_idx: Tensor,
    mask_w_idx: Tensor,
    col: Tensor,
    kernel_h: int,
    kernel_w: int,
    pad_h: int,
    pad_w: int,
) -> None:
    """Write the columns of a convolution at some positions: (1, C, H, W) into (C * kernel_h * kernel_w, positions)."""
    padded = F.pad(im[0], (pad_w, kernel_w, pad_h, kernel_h))
    rows = mask_h_idx + torch.arange(kernel_h, device=im.device).view(-1, 1, 1)
    columns = mask_w_idx + torch.arange(kernel_w, device=im.device).view(-1, 1)
    col.copy_(padded[:, rows, columns].view(col.shape))


def masked_col2im_forward(
    col: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, im: Tensor, height: int, width: int, channels: int
) -> None:
    """Write (channels, positions) into the positions of (1, channels, height, width)."""
    im[0][:, mask_h_idx, mask_w_idx] = col


def psamask_forward(input: Tensor, output: Tensor, **settings: int) -> None:
    """Write PSANet's attention maps from masks around each position: (B, h_mask * w_mask, H, W) into (B, H * W, H, W).

    Args:
        psa_type: 0 for 'collect', with the attended position as channel; 1 for 'distribute', the transpose.
    """
    output.copy_(_psa_maps(input, **settings).view(output.shape))


def psamask_backward(grad_output: Tensor, grad_input: Tensor, **settings: int) -> None:
    """Add the gradient to `grad_input`."""
    (grad,) = differentiate(lambda x: _psa_maps(x, **settings), (grad_input,), grad_output.flatten(2))
    grad_input += grad


def _psa_maps(
    x: Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> Tensor:
    rows, columns = torch.arange(h_feature, device=x.device), torch.arange(w_feature, device=x.device)
    down = (rows[:, None] - rows + half_h_mask)[:, None, :, None]
    right = (columns[:, None] - columns + half_w_mask)[None, :, None, :]
    inside = (down >= 0) & (down < h_mask) & (right >= 0) & (right < w_mask)
    index = torch.where(inside, down * w_mask + right, 0).view(1, h_feature * w_feature, -1)  # in the mask
    collected = x.flatten(2).gather(1, index.expand(num_, -1, -1)) * inside.view(index.shape)
    return collected.transpose(1, 2).contiguous() if psa_type == 1 else collected


def active_rotated_filter_forward(input: Tensor, indices: Tensor, output: Tensor) -> None:
    """Rotate ORN's filters: (O, I, orientations, kH, kW) into (O * rotations, I * orientations, kH, kW).

    Args:
        indices: int32 (orientations, kH, kW, rotations), the target of each weight, counted from 1.
    """
    output.copy_(_rotate(input, indices))


def active_rotated_filter_backward(grad_out: Tensor, indices: Tensor, grad_in: Tensor) -> None:
    """Write the gradient into `grad_in`."""
    grad_in.copy_(differentiate(lambda filters: _rotate(filters, indices), (grad_in,), grad_out)[0])


def _rotate(filters: Tensor, indices: Tensor) -> Tensor:
    inner, orientations, *kernel = filters.shape[1:]
    weight_at = (indices.flatten(0, 2).long() - 1).argsort(0)  # of each target and rotation
    turned = filters.flatten(2)[..., weight_at.t()].transpose(1, 2)
    return turned.reshape(-1, inner * orientations, *kernel)
