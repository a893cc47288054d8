"""A named backend computes a call, or raises an error with the reason."""

import pytest
import torch
from helpers.kernels import refusal
from torch import nn

from swin_backbone import SwinBackbone, SwinMLPBackbone

NANO = dict(arch='nano', window_size=4)
IMAGE = torch.linspace(-1, 1, 3 * 40 * 44).sin().view(1, 3, 40, 44)
needs_library = pytest.mark.skipif(refusal(torch.float32) is not None, reason='the compiled library is not built')


def hooked(model):
    model.norm1.register_forward_hook(lambda *_: None)


def replaced(model):
    model.norm1 = nn.Sequential(model.norm1)


@pytest.mark.parametrize(
    ('backend', 'backbone', 'change', 'reason'),
    [
        ('native', SwinMLPBackbone, None, 'The compiled library has no block of Swin-MLP.'),
        ('triton', SwinMLPBackbone, None, 'The kernel is for attention, and Swin-MLP has none.'),
        pytest.param(
            'native', SwinBackbone, hooked, 'The output norm is not a plain LayerNorm over 64', marks=needs_library
        ),
        pytest.param(
            'native', SwinBackbone, replaced, 'The output norm is not a plain LayerNorm over 64', marks=needs_library
        ),
    ],
)
@torch.no_grad()
def test_a_named_backend_never_leaves_a_layer_to_torch(backend, backbone, change, reason):
    model = backbone(**NANO, backend=backend).eval()
    if change is not None:
        change(model)
    with pytest.raises(ValueError, match=f"backend='{backend}' cannot compute this: .*{reason}"):
        model(IMAGE)
    expected = backbone(**NANO, backend='torch').eval()
    expected.load_state_dict({name.replace('norm1.0.', 'norm1.'): x for name, x in model.state_dict().items()})
    model.backend = 'auto'
    for y, y_torch in zip(model(IMAGE), expected(IMAGE)):
        torch.testing.assert_close(y, y_torch, atol=1e-4, rtol=1e-4)


@needs_library
@torch.no_grad()
def test_a_stage_without_an_output_norm_has_nothing_to_refuse():
    model = SwinBackbone(**NANO, out_indices=(3,), backend='native').eval()
    assert len(model(IMAGE, out_indices=(0, 3))) == 2


@needs_library
def test_a_checkpointed_block_has_the_reason_of_any_block():
    """It said that the library is disabled in this thread: its checkpoint had disabled the library."""
    model = SwinBackbone(**NANO, backend='native', with_cp=True, drop_rate=0.1).train()
    with pytest.raises(ValueError, match=r"backend='native' cannot compute this: The compiled library has no dropout"):
        model(IMAGE)
