"""Private parts of torch and mmengine do what the package needs."""

from pathlib import Path

import mmengine.config.config
import mmengine.utils.package_utils
import pytest
import torch
from helpers import run_python
from mmengine.config import Config

from swin_backbone import compat
from swin_backbone.openmmlab.config_files import read_config, register_prefixes

OWN_CONFIG = 'swin_backbone::demo/mask-rcnn_swin-nano_fpn_shapes.py'


def test_a_function_is_marked_as_torch_marks_it():
    def marked_by(decorator):
        def function():
            pass

        return vars(decorator(function))

    assert marked_by(compat.constant_when_compiled) == marked_by(torch.compiler.assume_constant_result) != {}


HIDDEN = """
import sys, torch
from swin_backbone.compat import hidden_from_compiler
add = hidden_from_compiler(lambda x: x + 1)
x = torch.zeros(2)
assert add(x).sum() == 2
assert 'torch._dynamo' not in sys.modules
graphs = []
def record(graph, _):
    graphs.append(len([n for n in graph.graph.nodes if n.op == 'call_function']))
    return graph
run = torch.compile(lambda x: (add(x * 3) * 3).sin(), backend=record)
assert run(x).equal(torch.full((2,), 3.0).sin())
assert graphs == [1, 1], graphs
"""


def test_a_hidden_function_breaks_a_graph_and_imports_no_compiler():
    run_python('-c', HIDDEN)


def test_a_prefix_in_base_is_found_before_mmengine_is_asked(tmp_path, monkeypatch):
    asked, mmengines = [], Config._get_cfg_path
    monkeypatch.setattr(
        Config, '_get_cfg_path', staticmethod(lambda *names: asked.append(names[0]) or mmengines(*names))
    )
    register_prefixes()
    child = tmp_path / 'child.py'
    child.write_text("_base_ = './parent.py'\n")
    (tmp_path / 'parent.py').write_text(f'_base_ = {OWN_CONFIG!r}\n')
    assert Config.fromfile(child).model == read_config(OWN_CONFIG).model
    assert './parent.py' in asked
    assert not [path for path in asked if '::' in path]


def test_mmengine_without_pkg_resources(tmp_path, monkeypatch):
    """setuptools 82 has no pkg_resources, by which mmengine 0.10.7 searches installed packages."""

    def needs_it(*_):
        raise ModuleNotFoundError('pkg_resources')

    for module in (mmengine.utils, mmengine.utils.package_utils, mmengine.config.config):
        for name in ('is_installed', 'get_installed_path'):
            monkeypatch.setattr(module, name, needs_it)
    register_prefixes()
    (tmp_path / 'child.py').write_text(f'_base_ = {OWN_CONFIG!r}\n')
    assert Config.fromfile(tmp_path / 'child.py').model.type == 'MaskRCNN'


IN_A_READ_ONLY_CONTAINER = """
import os

from swin_backbone.workbench.process import prepare_process
prepare_process()
from numba.core import caching

caching.InTreeCacheLocator.from_function = classmethod(lambda *_: None)  # no write beside the installed files
import imagecorruptions

print(os.environ['NUMBA_CACHE_DIR'])
"""


def test_numba_caches_where_the_user_has_no_cache(tmp_path, record_fault):
    """mmdet imports imagecorruptions. Root may write everywhere, except below a file."""
    pytest.importorskip('imagecorruptions', reason='imagecorruptions is not installed')
    (tmp_path / 'file').touch()
    environment = dict(XDG_CACHE_HOME=str(tmp_path / 'file' / 'cache'), TMPDIR=str(tmp_path))
    folder = Path(run_python('-c', IN_A_READ_ONLY_CONTAINER, **environment).stdout.strip())
    assert folder.parent == tmp_path
    assert not folder.exists()  # removed at the end
    record_fault('full_disks')
