"""With mmcv-lite, whose operators are not compiled: backbones, checkpoints, export and our operators work, also where
mmengine misses pkg_resources. The releases are fetched from the package index, into an environment of their own."""

import os

import pytest
from helpers import ROOT, run_python

# Releases from pip, in front of the packages of this environment, and test files to run with them.
RELEASES = {
    ('mmcv-lite==2.2.0',): (),
    ('mmcv-lite==2.1.0', 'mmengine==0.10.7'): ('models/test_swin.py', 'checkpoints/test_convert.py', 'test_compat.py'),
}
NO_PKG_RESOURCES = "raise ModuleNotFoundError('No module named pkg_resources', name='pkg_resources')\n"
# Detectors need compiled operators: the toolboxes are hidden.
NO_TOOLBOXES = "import sys\nfor name in ('mmdet', 'mmseg', 'mmpretrain'):\n    sys.modules[name] = None\n"

USE = """
import warnings
warnings.simplefilter('error', UserWarning)
import sys
import torch
import swin_backbone
from swin_backbone import SwinBackbone, SwinV2Backbone, convert_checkpoint, load_checkpoint

warnings.simplefilter('ignore')
for kind in (SwinBackbone, SwinV2Backbone):
    backbone = kind(arch='nano', depths=(1, 1, 1, 1))
    backbone.init_weights()
    sum(x.mean() for x in backbone(torch.rand(1, 3, 64, 64))).backward()
    torch.save(dict(state_dict=backbone.state_dict()), 'weights.pth')
    convert_checkpoint('weights.pth', 'official.pth', 'official', overwrite=True)
    other = kind(arch='nano', depths=(1, 1, 1, 1)).eval()
    load_checkpoint(other, 'official.pth')
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        exported = torch.export.export(other, (images,)).module()
        wanted = backbone.eval()(images)
        for a, b in zip(exported(images), wanted):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
from mmcv.ops import nms
boxes = torch.tensor([[0.0, 0, 9, 9], [1, 1, 9, 9], [20, 20, 29, 29]])
print('kept', nms(boxes, torch.tensor([0.8, 0.9, 0.7]), 0.5)[1].tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize(('releases', 'files'), RELEASES.items())
def test_releases_without_operators_serve(tmp_path, releases, files):
    packages = tmp_path / 'packages'
    options = ['-q', '--no-deps', '--target', packages, *releases]
    pip = run_python('-m', 'pip', '--disable-pip-version-check', 'install', *options, status=None)
    if pip.returncode:
        pytest.skip(f'pip cannot fetch {releases}: {pip.stderr.strip().splitlines()[-1]}')
    (packages / 'pkg_resources.py').write_text(NO_PKG_RESOURCES)
    (packages / 'sitecustomize.py').write_text(NO_TOOLBOXES)
    path = os.pathsep.join([str(packages), str(ROOT)])
    use = run_python('-c', USE, folder=tmp_path, path=path)
    assert use.stdout.strip().endswith('kept [1, 2]')  # by the operators of this package
    if files:
        run_python('-m', 'pytest', '-q', '-p', 'no:cacheprovider', *(f'tests/{file}' for file in files), path=path)
