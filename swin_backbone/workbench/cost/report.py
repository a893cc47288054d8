"""Report of tools/flops.py on a config: as data, and as tables."""

from typing import Any, Optional

from mmengine.config import Config
from mmengine.registry import DefaultScope
from rich.console import Console
from rich.table import Table

from ...models import SwinMLPBackbone
from ...models.pyramid import SwinPyramid
from .flops import FlopCounts, attention_costs, build, count_flops

DETECTION, SEGMENTATION = (800, 1280), (512, 2048)  # height and width at which the published tables count


def count_costs(cfg: Config, shape: Optional[tuple[int, int]] = None, backbone_only: bool = False) -> dict[str, Any]:
    """Return parameters and multiply-adds of a config's model, by part and by stage of the backbone.

    Args:
        shape: height and width of the image; None: 800x1280 for a detector, 512x2048 for a segmentor.
        backbone_only: leave out neck and heads.

    Returns:
        Data for JSON: shape; total, parts and stages with params and flops; attention of a SwinBackbone or
        SwinV2Backbone by stage, see `attention_costs`.
    """
    scope = cfg.get('default_scope') or 'mmdet'
    height, width = shape or (SEGMENTATION if scope == 'mmseg' else DETECTION)
    model = cfg.model.backbone if backbone_only else cfg.model
    counts = _count(model, scope, (height, width))
    backbone = '' if backbone_only else 'backbone'
    module = counts.model.get_submodule(backbone)
    num_stages = len(list(getattr(module, 'stages', ())))
    stages = {f'stages.{i}': f'{backbone}.stages.{i}'.lstrip('.') for i in range(num_stages)}
    attends = isinstance(module, SwinPyramid) and not isinstance(module, SwinMLPBackbone)
    parts = [(name, counts.cost(name)) for name, _ in counts.model.named_children()]
    return dict(
        shape=[height, width],
        total=counts.cost()._asdict(),
        parts={name: cost._asdict() for name, cost in parts if any(cost)},
        stages={name: counts.cost(path)._asdict() for name, path in stages.items()},
        attention=attention_costs(counts, backbone, height, width) if attends else [],
    )


def _count(model: dict[str, Any], scope: str, shape: tuple[int, int]) -> FlopCounts:
    """Count on the meta device or, if a module fails there, on the CPU."""
    with DefaultScope.overwrite_default_scope(scope):
        try:
            return count_flops(build(model, scope, 'meta'), *shape, 'meta')
        except (RuntimeError, NotImplementedError, TypeError):
            return count_flops(build(model, scope, 'cpu'), *shape, 'cpu')


def print_report(data: dict[str, Any], console: Console) -> None:
    """Print the tables of a report."""
    height, width = data['shape']
    table = Table(title=f'{height}x{width} pixels', title_justify='left')
    table.add_column('part')
    for column in ('parameters', 'multiply-adds'):
        table.add_column(column, justify='right')
    for name, cost in data['parts'].items():
        table.add_row(name, *_cost(cost))
        if name == 'backbone':
            for stage, inner in enumerate(data['stages'].values(), 1):
                table.add_row(f'  stage {stage}', *_cost(inner), style='dim')
    table.add_section()
    table.add_row('total', *_cost(data['total']), style='bold')
    console.print(table)
    if not data['attention']:
        return
    table = Table(title='attention, in multiply-adds', title_justify='left')
    table.add_column('stage')
    table.add_column('map')
    for column in ('layers', 'counted', '4hwC²+2M²hwC', 'global: 4hwC²+2(hw)²C'):
        table.add_column(column, justify='right')
    for row in data['attention']:
        table.add_row(
            str(row['stage']), f'{row["height"]}x{row["width"]}', str(row['layers']),
            *(_giga(row[key]) for key in ('counted', 'windowed', 'global')),
        )  # fmt: skip
    console.print(table)


def _cost(cost: dict[str, int]) -> tuple[str, str]:
    return f'{cost["params"] / 1e6:.2f} M', _giga(cost['flops'])


def _giga(flops: int) -> str:
    return f'{flops / 1e9:.2f} G'
