"""Relative position bias tables of a checkpoint: as trained, and for another window.

Layout: R offsets in a window, h heads.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checkpoints.recognise import extract_swin, find_tensors
from ...checkpoints.resize import infer_square, resize_table
from ...positions import log_spaced_coordinates
from ...sizes import Size


def find_bias_tables(
    loaded: Any, stage: int, block: int, new_window: Optional[Size] = None, window_size: Optional[Size] = None
) -> list[tuple[Tensor, Size]]:
    """Return a block's bias as trained, and for `new_window`: resized (Swin V1) or computed (Swin V2).

    A bias is a table (R, h) of the offsets between two places of a window, with the size of the window.

    Args:
        loaded: result of `read_checkpoint`.
        stage, block: numbers, from 1.
        new_window: (height, width). Default: twice the window of the checkpoint.
        window_size: window of the training, if the checkpoint does not name it. Default: square, for Swin V1.

    Raises:
        ValueError: if the checkpoint has no such block or no Swin, or its window is unknown.
    """
    weights = extract_swin(find_tensors(loaded))
    prefix = f'stages.{stage - 1}.blocks.{block - 1}.attn.w_msa.'
    weights_of_block = {
        name.removeprefix(prefix): value for name, value in weights.backbone.items() if name.startswith(prefix)
    }
    if not weights_of_block:
        raise ValueError(f'the checkpoint has no block {block} in a stage {stage}')
    is_v1 = 'relative_position_bias_table' in weights_of_block
    name = 'relative_position_bias_table' if is_v1 else 'logit_scale'
    window_sizes = weights.window_sizes if is_v1 else weights.pretrained_window_sizes
    window = window_size or window_sizes.get(prefix + name)
    if window is None and is_v1:
        window = infer_square(weights_of_block[name])
    if window is None:
        raise ValueError('the checkpoint does not name the window of its training: give window_size')
    new_window = new_window or (2 * window[0], 2 * window[1])
    if not is_v1:
        return [(_compute_bias(weights_of_block, size, window), size) for size in (window, new_window)]
    table_Rh = weights_of_block[name].float()
    return [(table_Rh, window), (resize_table(table_Rh, window, new_window)[0], new_window)]


def _compute_bias(weights: dict[str, Tensor], window_size: Size, trained_window: Size) -> Tensor:
    """Return Swin V2's bias of each offset (Liu et al. 2022, equations 3 and 4): (R, h)."""
    coordinates_R2 = log_spaced_coordinates(window_size, trained_window, torch.device('cpu'), torch.float32)
    hidden = F.linear(coordinates_R2, weights['cpb_mlp.0.weight'].float(), weights['cpb_mlp.0.bias'].float()).relu()
    return 16 * F.linear(hidden, weights['cpb_mlp.2.weight'].float()).sigmoid()
