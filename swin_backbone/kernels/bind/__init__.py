"""Swin layers by the compiled library: this package's, and those of models that somebody else built."""

from ...models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinMLPBlock, SwinV2Block
from ...models.pyramid import SwinStage
from ...replace import register, register_refusal
from . import block, patches

register(SwinStage.forward, 'native', block.plan_stage)
register(SwinBlock.forward, 'native', block.plan_block)
register(SwinV2Block.forward, 'native', block.plan_block)
register_refusal(SwinMLPBlock.forward, 'native', 'The compiled library has no block of Swin-MLP.')
register(PatchEmbed.forward, 'native', patches.plan_projection)
register(PatchMerging.forward, 'native', patches.plan_projection)
register(SwinStage.normalise_output, 'native', patches.plan_output_norm)
