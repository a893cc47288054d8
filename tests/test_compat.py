"""Private parts of torch and mmengine exist in this release, and nothing breaks without them."""

import os

import pytest
import torch
from helpers import run_python
from mmengine.config import Config, utils
from mmengine.runner import CheckpointLoader

from swin_backbone import compat
from swin_backbone.openmmlab.checkpointing import loading
from swin_backbone.openmmlab.config.files import read_config, register_prefixes

OWN_CONFIG = 'swin_backbone::demo/mask-rcnn_swin-nano_fpn_shapes.py'


def test_private_parts_exist():
    assert hasattr(Config, compat.CONFIG_PATHS)
    assert hasattr(utils, compat.DISTRIBUTIONS)
    assert hasattr(CheckpointLoader, compat.SCHEMES)


def test_a_function_is_marked_as_torch_marks_it():
    def marked_by(decorator):
        def function():
            pass

        return vars(decorator(function))

    assert marked_by(compat.constant_when_compiled) == marked_by(torch.compiler.assume_constant_result) != {}


def test_a_prefix_in_base_is_found_before_mmengine_is_asked(tmp_path, monkeypatch):
    asked = []
    own = getattr(Config, compat.CONFIG_PATHS)
    search = staticmethod(lambda *names: asked.append(names[0]) or own(*names))
    monkeypatch.setattr(Config, compat.CONFIG_PATHS, search)
    register_prefixes()
    child = tmp_path / 'child.py'
    child.write_text(f'_base_ = {OWN_CONFIG!r}\n')
    assert Config.fromfile(child).model == read_config(OWN_CONFIG).model
    assert asked  # for relative paths
    assert not [path for path in asked if '::' in path]


def test_read_config_without_mmengines_search(monkeypatch):
    monkeypatch.setattr(compat, 'CONFIG_PATHS', '_renamed')
    register_prefixes()
    assert not hasattr(Config, '_renamed')
    assert read_config(OWN_CONFIG).model.type == 'MaskRCNN'


def test_read_config_without_mmengines_table(monkeypatch):
    monkeypatch.setattr(compat, 'DISTRIBUTIONS', '_RENAMED')
    assert compat.distribution_names() == {}
    assert read_config(OWN_CONFIG).model.type == 'MaskRCNN'


@pytest.fixture
def _loaders(monkeypatch):
    """mmengine's loaders are put back, and the process's settings too."""
    before = getattr(CheckpointLoader, compat.SCHEMES)
    monkeypatch.setattr(CheckpointLoader, compat.SCHEMES, dict(before))
    monkeypatch.setenv(loading.WEIGHTS_ONLY, '')
    monkeypatch.delenv(loading.WEIGHTS_ONLY)
    yield
    loading.trust_checkpoints(False)


@pytest.mark.usefixtures('_loaders')
@pytest.mark.parametrize('trusted', [False, True])
def test_without_mmengines_loaders_only_weights_are_loaded(monkeypatch, trusted):
    monkeypatch.setattr(compat, 'SCHEMES', '_renamed')
    loading.read_checkpoints_safely(unless=trusted)
    assert os.environ.get(loading.WEIGHTS_ONLY) == (None if trusted else '1')


WITHOUT_PKG_RESOURCES = """
import mmengine.config.config, mmengine.utils.package_utils

def needs_it(*_):
    raise ModuleNotFoundError('pkg_resources')

for module in (mmengine.utils, mmengine.utils.package_utils, mmengine.config.config):
    module.is_installed = module.get_installed_path = needs_it
import swin_backbone
print(mmengine.Config.fromfile('child.py').model.type)
"""


def test_mmengine_without_pkg_resources(tmp_path):
    """setuptools 82 has no pkg_resources, by which mmengine 0.10.7 searches installed packages."""
    (tmp_path / 'child.py').write_text(f'_base_ = {OWN_CONFIG!r}\n')
    assert run_python('-c', WITHOUT_PKG_RESOURCES, folder=tmp_path).stdout.strip() == 'MaskRCNN'
