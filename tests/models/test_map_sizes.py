"""The sizes of the maps, and the memory of a forward."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from swin_backbone import SwinBackbone, SwinV2Backbone

SIZES = dict(embed_dims=32, depths=(2, 1, 1), num_heads=(1, 2, 4), strides=(4, 2, 2), window_size=4)


@pytest.mark.parametrize(
    ('kind', 'patch', 'strides'),
    [(SwinBackbone, 4, (4, 2, 3)), (SwinV2Backbone, 2, (2, 2, 2)), (SwinBackbone, (4, 4), (4, 2, 2))],
)
def test_sizes_of_maps(kind, patch, strides):
    model = kind(**{**SIZES, 'patch_size': patch, 'strides': strides, 'out_indices': (0, 1, 2)}).eval()
    for size in ((1, 1), (33, 70), (128, 95)):
        with torch.no_grad():
            assert [tuple(y.shape[1:]) for y in model(torch.rand(1, 3, *size))] == model.map_sizes(*size)


def peak_of(run):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, torch.inference_mode():
        run()
    now = peak = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == '[memory]']
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def test_memory_holds_two_and_a_half_maps():
    """At the peak memory holds the first output, the stage's map, and the map that patch merging makes."""
    model, x = SwinBackbone(**SIZES, out_indices=(0, 1, 2)).eval(), torch.rand(1, 3, 1024, 1024)
    C, H, W = model.map_sizes(1024, 1024)[0]
    assert 2.5 * 4 * C * H * W <= peak_of(lambda: model(x)) < 2.75 * 4 * C * H * W
