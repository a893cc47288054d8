"""The backbones of `--backbone`, with their settings in a config. A new family is new rows."""

from typing import Any, Literal, NamedTuple, Optional

from ...archs import ARCHS, Arch

Task = Literal['detection', 'segmentation', 'classification']

_RELEASES = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/'
_RELEASES_V2 = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/'
_RELEASES_TIMM = 'https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-weights/'

# For 300 epochs of ImageNet-1K (section 4.1). The paper trains Large on ImageNet-22K alone; here it is as Base.
CLASSIFIERS_DROP_PATH_RATE = dict(tiny=0.2, small=0.3, base=0.5, large=0.5)


class Swin(NamedTuple):
    """A row: `type` and `arch` of the backbone, and the settings of its training."""

    arch: str
    weights: Optional[str]  # address of ImageNet weights; None: random initialisation
    drop_path_rate: float  # in detection; all segmentors of the paper have 0.3
    type: str = 'SwinBackbone'
    by_stage: tuple[tuple[str, tuple[int, ...]], ...] = ()  # arguments of the weights, a value for each stage

    @property
    def size(self) -> Arch:
        """Return width, depths and heads."""
        arch = ARCHS[self.arch]
        return arch._replace(depths=dict(self.by_stage).get('depths', arch.depths))

    @property
    def widths(self) -> list[int]:
        """Return the channels of each stage."""
        return [self.size.embed_dims << stage for stage in range(len(self.size.depths))]

    def config(self, task: Task, pretrained: bool = True) -> dict[str, Any]:
        """Return the backbone of a config, with published weights if `pretrained`."""
        cfg = dict(type=self.type, arch=self.arch, drop_path_rate=self.drop_path_rate, **dict(self.by_stage))
        if task == 'segmentation' and self.drop_path_rate:
            cfg['drop_path_rate'] = 0.3
        if task == 'classification':
            cfg.update(
                drop_path_rate=CLASSIFIERS_DROP_PATH_RATE.get(self.arch, 0.0), out_indices=(3,), small_map='shrink'
            )
        if self.weights and pretrained:
            cfg['init_cfg'] = dict(type='Pretrained', checkpoint=self.weights)
        elif not self.weights:  # the default std of 0.02 is for widths of 96 and more
            cfg['init_cfg'] = dict(type='Xavier', layer='Linear', distribution='normal')
        return cfg


SWINS: dict[str, Swin] = {
    'swin-nano': Swin('nano', None, 0.0),
    'swin-t': Swin('tiny', _RELEASES + 'swin_tiny_patch4_window7_224.pth', 0.2),
    'swin-s': Swin('small', _RELEASES + 'swin_small_patch4_window7_224.pth', 0.2),
    'swin-b': Swin('base', _RELEASES + 'swin_base_patch4_window7_224.pth', 0.3),
    'swin-l': Swin('large', _RELEASES + 'swin_large_patch4_window7_224_22k.pth', 0.3),
    # Windows and depths of a search (Chen et al. 2021, arXiv 2111.14725). microsoft/Cream publishes the weights without
    # the training, so drop path is Swin's.
    'swin-s3-t': Swin('tiny', _RELEASES_TIMM + 's3_t-1d53f6a8.pth', 0.2, by_stage=(('window_size', (7, 7, 14, 7)),)),
    'swin-s3-s': Swin('small', _RELEASES_TIMM + 's3_s-3bb4c69d.pth', 0.2, by_stage=(('window_size', (14, 14, 14, 7)),)),
    'swin-s3-b': Swin(
        'tiny',
        _RELEASES_TIMM + 's3_b-a1e95db4.pth',
        0.3,
        by_stage=(('depths', (2, 2, 30, 2)), ('window_size', (7, 7, 14, 7))),
    ),
    'swinv2-nano': Swin('nano', None, 0.0, 'SwinV2Backbone'),
    'swinv2-t': Swin('tiny', _RELEASES_V2 + 'swinv2_tiny_patch4_window8_256.pth', 0.2, 'SwinV2Backbone'),
    'swinv2-s': Swin('small', _RELEASES_V2 + 'swinv2_small_patch4_window8_256.pth', 0.2, 'SwinV2Backbone'),
    'swinv2-b': Swin('base', _RELEASES_V2 + 'swinv2_base_patch4_window8_256.pth', 0.3, 'SwinV2Backbone'),
    'swinv2-l': Swin(
        'large',
        _RELEASES_V2 + 'swinv2_large_patch4_window12to16_192to256_22kto1k_ft.pth',
        0.3,
        'SwinV2Backbone',
        (('window_size', (16, 16, 16, 8)), ('pretrained_window_sizes', (12, 12, 12, 6))),
    ),
}
