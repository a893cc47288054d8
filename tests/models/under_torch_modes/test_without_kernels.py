"""The package without the folder kernels/: slower, with the same numbers."""

import os
import shutil
from importlib.util import find_spec

import pytest
import torch
from helpers import ROOT, run_python
from helpers.models.small_models import TWO_STAGES, randomised

import swin_backbone
from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.models.simmim import SimMIMSwinBackbone

# An editable installation would find the folder of the checkout.
WITHOUT_KERNELS = "import sys; sys.modules['swin_backbone.kernels'] = None; "
KINDS = SwinBackbone, SwinV2Backbone, SwinMLPBackbone, SimMIMSwinBackbone


def results(backend):
    """Return outputs and gradients of all backbones."""
    found = []
    for kind in KINDS:
        torch.manual_seed(0)
        model = randomised(kind=kind, **{**TWO_STAGES, 'drop_path_rate': 0.3}, backend=backend).train()
        x = torch.randn(2, 3, 61, 83, requires_grad=True)
        more = [torch.arange(2 * 16 * 21).view(2, 16, 21) % 3 == 0] if kind is SimMIMSwinBackbone else []
        maps = model(x, *more)
        found += [*maps, *torch.autograd.grad(sum(y.sin().sum() for y in maps), [x, *model.parameters()])]
    return [one.detach() for one in found]


def save_alone(path):
    """Write `results` in a process without kernels/, and use what asks for the library."""
    assert 'kernels' not in os.listdir(os.path.dirname(swin_backbone.__file__))
    model = SwinBackbone(**TWO_STAGES, embed_dims=32)
    for function in (swin_backbone.accelerate, swin_backbone.restore):
        with pytest.raises(ImportError, match=r'swin_backbone\.kernels'):
            function(model)
    if find_spec('mmengine'):
        use_plugin(model)
    torch.save(results('auto'), path)


def use_plugin(model):
    """Use what openmmlab/ computes by the library, where there is a library."""
    from swin_backbone.openmmlab import mmcv_ops
    from swin_backbone.openmmlab.mixed_precision import mixed_precision
    from swin_backbone.openmmlab.mmcv_ops import nms, roi

    with mixed_precision(model):
        model(torch.randn(1, 3, 32, 32))
    assert mmcv_ops.name_provider()
    boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 8]])
    assert nms.nms(boxes, torch.tensor([0.5, 0.9]), 0.5, 0).tolist() == [1]
    pooled = torch.empty(2, 1, 2, 2)
    rois = torch.cat([torch.zeros(2, 1), boxes], 1)
    roi.roi_align_forward(torch.ones(1, 1, 16, 16), rois, pooled, pooled, pooled, 2, 2, 1.0, 0, 1, True)
    torch.testing.assert_close(pooled, torch.ones(2, 1, 2, 2))


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp('alone')
    without = shutil.ignore_patterns('kernels', '__pycache__', '.mim')
    shutil.copytree(ROOT / 'swin_backbone', folder / 'swin_backbone', ignore=without)
    return folder


def test_the_numbers_are_equal(alone):
    code = f'import test_without_kernels; test_without_kernels.save_alone({str(alone / "results.pt")!r})'
    path = os.pathsep.join(map(str, [alone, ROOT / 'tests', ROOT / 'tests' / 'models' / 'under_torch_modes']))
    run_python('-c', WITHOUT_KERNELS + code, folder=alone, path=path, OMP_NUM_THREADS=str(torch.get_num_threads()))
    found, expected = torch.load(alone / 'results.pt'), results('torch')
    assert len(found) == len(expected) > 100
    assert all(map(torch.equal, found, expected))


@pytest.mark.slow
def test_the_tests_of_models_pass(alone):
    shutil.copytree(ROOT / 'tests', alone / 'tests', ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('pyproject.toml', 'benchmarks', 'configs'):
        (alone / name).symlink_to(ROOT / name)
    files = sorted((alone / 'tests' / 'models').rglob('test_*.py'))
    files = [path for path in files if 'kernels' not in path.read_text(encoding='utf-8')]
    assert len(files) > 5
    run_pytest = 'import pytest; sys.exit(pytest.main(sys.argv[1:]))'
    # Benchmarks need kernels/, and torch takes more memory.
    names = 'not keeps_less and not memory_holds'
    words = '-q', '-n0', '-p', 'no:cacheprovider', '-k', names, *files
    run_python('-c', WITHOUT_KERNELS + run_pytest, *words, folder=alone, path=alone)
