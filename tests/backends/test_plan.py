"""Strips: what they keep, draw again, refuse, and how they go with what else trains a model. Counted, not timed."""

import copy

import pytest
import torch
from helpers.backends.errors import relative_error
from helpers.models.data_parallel import data_parallel
from torch import nn

from benchmarks.timing import bytes_kept
from swin_backbone import SwinBackbone
from swin_backbone.backends import BACKENDS, Plan


def make_backbone(strip_tokens, **arguments):
    torch.manual_seed(0)
    backbone = SwinBackbone(arch='nano', strip_tokens=strip_tokens, **{'drop_path_rate': 0.0, **arguments})
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, std=0.3)
    return backbone


def gradients(backbone, x):
    outputs = backbone(x)
    loss = sum((output * output.detach().cos()).mean() for output in outputs)
    names, parameters = zip(*((n, p) for n, p in backbone.named_parameters() if p.requires_grad))
    return dict(zip(names, torch.autograd.grad(loss, parameters)))


def assert_same(one, other, tolerance):
    assert one.keys() == other.keys()
    largest = max(gradient.abs().max() for gradient in other.values())
    for name, gradient in other.items():
        # A bias of the keys has no gradient but rounding's, so small ones are measured against the largest.
        scale = max(gradient.abs().max(), 1e-2 * largest)
        assert (one[name] - gradient).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize('arguments', [{}, {'qkv_bias': False, 'patch_norm': False}, {'frozen_stages': 2}])
@pytest.mark.parametrize('strip_tokens', [1, 100, 10**6])
def test_gradients_equal_autograds(strip_tokens, arguments):
    x = torch.randn(2, 3, 70, 95, dtype=torch.double)
    expected = gradients(make_backbone(None, **arguments).double().train(), x)
    assert_same(gradients(make_backbone(strip_tokens, **arguments).double().train(), x), expected, 1e-10)
    expected = gradients(make_backbone(None, **arguments).train(), x.float())
    assert_same(gradients(make_backbone(strip_tokens, **arguments).train(), x.float()), expected, 1e-5)


@pytest.mark.parametrize('act', ['ReLU', 'SiLU'])
def test_any_activation_without_parameters(act):
    x = torch.randn(1, 3, 64, 64, dtype=torch.double)
    pair = [gradients(make_backbone(s, act_cfg=dict(type=act)).double(), x) for s in (100, None)]
    assert_same(*pair, 1e-10)


@pytest.mark.parametrize('rates', [dict(drop_rate=0.2), dict(attn_drop_rate=0.2), dict(drop_path_rate=0.5)])
def test_what_is_dropped_is_drawn_once_and_drawn_again_in_backward(rates):
    """The loss is linear in one weight's change, so its slope is what the gradient says, if the draws are the same."""
    backbone = make_backbone(60, **rates).double().train()
    x = torch.randn(3, 3, 64, 64, dtype=torch.double)
    weight = backbone.stages[3].blocks[1].ffn.layers[1].weight

    def loss():
        torch.manual_seed(1)
        return backbone(x)[3].mul(torch.linspace(-1, 1, 256, dtype=torch.double)[:, None, None]).sum()

    (gradient,) = torch.autograd.grad(loss(), weight)
    with torch.no_grad():
        direction, step = torch.randn_like(weight), 1e-6
        weight += step * direction
        up = loss()
        weight -= 2 * step * direction
        down = loss()
    torch.testing.assert_close((up - down) / (2 * step), (gradient * direction).sum(), rtol=1e-6, atol=1e-8)


def test_backward_leaves_the_random_state_as_it_was():
    backbone = make_backbone(60, drop_rate=0.2).train()
    loss = sum(output.sum() for output in backbone(torch.randn(1, 3, 64, 64)))
    state = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_block_keeps_its_input_alone():
    x_BHWC = torch.randn(1, 40, 40, 32)
    block = SwinBackbone(arch='nano', drop_path_rate=0.0).stages[0].blocks[1]
    table_bias = 49 * 49 * block.attn.w_msa.num_heads * 4  # the bias table looked up, once for all strips
    kept = bytes_kept(nn.Sequential(nn.Identity(), block), x_BHWC.requires_grad_(), torch.float32)
    index = 49 * 49 * 8
    assert kept <= table_bias + index


def test_a_backbone_keeps_an_eighth_of_what_mmdets_keeps():
    mmdet_swin = pytest.importorskip('mmdet.models.backbones.swin', reason='mmdet is not installed')
    x = torch.randn(1, 3, 256, 256)
    peer = mmdet_swin.SwinTransformer(drop_path_rate=0.0)
    ours = SwinBackbone(drop_path_rate=0.0)
    assert bytes_kept(ours, x, torch.float32) <= 0.13 * bytes_kept(peer, x, torch.float32)


def test_gradients_accumulate_and_checkpointing_changes_nothing():
    x = torch.randn(1, 3, 64, 64)
    results = []
    for with_cp in (False, True):
        backbone = make_backbone(60, with_cp=with_cp).train()
        for _ in range(2):
            sum(output.mean() for output in backbone(x)).backward()
        results.append({name: p.grad for name, p in backbone.named_parameters()})
    assert_same(*results, 1e-6)
    once = make_backbone(60)
    sum(output.mean() for output in once(x)).backward()
    assert_same(results[0], {name: 2 * p.grad for name, p in once.named_parameters()}, 1e-5)


def test_amp_trains_in_strips():
    x = torch.randn(1, 3, 64, 64)
    results = []
    for strip_tokens in (60, None):
        backbone = make_backbone(strip_tokens)
        for parameter in backbone.parameters():
            parameter.data *= 0.2
        with torch.autocast('cpu', torch.bfloat16):
            outputs = backbone(x)
        sum(output.float().mean() for output in outputs).backward()
        results.append({name: p.grad for name, p in backbone.named_parameters()})
    assert all(gradient.dtype == torch.float32 for gradient in results[0].values())
    assert relative_error(*(list(gradients.values()) for gradients in results)) < 2e-2


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_hooks_and_exchanged_layers_are_called():
    x = torch.randn(1, 3, 64, 64)
    backbone = make_backbone('auto').eval()
    before = backbone(x)[0]
    seen = []
    handle = backbone.stages[0].blocks[1].norm2.register_forward_hook(lambda *args: seen.append(args))
    torch.testing.assert_close(backbone(x)[0], before, rtol=1e-4, atol=1e-4)
    assert len(seen) == 1
    handle.remove()
    other = copy.deepcopy(backbone)
    attention = other.stages[0].blocks[0].attn.w_msa
    doubled = Doubled(32, 32)
    doubled.load_state_dict({name: value / 2 for name, value in attention.proj.state_dict().items()})
    attention.proj = doubled
    torch.testing.assert_close(other(x)[0], before, rtol=1e-4, atol=1e-4)
    merging = backbone.stages[0].downsample
    handle = merging.norm.register_forward_hook(lambda *args: seen.append(args))
    backbone(x)
    assert len(seen) == 2


def test_without_gradients_a_map_is_overwritten_unless_somebody_watches():
    x_BHWC = torch.randn(1, 40, 40, 32)
    block = make_backbone(200).eval().stages[0].blocks[1]
    expected = block(x_BHWC)
    plan = Plan(BACKENDS['eager'], strip_tokens=200, overwrite=True)
    assert block(x_BHWC, plan).data_ptr() != x_BHWC.data_ptr()  # a gradient is wanted
    with torch.no_grad():
        output = block(x_BHWC, plan)
    assert output.data_ptr() == x_BHWC.data_ptr()
    torch.testing.assert_close(output, expected)

    backbone, images = make_backbone(200).eval(), torch.randn(1, 3, 90, 70)
    given_images, kept = images.clone(), []
    with torch.no_grad():
        expected = backbone(images)
        backbone.stages[0].blocks[0].register_forward_hook(lambda module, args, y: kept.append((y, y.clone())))
        watched = backbone(images)
    assert torch.equal(*kept[0])
    for one, other in zip(watched, expected):
        torch.testing.assert_close(one, other)
    assert torch.equal(images, given_images)


class Permuted(nn.Module):
    def forward(self, x_BCHW):
        return x_BCHW.permute(0, 2, 3, 1)


def test_images_that_are_tokens_already_are_not_overwritten():
    backbone = make_backbone(200, in_channels=32).eval()
    backbone.patch_embed = Permuted()
    tokens = torch.randn(1, 32, 40, 40).contiguous(memory_format=torch.channels_last)
    before = tokens.clone()
    with torch.no_grad():
        backbone(tokens)
    assert torch.equal(tokens, before)


@pytest.mark.parametrize('wrap', ['DDP', 'FSDP', 'FSDP2'])
def test_data_parallel_wrappers_get_every_gradient(one_process, wrap):
    x = torch.randn(1, 3, 64, 64)
    plain = make_backbone(60)
    sum(output.mean() for output in plain(x)).backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
    model = data_parallel(wrap, make_backbone(60))
    sum(output.mean() for output in model(x)).backward()
    found = [getattr(p.grad, 'full_tensor', lambda p=p: p.grad)().flatten() for p in model.parameters()]
    found = torch.cat(found)[: len(expected)]
    torch.testing.assert_close(found.norm(), expected.norm(), rtol=1e-4, atol=0)
    if wrap != 'FSDP':  # which flattens parameters in an order of its own
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
