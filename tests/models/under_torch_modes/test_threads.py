"""Several threads share a model: a forward must not depend on concurrent forwards."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier

import pytest
import torch
from helpers.models.small_models import TWO_STAGES, randomised

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.models import SimMIMSwinBackbone, SimMIMSwinV2Backbone

SIZES = [(40, 60), (33, 21), (96, 64)]
ROUNDS = 3
WAYS = [dict(), dict(backend='torch'), dict(backend='torch', with_cp=True)]


def make(backbone, **arguments):
    return randomised(kind=backbone, **{**TWO_STAGES, 'depths': (2, 2)}, **arguments)


def assert_alike_in_threads(jobs):
    """Check jobs: results alone and in concurrent threads are equal, at every repetition."""
    alone = [job() for job in jobs]
    barrier = Barrier(len(jobs))

    def again(job):
        barrier.wait()
        return [job() for _ in range(ROUNDS)]

    with ThreadPoolExecutor(len(jobs)) as pool:
        for expected, rounds in zip(alone, pool.map(again, jobs)):
            for results in rounds:
                for a, b in zip(results, expected):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('way', WAYS, ids=str)
@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone, SwinMLPBackbone])
def test_sizes_and_modes_of_autograd(backbone, way, training):
    model = make(backbone, **way).train(training)

    def job(image, autocast):
        def run():
            with torch.set_grad_enabled(training), torch.autocast('cpu') if autocast else nullcontext():
                maps = model(image)
            weight = model.stages[0].blocks[1].ffn.layers[1].weight
            loss = sum(one.float().square().mean() for one in maps)
            return (*maps, *torch.autograd.grad(loss, [weight])) if training else maps

        return run

    assert_alike_in_threads([job(torch.randn(2, 3, *size), size[0] == 33) for size in SIZES])


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('backbone', [SimMIMSwinBackbone, SimMIMSwinV2Backbone])
def test_masks(backbone, training):
    model = make(backbone).train(training)
    image = torch.randn(2, 3, 32, 48)
    masks = [None, *((torch.rand(2, 8, 12) < hidden) for hidden in (0.2, 0.6, 0.9))]
    assert_alike_in_threads([lambda mask=mask: model(image, mask) for mask in masks])
    assert not model.patch_embed._forward_hooks
