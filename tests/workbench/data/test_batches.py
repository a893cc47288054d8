"""The order of the data from any position, and random numbers that depend only on the position."""

import random

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler, RandomSampler

from swin_backbone.workbench.data.batches import ResumableBatchSampler
from swin_backbone.workbench.data.seeds import seed_rng

DATA = range(10)


def draw():
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_random_numbers_depend_on_the_place_alone():
    seed_rng(5, 0, 1, 2)
    first = draw()
    draw()
    seed_rng(5, 0, 1, 3)
    assert not set(draw()) & set(first)
    seed_rng(5, 0, 1, 2)
    assert draw() == first


SAMPLERS = {
    'default': lambda: DefaultSampler(DATA, seed=3),
    'infinite': lambda: InfiniteSampler(DATA, seed=3),
    'of the process': lambda: RandomSampler(DATA),
}


def take(sampler, number):
    return [batch for batch, _ in zip(sampler, range(number))]


@pytest.mark.parametrize('kind', SAMPLERS)
@pytest.mark.parametrize('endless', [False, True])
def test_the_order_from_any_place_on(kind, endless):
    def begun(number, done):
        sampler = ResumableBatchSampler(SAMPLERS[kind](), batch_size=4, endless=endless)
        sampler.begin_at(7, number, done)
        return sampler

    whole = take(begun(0, 0), 9)
    assert len(whole) == (9 if endless or kind == 'infinite' else 3)
    for done in (0, 1, 2, 3, 7):
        rest = take(begun(done, done), max(len(whole) - done, 0))
        assert rest == whole[done:]
        assert [batch.position for batch in rest] == [batch.position for batch in whole[done:]]


def test_each_pass_has_an_order_of_its_own():
    for kind in ('default', 'of the process'):
        batches = take(ResumableBatchSampler(SAMPLERS[kind](), batch_size=5, endless=True), 6)
        passes = [batches[start] + batches[start + 1] for start in (0, 2, 4)]
        assert all(sorted(indices) == list(DATA) for indices in passes)
        assert passes[0] != passes[1] != passes[2]
    epochs = ResumableBatchSampler(RandomSampler(DATA), batch_size=5)
    orders = []
    for number in (0, 2):
        epochs.begin_at(7, number, 0)
        orders.append(list(epochs))
    assert orders[0] != orders[1]


def test_drops_the_last_and_keeps_its_length():
    inner = dict(type=BatchSampler, drop_last=True)
    sampler = ResumableBatchSampler(DefaultSampler(DATA, seed=3), batch_size=4, inner=inner)
    assert (len(sampler), [len(batch) for batch in sampler]) == (2, [4, 4])
    sampler.begin_at(0, 1, 1)
    assert (len(sampler), [len(batch) for batch in sampler]) == (2, [4])
