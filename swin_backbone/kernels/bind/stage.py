"""The blocks of a stage by the compiled library: they share the backbone's sizes, `with_cp` and a map.

Layout: B batch, H W height and width of a map, C channels.
"""

from typing import Any

import torch
from mmengine.model import ModuleList
from torch import Tensor

from ...compat import is_hooked
from ...models.layers import SwinBlock, SwinV2Block
from . import block as block_binding
from .structure import can_read_map

FORWARDS = SwinBlock.forward, SwinV2Block.forward


def can_run(stage: Any, x_BHWC: Tensor, raise_error: bool = False) -> Any:
    """See `replace.Replacement`; Never raises: on False `SwinStage` calls the blocks, and each raises for itself."""
    if not can_read_map(stage, x_BHWC) or type(stage.blocks) is not ModuleList:
        return False
    blocks = []
    for block in stage.blocks:
        is_ours = type(block).forward in FORWARDS and not is_hooked(block)
        parts = is_ours and block_binding.can_run(block, None)
        if not parts:
            return False
        blocks.append(parts)
    return stage, blocks


def run(parts: tuple[Any, list[block_binding.Parts]], x_BHWC: Tensor) -> Tensor:
    """Run a stage, see `SwinStage.forward`.

    Without gradients, each block writes over the output of the block before. The input of the stage does not change.
    """
    (stage, blocks), out = parts, None
    for block in blocks:
        x_BHWC = block_binding.run(block, x_BHWC, stage.backbone_stages, stage.with_cp, out)
        out = None if torch.is_grad_enabled() else x_BHWC
    return x_BHWC
