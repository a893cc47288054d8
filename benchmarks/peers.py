"""Peers: implementations of Swin Transformer with the weights of SwinBackbone.

Layout: B batch, C channels, H W height and width.
"""

from collections.abc import Callable
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swin_backbone.archs import ARCHS
from swin_backbone.checkpoints.formats import HUGGING_FACE, TIMM, TORCHVISION, convert_to_format
from swin_backbone.compat import import_torchvision
from swin_backbone.models import SwinBackbone, SwinV2Backbone

FeatureMaps = list[Tensor]


class Peer(nn.Module):
    """A peer's backbone: images to four maps (B, C, H, W), normalised if the peer has output norms."""

    def __init__(self, model: nn.Module, run: Callable[[nn.Module, Tensor], FeatureMaps], has_output_norms: bool):
        super().__init__()
        self.model, self.run, self.has_output_norms = model, run, has_output_norms

    def forward(self, x_BCHW: Tensor) -> FeatureMaps:
        return self.run(self.model, x_BCHW)

    def normalised(self, x_BCHW: Tensor) -> FeatureMaps:
        """Return the maps of a `SwinBackbone` with untrained output norms: weight 1, bias 0."""
        maps: FeatureMaps = self(x_BCHW)
        if self.has_output_norms:
            return maps
        return [F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2) for x in maps]


def build_peer(name: str, arch: str, ours: Union[SwinBackbone, SwinV2Backbone], drop_path_rate: float = 0.0) -> Peer:
    """Build the backbone of 'mmdet', 'mmpretrain', 'timm', 'transformers' or 'torchvision', with our weights.

    For Swin V2, only 'mmpretrain', with the windows of our first stage.

    Raises:
        ImportError: if the peer is not installed.
        ValueError: if the peer has no Swin V2.
    """
    if isinstance(ours, SwinBackbone):
        return PEERS[name](arch, ours.state_dict(), drop_path_rate)
    if name != 'mmpretrain':
        raise ValueError(f'the peer of Swin V2 is mmpretrain, got {name!r}')
    return _mmpretrain(arch, ours.state_dict(), drop_path_rate, ours.window_size[0][0])


def _mmdet(arch: str, weights: dict[str, Tensor], drop_path_rate: float) -> Peer:
    import_torchvision()  # mmdet imports torchvision through mmpretrain
    from mmdet.models.backbones.swin import SwinTransformer

    embed_dims, depths, num_heads = ARCHS[arch]
    model = SwinTransformer(embed_dims=embed_dims, depths=depths, num_heads=num_heads, drop_path_rate=drop_path_rate)
    _load(model, weights)
    return Peer(model, lambda model, x: list(model(x)), has_output_norms=True)


def _mmpretrain(arch: str, weights: dict[str, Tensor], drop_path_rate: float, window: Optional[int] = None) -> Peer:
    """Build Swin V1 or, with a window, Swin V2."""
    import_torchvision()
    from mmpretrain.models import SwinTransformer, SwinTransformerV2

    sizes: dict[str, Any] = ARCHS[arch]._asdict()
    settings: dict[str, Any] = dict(drop_path_rate=drop_path_rate, out_indices=(0, 1, 2, 3), pad_small_map=True)
    if window is None:
        model = SwinTransformer(arch=sizes, **settings)
    else:
        model = SwinTransformerV2(arch=dict(sizes, extra_norm_every_n_blocks=0), window_size=window, **settings)
    _load(model, weights)
    return Peer(model, lambda model, x: list(model(x)), has_output_norms=True)


def _timm(arch: str, weights: dict[str, Tensor], drop_path_rate: float) -> Peer:
    import_torchvision()
    import timm

    embed_dim, depths, num_heads = ARCHS[arch]
    model = timm.create_model(
        'swin_tiny_patch4_window7_224',
        embed_dim=embed_dim,
        depths=depths,
        num_heads=num_heads,
        drop_path_rate=drop_path_rate,
        num_classes=0,
        strict_img_size=False,
    )
    _load(model, convert_to_format(weights, TIMM))

    def run(model: Any, x: Tensor) -> FeatureMaps:
        if model.patch_embed.img_size != tuple(x.shape[-2:]):  # timm makes masks for one size, and windows grow
            model.set_input_size(img_size=tuple(x.shape[-2:]), window_size=7, always_partition=True)
        x, maps = model.patch_embed(x), []
        for layer in model.layers:
            x = layer(x)
            maps.append(x.permute(0, 3, 1, 2))
        return maps

    return Peer(model, run, has_output_norms=False)


def _transformers(arch: str, weights: dict[str, Tensor], drop_path_rate: float) -> Peer:
    import_torchvision()  # transformers imports torchvision
    import transformers

    embed_dim, depths, num_heads = ARCHS[arch]
    stages = [f'stage{number}' for number in range(1, len(depths) + 1)]
    config = transformers.SwinConfig(
        embed_dim=embed_dim, depths=depths, num_heads=num_heads, out_features=stages, drop_path_rate=drop_path_rate
    )
    # transformers' loader translates old names of weights.
    model = transformers.SwinBackbone.from_pretrained(
        None, config=config, state_dict=convert_to_format(weights, HUGGING_FACE), dtype=torch.float32
    )
    return Peer(model, lambda model, x: list(model(x).feature_maps), has_output_norms=True)


def _torchvision(arch: str, weights: dict[str, Tensor], drop_path_rate: float) -> Peer:
    import_torchvision()
    from torchvision.models.swin_transformer import SwinTransformer

    embed_dim, depths, num_heads = ARCHS[arch]
    model = SwinTransformer(
        [4, 4], embed_dim, list(depths), list(num_heads), [7, 7], stochastic_depth_prob=drop_path_rate
    )
    _load(model, convert_to_format(weights, TORCHVISION))

    def run(model: Any, x: Tensor) -> FeatureMaps:
        maps = []
        for index, layer in enumerate(model.features):
            x = layer(x)
            if index % 2:  # even layers embed and merge patches
                maps.append(x.permute(0, 3, 1, 2))
        return maps

    return Peer(model, run, has_output_norms=False)


PEERS = dict(mmdet=_mmdet, mmpretrain=_mmpretrain, timm=_timm, transformers=_transformers, torchvision=_torchvision)


def _load(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load weights under the names of a peer. Output norms, buffers and heads may stay."""
    missing = model.load_state_dict(weights, strict=False).missing_keys
    names = {name for name, _ in model.named_parameters()}
    left = {name for name in missing if name in names and not name.startswith(('norm.', 'head.'))}
    if left:
        raise ValueError(f'{type(model).__name__} has parameters that our weights do not fill: {sorted(left)[:5]}')


def largest_difference(ours: nn.Module, peer: Peer, x_BCHW: Tensor) -> float:
    """Return the largest difference of all outputs on the images."""
    with torch.no_grad():
        pairs = zip(ours(x_BCHW), peer.normalised(x_BCHW))
        return max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
