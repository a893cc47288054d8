"""The documentation: links exist, commands parse, Python blocks run, error texts are in the code."""

import ast
import doctest
import importlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from functools import cache, lru_cache
from pathlib import Path

import pytest
from helpers import ROOT

import swin_backbone

CHINESE = sorted((ROOT / 'docs' / 'zh_cn').rglob('*.md'))  # test_docs_zh.py compares their code
ENGLISH = [page for page in sorted((ROOT / 'docs').rglob('*.md')) if page not in CHINESE]
PAGES = [*sorted(ROOT.glob('*.md')), *ENGLISH]
names = pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)

FENCE = re.compile(r'^(```+)(\w*)\n(.*?)^\1$', re.M | re.S)
NOT_RUN = re.compile(r'<!-- not run: .+ -->\n\Z')
EXAMPLES = (
    *('models.swin', 'models.swin_v2', 'checkpoints.load', 'checkpoints.convert'),
    *('openmmlab.swap.backbone', 'openmmlab.layer_decay', 'workbench.pictures.attention'),
)


def prose(page):
    """Return a page without code blocks."""
    return FENCE.sub('', page.read_text(encoding='utf-8'))


@cache
def anchors(page):
    """Return the anchors of a page's headings, as on GitHub and the site."""
    headings = re.findall(r'^#+ (.+)$', prose(page), re.M)
    plain = [re.sub(r'[`*]|\[([^]]*)\]\([^)]*\)', r'\1', heading) for heading in headings]
    return [re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in plain]


@pytest.mark.parametrize('page', [*PAGES, *CHINESE], ids=lambda page: f'{page.parent.name}/{page.name}')
def test_links_and_pictures_lead_somewhere(page):
    for target in re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', prose(page)):
        target = ''.join(target)
        if target.startswith(('https://', 'http://')):
            continue
        path, _, anchor = target.partition('#')
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f'{page.name}: {target}'
        if anchor:
            assert anchor in anchors(there), f'{page.name}: {target}'


def test_each_picture_of_the_pages_is_drawn_by_one_command():
    drawn = re.findall(r'--out \$\(PICTURES\)/(\S+\.png)$', (ROOT / 'Makefile').read_text(encoding='utf-8'), re.M)
    kept = {path.name: path for path in (ROOT / 'docs' / 'images' / 'pictures').glob('*.png')}
    assert sorted(drawn) == sorted(kept)
    for name, path in kept.items():
        assert any(f'pictures/{name})' in page.read_text(encoding='utf-8') for page in PAGES), f'no page shows {name}'
        assert path.stat().st_size < 200_000, f'{name} was not made small: see make docs-pictures'


@names
def test_files_that_are_named_exist(page):
    written = prose(page).partition('<!-- generated')[0]  # written by a test, with errors of the toolboxes
    named = re.findall(
        r'\b(?:swin_backbone|tools|tests|configs|constraints|benchmarks)/[\w./-]+\.(?:py|sh|md|txt)\b', written
    )
    if page.name != 'CHANGELOG.md':  # names removed files too
        assert [path for path in named if not (ROOT / path).exists()] == []


def commands(page):
    """Yield the commands of the shell blocks of a page's text as lists of words."""
    for _, language, text in FENCE.findall(page):
        if language != 'bash':
            text = '\n'.join(line[2:] for line in text.splitlines() if line.startswith('$ '))
        for line in text.replace('\\\n', ' ').splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars='&|;')
            words.whitespace_split = True
            command = []
            for word in [*words, '&&']:
                if word and set(word) <= set('&|;'):
                    if command:
                        yield command
                    command = []
                elif command or not re.fullmatch(r'[A-Z_]+=.*', word):  # variables stand before a command
                    command.append(word)


@cache
def tool(path):
    return runpy.run_path(str(ROOT / path), run_name='tool')['parse_args']


def check(command, monkeypatch):
    program, *arguments = command
    if Path(program).name in ('python', '$(RUN)') and arguments[0].startswith('tools/'):
        monkeypatch.setattr(sys, 'argv', arguments)
        tool(arguments[0])()
    elif arguments[0] == '-m' and arguments[1].startswith('benchmarks.'):
        monkeypatch.setattr(sys, 'argv', arguments[1:])
        importlib.import_module(arguments[1]).parse_args()
    elif arguments[:2] == ['-m', 'swin_backbone']:
        from swin_backbone.__main__ import make_parser

        make_parser().parse_args(arguments[2:])
    elif program == 'make':
        makefile = (ROOT / 'Makefile').read_text().replace('\\\n', ' ')
        targets = re.search(r'^\.PHONY: (.+)$', makefile, re.M)[1].split()
        assert {word for word in arguments if '=' not in word} <= set(targets)
        for name, value in (word.split('=', 1) for word in arguments if '=' in word):
            prefix = {'ENV': 'venv', 'TESTS': 'tests', 'TASK': 'demo'}.get(name)
            assert prefix is None or re.search(rf'^{prefix}_{value} :?=', makefile, re.M), f'{name}={value}'
    elif program == 'bash' or (program == 'python' and arguments[0].startswith('tests/')):
        assert (ROOT / arguments[0]).is_file()
    elif program == 'ray':
        assert (ROOT / arguments[arguments.index('python') + 1]).is_file()
    elif program == 'sbatch':
        assert all((ROOT / word).is_file() for word in arguments if word.startswith('tools/'))
        if '--wrap' in arguments:
            wrapped = arguments[arguments.index('--wrap') + 1]
            for variable, value in dict(SLURM_ARRAY_TASK_ID='0', SLURM_ARRAY_TASK_COUNT='4').items():
                wrapped = wrapped.replace(f'${variable}', value)
            check(shlex.split(wrapped), monkeypatch)
    elif program.endswith('pytest') or arguments[:2] == ['-m', 'pytest']:
        assert all((ROOT / word).exists() for word in arguments if word.startswith('tests'))
    elif program.endswith('pip') or arguments[:2] == ['-m', 'pip']:
        extras = re.findall(r"^        '(\w+)': \[", (ROOT / 'setup.py').read_text(), re.M)
        asked = re.findall(r'\[([\w,]+)\]', ' '.join(arguments))
        assert {extra for group in asked for extra in group.split(',')} <= set(extras)
    else:
        assert program in ('python', 'git', 'cd', 'source', 'pre-commit', 'jupyter', 'docker'), 'what is this?'


@names
def test_commands_parse(page, tmp_path, monkeypatch, capsys):
    (tmp_path / 'DIR').mkdir()
    (tmp_path / 'DIR' / 'deploy.json').touch()  # the mark of an exported folder
    monkeypatch.chdir(tmp_path)
    for command in commands(page.read_text(encoding='utf-8')):
        try:
            check(command, monkeypatch)
        except (SystemExit, AssertionError) as error:
            raise AssertionError(f'{page.name}: {shlex.join(command)}: {error} {capsys.readouterr().err}') from error


@names
def test_python_blocks_run(page, tmp_path, monkeypatch, capsys):
    """Run the blocks of a page in order. A block after `<!-- not run: REASON -->` is left out."""
    text, namespace = page.read_text(encoding='utf-8'), {}
    monkeypatch.chdir(tmp_path)
    for match in FENCE.finditer(text):
        if match[2] == 'python' and not NOT_RUN.search(text[: match.start()]):
            line = text[: match.start()].count('\n') + 2
            exec(compile('\n' * (line - 1) + match[3], str(page), 'exec'), namespace)


@pytest.mark.parametrize('module', EXAMPLES)
def test_examples_of_docstrings(module):
    failed, tried = doctest.testmod(importlib.import_module(f'swin_backbone.{module}'))
    assert tried
    assert not failed


def test_the_python_reference_is_what_the_docstrings_make():
    api = runpy.run_path(str(ROOT / 'docs' / 'write_api.py'))
    assert api['PAGE'].read_text(encoding='utf-8') == api['page'](), 'python docs/write_api.py writes the page'
    names = {name for section in api['SECTIONS'].values() for name in section}
    assert {name for name in swin_backbone.__all__ if name != '__version__'} <= names


@pytest.mark.parametrize('language', ['', 'zh_cn'])
def test_the_pages_of_options_are_what_the_table_makes(language):
    options = runpy.run_path(str(ROOT / 'docs' / 'write_options.py'))
    written = options['PAGES'][language].read_text(encoding='utf-8')
    assert written == options['page'](language), 'python docs/write_options.py writes the pages'


@lru_cache(maxsize=1)
def sentences():
    """Return a pattern for each string of the package and the tools with at least 20 fixed characters."""
    results = set()
    for path in [path for folder in ('swin_backbone', 'tools', 'benchmarks') for path in (ROOT / folder).rglob('*.py')]:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.JoinedStr):
                parts = [re.escape(p.value) if isinstance(p, ast.Constant) else '.*' for p in node.values]
                fixed = sum(len(p.value) for p in node.values if isinstance(p, ast.Constant))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts, fixed = [re.escape(node.value)], len(node.value)
            else:
                continue
            if fixed >= 20:
                results.add(''.join(parts))
    return [re.compile(pattern, re.S) for pattern in results]


def test_errors_of_troubleshooting_are_word_for_word():
    page = (ROOT / 'docs' / 'guides' / 'troubleshooting.md').read_text(encoding='utf-8')
    text = page.partition('\n## Messages of other libraries\n')[0]
    errors = [*re.findall(r'^- `(.+)`:$', text, re.M), *(match[3].strip() for match in FENCE.finditer(text))]
    assert len(errors) > 15
    for error in errors:
        assert any(pattern.search(error) for pattern in sentences()), error


@pytest.mark.skipif(not shutil.which('make'), reason='make is not installed')
def test_notes_of_a_release_are_the_section_of_its_version():
    version = swin_backbone.__version__
    notes = {tag: subprocess.run(['make', '-s', 'notes', f'TAG={tag}', f'PYTHON={sys.executable}'], cwd=ROOT,
                                 capture_output=True, text=True) for tag in (f'v{version}', 'v0.0.0', '')}  # fmt: skip
    section = f'\n## {version}\n\n' + notes.pop(f'v{version}').stdout
    assert section in (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8')
    assert all(result.returncode and f'TAG takes v{version}' in result.stderr for result in notes.values())


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_fetches_nothing(tmp_path):
    pytest.importorskip('mkdocs', reason="mkdocs is not installed: pip install -e '.[docs]'")
    result = subprocess.run(
        [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', str(tmp_path)],
        cwd=ROOT, env={**os.environ, 'PYTHONPATH': str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    pages = list(tmp_path.rglob('*.html'))
    assert {page.with_suffix('.html').name for page in ENGLISH} <= {p.name for p in pages}
    for page in pages:
        html = page.read_text(encoding='utf-8')
        tags = re.findall(r'<(?:script|img|iframe)[^>]*>|<link[^>]*stylesheet[^>]*>', html)
        assert not [tag for tag in tags if re.search(r'(?:src|href)="?(?:https?:)?//', tag)], page.name
