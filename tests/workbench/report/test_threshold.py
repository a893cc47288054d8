"""The best threshold of a report is stored with the model. Predictions and exports take it."""

import json
import os
import zipfile

import numpy as np
import pytest
import torch
from helpers.openmmlab.random_models import DETECTION, save_random_model
from mmengine.config import Config
from mmengine.logging import HistoryBuffer

from swin_backbone.workbench.export import export
from swin_backbone.workbench.report.threshold import store_threshold


def contents_of(path):
    """Return the bytes of the tensors of a checkpoint, everything as text, and what the text leaves out."""
    with zipfile.ZipFile(path) as file:
        tensors = {name: file.read(name) for name in file.namelist() if '/data/' in name}
    contents = torch.load(path, weights_only=False)
    history = contents['message_hub'].pop('loss')
    return [*tensors.values()], repr(contents), vars(contents['state_dict']), repr(vars(history)['_log_history'])


def test_a_checkpoint_keeps_everything_else(tmp_path):
    model, shared = torch.nn.BatchNorm2d(2), torch.arange(6.0)
    weights = model.state_dict()
    weights.update(half=torch.tensor([torch.nan, 1]).half(), one=shared, two=shared[2:4], turned=shared.view(2, 3).T)
    meta = dict(epoch=3, dataset_meta=dict(classes=('nut', 'bolt'), palette=[(1, 2, 3)]), best_score_thr=0.125)
    optimizer = dict(param_groups=[dict(lr=0.1, betas=(0.9, 0.99))], state={0: dict(step=torch.tensor(3))})
    hub = dict(loss=HistoryBuffer([1.5, 2.5], [1, 1]), best=np.float64(2), draws=np.arange(3, dtype=np.uint32))
    path, link = tmp_path / 'epoch_3.pth', tmp_path / 'best.pth'
    torch.save(dict(meta=meta, state_dict=weights, message_hub=hub, optimizer=optimizer), path)
    os.utime(path, (100, 200))
    path.chmod(0o640)
    link.symlink_to(path.name)
    tensors, text, *more = contents_of(path)
    assert 'best threshold 0.85: stored in ' in store_threshold(str(link), 0.85)
    assert contents_of(path) == (tensors, text.replace("'best_score_thr': 0.125", "'best_score_thr': 0.85"), *more)
    state = path.stat()
    assert (state.st_mtime, state.st_mode & 0o777) == (200, 0o640)  # --resume takes the newest checkpoint
    assert sorted(one.name for one in tmp_path.iterdir() if not one.is_symlink()) == ['epoch_3.pth']


def test_a_manifest_keeps_its_time_and_mode(tmp_path):
    path = tmp_path / 'deploy.json'
    path.write_text('{"format": "onnx"}')
    os.utime(path, (100, 200))
    path.chmod(0o640)
    assert 'stored in ' in store_threshold(str(tmp_path), 0.85)
    assert json.loads(path.read_text()) == dict(format='onnx', score_thr=0.85)
    assert (path.stat().st_mtime, path.stat().st_mode & 0o777) == (200, 0o640)


def test_what_cannot_keep_a_threshold_stays(tmp_path):
    torch.save(dict(weight=torch.ones(2)), bare := tmp_path / 'bare.pth')
    torch.save(dict(state_dict={}, meta=None), empty := tmp_path / 'empty.pth')
    torch.save(dict(state_dict={}, meta={}), locked := tmp_path / 'locked.pth')
    locked.chmod(0o444)
    before = [path.read_bytes() for path in (bare, empty, locked)]
    for checkpoint in (bare, empty, locked, 'https://example.org/model.pth'):
        line = store_threshold(str(checkpoint), 0.5)
        assert line.startswith(f'best threshold 0.5: not stored, as {checkpoint} has no place for it or may not be')
    assert [path.read_bytes() for path in (bare, empty, locked)] == before


def test_an_export_takes_the_threshold_over(tmp_path, monkeypatch):
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    checkpoint = save_random_model(DETECTION, tmp_path)
    store_threshold(str(checkpoint), 0.625)
    monkeypatch.setattr(export, 'graph_of', lambda *_: None)
    monkeypatch.setattr(export, 'write', lambda *given: given[4])
    picture = np.zeros((64, 64, 3), np.uint8)
    assert export.export(Config.fromfile(DETECTION), checkpoint, tmp_path, pictures=[picture])['score_thr'] == 0.625
