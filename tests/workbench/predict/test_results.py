"""The files of predictions: what a refused run leaves."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from swin_backbone.workbench.data.media import Medium
from swin_backbone.workbench.predict.results import ResultsWriter


def test_a_refused_prediction_leaves_no_file(tmp_path):
    """It left the two files of a lock."""
    mine = tmp_path / 'labels' / 'a.png'
    mine.parent.mkdir()
    mine.touch()
    writer = ResultsWriter(tmp_path, SimpleNamespace(scope='mmseg', model=None, score_thr=0.3), None)
    claim = writer.claim_outputs([Medium(Path('a.jpg'), 'a', False)], (), overwrite=False)
    with pytest.raises(FileExistsError, match=f'{mine} is there already'), claim:
        pass
    assert [*tmp_path.rglob('*')] == [mine.parent, mine]
