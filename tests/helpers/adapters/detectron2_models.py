"""Small Mask2Former and MaskDINO of detectron2. The code comes from clones in the folder ORIGINALS."""

import sys
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import pytest

from helpers.adapters.frameworks import original, require

CLASSES = 5
COMPILED = ('detectron2._C', 'MultiScaleDeformableAttention')  # empty modules here: torch computes
SWIN = dict(EMBED_DIM=32, DEPTHS=[2] * 4, NUM_HEADS=[2, 4, 8, 16], DROP_PATH_RATE=0.0)
LEVELS = ['res2', 'res3', 'res4', 'res5']


@contextmanager
def detectron2_source(*repositories):
    """Make detectron2 and `repositories` importable, without compiled operators."""
    require('torchvision')
    folders = [str(original(name)) for name in ('detectron2', *repositories)]
    sys.path += folders
    stood_in = [name for name in COMPILED if name not in sys.modules]
    sys.modules |= {name: ModuleType(name) for name in stood_in}
    try:
        import detectron2

        detectron2._C = sys.modules['detectron2._C']
        yield detectron2
    finally:
        for folder in folders:
            sys.path.remove(folder)
        for name in stood_in:
            del sys.modules[name]


def their_swin(load):
    """Return the D2SwinTransformer that `load()` registers. The class replaces an earlier class."""
    from detectron2.modeling import BACKBONE_REGISTRY

    registered = BACKBONE_REGISTRY._obj_map
    registered.pop('D2SwinTransformer', None)
    load()
    return registered['D2SwinTransformer']


THEIRS = {}  # package: D2SwinTransformer


def imported(package):
    """Import a package and register the D2SwinTransformer. Skip data sets that an earlier package registered."""
    from detectron2.data import DatasetCatalog
    from detectron2.modeling import BACKBONE_REGISTRY

    if package not in THEIRS:
        with pytest.MonkeyPatch.context() as patch:
            register = type(DatasetCatalog).register
            patch.setattr(
                type(DatasetCatalog), 'register', lambda self, name, f: name in self or register(self, name, f)
            )
            THEIRS[package] = their_swin(lambda: import_module(package))
    BACKBONE_REGISTRY._obj_map['D2SwinTransformer'] = THEIRS[package]
    return sys.modules[package]


def mask2former_cfg():
    cfg, head = _cfg('mask2former', 'add_maskformer2_config', 'MaskFormer')
    head.NAME, head.PIXEL_DECODER_NAME = 'MaskFormerHead', 'MSDeformAttnPixelDecoder'
    head.DEFORMABLE_TRANSFORMER_ENCODER_IN_FEATURES = LEVELS[1:]
    former = cfg.MODEL.MASK_FORMER
    former.TRANSFORMER_DECODER_NAME = 'MultiScaleMaskedTransformerDecoder'
    former.TRANSFORMER_IN_FEATURE = 'multi_scale_pixel_decoder'
    former.NUM_OBJECT_QUERIES, former.DEC_LAYERS, former.DROPOUT = 9, 4, 0.0
    former.TRAIN_NUM_POINTS = 16
    return cfg


def maskdino_cfg():
    """Return a config like MaskDINO's Swin-L config: five levels, and the encoder's best queries."""
    cfg, head = _cfg('maskdino', 'add_maskdino_config', 'MaskDINO')
    head.NAME, head.PIXEL_DECODER_NAME, head.FEATURE_ORDER = 'MaskDINOHead', 'MaskDINOEncoder', 'low2high'
    head.DEFORMABLE_TRANSFORMER_ENCODER_IN_FEATURES = LEVELS
    head.NUM_FEATURE_LEVELS, head.TOTAL_NUM_FEATURE_LEVELS, head.DIM_FEEDFORWARD = 4, 5, 64
    dino = cfg.MODEL.MaskDINO
    dino.TRANSFORMER_DECODER_NAME, dino.TWO_STAGE, dino.INITIALIZE_BOX_TYPE = 'MaskDINODecoder', True, 'bitmask'
    dino.NUM_OBJECT_QUERIES, dino.DEC_LAYERS, dino.DROPOUT, dino.DIM_FEEDFORWARD = 9, 2, 0.0, 64
    dino.DN, dino.TRAIN_NUM_POINTS = 'no', 16  # noised queries need CUDA
    return cfg


def _cfg(package, add_config, architecture):
    from detectron2.config import get_cfg

    module, cfg = imported(package), get_cfg()
    getattr(module, add_config)(cfg)
    cfg.MODEL.DEVICE, cfg.MODEL.META_ARCHITECTURE = 'cpu', architecture
    cfg.MODEL.BACKBONE.NAME = 'D2SwinTransformer'
    for key, value in SWIN.items():
        setattr(cfg.MODEL.SWIN, key, value)
    head = cfg.MODEL.SEM_SEG_HEAD
    head.NUM_CLASSES, head.IN_FEATURES, head.TRANSFORMER_ENC_LAYERS, head.NORM = CLASSES, LEVELS, 2, 'GN'
    head.CONVS_DIM = head.MASK_DIM = 256
    cfg.DATASETS.TRAIN = ('none',)
    return cfg, head
