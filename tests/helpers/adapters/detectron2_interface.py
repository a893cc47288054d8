"""The part of detectron2 that the adapter calls, for tests without an installed detectron2.

Recorded from facebookresearch/detectron2 at 02b5c4e. `tests/adapters/test_detectron2.py` also runs a clone.
"""

import sys
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import NamedTuple, Optional

from torch import nn

ADAPTER = 'swin_backbone.adapters.detectron2'


class Backbone(nn.Module):
    """detectron2/modeling/backbone/backbone.py"""


class ShapeSpec(NamedTuple):
    """detectron2/layers/shape_spec.py"""

    channels: Optional[int] = None
    height: Optional[int] = None
    width: Optional[int] = None
    stride: Optional[int] = None


class CfgNode(dict):
    """detectron2/config: yacs' node."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


MODULES = {
    'detectron2': {},
    'detectron2.config': dict(CfgNode=CfgNode),
    'detectron2.layers': dict(ShapeSpec=ShapeSpec),
    'detectron2.modeling': dict(
        BACKBONE_REGISTRY=SimpleNamespace(register=lambda: lambda build: build), FPN=None, Backbone=Backbone
    ),
    'detectron2.modeling.backbone': {},
    'detectron2.modeling.backbone.fpn': dict(LastLevelMaxPool=None),
}


@contextmanager
def recorded():
    """Import the adapter on the recorded interface, and return the adapter."""
    replaced = [name for name in sys.modules if name.partition('.')[0] == 'detectron2' or name == ADAPTER]
    before = {name: sys.modules.pop(name) for name in replaced}
    for name, members in MODULES.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(members)
    try:
        yield import_module(ADAPTER)
    finally:
        for name in (*MODULES, ADAPTER):
            sys.modules.pop(name, None)
        sys.modules.update(before)
