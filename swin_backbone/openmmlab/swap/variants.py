"""The backbones of `--backbone`, with their settings in a config. A new family is new rows."""

from typing import Any, Literal, NamedTuple, Optional

from ...archs import ARCHS, Arch
from ...checkpoints.published import WEIGHT_URLS

Task = Literal['detection', 'segmentation', 'classification']

# For 300 epochs of ImageNet-1K (section 4.1). The paper trains Large only on ImageNet-22K; here it is as Base.
CLASSIFIERS_DROP_PATH_RATE = dict(tiny=0.2, small=0.3, base=0.5, large=0.5)


class Swin(NamedTuple):
    """A row: `type` and `arch` of the backbone, and the settings of its training."""

    arch: str
    weights: Optional[str]  # address of ImageNet weights; None: random initialisation
    drop_path_rate: float  # in detection; all segmentors of the paper have 0.3
    type: str = 'SwinBackbone'
    by_stage: tuple[tuple[str, tuple[int, ...]], ...] = ()  # arguments by stage that the weights require

    @property
    def size(self) -> Arch:
        """Return width, depths and heads."""
        arch = ARCHS[self.arch]
        return arch._replace(depths=dict(self.by_stage).get('depths', arch.depths))

    @property
    def widths(self) -> list[int]:
        """Return the channels of each stage."""
        return [self.size.embed_dims << stage for stage in range(len(self.size.depths))]

    def make_config(self, task: Task, pretrained: bool = True) -> dict[str, Any]:
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
    'swin-t': Swin('tiny', WEIGHT_URLS['swin-t'], 0.2),
    'swin-s': Swin('small', WEIGHT_URLS['swin-s'], 0.2),
    'swin-b': Swin('base', WEIGHT_URLS['swin-b'], 0.3),
    'swin-l': Swin('large', WEIGHT_URLS['swin-l'], 0.3),
    # Windows and depths of a search (Chen et al. 2021, arXiv 2111.14725). microsoft/Cream publishes the weights without
    # the training, so drop path is Swin's.
    'swin-s3-t': Swin('tiny', WEIGHT_URLS['swin-s3-t'], 0.2, by_stage=(('window_size', (7, 7, 14, 7)),)),
    'swin-s3-s': Swin('small', WEIGHT_URLS['swin-s3-s'], 0.2, by_stage=(('window_size', (14, 14, 14, 7)),)),
    'swin-s3-b': Swin(
        'tiny',
        WEIGHT_URLS['swin-s3-b'],
        0.3,
        by_stage=(('depths', (2, 2, 30, 2)), ('window_size', (7, 7, 14, 7))),
    ),
    'swinv2-nano': Swin('nano', None, 0.0, 'SwinV2Backbone'),
    'swinv2-t': Swin('tiny', WEIGHT_URLS['swinv2-t'], 0.2, 'SwinV2Backbone'),
    'swinv2-s': Swin('small', WEIGHT_URLS['swinv2-s'], 0.2, 'SwinV2Backbone'),
    'swinv2-b': Swin('base', WEIGHT_URLS['swinv2-b'], 0.3, 'SwinV2Backbone'),
    'swinv2-l': Swin(
        'large',
        WEIGHT_URLS['swinv2-l'],
        0.3,
        'SwinV2Backbone',
        (('window_size', (16, 16, 16, 8)), ('pretrained_window_sizes', (12, 12, 12, 6))),
    ),
}
