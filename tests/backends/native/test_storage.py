"""The choice of blocks to store values for the backward pass."""

import pytest
import torch

from benchmarks.timing import bytes_kept
from swin_backbone import SwinBackbone
from swin_backbone.backends.native import availability


@pytest.mark.parametrize(
    ('isa', 'dtype', 'stored'),
    [
        ('amx', torch.float32, (384, 768)),
        ('amx', torch.bfloat16, (384, 768)),
        ('avx512_bf16', torch.float32, (192, 384, 768)),
        ('avx512_bf16', torch.bfloat16, (96, 192, 384, 768)),
        ('avx512', torch.bfloat16, (192, 384, 768)),
        ('avx2', torch.float32, (192, 384, 768)),
        ('avx2', torch.float16, (192, 384, 768)),
    ],
)
def test_processor_and_memory_decide_what_is_stored(isa, dtype, stored, monkeypatch):
    library, _ = availability.load()
    monkeypatch.setattr(type(library), 'isa', isa)
    monkeypatch.setattr(type(library), 'multiplies_bfloat16', isa in ('amx', 'avx512_bf16'))
    least, reason = availability.storage_for.__wrapped__(dtype)
    assert tuple(C for C in (96, 192, 384, 768) if C >= least) == stored
    assert f'blocks of {least} and more channels store values: ' in reason


@pytest.mark.parametrize(
    ('width', 'third', 'stored'),
    [(96, 6, (192, 384, 768)), (96, 18, (384, 768)), (128, 18, (512, 1024)), (192, 18, (768, 1536))],
)
def test_float32_values_of_every_size_fit_in_half(width, third, stored, monkeypatch):
    """Swin-T, -S, -B and -L: with a further stage, S and L took 0.54 and 0.65 of the memory of mmdet's at 512x512."""
    library, _ = availability.load()
    monkeypatch.setattr(type(library), 'isa', 'avx2')
    widths = [width << stage for stage in range(4)]
    least, reason = availability.storage_for.__wrapped__(torch.float32, tuple(zip(widths, (2, 2, third, 2))))
    assert tuple(C for C in widths if C >= least) == stored
    assert 'half' in reason


def test_without_a_library_the_reason_is_its(monkeypatch):
    monkeypatch.setattr(availability, 'load', lambda: (None, 'It is not built.'))
    assert availability.storage_for.__wrapped__(torch.float32).reason == 'It is not built.'


@pytest.mark.parametrize('side', [224, 256])
def test_stored_values_take_half_of_mmdets_memory(side):
    """At 256 the last stage has 64 tokens in windows of 196 places: padding takes little memory."""
    if availability.why_not_in(torch.float32):
        pytest.skip('the library is not built')
    swin = pytest.importorskip('mmdet.models.backbones.swin')
    image_BCHW = torch.rand(1, 3, side, side)
    ours, theirs = (bytes_kept(kind(), image_BCHW, torch.float32) for kind in (SwinBackbone, swin.SwinTransformer))
    assert ours < theirs / 2
