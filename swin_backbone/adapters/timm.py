"""The backbones as models of timm. Importing this file registers them.

Names are `swin_backbone_tiny`, `swinv2_backbone_tiny`, `swin_mlp_backbone_tiny`, and alike for all sizes of `ARCHS`,
`ARCHS_V2` and `ARCHS_MLP`. Matched to timm 1.0: `timm.models._builder`, `timm.models._features`.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Optional, Union

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import ClassifierHead
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import FeatureGetterNet, feature_take_indices
from torch import Tensor, nn

from ..archs import ARCHS, ARCHS_MLP, ARCHS_V2, Arch
from ..checkpoints.published import WEIGHT_URLS
from ..checkpoints.recognise import find_tensors
from ..models import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from .any_origin import accept_any_origin, fit_any_origin

TIMM_FAMILIES: dict[str, tuple[Any, dict[str, Arch]]] = {
    'swin_backbone': (SwinBackbone, ARCHS),
    'swinv2_backbone': (SwinV2Backbone, ARCHS_V2),
    'swin_mlp_backbone': (SwinMLPBackbone, ARCHS_MLP),
}
FAMILY_ARCHS: dict[Any, dict[str, Arch]] = dict(TIMM_FAMILIES.values())
__all__ = ['SwinFeatures', 'TimmSwin']  # timm appends the names of its models


class TimmSwin(nn.Module):
    """A backbone with timm's head, for `timm.create_model('swin_backbone_tiny')`.

    Parameters have the names of mmpretrain's classifiers: `backbone.` and `head.fc.`. The norm before the head is
    `backbone.norm3`.

    Args:
        family: `SwinBackbone`, `SwinV2Backbone` or `SwinMLPBackbone`.
        num_classes: of the head; 0: no head, the output is the pooled features.
        in_chans: channels of the input.
        global_pool: how the last map is pooled, as in timm; '': not at all.
        drop_rate: dropout before the head.
        proj_drop_rate: dropout inside the backbone, its `drop_rate`.
        features: stages with normalised maps, for a model without a head.
        output_stride: 32, or 16, 8, 4: later stages keep the resolution of an earlier one.
        backbone: further arguments of `family`.
    """

    def __init__(
        self,
        family: Any = SwinBackbone,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = 'avg',
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        features: Optional[Sequence[int]] = None,
        output_stride: int = 32,
        **backbone: Any,
    ):
        super().__init__()
        if features is None:  # as microsoft/Swin-Transformer's classifiers
            backbone.setdefault('small_map', 'shrink')
        depths = backbone.get('depths') or FAMILY_ARCHS[family][backbone['arch']].depths
        self.backbone = family(
            in_channels=in_chans,
            drop_rate=proj_drop_rate,
            strides=[4, *(2 if 4 << stage <= output_stride else 1 for stage in range(1, len(depths)))],
            out_indices=(len(depths) - 1,) if features is None else tuple(features),
            **backbone,
        )
        self.backbone.init_weights()
        self.feature_info = [
            dict(num_chs=channels, reduction=min(4 << stage, output_stride), module=f'backbone.stages.{stage}')
            for stage, channels in enumerate(self.backbone.num_features)
        ]
        self.num_features = self.head_hidden_size = self.backbone.num_features[-1]
        self.num_classes = num_classes
        self.drop_rate = drop_rate
        self.head = ClassifierHead(self.num_features, num_classes, pool_type=global_pool, drop_rate=drop_rate)
        accept_any_origin(self)

    def forward_features(self, x_BCHW: Tensor) -> Tensor:
        """Return the last map, normalised: (B, C, H, W)."""
        return self.backbone(x_BCHW)[-1]

    def forward_head(self, x_BCHW: Tensor, pre_logits: bool = False) -> Tensor:
        """Return logits (B, num_classes) of the last map, or with `pre_logits` the input of the linear layer."""
        return self.head(x_BCHW, pre_logits=pre_logits)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return logits (B, num_classes) of images of any size."""
        return self.forward_head(self.forward_features(x_BCHW))

    def forward_intermediates(
        self,
        x_BCHW: Tensor,
        indices: Union[int, Sequence[int], None] = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> Any:
        """Return the last map, and the maps (B, C, H, W) of several stages.

        Args:
            indices: the stages; an int: the number of last stages; None: all stages.
            norm: has no effect. With `features_only` all maps are normalised, in a classifier the last map alone.
            stop_early: has no effect. Stages after the last of `indices` are not computed.
            output_fmt: 'NCHW'.
            intermediates_only: return the maps of the stages alone.

        Raises:
            ValueError: for another `output_fmt`.
        """
        if output_fmt != 'NCHW':
            raise ValueError(f"output_fmt must be 'NCHW', got {output_fmt!r}")
        outputs, _ = feature_take_indices(len(self.feature_info), indices)
        last = self.backbone.out_indices[-1]
        stages = sorted({*outputs} if intermediates_only else {*outputs, last})
        maps = dict(zip(stages, self.backbone(x_BCHW, out_indices=stages)))
        intermediates = [maps[stage] for stage in outputs]
        return intermediates if intermediates_only else (maps[last], intermediates)

    def prune_intermediate_layers(
        self, indices: Union[int, Sequence[int]] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the head, and freeze the stages behind the last of `indices`."""
        outputs, last = feature_take_indices(len(self.feature_info), indices)
        if prune_head:
            self.reset_classifier(0, '')
        for stage, module in enumerate(self.backbone.stages):
            if stage > last:
                module.requires_grad_(False)
            if stage >= last and module.downsample is not None and not self.backbone.merging_first:
                module.downsample.requires_grad_(False)
        return list(outputs)

    def get_classifier(self) -> nn.Module:
        """Return the head's linear layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: Optional[str] = None) -> None:
        """Make a new head, for another number of classes."""
        self.num_classes = num_classes
        self.head.reset(num_classes, pool_type=global_pool)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Set `with_cp`: blocks are computed again in the backward pass."""
        self.backbone.with_cp = enable

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without weight decay, besides norms and biases."""
        pattern = re.compile(r'relative_position_bias_table|absolute_pos_embed|logit_scale|cpb_mlp')
        return {name for name, _ in self.named_parameters() if pattern.search(name)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return regular expressions of layers, for a learning rate that decays by layer."""
        stage = r'^backbone\.stages\.(\d+)'
        fine = [(stage + r'\.downsample', (0,)), (stage + r'\.blocks\.(\d+)', None), (r'^backbone\.norm', (99999,))]
        return dict(stem=r'^backbone\.(?:patch_embed|absolute_pos_embed)', blocks=stage if coarse else fine)


class SwinFeatures(FeatureGetterNet):
    """The model of `features_only=True`: returns the backbone's maps in a list."""

    def __init__(self, model: TimmSwin, **arguments: Any):
        super().__init__(model, **arguments)
        accept_any_origin(self)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """See `TimmSwin`."""
        self.model.set_grad_checkpointing(enable)


def _translate_checkpoint(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Translate a checkpoint; timm's `checkpoint_filter_fn`."""
    weights, _ = fit_any_origin(model, find_tensors(state_dict))
    return weights


def _create(name: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    kind, arch = VARIANTS[name]
    family, archs = TIMM_FAMILIES[kind]
    arguments = {'arch': arch, **arguments}
    if not arguments.pop('features_only', False):
        build, features = partial(TimmSwin, family), {}
    else:
        stages = len(arguments.get('depths') or archs[arguments['arch']].depths)
        outputs, _ = feature_take_indices(stages, arguments.pop('out_indices', (0, 1, 2, 3)))
        arguments.pop('feature_cls', None)
        build = partial(TimmSwin, family, features=sorted(outputs))
        features = dict(features_only=True, feature_cfg=dict(out_indices=outputs, feature_cls=SwinFeatures))
    return build_model_with_cfg(
        build,
        name,
        pretrained,
        pretrained_filter_fn=_translate_checkpoint,
        kwargs_filter=('img_size',),  # any size goes
        **features,
        **arguments,
    )


def _make_cfg(kind: str, arch: str) -> dict[str, Any]:
    """Return timm's default configuration of a model, and the address of its weights."""
    url = WEIGHT_URLS.get(f'{kind.removesuffix("_backbone")}-{arch[0]}', '')
    side = 224 if kind == 'swin_backbone' else 256
    return dict(
        url=url,
        num_classes=21841 if url.endswith('22k.pth') else 1000,
        input_size=(3, side, side),
        pool_size=(side // 32, side // 32),
        crop_pct=0.9,
        interpolation='bicubic',
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        first_conv=None,  # loading adapts it to `in_chans`
        classifier='head.fc',
        license='mit',
    )


VARIANTS = {
    f'{kind}_{arch}'.replace('-', '_'): (kind, arch) for kind, (_, archs) in TIMM_FAMILIES.items() for arch in archs
}
default_cfgs = generate_default_cfgs({name: _make_cfg(*variant) for name, variant in VARIANTS.items()})


def _register(name: str) -> None:
    def create(pretrained: bool = False, **arguments: Any) -> nn.Module:
        return _create(name, pretrained, **arguments)

    create.__name__ = create.__qualname__ = name
    register_model(create)


for _name in VARIANTS:
    _register(_name)
