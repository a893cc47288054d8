"""Swin layers by the compiled library: this package's, and those of models that somebody else built."""

from ...models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinMLPBlock, SwinV2Block
from ...models.pyramid import SwinStage
from ...replace import register, register_refusal
from . import block, patches

register(SwinStage.forward, 'native', block.can_run_stage, block.run_stage)
register(SwinBlock.forward, 'native', block.can_run, block.run)
register(SwinV2Block.forward, 'native', block.can_run, block.run)
register_refusal(SwinMLPBlock.forward, 'native', 'The compiled library has no block of Swin-MLP.')
register(PatchEmbed.forward, 'native', patches.can_project, patches.project)
register(PatchMerging.forward, 'native', patches.can_project, patches.project)
register(SwinStage.normalise_output, 'native', patches.can_normalise, patches.normalise)
