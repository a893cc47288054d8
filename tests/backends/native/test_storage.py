"""Which blocks store values for the backward pass."""

import pytest
import torch

from swin_backbone.backends.native import storage


@pytest.fixture(autouse=True)
def _fresh():
    storage.storage_for.cache_clear()
    yield
    storage.storage_for.cache_clear()


@pytest.mark.parametrize(
    ('isa', 'dtype', 'stored'),
    [
        ('amx', torch.float32, (384, 768)),
        ('amx', torch.bfloat16, ()),
        ('avx512_bf16', torch.float32, (192, 384, 768)),
        ('avx512_bf16', torch.bfloat16, (96, 192, 384, 768)),
        ('avx512', torch.bfloat16, (192, 384, 768)),
        ('avx2', torch.float32, (192, 384, 768)),
        ('avx2', torch.float16, (192, 384, 768)),
    ],
)
def test_processor_and_memory_decide_what_is_stored(isa, dtype, stored, monkeypatch):
    monkeypatch.setattr(type(storage.load()[0]), 'isa', isa)
    monkeypatch.setattr(storage.load()[0], '_multiplies_bfloat16', isa in ('amx', 'avx512_bf16'))
    stages = enumerate((96, 192, 384, 768))
    assert tuple(C for i, C in stages if storage.stores(dtype, C, is_first_stage=i == 0)) == stored
    assert not storage.stores(dtype, 768, is_first_stage=False, with_cp=True)
    assert isa in storage.storage_for(dtype).reason


def test_without_a_library_the_reason_is_its(monkeypatch):
    monkeypatch.setattr(storage, 'load', lambda: (None, 'It is not built.'))
    assert storage.storage_for(torch.float32).reason == 'It is not built.'
