"""Fields of a checkpoint that are another thing than a resume takes for granted."""

import copy

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from swin_backbone.checkpoints import CheckpointError
from swin_backbone.openmmlab.checkpointing.fields import check_resumable, dataset_meta_of
from swin_backbone.openmmlab.checkpointing.loops import placed

EXACT = dict(sampler_seed=5, batches_done=3, batch_size=2, ranks=1, images=16, pictures='a', gradients=None)
RESUMABLE = dict(
    meta=dict(epoch=1, iter=8, seed=5, exact_resume=EXACT),
    state_dict={},
    message_hub=dict(
        log_scalars={'train/loss': HistoryBuffer([1.0], [1])},
        runtime_info={'best_score': 0.5, 'mine': object()},
        resumed_keys={'train/loss': True},
    ),
    optimizer={},
)
NO_COUNTS = (-1, 1.5, '8', None, True, [8], 10**30, float('nan'))
WRONG = {
    'meta.epoch': NO_COUNTS,
    'meta.iter': NO_COUNTS,
    'meta.seed': (-1, 1 << 32, '5', 1.5),
    'meta.exact_resume': (5, [], {}, {'sampler_seed': 5}),
    'meta.exact_resume.sampler_seed': (-1, '5', torch.ones(1)),
    'meta.exact_resume.batches_done': NO_COUNTS,
    'meta.exact_resume.batch_size': (0, -2, '2', [], [0], 2.0),
    'meta.exact_resume.ranks': (0, -1, None, '1'),
    'meta.exact_resume.gradients': (5, [5], {'a': 1}),
    'meta.exact_resume.images': (-1, 'x'),
    'meta.exact_resume.by_epoch': (1, 'epochs'),
    'meta.exact_resume.batches_a_step': (0, True, 2.0),
    'message_hub.log_scalars': (5, {5: 1}, {'a': HistoryBuffer()}, {'a': HistoryBuffer([1j], [1])}),
    'message_hub.runtime_info': (5, {5: 1}, {'best_score': 'x'}, {'best_score_a': float('nan')}, {'best_score': None}),
    'message_hub.resumed_keys': (5, {'a': 5}, {5: True}),
    'optimizer': (5, [], {5: 1}),
    'ema_state_dict': (5, [], {5: 1}),
}


def with_field(path, value):
    changed = copy.deepcopy(RESUMABLE)
    *parents, name = path.split('.')
    holder = changed
    for parent in parents:
        holder = holder[parent]
    holder[name] = value
    return changed


@pytest.mark.parametrize('path', WRONG)
def test_a_field_that_is_another_thing_is_named(record_fault, path):
    check_resumable(RESUMABLE, 'a.pth')
    for value in WRONG[path]:
        where = rf"^checkpoint 'a\.pth' cannot be resumed: {path}.*leave out --resume"
        with pytest.raises(CheckpointError, match=where) as said:
            check_resumable(with_field(path, value), 'a.pth')
        assert len(str(said.value)) < 300
    record_fault('optimizer_states', len(WRONG[path]))


@pytest.mark.parametrize('name', ['sampler_seed', 'batches_done', 'ranks'])
def test_fields_that_are_missing(name, record_fault):
    exact = {key: value for key, value in EXACT.items() if key != name}
    changed = with_field('meta.exact_resume', exact)
    if name == 'sampler_seed':
        check_resumable(changed, 'a.pth')
    else:
        with pytest.raises(CheckpointError, match=f'meta.exact_resume has no {name}'):
            check_resumable(changed, 'a.pth')
    record_fault('optimizer_states')


@pytest.mark.parametrize(
    'meta',
    [
        dict(classes=5), dict(classes='cat'), dict(classes=[]), dict(CLASSES=[1, 2]), dict(classes={'cat': 1}),
        dict(classes=['cat'], palette=5), dict(classes=['cat'], palette=[5]), dict(classes=['cat'], palette=[(1, 2)]),
        dict(classes=['cat'], palette=[(1, 2, 256)]), dict(classes=['cat'], palette=[(1, 2, -1)]),
        dict(classes=['cat'], PALETTE=[('a', 'b', 'c')]), dict(classes=['cat', 'dog'], palette=[(1, 2, 3)]),
        dict(classes=['cat'], palette=[(1, 2, 0.5)]), dict(palette={'cat': (1, 2, 3)}),
    ],
)  # fmt: skip
def test_classes_and_colours_that_are_none(record_fault, meta):
    with pytest.raises(CheckpointError, match=r"^checkpoint 'a\.pth': dataset_meta\.(classes|palette) "):
        dataset_meta_of({'meta': {'dataset_meta': meta}}, 'a.pth')
    record_fault('optimizer_states')


def test_classes_and_colours_as_the_toolboxes_have_them():
    for palette in ([(1, 2, 3)], [[1, 2, 3]], np.array([[1, 2, 3]]), 'coco', (1, 2, 3), None, []):
        meta = dataset_meta_of({'meta': {'dataset_meta': dict(CLASSES=('cat',), PALETTE=palette)}}, 'a.pth')
        assert meta['classes'] == ('cat',)
        assert len(meta.get('palette', ())) in (0, 1)


@pytest.mark.parametrize('name', ['max_epochs', 'max_iters', 'val_interval'])
def test_a_training_of_no_steps_is_refused(record_fault, name):
    for value in (-1, 0, 1.5, '3', None, True, float('nan')):
        with pytest.raises(ValueError, match=rf'train_cfg\.{name} takes a whole number from 1, got'):
            placed({'by_epoch': True, name: value})
    record_fault('bad_commands', 7)
