"""The part of detectron2 that the adapter calls: facebookresearch/detectron2 at 02b5c4e.

Tests use the part without an installed detectron2. `tests/adapters/test_detectron2.py` compares the part with a clone.
"""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Optional

from torch import nn


class Backbone(nn.Module):
    """detectron2/modeling/backbone/backbone.py"""

    def __init__(self):
        super().__init__()

    @property
    def size_divisibility(self) -> int:
        return 0

    @property
    def padding_constraints(self) -> dict:
        return {}

    def output_shape(self):
        raise NotImplementedError


@dataclass
class ShapeSpec:
    """detectron2/layers/shape_spec.py"""

    channels: Optional[int] = None
    height: Optional[int] = None
    width: Optional[int] = None
    stride: Optional[int] = None


class Registry(dict):
    """`BACKBONE_REGISTRY` of detectron2/modeling/backbone/build.py, a class of fvcore."""

    def register(self):
        def keep(builder):
            self[builder.__name__] = builder
            return builder

        return keep


class CfgNode(dict):
    """detectron2/config: yacs' node."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class FPN(nn.Module):
    """detectron2/modeling/backbone/fpn.py: the calls of the backbone."""

    def __init__(self, bottom_up, in_features, out_channels, norm='', top_block=None, fuse_type='sum'):
        super().__init__()
        self.shapes = {name: bottom_up.output_shape()[name] for name in in_features}
        self.bottom_up = bottom_up


class LastLevelMaxPool(nn.Module):
    """detectron2/modeling/backbone/fpn.py"""


MODULES = {
    'detectron2': {},
    'detectron2.config': dict(CfgNode=CfgNode),
    'detectron2.layers': dict(ShapeSpec=ShapeSpec),
    'detectron2.modeling': dict(BACKBONE_REGISTRY=Registry(), FPN=FPN, Backbone=Backbone),
    'detectron2.modeling.backbone': {},
    'detectron2.modeling.backbone.fpn': dict(LastLevelMaxPool=LastLevelMaxPool),
}


@contextmanager
def recorded():
    """Import the recorded interface under the name detectron2."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition('.')[0] == 'detectron2'}
    for name, members in MODULES.items():
        module = ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in MODULES:
            del sys.modules[name]
        sys.modules.update(before)
