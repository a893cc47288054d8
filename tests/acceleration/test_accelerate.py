"""`swin_backbone.accelerate` on models of mmdet and mmseg, and on a copy of the official block."""

import copy
import pickle

import pytest
import torch
from torch import nn

import swin_backbone
from swin_backbone.acceleration import swap

X = torch.linspace(-1, 1, 2 * 3 * 61 * 83).view(2, 3, 61, 83).sin()


def build(toolbox, eval=False, **arguments):
    pytest.importorskip(toolbox)
    from importlib import import_module

    kind = import_module(f'{toolbox}.models.backbones.swin').SwinTransformer
    torch.manual_seed(0)
    model = kind(
        embed_dims=16, depths=(2, 2), num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1), window_size=4, **arguments
    )
    model.train(not eval)  # mmdet's returns nothing
    return model


def results(model, seed=1):
    torch.manual_seed(seed)
    model.zero_grad()
    x = X.clone().requires_grad_(True)
    maps = model(x)
    sum((one * one.detach().sin()).sum() for one in maps).backward()
    return [
        *(one.detach() for one in maps),
        x.grad,
        *(p.grad.clone() for p in model.parameters() if p.grad is not None),
    ]


def assert_close(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * float(b.abs().max()) + 1e-6)


def accelerated(model):
    return [name for name, one in model.named_modules() if swap.RECORD in one.__dict__]


@pytest.fixture
def calls(monkeypatch):
    """The number of blocks that the library computes."""
    counted, block = [], swap.KINDS[0].compute.__globals__['native'].block
    monkeypatch.setattr(
        swap.KINDS[0].compute.__globals__['native'], 'block', lambda *a, **k: counted.append(1) or block(*a, **k)
    )
    return counted


@pytest.mark.toolboxes
@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg'])
@pytest.mark.parametrize('with_cp', [False, True])
def test_outputs_gradients_and_random_numbers_stay(toolbox, with_cp, calls):
    model = build(toolbox, drop_path_rate=0.3, with_cp=with_cp)
    expected = results(model)
    names, state = list(model.state_dict()), torch.get_rng_state()
    assert swin_backbone.accelerate(model) is model
    assert torch.equal(state, torch.get_rng_state())
    assert list(model.state_dict()) == names
    assert len(accelerated(model)) == 6
    calls.clear()
    assert_close(results(model), expected)
    assert len(calls) == 4
    swin_backbone.restore(model)
    assert not accelerated(model)
    assert all(torch.equal(a, b) for a, b in zip(results(model), expected))


@pytest.mark.toolboxes
def test_a_dry_run_and_a_second_call_change_nothing():
    model = build('mmdet')
    assert swin_backbone.accelerate(model, dry_run=True) is model
    assert not accelerated(model)
    types = [type(one) for one in swin_backbone.accelerate(model).modules()]
    assert types == [type(one) for one in swin_backbone.accelerate(model).modules()]


@pytest.mark.toolboxes
@pytest.mark.parametrize('change', [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_accelerated_and_have_their_own_weights(change, calls):
    model = swin_backbone.accelerate(build('mmdet', eval=True))
    twin = change(model)
    for parameter in twin.parameters():
        parameter.data.mul_(0.5)
    expected = results(swin_backbone.restore(copy.deepcopy(twin)))
    calls.clear()
    assert_close(results(twin), expected)
    assert len(calls) == 4
    model.load_state_dict(twin.state_dict())
    assert_close(results(model), expected)


@pytest.mark.toolboxes
def test_hooks_inside_dropout_and_other_modules_are_obeyed(calls):
    model = swin_backbone.accelerate(build('mmdet', eval=True))
    calls.clear()
    seen = []
    block = model.stages[0].blocks[0]
    handles = [block.register_forward_hook(lambda *_: seen.append('block'))]
    model(X)
    assert (len(calls), seen) == (4, ['block'])
    handles.append(block.norm1.register_forward_hook(lambda *_: seen.append('norm')))
    model(X)
    assert (len(calls), seen) == (7, ['block', 'norm', 'block'])
    model.stages[1].blocks[0].ffn.layers[0][1] = nn.ReLU()
    model(X)
    assert len(calls) == 9
    model.stages[1].blocks[1].attn.w_msa.attn_drop.p = 0.5
    model.train()
    model(X)
    assert len(calls) == 10


@pytest.mark.toolboxes
@pytest.mark.parametrize(
    'change',
    [
        lambda block: block.ffn.layers[0].__setitem__(1, nn.GELU('tanh')),
        lambda block: block.register_parameter('gamma', nn.Parameter(torch.ones(16))),
        lambda block: setattr(block.attn.w_msa, 'scale', nn.Parameter(torch.ones(1))),
    ],
)
def test_a_block_that_computes_otherwise_stays(change):
    model = build('mmdet')
    change(model.stages[0].blocks[0])
    assert 'stages.0.blocks.0' not in accelerated(swin_backbone.accelerate(model))
    assert 'stages.0.blocks.1' in accelerated(model)


@pytest.mark.toolboxes
def test_a_subclass_with_another_forward_fails_its_trial():
    model = build('mmdet')
    block = model.stages[0].blocks[0]

    class Doubled(type(block)):
        def forward(self, x, hw_shape):
            return 2 * super().forward(x, hw_shape)

    block.__class__ = Doubled
    lines = swap.accelerate_swin(model)
    assert any('unchanged: The results differ by' in line for line in lines)
    assert len(accelerated(model)) == 5


@pytest.mark.toolboxes
def test_torch_compile_records_the_original():
    model = swin_backbone.accelerate(build('mmdet', eval=True))
    expected = swin_backbone.restore(copy.deepcopy(model))(X)
    assert_close(torch.compile(model, backend='eager')(X), expected)
    assert_close(torch.jit.trace(model, X, check_trace=False)(X), expected)


@pytest.mark.toolboxes
def test_the_hook_builds_from_a_config_by_both_names():
    from mmengine.registry import HOOKS

    for name in ('AccelerateHook', 'swin_backbone.AccelerateHook'):
        hook = HOOKS.build(dict(type=name))
        runner = type('Runner', (), {'model': build('mmdet')})
        hook.before_test(runner)
        assert len(accelerated(runner.model)) == 6


class Attention(nn.Module):
    """Window attention as microsoft/Swin-Transformer writes it."""

    def __init__(self, dim, window, num_heads):
        super().__init__()
        self.window_size, self.num_heads, self.scale = (window, window), num_heads, (dim // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, num_heads))
        places = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing='ij')).flatten(1)
        offsets = (places[:, :, None] - places[:, None] + window - 1).permute(1, 2, 0)
        self.register_buffer('relative_position_index', offsets[..., 0] * (2 * window - 1) + offsets[..., 1])
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attn_drop, self.proj_drop, self.softmax = nn.Dropout(0.0), nn.Dropout(0.0), nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = q * self.scale @ k.transpose(-2, -1) + bias
        if mask is not None:
            attn = (attn.view(-1, len(mask), self.num_heads, N, N) + mask[:, None]).view(attn.shape)
        attn = self.attn_drop(self.softmax(attn))
        return self.proj_drop(self.proj((attn @ v).transpose(1, 2).reshape(B, N, C)))


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1, self.act, self.fc2, self.drop = (
            nn.Linear(dim, 4 * dim),
            nn.GELU(),
            nn.Linear(4 * dim, dim),
            nn.Dropout(0),
        )

    def forward(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Block(nn.Module):
    """A block as microsoft's detection code writes it: its stage sets H and W, and gives the mask."""

    def __init__(self, dim=16, num_heads=2, window_size=4, shift_size=0):
        super().__init__()
        self.window_size, self.shift_size, self.H, self.W = window_size, shift_size, None, None
        self.norm1, self.norm2, self.drop_path = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.Identity()
        self.attn, self.mlp = Attention(dim, window_size, num_heads), Mlp(dim)

    def forward(self, x, mask_matrix):
        (B, _, C), H, W, n, s = x.shape, self.H, self.W, self.window_size, self.shift_size
        y = nn.functional.pad(self.norm1(x).view(B, H, W, C), (0, 0, 0, -W % n, 0, -H % n))
        rows, columns = y.shape[1] // n, y.shape[2] // n
        y = y.roll((-s, -s), (1, 2)).view(B, rows, n, columns, n, C).transpose(2, 3).reshape(-1, n * n, C)
        y = self.attn(y, mask_matrix if s else None)
        y = y.view(B, rows, columns, n, n, C).transpose(2, 3).reshape(B, rows * n, columns * n, C).roll((s, s), (1, 2))
        x = x + self.drop_path(y[:, :H, :W].reshape(B, H * W, C))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class Merging(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x, H, W):
        x = nn.functional.pad(x.view(len(x), H, W, -1), (0, 0, 0, W % 2, 0, H % 2))
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], -1)
        return self.reduction(self.norm(x.flatten(1, 2)))


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(shift_size=2)])
        self.downsample = Merging()

    def forward(self, x, H, W):
        from swin_backbone.windows.grid import Windows

        same = Windows(H, W, (4, 4), (2, 2)).mask(x.device)[:, 0]
        mask = torch.zeros(same.shape).masked_fill(~same, -100.0)
        for block in self.blocks:
            block.H, block.W = H, W
            x = block(x, mask)
        return self.downsample(x, H, W)


class Copy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Stage()])

    def forward(self, x):
        return self.layers[0](x, 9, 13)


def test_a_copy_of_the_official_code():
    torch.manual_seed(0)
    model, x = nn.ModuleDict({'bb': Copy()}), torch.randn(2, 9 * 13, 16)
    expected = model['bb'](x)
    swin_backbone.accelerate(model)
    assert len(accelerated(model)) == 3
    torch.testing.assert_close(model['bb'](x), expected, rtol=1e-4, atol=1e-5)


class OtherBlock(Block):
    """As SwinIR's: other arguments."""

    def forward(self, x, x_size):
        self.H, self.W = x_size
        return super().forward(x, None)


def test_a_variant_is_reported_and_stays():
    model = nn.ModuleList([OtherBlock()])
    assert swap.accelerate_swin(model) == ['0: OtherBlock is of no supported origin and stays unchanged.']
    assert not accelerated(model)
