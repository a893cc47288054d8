"""In configs with the toolbox's own Swin, a swap changes types, and no results."""

import json

import pytest
import torch
from helpers.openmmlab.every_config import folders
from mmengine.registry import MODELS, DefaultScope

from swin_backbone import SwinBackbone, swap_backbone
from swin_backbone.openmmlab.config_files import read_config

NAMES = {(96, 6): 'swin-t', (96, 18): 'swin-s', (128, 18): 'swin-b', (192, 18): 'swin-l'}  # by width and depth
CONFIGS = [
    f'{toolbox}::{folder}/{name}'
    for toolbox in ('mmdet', 'mmseg')
    for folder, names in folders(toolbox).items()
    for name in names
    if 'swin' in name
]
ONE_OF_EACH_FOLDER = [*{path.rpartition('/')[0]: path for path in CONFIGS}.values()]


def own_name(cfg):
    backbone = cfg.model.backbone
    return NAMES[backbone.embed_dims, backbone.depths[2]]


@pytest.mark.parametrize(
    'paths', [ONE_OF_EACH_FOLDER, pytest.param(CONFIGS, marks=pytest.mark.slow)], ids=['one', 'all']
)
def test_only_types_change(paths):
    assert len(CONFIGS) >= 100
    for path in paths:
        cfg = read_config(path)
        expected = cfg.to_dict()
        expected['model']['backbone']['type'] = 'SwinBackbone'
        imports = expected.setdefault('custom_imports', dict(imports=[]))
        names = [imports['imports']] if isinstance(imports['imports'], str) else imports['imports']
        imports['imports'] = [*names, 'swin_backbone']
        assert swap_backbone(cfg, own_name(cfg), verbose=False).to_dict() == expected, path


@pytest.mark.slow
def test_every_distinct_backbone_gives_the_same_maps():
    ignored = ('type', 'init_cfg', 'pretrained', 'convert_weights', 'drop_path_rate', 'with_cp', 'frozen_stages')
    distinct = {}
    for path in CONFIGS:
        cfg = read_config(path)
        arguments = {name: value for name, value in cfg.model.backbone.items() if name not in ignored}
        distinct[json.dumps(arguments, sort_keys=True, default=str)] = path, cfg, arguments
    for path, cfg, arguments in distinct.values():
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            theirs = MODELS.build(dict(arguments, type='SwinTransformer'))
        ours = SwinBackbone(**arguments)
        ours.load_state_dict(theirs.state_dict())
        theirs.eval()
        image = torch.randn(1, arguments.get('in_channels', 3), 100, 132)
        with torch.no_grad():
            for a, b in zip(ours.eval()(image), theirs(image)):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=path)
