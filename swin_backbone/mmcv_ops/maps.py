"""Operators on whole maps: CARAFE, masked convolution, PSA's masks, active rotating filters."""

import torch
import torch.nn.functional as F
from torch import Tensor


def carafe_forward(
    features: Tensor, masks: Tensor, rfeatures: Tensor, routput: Tensor, rmasks: Tensor, output: Tensor, **sizes: int
) -> None:
    """Upsample as CARAFE: an output is a sum over the kernel around the source, with weights per output.

    Args:
        features: (B, C, H, W).
        masks: (B, group_size * kernel_size^2, H * scale_factor, W * scale_factor).
        rfeatures: gets the features for `carafe_backward`; `routput` and `rmasks` of mmcv are unused.
        output: (B, C, H * scale_factor, W * scale_factor).
    """
    rfeatures.copy_(features)
    output.copy_(_reassemble(features, masks, **sizes))


def carafe_backward(
    top_grad: Tensor,
    rfeatures: Tensor,
    masks: Tensor,
    rtop_grad: Tensor,
    rbottom_grad_hs: Tensor,
    rbottom_grad: Tensor,
    rmask_grad: Tensor,
    bottom_grad: Tensor,
    mask_grad: Tensor,
    **sizes: int,
) -> None:
    """Write the gradients of `carafe_forward` into `bottom_grad` and `mask_grad`."""
    with torch.enable_grad():
        inputs = rfeatures.detach().requires_grad_(), masks.detach().requires_grad_()
        out = _reassemble(inputs[0], inputs[1], **sizes)
    for target, gradient in zip((bottom_grad, mask_grad), torch.autograd.grad(out, inputs, top_grad)):
        target.copy_(gradient)


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


def psamask_forward(input: Tensor, output: Tensor, *, psa_type: int, num_: int, **sizes: int) -> None:
    """Write PSANet's attention maps from masks around each position: (B, h_mask * w_mask, H, W) into (B, H * W, H, W).

    Args:
        psa_type: 0 for 'collect', with the attended position as channel; 1 for 'distribute', the transpose.
    """
    index, inside = _psa_index(input, **sizes)
    collected = input.flatten(2).gather(1, index.expand(num_, -1, -1)) * inside
    if psa_type == 1:
        collected = collected.transpose(1, 2)
    output.copy_(collected.reshape(output.shape))


def psamask_backward(grad_output: Tensor, grad_input: Tensor, *, psa_type: int, num_: int, **sizes: int) -> None:
    """Add the gradient to `grad_input`."""
    index, inside = _psa_index(grad_input, **sizes)
    grad = grad_output.flatten(2)
    if psa_type == 1:
        grad = grad.transpose(1, 2)
    spread = torch.zeros_like(grad_input).flatten(2).scatter_add_(1, index.expand(num_, -1, -1), grad * inside)
    grad_input += spread.view(grad_input.shape)


def _psa_index(
    x: Tensor, h_feature: int, w_feature: int, h_mask: int, w_mask: int, half_h_mask: int, half_w_mask: int
) -> tuple[Tensor, Tensor]:
    """Return the place in the mask for each pair of positions, (H * W, H * W), and whether the mask covers the pair."""
    rows, columns = torch.arange(h_feature, device=x.device), torch.arange(w_feature, device=x.device)
    down = (rows[:, None] - rows + half_h_mask)[:, None, :, None]
    right = (columns[:, None] - columns + half_w_mask)[None, :, None, :]
    inside = (down >= 0) & (down < h_mask) & (right >= 0) & (right < w_mask)
    index = torch.where(inside, down * w_mask + right, 0)
    return index.view(h_feature * w_feature, -1), inside.view(h_feature * w_feature, -1)


def active_rotated_filter_forward(input: Tensor, indices: Tensor, output: Tensor) -> None:
    """Rotate ORN's filters: (O, I, orientations, kH, kW) into (O * rotations, I * orientations, kH, kW).

    Args:
        indices: int32 (orientations, kH, kW, rotations), the target of each weight, counted from 1.
    """
    places, weights = _places(indices), input.flatten(2)
    turned = torch.empty(len(places), *weights.shape, dtype=input.dtype, device=input.device)
    turned.scatter_(3, places[:, None, None].expand_as(turned), weights.expand_as(turned))
    output.copy_(turned.transpose(0, 1).reshape(output.shape))


def active_rotated_filter_backward(grad_out: Tensor, indices: Tensor, grad_in: Tensor) -> None:
    """Write the gradient into `grad_in`."""
    places = _places(indices)
    grad = grad_out.reshape(grad_in.shape[0], len(places), grad_in.shape[1], -1).transpose(0, 1)
    grad_in.copy_(grad.gather(3, places[:, None, None].expand_as(grad)).sum(0).view(grad_in.shape))


def _places(indices: Tensor) -> Tensor:
    return indices.flatten(0, 2).t().long() - 1
