"""Maps written into the caller's tensors: files, for pictures with maps larger than memory."""

import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.models import pyramid

SIZES = dict(embed_dims=32, depths=(2, 1, 1), num_heads=(1, 2, 4), strides=(4, 2, 2), window_size=4)


def files(folder, shapes, dtype=torch.float32):
    return [
        torch.from_file(str(folder / str(i)), shared=True, size=math.prod(shape), dtype=dtype).view(shape)
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize('backend', ['auto', 'torch'])
@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone, SwinMLPBackbone])
def test_files_get_what_is_returned_otherwise(tmp_path, monkeypatch, kind, backend):
    monkeypatch.setattr(pyramid, 'WRITTEN_AT_ONCE', 5 * 32 * 25)  # five rows of the first map
    model = kind(out_indices=(0, 2), backend=backend, **SIZES).eval()
    x = torch.rand(2, 3, 61, 97)
    out = files(tmp_path, [(2, *model.map_sizes(61, 97)[stage]) for stage in (0, 2)])
    with torch.inference_mode():
        returned = model(x, out=out)
        expected = model(x)
    assert all(a is b for a, b in zip(returned, out, strict=True))
    for i, one in enumerate(expected):
        stored = torch.from_file(str(tmp_path / str(i)), size=one.numel()).view(one.shape)
        torch.testing.assert_close(stored, one, rtol=0, atol=1e-6)


def test_a_norm_of_ones_own_sees_the_whole_map(monkeypatch):
    class OfTheMap(torch.nn.Module):
        def forward(self, x_BHWC):
            return x_BHWC - x_BHWC.mean((1, 2), keepdim=True)

    monkeypatch.setattr(pyramid, 'WRITTEN_AT_ONCE', 32)
    model = SwinBackbone(**{**SIZES, 'out_indices': (0, 1)}).eval()
    model.norm0 = OfTheMap()
    seen = []
    model.norm1.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    x = torch.rand(1, 3, 64, 64)
    out = [torch.empty(1, *size) for size in model.map_sizes(64, 64)[:2]]
    with torch.no_grad():
        model(x, out=out)
        assert seen == [(1, 8, 8, 64)]
        for stored, one in zip(out, model(x), strict=True):
            assert torch.equal(stored, one)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_under_autocast_and_into_parts_of_larger_files(tmp_path, dtype):
    """Write the maps of four pictures into the quarters of a mosaic, also of stages that have no output otherwise."""
    model, stages = SwinBackbone(**{**SIZES, 'out_indices': (1,)}).eval(), (0, 1, 2)
    mosaic = files(tmp_path, [(1, C, 2 * H, 2 * W) for C, H, W in model.map_sizes(64, 96)], dtype)
    with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16):
        for y in (0, 1):
            for x in (0, 1):
                image = torch.rand(1, 3, 64, 96)
                quarter = [one.unflatten(3, (2, -1)).unflatten(2, (2, -1))[:, :, y, :, x] for one in mosaic]
                model(image, out_indices=stages, out=quarter)
                for stored, one in zip(quarter, model(image, out_indices=stages), strict=True):
                    assert torch.equal(stored, one.to(dtype))


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


def test_memory_holds_input_and_output_of_a_stage(tmp_path, monkeypatch):
    """At the peak memory holds two maps of the first stage, and no large tensor beside."""
    monkeypatch.setattr(pyramid, 'WRITTEN_AT_ONCE', 1 << 16)
    model = SwinBackbone(**SIZES, out_indices=(0, 1, 2)).eval()
    x = torch.rand(1, 3, 1024, 1024)
    out = files(tmp_path, [(1, *size) for size in model.map_sizes(1024, 1024)])
    first = out[0].nbytes
    assert 2 * first <= peak_of(lambda: model(x, out=out)) < 2.2 * first
    assert peak_of(lambda: model(x)) > 2.5 * first


@torch.no_grad()
def test_outputs_of_wrong_shapes_are_refused():
    model, x = SwinBackbone(**{**SIZES, 'out_indices': (0,)}).eval(), torch.rand(1, 3, 32, 48)
    shape = (1, *model.map_sizes(32, 48)[0])
    for out in ([], [torch.empty(shape).mT]):
        with pytest.raises(ValueError, match=r'out takes maps of \[\(32, 8, 12\)\] for each image, got'):
            model(x, out=out)
