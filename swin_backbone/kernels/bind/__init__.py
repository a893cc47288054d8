"""Swin layers by the compiled library: this package's, and those of models that somebody else built."""

from ...models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinMLPBlock, SwinV2Block
from ...models.pyramid import SwinStage
from ...replace import register, register_refusal
from . import block, patches, stage

register(SwinStage.forward, 'native', stage.can_run, stage.run)
register(SwinBlock.forward, 'native', block.can_run, block.run)
register(SwinV2Block.forward, 'native', block.can_run, block.run)
register_refusal(SwinMLPBlock.forward, 'native', 'The compiled library has no block of Swin-MLP.')
register(PatchEmbed.forward, 'native', patches.can_embed, patches.embed)
register(PatchMerging.forward, 'native', patches.can_merge, patches.merge)
register(SwinStage.normalise_output, 'native', patches.can_normalise, patches.normalise)
