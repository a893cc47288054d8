"""Fields of a checkpoint that a resume cannot use, and metainfo of the training data."""

import copy

import numpy as np
import pytest
import torch
from helpers.openmmlab.toy_training import config, train

from swin_backbone.checkpoints import CheckpointError
from swin_backbone.openmmlab.checkpointing.completeness import dataset_meta_of
from swin_backbone.openmmlab.checkpointing.exact_resume import check_resumable, fit_to_run

WRONG = {
    'meta.epoch': (-1, 1.5, '8', None),
    'meta.iter': (-1, '8', [8]),
    'meta.exact_resume': (5, []),
    'optimizer': (5, [], {}, {5: 1}),
    'optimizer.state': (5, []),
    'optimizer.param_groups': (5, [1, 2], [{}]),
    'ema_state_dict': (5, [], {5: 1}),
    'message_hub.runtime_info': (5, None),
}


@pytest.fixture(scope='module')
def runner_and_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp('trained')
    runner = train(config(folder, epochs=1))
    return runner, torch.load(folder / 'epoch_1.pth', weights_only=False)


@pytest.mark.parametrize('path', WRONG)
def test_a_field_of_another_kind_is_one_sentence(record_fault, runner_and_checkpoint, path):
    runner, saved = runner_and_checkpoint
    for value in WRONG[path]:
        changed = copy.deepcopy(saved)
        *parents, name = path.split('.')
        holder = changed
        for parent in parents:
            holder = holder[parent]
        holder[name] = value
        message = r"^checkpoint 'a\.pth' cannot be resumed: .*leave out --resume"
        with pytest.raises(CheckpointError, match=message) as error:
            fit_to_run(runner, changed, 'a.pth')
        assert len(str(error.value).splitlines()) == 1
    record_fault('optimizer_states', len(WRONG[path]))


def test_weights_alone_are_not_resumable():
    with pytest.raises(CheckpointError, match=r"^checkpoint 'a\.pth' holds weights"):
        check_resumable({'state_dict': {}}, 'a.pth')


@pytest.mark.parametrize('meta', [None, 5, {}, {'dataset_meta': [1]}, {'dataset_meta': {'classes': [1, 2]}}])
def test_metainfo_without_classes(meta):
    assert not dataset_meta_of({'meta': meta}).get('classes')


def test_classes_and_palettes_of_the_toolboxes():
    for palette in ([(1, 2, 3)], np.array([[1, 2, 3]]), 'coco', (1, 2, 3), None, [], [5], {'cat': (1, 2, 3)}):
        meta = dataset_meta_of({'meta': {'dataset_meta': dict(CLASSES=('cat',), PALETTE=palette)}})
        assert meta['classes'] == ('cat',)
        assert len(meta.get('palette', ())) in (0, 1)
