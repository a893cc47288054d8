"""Blocks with random weights, and results with gradients."""

import math
from contextlib import AbstractContextManager

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from swin_backbone.models.layers import SwinBlock, SwinMLPBlock, SwinV2Block

KINDS = {
    SwinBlock: dict(qkv_bias=True, qk_scale=None, attn_drop_rate=0.0),
    SwinV2Block: dict(qkv_bias=True, pretrained_window=None, extra_norm=False, attn_drop_rate=0.0),
    SwinMLPBlock: {},
}
sides = st.integers(1, 16)


def make_block(kind, window, shift, heads=2, channels=16, backend='auto', **arguments):
    """Return a block with drawn weights. Activations and logits have the size of trained blocks."""
    arguments = {**dict(small_map='pad', mask_padding=False, drop_rate=0.0, drop_path_rate=0.0), **arguments}
    if kind is SwinMLPBlock:
        del arguments['mask_padding']
    configs = dict(act_cfg=dict(type='GELU'), norm_cfg=dict(type='LN'))
    sizes = dict(embed_dims=channels, num_heads=heads, feedforward_channels=4 * channels)
    block = kind(window_size=window, shift=shift, **sizes, **configs, **{**KINDS[kind], **arguments})
    for name, parameter in block.named_parameters():
        if 'norm' in name:
            nn.init.normal_(parameter, mean=float(name.endswith('weight')), std=0.1)
        elif 'logit_scale' in name:
            nn.init.normal_(parameter, mean=math.log(10), std=0.3)
        elif 'cpb_mlp' in name:
            nn.init.normal_(parameter, std=0.05 if '.2.' in name else 1)
        elif name.endswith('weight'):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.3)
    for module in block.modules():
        if hasattr(module, 'backend'):
            module.backend = backend
    return block.eval()


@st.composite
def cases(draw) -> tuple[SwinBlock, Tensor]:
    """Draw a block for the compiled library, and a map."""
    window = draw(sides), draw(sides)
    shift = draw(st.sampled_from([(0, 0), (window[0] // 2, window[1] // 2)]))
    heads, head_dim = draw(st.integers(1, 4)), draw(st.sampled_from([16, 24, 32, 40, 64]))
    size = draw(st.integers(1, 2)), draw(st.integers(1, 34)), draw(st.integers(1, 34)), heads * head_dim
    more = dict(mask_padding=draw(st.booleans()), backend='native')
    kind = draw(st.sampled_from([SwinBlock, SwinV2Block]))
    if kind is SwinV2Block:
        more['extra_norm'] = draw(st.booleans())
    torch.manual_seed(draw(st.integers(0, 999)))
    return make_block(kind, window, shift, heads, heads * head_dim, **more), torch.randn(size)


def autocast_to(dtype: torch.dtype) -> AbstractContextManager[object]:
    """Switch on autocast to bfloat16; nothing for float32."""
    return torch.autocast('cpu', torch.bfloat16, enabled=dtype is torch.bfloat16)


def output_and_gradients(run, module: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Return y, the output of `run(x)`, and the gradients of x and of the module's parameters."""
    x, named = x.detach().requires_grad_(), dict(module.named_parameters())
    y = run(x)
    grads = torch.autograd.grad(y, [x, *named.values()], grad.to(y.dtype))
    return {'y': y.detach(), 'x': grads[0], **dict(zip(named, grads[1:]))}


def rms(x: Tensor) -> float:
    return x.float().square().mean().sqrt().item()
