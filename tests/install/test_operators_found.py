"""`mmcv.ops` finds operators without a prior import of this package: a `.pth` file installs the finder."""

import csv
import re
import zipfile

import pytest
from helpers import ROOT, run_python

FILES = {'_swin_backbone_mmcv.pth', '_swin_backbone_mmcv.py'}
# Python reads `.pth` files in site-packages alone; `site.addsitedir` reads more folders.
READ_PTH = 'import site, sys\nsite.addsitedir({folder!r})\n'
CALLS = """
import torch
import mmcv.ops
assert 'swin_backbone' not in sys.modules
boxes = torch.tensor([[0.0, 0, 9, 9], [1, 1, 9, 9], [20, 20, 29, 29]])
from mmcv.ops import nms
print('kept', nms(boxes, torch.tensor([0.8, 0.9, 0.7]), 0.5)[1].tolist())
from swin_backbone.openmmlab.mmcv_ops import name_provider
print(name_provider())
"""


OFF = dict(SWIN_BACKBONE_STAND_INS='0')


def run(folder, code, **environment):
    return run_python(
        '-c', READ_PTH.format(folder=str(folder)) + code, folder=folder, path=folder, **environment
    ).stdout


def build(kind, source, folder, **environment):
    """Return a wheel, or the wheel of an editable installation."""
    code = f'from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})'
    run_python('-c', code, folder=source, SWIN_BACKBONE_NATIVE='0', **environment)
    (wheel,) = folder.glob('*.whl')
    return wheel


@pytest.fixture(scope='module')
def editable(source, tmp_path_factory):
    """Folder with the site-packages files of an editable installation."""
    folder = tmp_path_factory.mktemp('editable')
    wheel = build('editable', source, folder)
    zipfile.ZipFile(wheel).extractall(folder / 'site')
    return folder / 'site'


@pytest.fixture(params=['wheel', 'editable'])
def site(request):
    """The site-packages of either kind of installation."""
    return request.getfixturevalue({'wheel': 'installed', 'editable': 'editable'}[request.param])


def test_pip_records_the_finder(site):
    (record,) = site.glob('swin_backbone-*.dist-info/RECORD')
    with record.open() as file:
        assert FILES < {row[0] for row in csv.reader(file)}


def test_mmcv_finds_operators_before_this_package(installed):
    pytest.importorskip('mmcv')
    printed = run(installed, CALLS).splitlines()
    assert printed[-2] == 'kept [1, 2]'
    assert printed[-1].startswith("swin_backbone's own, in place of mmcv's (")


def test_python_starts_without_torch(installed):
    code = "print(sorted(n for n in sys.modules if n.split('.')[0] in ('torch', 'mmcv', 'mmengine', 'swin_backbone')))"
    assert run(installed, code) == '[]\n'


@pytest.mark.usefixtures('installed')  # the folder of the build has the files already
def test_an_installation_without_stand_ins(source, tmp_path):
    with zipfile.ZipFile(build('wheel', source, tmp_path, **OFF)) as wheel:
        assert not FILES & set(wheel.namelist())


@pytest.mark.parametrize(('environment', 'found'), [({}, 'True'), (OFF, 'False')])
def test_the_finder_is_switched_off(installed, environment, found):
    code = "print('OperatorsFinder' in [getattr(finder, '__name__', '') for finder in sys.meta_path])"
    assert run(installed, code, **environment) == f'{found}\n'


def test_a_compiled_module_beside_mmcv_wins(installed, tmp_path):
    (tmp_path / 'mmcv').mkdir()
    (tmp_path / 'mmcv' / '__init__.py').touch()
    (tmp_path / 'mmcv' / '_ext.py').write_text("origin = 'compiled'\n")
    code = f'sys.path.insert(0, {str(tmp_path)!r})\nimport mmcv._ext\nprint(mmcv._ext.origin)'
    assert run(installed, code) == 'compiled\n'


def test_the_stand_in_is_no_compiled_mmcv(installed):
    """`MMCV=compiled make install` builds mmcv in an environment with the stand-in too."""
    (check,) = re.findall(r"^mmcv_is_built\(\) .* -c '(.+?)'", (ROOT / 'tools' / 'install.sh').read_text(), re.M)
    code = f'try:\n    {check}\nexcept (ImportError, AttributeError):\n    print("to be built")'
    assert run(installed, code) == 'to be built\n'


def test_without_mmcv_nothing_is_found(installed):
    code = "sys.modules['mmcv'] = None\ntry:\n    import mmcv._ext\nexcept ImportError as error:\n    print(error.name)"
    assert run(installed, code) == 'mmcv._ext\n'
