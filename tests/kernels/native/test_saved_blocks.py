"""The blocks that save activations for the backward pass."""

import pytest
import torch

from benchmarks.timing import bytes_kept
from swin_backbone import SwinBackbone
from swin_backbone.kernels.native import saved_blocks


@pytest.mark.parametrize(
    ('isa', 'dtype', 'stages', 'least'),
    [
        ('amx', torch.float32, saved_blocks.SWIN_T_STAGES, 384),
        ('amx', torch.bfloat16, saved_blocks.SWIN_T_STAGES, 384),
        ('avx512_bf16', torch.float32, saved_blocks.SWIN_T_STAGES, 192),
        ('avx512_bf16', torch.bfloat16, saved_blocks.SWIN_T_STAGES, 96),
        ('avx512', torch.bfloat16, saved_blocks.SWIN_T_STAGES, 192),
        ('avx2', torch.float32, saved_blocks.SWIN_T_STAGES, 192),
        ('avx2', torch.float16, saved_blocks.SWIN_T_STAGES, 192),
        # With a further stage, Swin-S and -L took 0.54 and 0.65 of the memory of mmdet's at 512x512.
        ('avx2', torch.float32, ((96, 2), (192, 2), (384, 18), (768, 2)), 384),
        ('avx2', torch.float32, ((128, 2), (256, 2), (512, 18), (1024, 2)), 512),
        ('avx2', torch.float32, ((192, 2), (384, 2), (768, 18), (1536, 2)), 768),
    ],
)
def test_processor_and_memory_decide_what_is_saved(isa, dtype, stages, least, monkeypatch):
    library, _ = saved_blocks.load_library()
    monkeypatch.setattr(type(library), 'isa', isa)
    monkeypatch.setattr(type(library), 'has_bf16_gemm', isa in ('amx', 'avx512_bf16'))
    least_channels, reason = saved_blocks.choose_saving_rule.__wrapped__(dtype, stages)
    assert min(C for C, _ in stages if C >= least_channels) == least
    assert f'blocks of {least_channels} and more channels save activations: ' in reason


def test_without_a_library_the_reason_is_its(monkeypatch):
    monkeypatch.setattr(saved_blocks, 'load_library', lambda: (None, 'It is not built.'))
    assert saved_blocks.choose_saving_rule.__wrapped__(torch.float32).reason == 'It is not built.'


def test_saved_values_take_half_of_mmdets_memory():
    """The last stage has 64 tokens in windows of 196 places: padding takes little memory."""
    swin = pytest.importorskip('mmdet.models.backbones.swin')
    image_BCHW = torch.rand(1, 3, 256, 256)
    ours, theirs = (bytes_kept(kind(), image_BCHW, torch.float32) for kind in (SwinBackbone, swin.SwinTransformer))
    assert ours < theirs / 2
