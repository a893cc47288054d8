"""The core beside torch, numpy, safetensors and filelock alone: a finder refuses OpenMMLab's packages."""

import re
import sys
from importlib.util import find_spec

from helpers import PYTHONPATH, ROOT, run_python

# The toolboxes' packages
REFUSED = 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'
REFUSE = f"""
import sys

sys.modules.update(dict.fromkeys({REFUSED}))  # an import of these is an error
"""

COMPUTE = """
import torch
import swin_backbone
from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.models import GlobalAttention, SimMIMSwinBackbone

for kind in (SwinBackbone, SwinV2Backbone, SwinMLPBackbone, SimMIMSwinBackbone):
    backbone = kind(arch='nano', drop_path_rate=0.2)
    backbone.init_weights()
    maps = backbone(torch.rand(2, 3, 61, 83))
    sum(x.square().mean() for x in maps).backward()
    assert all(p.grad.isfinite().all() for p in backbone.parameters() if p.grad is not None)
    assert sum(p.grad is not None for p in backbone.parameters()) > 100
attention = GlobalAttention(256, 8)
attention.init_weights()
attention([torch.rand(1, 256, 3, 4)])[-1].sum().backward()
"""

LOAD = """
import torch
from helpers.checkpoints.origins import ORIGINS
from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import FORMATS

source = SwinBackbone(arch='nano')
for save, title, has_output_norms in map(ORIGINS.get, ('official', 'timm', 'torchvision', 'hugging_face')):
    torch.save(save(source.state_dict()), 'weights.pth')
    backbone = SwinBackbone(arch='nano')
    assert load_checkpoint(backbone, 'weights.pth').origin == title
    assert all(torch.equal(x, source.state_dict()[key]) for key, x in backbone.state_dict().items())
backbone = SwinBackbone(arch='nano', init_cfg=dict(type='Pretrained', checkpoint='weights.pth'))
backbone.init_weights()
assert torch.equal(backbone.patch_embed.projection.weight, source.patch_embed.projection.weight)
torch.save(source.state_dict(), 'source.pth')
for name in FORMATS:
    try:
        convert_checkpoint('source.pth', f'{name}.out', name)
    except ValueError as error:  # of another family
        assert 'Swin' in str(error), error
        continue
    backbone = SwinBackbone(arch='nano').eval()
    load_checkpoint(backbone, f'{name}.out')
    own, other = (one.state_dict()['stages.3.blocks.1.ffn.layers.1.weight'] for one in (backbone, source))
    assert torch.equal(own, other)
"""

ACCELERATE = """
from importlib.util import find_spec
import torch
from swin_backbone import accelerate, restore
from swin_backbone.compat import import_torchvision
from swin_backbone.kernels.foreign.foreign_layers import RECORD_ATTRIBUTE
from swin_backbone.kernels.native.availability import find_reason_against_dtype

import_torchvision()  # of any build
models = {}
if find_spec('timm'):
    import timm
    models['timm'] = timm.create_model('swin_tiny_patch4_window7_224', embed_dim=32, depths=(2, 2), num_heads=(1, 2))
if find_spec('transformers'):
    from transformers import SwinConfig, SwinModel
    models['transformers'] = SwinModel(SwinConfig(embed_dim=32, depths=[2, 2], num_heads=[1, 2], image_size=224))
if find_spec('torchvision'):
    from torchvision.models.swin_transformer import SwinTransformer
    models['torchvision'] = SwinTransformer([4, 4], 32, [2, 2], [1, 2], [7, 7])
x = torch.rand(1, 3, 224, 224)
for name, model in models.items():
    model.eval()
    with torch.no_grad():
        first = lambda y: y if torch.is_tensor(y) else y[0]
        wanted = first(model(x))
        found = first(accelerate(model)(x))
        assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max(), name
        if find_reason_against_dtype(torch.float32) is None:
            assert any(RECORD_ATTRIBUTE in vars(one) for one in model.modules()), name
        assert torch.equal(first(restore(model)(x)), wanted)
print('accelerated', *models)
"""

ADAPTERS = """
from importlib import import_module
from importlib.util import find_spec
import torch
from swin_backbone.compat import import_torchvision

import_torchvision()  # of any build
x = torch.rand(1, 3, 64, 64)
if find_spec('timm'):
    import timm
    import swin_backbone.adapters.timm
    maps = timm.create_model('swin_backbone_nano', features_only=True)(x)
    assert [y.shape[1] for y in maps] == [32, 64, 128, 256]
if find_spec('transformers'):
    from swin_backbone.adapters.transformers import SwinBackboneConfig, SwinBackboneModel
    assert len(SwinBackboneModel(SwinBackboneConfig(arch='nano', out_indices=[1, 2])).eval()(x).feature_maps) == 2
if find_spec('torchvision'):
    from swin_backbone.adapters.torchvision import backbone_with_fpn
    assert len(backbone_with_fpn('nano')(x)) == 5
if find_spec('peft'):
    from swin_backbone.adapters.peft import LoraSwinBackbone
    lora = LoraSwinBackbone(arch='nano', lora=dict(r=4))
    lora.init_weights()
    for y, expected in zip(lora.merged().eval()(x), lora.eval()(x)):
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
if find_spec('detectron2'):
    import swin_backbone.adapters.detectron2
"""

ERRORS = """
import pytest
from torch import nn
from swin_backbone import SwinBackbone

backbone = SwinBackbone(arch='nano', act_cfg=dict(type='ReLU'), norm_cfg=dict(type=nn.RMSNorm))  # of torch
block = backbone.stages[0].blocks[0]
assert type(block.ffn.layers[0][1]) is nn.ReLU
assert (type(block.norm1), block.norm1.eps) == (nn.RMSNorm, 1e-5)
for arguments, error in (
    (dict(norm_cfg=dict(type='GN', num_groups=4)), "norm_cfg takes a type of torch.nn, and with mmcv installed"),
    (dict(act_cfg=dict(type='HSwish')), "act_cfg takes a type of torch.nn, and with mmcv installed"),
):
    with pytest.raises(ImportError, match=error):
        SwinBackbone(arch='nano', **arguments)
backbone = SwinBackbone(arch='nano', init_cfg=dict(type='Xavier', layer='Linear'))
with pytest.raises(ImportError, match="init_cfg takes type 'Pretrained', and with mmengine installed.*'Xavier'"):
    backbone.init_weights()
"""

LOG = """
import torch
from swin_backbone import SwinBackbone, load_checkpoint

state = SwinBackbone(arch='nano').state_dict()
for removed in ('', 'norm2.bias'):
    state.pop(removed, None)
    torch.save(state, 'weights.pth')
    load_checkpoint(SwinBackbone(arch='nano'), 'weights.pth')
    print('loaded', removed, file=sys.stderr)
"""

HISTORY = """
import types
import numpy as np
import torch
from swin_backbone.checkpoints import read_checkpoint

class HistoryBuffer:
    def __init__(self):
        self._log_history, self._count_history, self.max_length = np.array([1.5, 2.5]), np.array([1, 4]), 10

HistoryBuffer.__module__ = 'mmengine.logging.history_buffer'
for name in ('mmengine', 'mmengine.logging', 'mmengine.logging.history_buffer'):
    sys.modules[name] = types.ModuleType(name)
sys.modules[HistoryBuffer.__module__].HistoryBuffer = HistoryBuffer
torch.save(dict(loss=HistoryBuffer(), weight=torch.ones(2)), 'weights.pth')
for name in ('mmengine', 'mmengine.logging', 'mmengine.logging.history_buffer'):
    del sys.modules[name]
loss = read_checkpoint('weights.pth')['loss']
assert {name: values.tolist() for name, values in loss.items()} == dict(log_history=[1.5, 2.5], count_history=[1, 4])
"""

MODULES = """
import torch, numpy
before = set(sys.modules)
from swin_backbone import SwinBackbone, SwinV2Backbone, SwinMLPBackbone, load_checkpoint, convert_checkpoint, accelerate
print(*sorted(set(sys.modules) - before))
"""


def run_refusing(code, folder):
    return run_python('-W', 'ignore', '-c', REFUSE + code, folder=folder, path=PYTHONPATH)


def test_without_openmmlab(tmp_path):
    """All Python of docs/guides/plain_torch.md too, the last block with timm alone.

    In one process: an import of torch and the adapters' packages takes seconds.
    """
    page = (ROOT / 'docs' / 'guides' / 'plain_torch.md').read_text(encoding='utf-8')
    *blocks, of_timm = re.findall(r'^```python\n(.+?)^```', page, re.M | re.S)
    assert len(blocks) == 3
    blocks += [COMPUTE, LOAD, ACCELERATE, ADAPTERS, ERRORS, HISTORY, *([of_timm] if find_spec('timm') else [])]
    run_refusing('\n'.join(blocks), tmp_path)


def test_an_import_loads_few_modules_and_the_log_has_warnings_alone(tmp_path):
    """Besides the modules of torch and of this package: safetensors, filelock, and a few of the standard library."""
    process = run_refusing(MODULES + LOG, tmp_path)
    lines = process.stderr.splitlines()
    assert lines == ['loaded ', 'Left at their initialisation: norm2.bias', 'loaded norm2.bias']
    loaded = process.stdout.split()
    packages = {name.partition('.')[0] for name in loaded} - set(sys.stdlib_module_names)
    assert packages <= {'swin_backbone', 'torch', 'numpy', 'safetensors', 'filelock'}
    assert sum(name.startswith('torch.') for name in loaded) < 100
    assert 'torch.utils.checkpoint' not in loaded  # with torch 2.6, it imports sympy
