"""The graph for export: a module on tensors, with names of inputs and outputs.

Layout: B batch, C channels, H W height and width.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ...compat import symbolic_views
from ...models.layers import SwinBlock, SwinMLPBlock, SwinV2Block
from ...openmmlab.config_parts import count_bands
from ...sizes import Size

LARGEST_STRIDE = 32  # of a backbone's maps
PARTS = ('model', 'backbone', 'neck')


class ExportError(ValueError):
    """An error of an export, in one sentence."""


def make_refusal(name: str, known: Iterable[str] = ()) -> ExportError:
    """Return the error for a part of a model without an export."""
    only = f', only {", ".join(known)}' if known else ''
    return ExportError(f'{name} cannot be exported whole{only}: use --part neck or --part backbone')


def require_class(module: Any, *names: str) -> None:
    """Raise an ExportError for a module of another class than `names`."""
    if type(module).__name__ not in names:
        raise make_refusal(type(module).__name__, names)


@dataclass
class Port:
    """An input or output: type, and a number or name for the length of every dimension."""

    name: str
    dtype: str  # numpy's name
    shape: tuple[Any, ...]  # of int and str


@dataclass
class Graph:
    """A module between tensors.

    Args:
        task: the kind of output: 'maps', 'segmentation', 'boxes' or 'instances'.
        is_free: batch, height and width are free; else the inputs' shapes have numbers.
        example_size: height and width during the capture.
        settings: further entries of `deploy.json` for the runtime.
    """

    module: nn.Module
    task: str
    inputs: list[Port]
    outputs: list[Port]
    is_free: bool
    example_size: Size
    settings: dict[str, Any] = field(default_factory=dict)

    def dynamic_shapes(self) -> Optional[tuple[Any, ...]]:
        """Return the free dimensions of the inputs in the form of `torch.export`."""
        if not self.is_free:
            return None
        free = torch.export.Dim.DYNAMIC
        return tuple(
            {i: free for i, length in enumerate(port.shape) if isinstance(length, str)} for port in self.inputs
        )


class BackboneMaps(nn.Module):
    """The feature maps of a backbone, or of the neck after it, from a normalised image."""

    def __init__(self, backbone: Any, neck: Any):
        super().__init__()
        self.backbone = backbone
        self.neck = neck

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        with symbolic_views():  # in the neck too
            maps = self.backbone(image)
            return tuple(maps if self.neck is None else self.neck(maps))


def build_maps_graph(model: Any, part: str, shape: Optional[Size]) -> Graph:
    """Return the graph of a model's backbone, of backbone and neck, or of a backbone alone.

    Args:
        part: 'backbone' or 'neck', the backbone with the neck.
        shape: height and width, for batch size 1; None: free batch, height and width.

    Raises:
        ExportError: for a model without the part.
    """
    backbone = getattr(model, 'backbone', model)
    neck = getattr(model, 'neck', None) if part == 'neck' else None
    if part == 'neck' and neck is None:
        raise ExportError(
            f'--part neck needs a model with a neck, and {type(model).__name__} has none: use --part backbone'
        )
    example = choose_example_size(backbone, shape)
    channels = count_bands(backbone)
    size = ('batch', channels, 'height', 'width') if shape is None else (1, channels, *shape)
    module = BackboneMaps(backbone, neck).eval()
    with torch.no_grad():
        maps = module(torch.zeros(1, channels, *(shape or (64, 64))))
    outputs = [
        Port(
            f'map{i}',
            'float32',
            ('batch', map_BCHW.shape[1], f'height{i}', f'width{i}') if shape is None else tuple(map_BCHW.shape),
        )
        for i, map_BCHW in enumerate(maps)
    ]
    return Graph(module, 'maps', [Port('image', 'float32', size)], outputs, shape is None, example)


def choose_example_size(backbone: Any, shape: Optional[Size]) -> Size:
    """Return height and width for the capture of a graph.

    Free sizes are captured with several windows on every axis of every map, and padding in the last window. A graph
    captured at a special size fails at other sizes: torch broadcasts a length of 1.

    Args:
        shape: height and width of the graph; None: free.

    Raises:
        ExportError: for free sizes of a backbone with `small_map='shrink'`.
    """
    if shape is not None:
        return shape
    blocks = [layer for layer in backbone.modules() if isinstance(layer, (SwinBlock, SwinV2Block, SwinMLPBlock))]
    if any(block.small_map == 'shrink' for block in blocks):
        raise ExportError(
            "small_map='shrink' makes windows smaller on small maps, which one graph cannot do for every size: "
            'give --shape H W'
        )
    # A backbone of a foreign package has no blocks
    side = 2 * LARGEST_STRIDE * max((max(block.window_size) for block in blocks), default=8)
    return side + 5, side + 2 * LARGEST_STRIDE + 14
