"""The notebooks run from top to bottom, and contain no outputs."""

import json
import os

import pytest
from helpers import ROOT, require_plain_mmdet

NOTEBOOKS = sorted((ROOT / 'notebooks').glob('*.ipynb'))
each = pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)


@each
def test_outputs_are_stripped(path):
    """In an editor: "clear all outputs", then save."""
    notebook = json.loads(path.read_text(encoding='utf-8'))
    assert set(notebook['metadata']) <= {'kernelspec', 'language_info'}
    for cell in notebook['cells']:
        assert not cell['metadata']
        assert not cell.get('outputs')
        assert cell.get('execution_count') is None


@pytest.mark.slow
@each
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip('nbclient', reason='nbclient is not installed')
    pytest.importorskip('ipykernel', reason='ipykernel is not installed')
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    import nbformat

    if 'from mmdet' in path.read_text(encoding='utf-8'):
        require_plain_mmdet()
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]))
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name='python3', resources=dict(metadata=dict(path=ROOT))
    ).execute()
    assert any(cell.get('outputs') for cell in notebook.cells)
