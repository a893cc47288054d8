"""`swin_backbone.accelerate` on copies of microsoft/Swin-Transformer's code, and on variants that are no Swin."""

import math

import pytest
import torch
from helpers.adapters.acceleration import accelerated, assert_accelerates
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from swin_backbone.kernels.foreign import accelerate as swap
from swin_backbone.models.windows import Windows, make_position_bias
from swin_backbone.positions import log_spaced_coordinates

SIZE, WINDOW, DIM = (9, 13), 4, 16


class Attention(nn.Module):
    """Window attention, V1."""

    def __init__(self, heads=2, sdpa=False):
        super().__init__()
        self.num_heads, self.scale, self.sdpa, self.attn_drop_prob = heads, (DIM // heads) ** -0.5, sdpa, 0.0
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * WINDOW - 1) ** 2, heads))
        index = make_position_bias(torch.arange((2 * WINDOW - 1) ** 2)[:, None], (WINDOW, WINDOW))
        self.register_buffer('relative_position_index', index[0])
        self.qkv, self.proj, self.attn_drop = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), nn.Dropout(0.0)

    def bias(self):
        return self.lookup(self.relative_position_bias_table)

    def lookup(self, table):
        return table[self.relative_position_index.view(-1)].view(WINDOW**2, WINDOW**2, -1).permute(2, 0, 1)

    def logits(self, q, k):
        return q * self.scale @ k.transpose(-2, -1)

    def forward(self, x, mask=None):
        B, N, C = x.shape
        q, k, v = self.project(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.bias() if mask is None else self.bias() + mask.repeat(B // len(mask), 1, 1)[:, None]
        if self.sdpa:  # like BiRefNet
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            y = self.attn_drop((self.logits(q, k) + bias).softmax(-1)) @ v
        return self.proj(y.transpose(1, 2).reshape(B, N, C))

    def project(self, x):
        return self.qkv(x)


class AttentionV2(Attention):
    def __init__(self, heads=2, pretrained_window=6):
        super().__init__(heads)
        del self.relative_position_bias_table, self.scale
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10)))
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(inplace=True), nn.Linear(512, heads, bias=False))
        cpu_float32 = torch.device('cpu'), torch.float32
        offsets = log_spaced_coordinates((WINDOW, WINDOW), (pretrained_window,) * 2, *cpu_float32)
        self.register_buffer('relative_coords_table', offsets.view(1, 7, 7, 2))
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.randn(DIM)), nn.Parameter(torch.randn(DIM))

    def bias(self):
        return 16 * self.lookup(self.cpb_mlp(self.relative_coords_table).view(-1, self.num_heads)).sigmoid()

    def project(self, x):
        return F.linear(x, self.qkv.weight, torch.cat([self.q_bias, torch.zeros(DIM), self.v_bias]))

    def logits(self, q, k):
        scale = self.logit_scale.clamp(max=math.log(100)).exp()
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * scale


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act = nn.Linear(DIM, 4 * DIM), nn.GELU()
        self.fc2, self.drop = nn.Linear(4 * DIM, DIM), nn.Dropout(0)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Detection(nn.Module):
    """A block of the detection code, also in Grounding DINO and Co-DETR. The stage sets H and W, and gives the mask."""

    def __init__(self, shift_size=0, attention=Attention, **options):
        super().__init__()
        self.window_size, self.shift_size, self.H, self.W = WINDOW, shift_size, None, None
        self.norm1, self.norm2, self.drop_path = nn.LayerNorm(DIM), nn.LayerNorm(DIM), nn.Identity()
        self.attn, self.mlp = attention(**options), Mlp()

    def forward(self, x, mask_matrix):
        x = x + self.drop_path(self.attend(self.norm1(x), self.H, self.W, mask_matrix))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def attend(self, x, H, W, mask):
        windows = Windows(H, W, (self.window_size,) * 2, (self.shift_size,) * 2)
        y = self.attn(windows.partition(x.view(len(x), H, W, -1)), mask if self.shift_size else None)
        return windows.reverse(y, len(x)).view(x.shape)


class Classification(Detection):
    """A block of the classification code, with a fixed map size and a stored mask."""

    def __init__(self, shift_size=0, **options):
        super().__init__(shift_size, **options)
        self.input_resolution = (8, 12)
        self.register_buffer('attn_mask', mask_of((8, 12)) if shift_size else None)

    def forward(self, x):
        x = x + self.drop_path(self.attend(self.norm1(x), *self.input_resolution, self.attn_mask))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class ClassificationV2(Classification):
    def __init__(self, shift_size=0):
        super().__init__(shift_size, attention=AttentionV2)

    def forward(self, x):
        x = x + self.drop_path(self.norm1(self.attend(x, *self.input_resolution, self.attn_mask)))
        return x + self.drop_path(self.norm2(self.mlp(x)))


class Merging(nn.Module):
    """Patch merging of the detection code."""

    def __init__(self, is_post_norm=False):
        super().__init__()
        self.reduction, self.is_post_norm = nn.Linear(4 * DIM, 2 * DIM, bias=False), is_post_norm
        self.norm = nn.LayerNorm(2 * DIM if is_post_norm else 4 * DIM)

    def forward(self, x, H, W):
        x = F.pad(x.view(len(x), H, W, -1), (0, 0, 0, W % 2, 0, H % 2))
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], -1).flatten(1, 2)
        return self.norm(self.reduction(x)) if self.is_post_norm else self.reduction(self.norm(x))


class FixedMerging(Merging):
    """Patch merging of the classification code."""

    input_resolution = (8, 12)

    def forward(self, x):
        return super().forward(x, *self.input_resolution)


def mask_of(size, masked=-100.0):
    return torch.where(Windows(*size, (WINDOW, WINDOW), (2, 2)).make_mask(torch.device('cpu'))[:, 0], masked, 0.0)


class Stage(nn.Module):
    def __init__(self, blocks, merging, masked=-100.0):
        super().__init__()
        self.blocks, self.downsample, self.masked = nn.ModuleList(blocks), merging, masked

    def forward(self, x):
        if isinstance(self.blocks[0], Classification):
            return self.downsample(nn.Sequential(*self.blocks)(x))
        for block in self.blocks:
            block.H, block.W = SIZE
            x = block(x, mask_of(SIZE, self.masked))
        return self.downsample(x, *SIZE)


class Swin(nn.Module):
    def __init__(self, *stage):
        super().__init__()
        self.layers = nn.ModuleList([Stage(*stage)])

    def forward(self, x):
        return self.layers[0](x)


def x_of(size):
    return torch.linspace(-9, 9, 2 * math.prod(size) * DIM).sin().view(2, -1, DIM)


def test_the_detection_code(calls):
    model = Swin([Detection(), Detection(2)], Merging())
    assert_accelerates(model, x_of(SIZE), lambda y: [y], calls, blocks=2, layers=3)


def test_birefnet_calls_sdpa_with_a_mask_of_infinity(calls):
    model = Swin([Detection(sdpa=True), Detection(2, sdpa=True)], Merging(), -torch.inf)
    assert_accelerates(model, x_of(SIZE), lambda y: [y], calls, blocks=2, layers=3)
    model.layers[0].blocks[0].attn.attn_drop_prob = 0.5
    swap.accelerate_swin(model.train())
    calls.clear()
    model(x_of(SIZE))
    assert len(calls) == 1
    model.eval()(x_of(SIZE))
    assert len(calls) == 3


def test_a_missing_mask_is_obeyed(calls):
    block = Detection(2)
    block.H, block.W = SIZE
    expected = block(x_of(SIZE), None)
    stages = nn.ModuleList([Stage([block], nn.Identity())])
    model = torch.nn.ModuleDict({'layers': stages, 'norm0': nn.LayerNorm(DIM)})
    swap.accelerate_swin(model)
    assert 'norm0' in accelerated(model)
    calls.clear()
    assert torch.equal(block(x_of(SIZE), None), expected)
    assert accelerated(block)
    assert not calls


def test_a_mask_is_compared_outside_fake_modes_alone(calls):
    model = Swin([Detection(2)], Merging())
    swap.accelerate_swin(model)
    block = model.layers[0].blocks[0]
    block.H, block.W = SIZE
    x, mask = x_of(SIZE), mask_of(SIZE)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert block(mode.from_tensor(x), mode.from_tensor(mask)).shape == x.shape
    calls.clear()
    block(x, mask)
    assert len(calls) == 1


def test_arguments_by_name_in_another_order(calls):
    model = Swin([Detection(2)], Merging())
    swap.accelerate_swin(model)
    block = model.layers[0].blocks[0]
    block.H, block.W = SIZE
    calls.clear()
    block(mask_matrix=mask_of(SIZE).double(), x=x_of(SIZE))
    assert len(calls) == 1


@torch.no_grad()
def test_inference_copies_no_state_of_the_generator(monkeypatch, calls):
    model = Swin([Detection(), Detection(2)], Merging())
    swap.accelerate_swin(model)
    calls.clear()
    monkeypatch.setattr(torch, 'get_rng_state', lambda: pytest.fail('the state is copied'))
    model(x_of(SIZE))
    assert len(calls) == 2


def test_a_mask_of_another_kind_is_obeyed(calls):
    model = Swin([Detection(), Detection(2)], Merging(), 0.0)
    assert_accelerates(model, x_of(SIZE), lambda y: [y], calls, blocks=1, layers=3)


@pytest.mark.parametrize('kind', [Classification, ClassificationV2])
def test_the_classification_code(kind, calls):
    model = Swin([kind(), kind(2)], FixedMerging(kind is ClassificationV2))
    assert_accelerates(model, x_of((8, 12)), lambda y: [y], calls, blocks=2, layers=3)


class OfSwinIR(Detection):
    def forward(self, x, x_size):
        self.H, self.W = x_size
        return super().forward(x, None)


class OfVideoSwin(Detection):
    def __init__(self):
        super().__init__()
        self.window_size, self.shift_size = (2, WINDOW, WINDOW), (0, 0, 0)


@pytest.mark.parametrize('kind', [OfSwinIR, OfVideoSwin])
def test_a_variant_is_reported_and_stays(kind):
    model = nn.ModuleList([kind()])
    (line,) = swap.accelerate_swin(model)
    assert 'unchanged' in line
    assert not accelerated(model)
