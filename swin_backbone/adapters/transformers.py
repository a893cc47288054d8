"""The backbones as a `Backbone` of transformers. Importing this file registers the backbones with the Auto classes.

`UperNetConfig`, `Mask2FormerConfig` and `DetrConfig` take a `SwinBackboneConfig` as `backbone_config`. Matched to
transformers 5.23: `transformers.backbone_utils`, `transformers.SwinBackbone`.
"""

import math
from typing import Any, Optional

import torch
from torch import Tensor, nn
from transformers import AutoBackbone, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin
from transformers.modeling_outputs import BackboneOutput

from ..models import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from ..models.layers.swin_v2_block import SwinV2Block
from .any_origin import accept_any_origin

FAMILIES: dict[str, Any] = {'v1': SwinBackbone, 'v2': SwinV2Backbone, 'mlp': SwinMLPBackbone}


class SwinBackboneConfig(BackboneConfigMixin, PreTrainedConfig):
    """The configuration of `SwinBackboneModel`.

    Args:
        family: 'v1', 'v2' or 'mlp'.
        arch: a published size.
        arguments: further ones of `SwinBackbone`, `SwinV2Backbone` or `SwinMLPBackbone`: `window_size`, `depths`, ...
        out_features: the outputs, of 'stage1' to 'stage4'; or `out_indices`, of 1 to 4, as transformers' Swin counts
            them. Default: the last.
    """

    model_type = 'swin_backbone'
    family: str = 'v1'
    arch: Optional[str] = 'tiny'
    arguments: Optional[dict[str, Any]] = None
    stage_names: Optional[list[Any]] = None
    _out_features: Optional[list[Any]] = None
    _out_indices: Optional[list[Any]] = None

    def __post_init__(self, **kwargs: Any) -> None:
        stages = len((self.arguments or {}).get('depths', (2, 2, 6, 2)))
        self.stage_names = ['stem', *(f'stage{stage + 1}' for stage in range(stages))]
        self.set_output_features_output_indices(
            out_indices=kwargs.pop('out_indices', None), out_features=kwargs.pop('out_features', None)
        )
        super().__post_init__(**kwargs)


class SwinBackboneModel(BackboneMixin, PreTrainedModel):
    """A backbone that `UperNetForSemanticSegmentation`, Mask2Former, DETR and other models of transformers take.

    Its folders (`save_pretrained`, `from_pretrained`, `push_to_hub`) have config.json and safetensors.
    """

    config_class = SwinBackboneConfig
    base_model_prefix = 'swin'
    main_input_name = 'pixel_values'
    supports_gradient_checkpointing = True
    has_attentions = False

    def __init__(self, config: SwinBackboneConfig):
        super().__init__(config)
        stages = [index - 1 for index in config.out_indices]
        self.backbone = FAMILIES[config.family](arch=config.arch, out_indices=stages, **(config.arguments or {}))
        self.num_features = [self.backbone.num_features[0], *self.backbone.num_features]
        accept_any_origin(self)
        self.post_init()

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether blocks are computed again in the backward pass: `with_cp`."""
        return bool(self.backbone.with_cp)

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enable: bool) -> None:
        self.backbone.with_cp = enable

    def forward(self, pixel_values: Tensor, return_dict: Optional[bool] = None, **_: Any) -> BackboneOutput:
        """Images of any size to maps (B, C, H, W). Hidden states and attention weights are not among the outputs."""
        maps = BackboneOutput(feature_maps=self.backbone(pixel_values))
        return maps if return_dict is not False else maps.to_tuple()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module like `init_weights` of the backbone. transformers calls for each module with weights.

        `nn.init` leaves weights alone that transformers has loaded.
        """
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif hasattr(module, 'reset_parameters'):
            module.reset_parameters()  # type: ignore[operator]
        blocks = [block for block in self.backbone.modules() if isinstance(block, SwinV2Block)]
        if any(module in (block.norm1, block.norm2) for block in blocks):  # a residual of Swin V2 begins at 0
            nn.init.zeros_(module.weight)  # type: ignore[arg-type]
        for name, weight in module.named_parameters(recurse=False):
            if name in ('relative_position_bias_table', 'absolute_pos_embed'):
                nn.init.trunc_normal_(weight, std=0.02)
            elif name == 'logit_scale':
                nn.init.constant_(weight, math.log(10))
            elif name in ('q_bias', 'v_bias'):
                nn.init.zeros_(weight)


AutoConfig.register(SwinBackboneConfig.model_type, SwinBackboneConfig)
AutoBackbone.register(SwinBackboneConfig, SwinBackboneModel)
