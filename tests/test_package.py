"""The package as a whole: what it needs, and which way its imports go."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'swin_backbone'


@pytest.mark.parametrize('missing', ['mmengine', 'mmcv'])
def test_without_mmengine_or_mmcv_one_error_says_what_to_install(missing):
    code = f'import sys; sys.modules[{missing!r}] = None; import swin_backbone'
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith('ImportError: swin_backbone needs mmengine and mmcv')
    assert missing in last
    readme = (ROOT / 'README.md').read_text()
    commands = re.findall(r'`(pip install .+?)`', last)
    assert len(commands) == 4
    for command in commands:
        assert command in readme
        for extra in re.findall(r"'\.\[(\w+)\]'", command):
            assert f"        '{extra}': [" in (ROOT / 'setup.py').read_text()


def test_requires_neither_distribution_of_mmcv():
    setup = (ROOT / 'setup.py').read_text()
    install_requires = next(
        ast.literal_eval(keyword.value)
        for call in ast.walk(ast.parse(setup))
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == 'install_requires'
    )
    assert not any('mm' in requirement for requirement in install_requires)


def imported(path):
    """Absolute names of the modules a file imports, relative imports resolved."""
    here = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = '.'.join(here[: len(here) - node.level + 1]) + '.' if node.level else ''
            yield base + (node.module or '')


ALLOWED = {
    'windows': ('torch', 'swin_backbone.compat', 'swin_backbone.backends', 'swin_backbone.windows'),
    'backends': (
        *('torch', 'triton', 'setuptools', 'swin_backbone.compat', 'swin_backbone.windows'),
        *('swin_backbone.backends',),
    ),
    'checkpoints': (
        *('torch', 'numpy', 'safetensors', 'filelock', 'tqdm', 'mmengine'),
        *('swin_backbone.archs', 'swin_backbone.windows', 'swin_backbone.whole_files', 'swin_backbone.checkpoints'),
    ),
    'models': ('torch', 'mmengine', 'mmcv', 'swin_backbone'),
    'analysis': (
        *('torch', 'numpy', 'cv2', 'matplotlib', 'pytorch_grad_cam', 'rich', 'swin_backbone'),
        *('mmengine', 'mmdet', 'mmseg', 'mmpretrain', 'timm', 'transformers', 'torchvision', 'triton'),
    ),
    'openmmlab': (
        'torch',
        'torchvision',
        'numpy',
        'cv2',
        'PIL',
        'pycocotools',
        'mmengine',
        'mmdet',
        'rich',
        'swin_backbone',
    ),
}


@pytest.mark.parametrize('folder', ALLOWED)
def test_imports_go_down_only(folder):
    standard = sys.stdlib_module_names if hasattr(sys, 'stdlib_module_names') else ()
    for path in sorted((PACKAGE / folder).rglob('*.py')):
        for name in imported(path):
            top = name.split('.')[0]
            allowed = top in standard or any(name == a or name.startswith(a + '.') for a in ALLOWED[folder])
            assert allowed or not standard, f'{path.name} imports {name}'
            if folder == 'models':
                assert not name.startswith(('swin_backbone.openmmlab', 'mmdet', 'mmseg'))


def test_no_file_is_long():
    for path in PACKAGE.rglob('*.py'):
        assert len(path.read_text().splitlines()) <= 300, path


def install(folder, python, compiler):
    """Run tools/install.sh with a `python` in the environment that is this script."""
    path = folder / 'venv' / 'bin' / 'python'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(python)
    path.chmod(0o755)
    (folder / 'bin').mkdir()
    environment = {
        **{key: value for key, value in os.environ.items() if key != 'CXX'},
        'PATH': str(folder / 'bin') + (os.pathsep + os.environ['PATH'] if compiler else ''),
        'VENV': str(folder / 'venv'),
        'PYTHON': sys.executable,
        'TORCH': 'torch',
        'STACK': 'onedl',
    }
    if compiler:
        environment['CXX'] = 'true'
    bash = '/bin/bash' if Path('/bin/bash').exists() else '/usr/bin/bash'
    return subprocess.run(
        [bash, 'tools/install.sh'], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


def test_install_without_a_compiler_stops_with_one_sentence(tmp_path):
    result = install(tmp_path, '#!/bin/sh\nexit 1\n', compiler=False)  # in which nothing is installed yet
    assert result.returncode == 1
    assert result.stdout == ''
    assert len(result.stderr.splitlines()) == 1
    assert 'needs a C++ compiler, and there is none' in result.stderr


BUILDS = """#!/bin/sh
case "$*" in
*get_paths*) echo {headers} ;;
*mmcv._ext*) exit 1 ;;
*mmcv==*)
    command -v ninja
    for i in $(seq {done}); do echo "  [$i/25] c++ -c file$i.cpp -o file$i.o"; done
    exit {status} ;;
esac
"""


@pytest.mark.parametrize(('status', 'done'), [(0, 25), (1, 12)])
def test_install_says_how_much_of_mmcv_is_compiled(tmp_path, status, done):
    headers = tmp_path / 'include'
    headers.mkdir()
    (headers / 'Python.h').touch()
    (tmp_path / 'venv' / 'bin').mkdir(parents=True)
    ninja = tmp_path / 'venv' / 'bin' / 'ninja'
    ninja.write_text('')
    ninja.chmod(0o755)
    result = install(tmp_path, BUILDS.format(headers=headers, done=done, status=status), compiler=True)
    assert result.returncode == status
    said = re.findall(r'install: mmcv: (\d+) of 25 files compiled', result.stdout)
    assert said == ['3', '5', '8', '10', '13', '15', '18', '20', '23', '25'][: 10 if done == 25 else 4]
    log = (tmp_path / 'venv' / 'mmcv-build.log').read_text()
    assert str(ninja) in log  # with which torch compiles on all cores
    assert f'file{done}.o' in log
    assert ('mmcv did not build' in result.stderr) == (status == 1)
