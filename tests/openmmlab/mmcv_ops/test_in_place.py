"""Our operators replace mmcv's only if mmcv has no compiled operators."""

import os
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT, run_python

from swin_backbone import compat
from swin_backbone.openmmlab.mmcv_ops import ext, name_provider, providers, put_in_place
from swin_backbone.workbench.process import leave_out_broken_torchvision

WITHOUT = "import sys\nsys.modules['mmcv._ext'] = None\n"
BROKEN = "raise ImportError('undefined symbol: _ZN3c10')\n"


def compiled():
    try:
        import mmcv._ext

        return mmcv._ext.__name__ == 'mmcv._ext'
    except ImportError:
        return False


CALLS = """
import torch
from mmcv.ops import RoIAlign, nms
boxes = torch.tensor([[0, 0, 9, 9], [1, 1, 9, 9], [20, 20, 30, 30.]])
print(nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5)[1].tolist())
x = torch.ones(1, 2, 9, 9, requires_grad=True)
RoIAlign(3, 1.0, 0)(x, torch.tensor([[0, 1, 1, 7, 7.]])).sum().backward()
print(x.grad.sum().item())
import mmcv._ext
print(mmcv._ext.__name__)
"""

FAILED = 'try:\n    import mmcv.ops\nexcept ImportError:\n    pass\nelse:\n    raise SystemExit("no failure")\n'


def test_mmcv_works_without_its_operators_and_one_line_says_so():
    """An earlier import of mmcv.ops failed."""
    info = 'from swin_backbone.commands import info\nprint(info._try(info._describe_operators))\n'
    result = run_python('-c', WITHOUT + FAILED + 'import swin_backbone' + CALLS + info)
    printed = [line for line in result.stdout.splitlines() if 'stand in' not in line]
    assert printed[:3] == ['[1, 2]', '18.0', 'swin_backbone.openmmlab.mmcv_ops.ext']
    assert printed[3].startswith("swin_backbone's own")
    message = result.stdout + result.stderr
    assert message.count('mmcv has no compiled operators here') == 1
    assert 'MMCV=compiled make install' in message


@pytest.mark.skipif(not compiled(), reason='mmcv has no compiled operators here')
def test_compiled_operators_are_not_touched():
    import mmcv._ext

    put_in_place()
    assert sys.modules['mmcv._ext'] is mmcv._ext
    assert mmcv._ext is not ext
    assert name_provider() == 'compiled'


def test_operators_that_do_not_load_are_replaced(tmp_path):
    """For example, operators compiled for another torch."""
    import mmcv

    package = tmp_path / 'mmcv'
    package.mkdir()
    for file in Path(mmcv.__file__).parent.iterdir():
        if not file.name.startswith('_ext'):
            (package / file.name).symlink_to(file)
    (package / '_ext.py').write_text(BROKEN)
    result = run_python('-c', 'import swin_backbone' + CALLS, path=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert result.stdout.splitlines()[-1] == 'swin_backbone.openmmlab.mmcv_ops.ext'


def test_stand_ins_are_switched_off(monkeypatch):
    monkeypatch.setitem(sys.modules, 'torchvision', torch)
    monkeypatch.setattr(compat, '_try_torchvision', lambda: RuntimeError('built for another torch'))
    monkeypatch.setitem(sys.modules, 'mmcv._ext', None)
    monkeypatch.setenv('SWIN_BACKBONE_STAND_INS', '0')
    put_in_place()
    leave_out_broken_torchvision()
    assert sys.modules['mmcv._ext'] is None
    assert name_provider() == 'none: SWIN_BACKBONE_STAND_INS=0 is set'
    assert sys.modules['torchvision'] is torch
    monkeypatch.setenv('SWIN_BACKBONE_STAND_INS', '1')
    with pytest.warns(UserWarning, match='SWIN_BACKBONE_STAND_INS=0 leaves torchvision as it is'):
        leave_out_broken_torchvision()
    assert sys.modules['torchvision'] is None


def test_a_missing_operator_is_named_with_what_to_do():
    with pytest.raises(NotImplementedError, match=r'^knn_forward: .*MMCV=compiled make install'):
        ext.knn_forward(torch.zeros(1))


def test_every_function_that_mmcv_asks_for_is_there():
    from mmcv.utils import ext_loader

    for name in ('nms', 'furthest_point_sampling_forward', 'get_compiler_version'):
        assert callable(getattr(ext, name))
    assert ext_loader.load_ext('_ext', ['nms', 'correlation_forward'])
    assert not hasattr(ext, '__path__')
    assert not hasattr(ext, '_private')


def test_a_torchvision_without_kernels_does_not_compute(monkeypatch):
    """Beside a CPU torch, torchvision's CUDA build registers the names of a few operators only."""
    monkeypatch.setitem(sys.modules, 'torchvision', torch)  # any module that loads
    for operator in ('no_such_operator', 'nms'):
        assert not providers._has_kernel.__wrapped__(operator, 'XLA')  # of which no build has kernels
    monkeypatch.setitem(sys.modules, 'torchvision', None)
    assert not providers._has_kernel.__wrapped__('nms', 'CPU')
