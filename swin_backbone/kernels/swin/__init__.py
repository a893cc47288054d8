"""The Swin layers of this package by the compiled library."""

from ...models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinMLPBlock, SwinV2Block
from ...models.pyramid import SwinStage
from ...replace import register_replacement
from . import swin_layers

register_replacement(SwinStage.forward, 'native', swin_layers.plan_stage)
register_replacement(SwinBlock.forward, 'native', swin_layers.plan_block)
register_replacement(SwinV2Block.forward, 'native', swin_layers.plan_block)
register_replacement(SwinMLPBlock.forward, 'native', lambda *_: 'The compiled library has no block of Swin-MLP.')
register_replacement(PatchEmbed.forward, 'native', swin_layers.plan_projection)
register_replacement(PatchMerging.forward, 'native', swin_layers.plan_projection)
register_replacement(SwinStage.normalise_output, 'native', swin_layers.plan_output_norm)
