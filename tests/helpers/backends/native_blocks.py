"""Blocks with random weights, computed with the reference and with the compiled operator."""

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from helpers import reference
from swin_backbone.backends.cosine import cosine_scale
from swin_backbone.backends.native import layers
from swin_backbone.backends.native.availability import why_not_in
from swin_backbone.backends.native.layers import BlockSettings, BlockWeights
from swin_backbone.backends.weight_cache import WeightCache
from swin_backbone.windows.grid import Windows
from swin_backbone.windows.position import relative_position_bias


def random_weights(channels: int, heads: int, window: tuple[int, int], v2: bool, norm3: bool = False) -> dict:
    """Return a block's state dict. Activations and logits have the size of trained blocks."""
    C, hidden = channels, 4 * channels
    norms = ('norm1', 'norm2', 'norm3') if norm3 else ('norm1', 'norm2')
    weights = {f'{norm}.weight': 1 + 0.1 * torch.randn(C) for norm in norms}
    weights.update({f'{norm}.bias': 0.1 * torch.randn(C) for norm in norms})
    layers = {'attn.w_msa.qkv': (3 * C, C), 'attn.w_msa.proj': (C, C), 'ffn.layers.0.0': (hidden, C)}
    for name, shape in {**layers, 'ffn.layers.1': (C, hidden)}.items():
        weights[f'{name}.weight'] = torch.randn(shape) / shape[1] ** 0.5
        weights[f'{name}.bias'] = 0.3 * torch.randn(shape[0])
    if v2:
        del weights['attn.w_msa.qkv.bias']
        weights.update({f'attn.w_msa.{name}_bias': 0.3 * torch.randn(C) for name in 'qv'})
        weights['attn.w_msa.logit_scale'] = math.log(10) + 0.3 * torch.randn(heads, 1, 1)
        weights['attn.w_msa.cpb_mlp.0.weight'] = torch.randn(512, 2)
        weights['attn.w_msa.cpb_mlp.0.bias'] = torch.randn(512)
        weights['attn.w_msa.cpb_mlp.2.weight'] = torch.randn(heads, 512) / 20
    else:
        offsets = (2 * window[0] - 1) * (2 * window[1] - 1)
        weights['attn.w_msa.relative_position_bias_table'] = 0.5 * torch.randn(offsets, heads)
    return weights


sides = st.integers(1, 16)


@st.composite
def cases(draw) -> tuple:
    """Draw arguments for `by_reference` and `by_operator`."""
    window = draw(sides), draw(sides)
    shift = draw(st.sampled_from([(0, 0), (window[0] // 2, window[1] // 2)]))
    heads, head_dim = draw(st.integers(1, 4)), draw(st.sampled_from([16, 24, 32, 40, 64]))
    size = draw(st.integers(1, 2)), draw(st.integers(1, 34)), draw(st.integers(1, 34)), heads * head_dim
    v2 = draw(st.booleans())
    torch.manual_seed(draw(st.integers(0, 999)))
    weights = random_weights(size[-1], heads, window, v2, norm3=v2 and draw(st.booleans()))
    return torch.randn(size), weights, heads, window, shift, draw(st.booleans())


def by_reference(x_BHWC: Tensor, weights: dict, heads: int, window, shift, mask_padding: bool) -> Tensor:
    if 'attn.w_msa.logit_scale' in weights:
        return reference.swin_v2_block(x_BHWC, weights, heads, window, shift, mask_padding=mask_padding)
    scale = (x_BHWC.shape[-1] // heads) ** -0.5
    return reference.swin_block(x_BHWC, weights, heads, window, shift, scale, mask_padding=mask_padding)


def block_weights(weights: dict, heads: int, window) -> tuple[BlockWeights, BlockSettings]:
    """Return a backend's arguments for the weights of `random_weights`."""
    attention = {name[len('attn.w_msa.') :]: w for name, w in weights.items() if name.startswith('attn.')}
    C = len(weights['norm1.weight'])
    if 'logit_scale' in attention:
        qkv_bias = torch.cat([attention['q_bias'], torch.zeros(C), attention['v_bias']])
        bias_hNN, scale = reference.continuous_bias(weights, window, window), 1.0
        cosine_scale_h = cosine_scale(attention['logit_scale'])
    else:
        qkv_bias, cosine_scale_h, scale = attention['qkv.bias'], None, (C // heads) ** -0.5
        bias_hNN = relative_position_bias(attention['relative_position_bias_table'], window)
    w = BlockWeights(
        *(attention['qkv.weight'], attention['proj.weight']),
        *(weights[f'ffn.layers.{name}.weight'] for name in ('0.0', '1')),
        *(qkv_bias, attention['proj.bias'], *(weights[f'ffn.layers.{name}.bias'] for name in ('0.0', '1'))),
        *(weights.get(f'norm{i}.{end}') for i in (1, 2, 3) for end in ('weight', 'bias')),
        *(bias_hNN, cosine_scale_h),
    )
    eps = (1e-5,) * (3 if 'norm3.weight' in weights else 2)
    return w, BlockSettings(scale, eps)


def by_operator(
    x_BHWC: Tensor,
    weights: dict,
    heads: int,
    window,
    shift,
    mask_padding,
    dtype=torch.float32,
    save=False,
) -> Tensor:
    assert why_not_in(dtype) is None  # also loads the library
    w, settings = block_weights(weights, heads, window)
    windows = Windows(*x_BHWC.shape[1:3], window, shift, mask_padding)
    return layers.block(x_BHWC, w, settings, windows, dtype, WeightCache(), stores=save)


def rms(x: Tensor) -> float:
    return x.float().pow(2).mean().sqrt().item()


def output_and_gradients(run, x_BHWC: Tensor, weights: dict, grad_BHWC: Tensor) -> dict[str, Tensor]:
    """Return y, the output of run(x, weights), and the gradients of x and all weights."""
    x_BHWC = x_BHWC.detach().requires_grad_()
    weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
    y_BHWC = run(x_BHWC, weights)
    found = torch.autograd.grad(y_BHWC, [x_BHWC, *weights.values()], grad_BHWC.to(y_BHWC.dtype))
    return {'y': y_BHWC.detach(), **dict(zip(('x', *weights), found))}


def embed(image, weight, bias, norm_weight, norm_bias, eps, dtype=torch.float32, cache=None):
    return layers.embed(image, weight, bias, (norm_weight, norm_bias, eps), dtype, cache or WeightCache())


def merge(x, weight, norm_weight, norm_bias, eps, post_norm=False, dtype=torch.float32, cache=None):
    return layers.merge(x, weight, (norm_weight, norm_bias, eps), post_norm, dtype, cache or WeightCache())


def output_norm(*tensors):
    return layers.output_norm(*tensors, 1e-5)
