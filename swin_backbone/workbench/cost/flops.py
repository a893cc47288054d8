"""Parameters and multiply-adds of a detector, segmentor or backbone, part by part.

A multiply and an add count as one, as in the paper and in mmengine's `get_model_complexity_info`. Counted are matrix
products, convolutions and, by the rates of mmengine's function, norms and resizing. The forward runs on the meta
device, without values.

Box heads of a two-stage detector get 1000 proposals, and mask heads 100: the convention of mmdet 2's get_flops and of
the published tables. Pooling of regions counts nothing.
"""

import copy
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Optional

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import BaseDataElement
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ...devices import on_device
from ...openmmlab.config_parts import count_bands

DETECTION, SEGMENTATION = (800, 1280), (512, 2048)  # height and width at which the published tables count
NUM_PROPOSALS = 1000
NUM_MASKS = 100

aten = torch.ops.aten
# Multiply-adds for an element of the output, as in mmengine.
MULTIPLY_ADDS = {
    aten.native_layer_norm: 5,
    aten.native_group_norm: 5,
    aten.native_batch_norm: 2,
    aten._native_batch_norm_legit_no_training: 2,
    aten.cudnn_batch_norm: 2,
    aten.upsample_bilinear2d: 4,
    aten.upsample_nearest2d: 1,
    aten._adaptive_avg_pool2d: 1,
}


def _count_output(*_: Any, rate: int, out_shape: Any, **__: Any) -> int:
    shape = out_shape if isinstance(out_shape, torch.Size) else out_shape[0]
    return 2 * rate * shape.numel()


# The counter decomposes an operator without an entry for its overload, and counts by the operator.
PER_ELEMENT = {key: partial(_count_output, rate=rate) for op, rate in MULTIPLY_ADDS.items() for key in (op, op.default)}


class Cost(NamedTuple):
    """Parameters of a part of a model, and multiply-adds for an image."""

    params: int
    flops: int


class FlopCounts(nn.Module):
    """A model with the multiply-adds of a forward. As the outermost module, this object gives each module a full name.

    Attributes:
        by_module: operations by the full name of a module, with the operations of submodules called inside.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.by_module: dict[str, int] = {}

    def forward(self, image_1CHW: Tensor) -> None:
        forward(self.model, image_1CHW)

    def cost(self, prefix: str = '') -> Cost:
        """Return the cost of a module with its submodules; '' for the model."""
        path = f'FlopCounts.model.{prefix}'.rstrip('.')
        inside = [name for name in self.by_module if f'{name}.'.startswith(f'{path}.')]
        # Containers and unused modules have no entry, only their submodules.
        outermost = [name for name in inside if not any(name.startswith(f'{other}.') for other in inside)]
        params = sum(parameter.numel() for parameter in self.model.get_submodule(prefix).parameters())
        return Cost(params, sum(self.by_module[name] for name in outermost) // 2)


def build(cfg: dict[str, Any], scope: str, device: str = 'meta') -> nn.Module:
    """Build the model of a config in eval mode. On the meta device its weights take no memory."""
    with DefaultScope.overwrite_default_scope(scope), on_device(device):
        model: nn.Module = revert_sync_batchnorm(MODELS.build(copy.deepcopy(cfg)))
    model.eval()
    return model


def count_flops(model: Any, height: int, width: int, device: str = 'meta', bands: int = 3) -> FlopCounts:
    """Count one forward of a detector, segmentor or backbone on an image of height x width pixels."""
    counts = FlopCounts(model).eval()
    with torch.no_grad(), on_device(device), FlopCounterMode(display=False, custom_mapping=PER_ELEMENT) as counter:
        counts(torch.zeros(1, bands, height, width, device=device))
    counts.by_module = {name: sum(flops.values()) for name, flops in counter.get_flop_counts().items()}
    return counts


def forward(model: Any, image_1CHW: Tensor) -> None:
    """Run a detector, segmentor or backbone without proposals, targets and losses, which depend on values."""
    if not hasattr(model, 'extract_feat'):
        model(image_1CHW)
    elif hasattr(model, 'roi_head'):
        _run_two_stages(model, image_1CHW)
    elif type(getattr(model, 'decode_head', None)).__name__ in ('MaskFormerHead', 'Mask2FormerHead'):
        model.decode_head(model.extract_feat(image_1CHW), _make_samples(model, image_1CHW))  # mode='tensor' fails
    else:
        model(image_1CHW, _make_samples(model, image_1CHW), mode='tensor')


def _run_two_stages(model: Any, image_1CHW: Tensor) -> None:
    """Run each head once on the regions of the convention; their values do not matter."""
    maps = model.extract_feat(image_1CHW)
    roi_head, regions = model.roi_head, NUM_PROPOSALS
    if hasattr(model.rpn_head, 'num_proposals'):  # Sparse R-CNN's proposals are parameters
        regions = model.rpn_head.num_proposals
    else:
        model.rpn_head(maps)
    semantic = roi_head.semantic_head(maps)[1] if getattr(roi_head, 'with_semantic', False) else None
    for head in _as_list(roi_head.bbox_head):
        pooled = _make_pooled(roi_head.bbox_roi_extractor, regions, image_1CHW)
        if hasattr(head, 'instance_interactive_conv'):
            head(pooled, image_1CHW.new_zeros(1, regions, head.in_channels))
        else:
            head(pooled)
    previous = None
    for head in _as_list(roi_head.mask_head) if roi_head.with_mask else ():
        pooled = _make_pooled(roi_head.mask_roi_extractor, NUM_MASKS, image_1CHW)
        if semantic is None and not hasattr(head, 'with_conv_res'):
            head(pooled)
        else:  # HTC's mask heads hand features on
            *_, previous = head(pooled, previous, return_logits=True, return_feat=True)


def _make_pooled(extractor: Any, regions: int, image_1CHW: Tensor) -> Tensor:
    """Return zeros in the shape of pooled regions."""
    extractor = _as_list(extractor)[0]
    return image_1CHW.new_zeros(regions, extractor.out_channels, *extractor.roi_layers[0].output_size)


def _as_list(module: Any) -> list[Any]:
    return list(module) if isinstance(module, (nn.ModuleList, list)) else [module]


def _make_samples(model: nn.Module, image_1CHW: Tensor) -> list[BaseDataElement]:
    """Return data samples with the shapes of the image."""
    toolbox = type(model).__module__.partition('.')[0]
    sample = import_module(f'{toolbox}.structures').__dict__['DetDataSample' if toolbox == 'mmdet' else 'SegDataSample']
    shapes = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), tuple(image_1CHW.shape[2:]))
    return [sample(metainfo=dict(shapes, scale_factor=(1.0, 1.0)))]


def count_costs(cfg: Config, shape: Optional[tuple[int, int]] = None, backbone_only: bool = False) -> dict[str, Any]:
    """Return parameters and multiply-adds of a config's model, by part and by stage of the backbone.

    Args:
        shape: height and width of the image; None: 800x1280 for a detector, 512x2048 for a segmentor.
        backbone_only: leave out neck and heads.

    Returns:
        Data for JSON: shape; total, parts and stages with params and flops.
    """
    scope = cfg.get('default_scope') or 'mmdet'
    height, width = shape or (SEGMENTATION if scope == 'mmseg' else DETECTION)
    counts = _count(cfg.model.backbone if backbone_only else cfg.model, scope, (height, width))
    backbone = '' if backbone_only else 'backbone'
    module = counts.model.get_submodule(backbone)
    num_stages = len(list(getattr(module, 'stages', ())))
    stages = {f'stages.{i}': f'{backbone}.stages.{i}'.lstrip('.') for i in range(num_stages)}
    parts = [(name, counts.cost(name)) for name, _ in counts.model.named_children()]
    return dict(
        shape=[height, width],
        total=counts.cost()._asdict(),
        parts={name: cost._asdict() for name, cost in parts if any(cost)},
        stages={name: counts.cost(path)._asdict() for name, path in stages.items()},
    )


def _count(model: dict[str, Any], scope: str, shape: tuple[int, int]) -> FlopCounts:
    """Count on the meta device or, if a module fails there, on the CPU."""
    bands = count_bands(model.get('backbone', model))
    with DefaultScope.overwrite_default_scope(scope):
        try:
            return count_flops(build(model, scope, 'meta'), *shape, 'meta', bands)
        except (RuntimeError, NotImplementedError, TypeError):
            return count_flops(build(model, scope, 'cpu'), *shape, 'cpu', bands)


def print_costs(costs: dict[str, Any], console: Console) -> None:
    """Print the result of `count_costs` as a table."""
    height, width = costs['shape']
    table = Table(title=f'{height}x{width} pixels', title_justify='left')
    table.add_column('part')
    for column in ('parameters', 'multiply-adds'):
        table.add_column(column, justify='right')
    for name, cost in costs['parts'].items():
        table.add_row(name, *_format_cost(cost))
        if name == 'backbone':
            for stage, inner in enumerate(costs['stages'].values(), 1):
                table.add_row(f'  stage {stage}', *_format_cost(inner), style='dim')
    table.add_section()
    table.add_row('total', *_format_cost(costs['total']), style='bold')
    console.print(table)


def _format_cost(cost: dict[str, int]) -> tuple[str, str]:
    return f'{cost["params"] / 1e6:.2f} M', f'{cost["flops"] / 1e9:.2f} G'
