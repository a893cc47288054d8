"""The package as a whole: requirements, and directions of imports."""

import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT, run_python

PACKAGE = ROOT / 'swin_backbone'


def test_without_mmengine_one_error_says_what_to_install():
    code = "import sys; sys.modules['mmengine'] = None; import swin_backbone; swin_backbone.swap_backbone"
    last = run_python('-c', code, status=1).stderr.strip().splitlines()[-1]
    assert last.startswith('ImportError: this part of swin_backbone needs mmengine and mmcv')
    readme = (ROOT / 'README.md').read_text()
    commands = re.findall(r'`((?:PIP_CONSTRAINT=\S+ )?pip install .+?)`', last)
    assert len(commands) == 2
    for command in commands:
        assert command in readme
        for extra in re.findall(r"'\.\[(\w+)\]'", command):
            assert f"        '{extra}': [" in (ROOT / 'setup.py').read_text()


def test_requires_neither_distribution_of_mmcv():
    (required,) = re.findall(r'install_requires=(\[.+\])', (ROOT / 'setup.py').read_text())
    assert not any('mm' in requirement for requirement in ast.literal_eval(required))


def imported(path):
    """Absolute names of the modules a file imports, relative imports resolved."""
    here = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = '.'.join(here[: len(here) - node.level + 1]) + '.' if node.level else ''
            yield base + (node.module or '')


TABLE = ROOT / 'CONTRIBUTING.md'
ARROW = re.compile(r'^\| `(\w+)/?` \| (.+?) \| (.+?) \|$', re.MULTILINE)
DECIDERS = 'is_compiling', 'is_tracing', 'is_available('
COMPUTE = {'kernels', 'models', 'compat.py', 'modes.py', 'positions.py'}
# Modules that list devices, and compute nothing.
ASK_FOR_DEVICES = {'commands', 'devices.py', 'openmmlab', 'workbench'}


def arrows():
    """Return CONTRIBUTING's table: for each package the allowed imports of ours and of others."""
    section = (
        TABLE.read_text(encoding='utf-8')
        .split('imports only the named packages of earlier lines')[1]
        .split('A test reads this table')[0]
    )
    names = re.compile(r'`(\w+)`')
    return {folder: (names.findall(ours), names.findall(others)) for folder, ours, others in ARROW.findall(section)}


def test_the_table_of_arrows_has_all_packages_and_no_circle():
    table = arrows()
    folders = {path.parent.name for path in PACKAGE.glob('*/__init__.py')}
    assert set(table) == folders
    seen = set()
    for folder, (ours, _) in table.items():  # a line may name only the lines above
        assert set(ours) & folders <= seen, folder
        seen.add(folder)


@pytest.mark.parametrize('folder', sorted(path.parent.name for path in PACKAGE.glob('*/__init__.py')))
def test_imports_go_down_only(folder):
    standard = sys.stdlib_module_names if hasattr(sys, 'stdlib_module_names') else ()
    ours, others = arrows()[folder]
    allowed = [*others, *(f'swin_backbone.{name}' for name in (folder, *ours))]
    for path in sorted((PACKAGE / folder).rglob('*.py')):
        for name in imported(path):
            known = name.split('.')[0] in standard or any(name == a or name.startswith(a + '.') for a in allowed)
            assert known or not standard, f'{path.relative_to(ROOT)} imports {name}'


def test_no_circle_of_imports():
    """Imports inside functions count too."""
    modules = {'.'.join(path.relative_to(ROOT).with_suffix('').parts): path for path in PACKAGE.rglob('*.py')}
    graph = {}
    for module, path in modules.items():
        names = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        graph[module] = set()
        for node in names:
            base = '.'.join([*module.split('.')[: -node.level], *filter(None, [node.module])]) if node.level else ''
            graph[module] |= {base} | {f'{base}.{alias.name}' for alias in node.names}
        graph[module] &= set(modules)
    order = [*graphlib.TopologicalSorter(graph).static_order()]  # raises a CycleError
    assert set(order) == set(modules)


KNOW_A_SWIN = ('pictures', 'cost', 'export')


def test_folders_of_the_workbench_import_those_to_their_left():
    sentence = TABLE.read_text(encoding='utf-8').split('imports those to its left alone: ')[1].split('.')[0]
    folders = re.findall(r'`(\w+)`', sentence)
    inside = PACKAGE / 'workbench'
    assert sorted(folders) == sorted(path.parent.name for path in inside.glob('*/__init__.py'))
    of_swins = [f'swin_backbone.{name}' for name in ('models', 'kernels', 'openmmlab.swap', 'openmmlab.layers')]
    for_jobs = ('swin_backbone.openmmlab.swap', 'swin_backbone.openmmlab.layers.extension')
    for folder in folders:
        allowed = folders[: folders.index(folder) + 1]
        for path in sorted((inside / folder).rglob('*.py')):
            for name in imported(path):
                message = f'{path.relative_to(ROOT)} imports {name}'
                if name.startswith('swin_backbone.workbench.'):
                    assert name.split('.')[2] in allowed, message
                assert not name.startswith(for_jobs if folder in KNOW_A_SWIN else tuple(of_swins)), message


def test_only_backends_decide_how_a_layer_is_computed():
    for path in sorted(PACKAGE.rglob('*.py')):
        inside = path.relative_to(PACKAGE).parts[0]
        deciders = DECIDERS[:2] if inside in ASK_FOR_DEVICES else DECIDERS
        if inside not in COMPUTE:  # graphs take other ways
            assert not [word for word in deciders if word in path.read_text(encoding='utf-8')], path


def install(folder, python, compiler, mmcv='compiled'):
    """Run tools/install.sh in an environment with a given `python`."""
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
        'MMCV': mmcv,
    }
    if compiler:
        environment['CXX'] = 'true'
    command = [shutil.which('bash'), 'tools/install.sh']
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def test_install_without_a_compiler_stops_with_one_sentence(tmp_path):
    result = install(tmp_path, '#!/bin/sh\nexit 1\n', compiler=False)  # an empty environment
    assert result.returncode == 1
    assert result.stdout == ''
    assert len(result.stderr.splitlines()) == 1
    assert 'needs a C++ compiler, and there is none' in result.stderr


WITHOUT_MMCV = """#!/bin/sh
echo "$*" >>{log}
case "$*" in
*'import mmcv'*) exit 1 ;;
esac
"""


def test_install_takes_mmcv_without_its_operators(tmp_path):
    """Build in isolation as pip does, without torch and without pip's cache of compiled wheels."""
    log = tmp_path / 'log'
    result = install(tmp_path, WITHOUT_MMCV.format(log=log), compiler=True, mmcv='')
    assert result.returncode == 0, result.stderr
    assert 'without its compiled operators' in result.stdout
    (fetched,) = [line for line in log.read_text().splitlines() if 'pip' in line and 'mmcv==' in line]
    assert '--use-pep517 --no-cache-dir' in fetched
    assert '--no-build-isolation' not in fetched
