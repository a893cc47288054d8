"""Find the maps that a backbone or neck of a config emits: build the module without weights, and run it.

The meta device needs neither memory nor arithmetic. Some modules fail there, by `.item()` or an operator without a meta
kernel. They run on a CPU, on a small image if possible. The current default scope has the modules.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from ...devices import on_device
from ..config_parts import count_bands, type_name

PROBE_SIDE = 256  # pixels of the square probe image
SMALL_SIDE = 64
IMAGES = 2  # a batch norm of a 1x1 map needs two images in training


class MapShape(NamedTuple):
    """The shape of one feature map, or of a vector."""

    channels: int
    stride: float  # pixels of the image per place of the map; infinite for a vector

    @property
    def is_vector(self) -> bool:
        """Return whether the output is one vector per image, as some backbones of mmpretrain emit."""
        return self.stride == math.inf


def find_backbone_maps(backbone: dict[str, Any], key: str, vectors: bool = False) -> list[MapShape]:
    """Return the maps that the backbone at `key` of a config emits.

    Args:
        vectors: allow vectors (B, C) too.

    Raises:
        ValueError: if the backbone cannot be built, emits no feature maps, or emits different maps in training.
    """
    side = backbone.get('img_size', PROBE_SIDE)  # some ViTs take only this size
    own_side = side if isinstance(side, int) else side[1]

    def make_images(device: str, side: int) -> Tensor:
        return torch.zeros(IMAGES, count_bands(backbone), side, side, device=device)

    ways = (('meta', own_side), ('cpu', SMALL_SIDE), ('cpu', own_side))
    return _run(backbone, key, make_images, ways, vectors)


def find_neck_maps(neck: dict[str, Any], inputs: Sequence[MapShape], key: str) -> list[MapShape]:
    """Return the maps that the neck at `key` computes from `inputs`. Raises: see `find_backbone_maps`."""

    def make_maps(device: str, side: int) -> tuple[Tensor, ...]:
        sides = [max(1, int(side / shape.stride)) for shape in inputs]
        return tuple(torch.zeros(IMAGES, shape.channels, n, n, device=device) for shape, n in zip(inputs, sides))

    return _run(neck, key, make_maps, (('meta', PROBE_SIDE), ('cpu', SMALL_SIDE)))


def _run(
    cfg: dict[str, Any],
    key: str,
    make_input: Callable[..., Any],
    ways: Sequence[tuple[str, int]],
    vectors: bool = False,
) -> list[MapShape]:
    """Return the maps that a module emits, on the first (device, side of the image) of `ways` that works."""
    cfg = {name: value for name, value in copy.deepcopy(cfg).items() if name not in ('init_cfg', 'pretrained')}
    for device, side in ways:
        try:
            with on_device(device), torch.no_grad():
                module = MODELS.build(cfg)
                module.eval()  # returns None for some modules
                outputs = module(make_input(device, side))
                module.train()
                training_outputs = module(make_input(device, side))
            break
        except Exception as error:  # modules of toolboxes raise errors of any kind
            reason = error
    else:
        first_line = str(reason).strip().split('\n')[0]
        raise ValueError(
            f'{key}: cannot find out what {type_name(cfg)} emits: {type(reason).__name__}: {first_line}'
        ) from reason
    shapes, training_shapes = (_list_shapes(x, side, key, vectors) for x in (outputs, training_outputs))
    if shapes != training_shapes:
        raise ValueError(
            f'{key}: it emits {_describe(training_shapes)} in training and {_describe(shapes)} in evaluation; '
            'Swin emits equal maps'
        )
    return shapes


def _list_shapes(outputs: Any, side: int, key: str, vectors: bool) -> list[MapShape]:
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    dims = (2, 4) if vectors else (4,)
    if not isinstance(outputs, (tuple, list)) or not all(isinstance(x, Tensor) and x.dim() in dims for x in outputs):
        raise ValueError(f'{key}: it emits something other than feature maps of (B, C, H, W)')
    return [MapShape(x.shape[1], side / x.shape[3] if x.dim() == 4 else math.inf) for x in outputs]


def _describe(shapes: Sequence[MapShape]) -> str:
    return 'maps of stride ' + ', '.join(f'{shape.stride:g}' for shape in shapes)
