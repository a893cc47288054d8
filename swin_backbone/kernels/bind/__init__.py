"""Swin layers by the compiled library: this package's, and those of models that somebody else built."""

from typing import Any

from ...models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinMLPBlock, SwinV2Block
from ...models.pyramid import SwinStage
from ...replace import refuse, register
from . import block, patches, stage


def _refuse_swin_mlp(_block: Any, _x: Any, raise_error: bool = False) -> bool:
    return refuse('native', 'The compiled library has no block of Swin-MLP.', raise_error)


register(SwinStage.forward, 'native', stage.can_run, stage.run)
register(SwinBlock.forward, 'native', block.can_run, block.run)
register(SwinV2Block.forward, 'native', block.can_run, block.run)
register(SwinMLPBlock.forward, 'native', _refuse_swin_mlp, block.run)
register(PatchEmbed.forward, 'native', patches.can_embed, patches.embed)
register(PatchMerging.forward, 'native', patches.can_merge, patches.merge)
register(SwinStage.normalise_output, 'native', patches.can_normalise, patches.normalise)
