"""The operators of the library, called directly: every argument that does not fit is an error that says so."""

import json
import os
import subprocess
import sys

import pytest
import torch
from helpers import ROOT
from helpers.backends.native_blocks import block_weights, random_weights

from swin_backbone.backends.native import operators
from swin_backbone.backends.native.layers import pack
from swin_backbone.backends.weight_cache import WeightCache

CALLS = ROOT / 'tests' / 'helpers' / 'backends' / 'direct_calls.py'
SANITIZE = ROOT / 'tests' / 'backends' / 'native' / 'sanitize.sh'


def call(*command, seconds: int, **environment: str) -> dict:
    """What direct_calls.py prints, or a failure that shows the last calls."""
    run = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def check(found: dict, count: int) -> None:
    errors = {**found['said'], **found['foreign']}
    assert found['results'] + sum(errors.values()) == count
    assert count / 10 < found['right'] < found['results'] < count * 0.6
    assert sum(found['foreign'].values()) < count / 10  # torch's own, of arguments of another type
    assert all(len(sentence.split()) >= 5 for sentence in found['said'])


def test_a_thousand_calls_with_wrong_arguments(record_fault):
    check(call(sys.executable, CALLS, 1, 1000, seconds=300), 1000)
    record_fault('direct_calls', 1000)


@pytest.mark.slow
def test_thousands_of_calls_with_address_sanitizer(record_fault):
    sanitized = 'bash', SANITIZE, sys.executable, CALLS
    check(call(*sanitized, 2, 2000, seconds=3000), 2000)
    record_fault('direct_calls', 2000)


def arguments(**changed) -> dict:
    """Of `block`, for a map of 8x8, 32 channels and windows of 4x4."""
    w, _ = block_weights(random_weights(32, 2, (4, 4), v2=False), 2, (4, 4))
    packed = pack(
        WeightCache(), (w.qkv_weight, w.proj_weight, w.fc1_weight, w.fc2_weight), torch.float32, (16, 1, 1, 1)
    )
    right = dict(x=torch.randn(1, 8, 8, 32), packed=packed, vectors=[None] * 10, position_bias=w.position_bias_hNN)
    right.update(cosine_scale=None, drop_path=None, heads=2, window=[4, 4], shift=[0, 0], padding=0)
    return {**right, 'scale': 1.0, 'eps': [1e-5, 1e-5], **changed}


def without_its_end(x):
    x.untyped_storage().resize_(x.nbytes - 1)
    return x


@pytest.mark.parametrize(
    ('changed', 'said'),
    [
        (dict(x=torch.randn(1, 8, 8, 32, dtype=torch.float64)), 'x must be torch.float32, got torch.float64'),
        (dict(x=torch.randn(1, 8, 8, 32).transpose(1, 2)), 'x must be contiguous and of'),
        (dict(x=torch.randn(1, 1, 1, 1).expand(1, 8, 8, 32)), 'x must be contiguous and of'),
        (dict(x=torch.randn(8, 8, 32)), r'x must be maps \(B, H, W, C\), got \[8, 8, 32\]'),
        (dict(x=torch.zeros(1, 8, 8, 0)), 'packed qkv weight must be contiguous and of'),
        (dict(x=torch.zeros(0, 2**40, 8, 32)), 'height must be from 1 to 1048576, got 1099511627776'),
        (dict(x=without_its_end(torch.zeros(1, 8, 8, 32))), 'x must be a tensor with all of its memory'),
        (dict(heads=3, position_bias=torch.zeros(3, 16, 16)), 'heads must have'),
        (dict(heads=0, position_bias=torch.zeros(0, 16, 16)), 'heads must have'),
        (dict(shift=[4, 0]), 'a shift must be from 0 to 3, got 4'),
        (
            dict(window=[17, 1], position_bias=torch.zeros(2, 17, 17)),
            'a side of the window must be from 1 to 16, got 17',
        ),
        (dict(window=[2**32, 2**32]), 'position_bias must be'),
        (dict(position_bias=torch.zeros(2, 9, 9)), 'position_bias must be'),
        (dict(packed=[torch.zeros(5)] * 4), 'packed qkv weight must be contiguous and of'),
        (dict(packed=[torch.zeros(3 * 32 * 32), torch.zeros(32 * 32), torch.zeros(0), torch.zeros(0)]), 'got 0'),
        (dict(vectors=[torch.zeros(31), *[None] * 9]), "norm1's weight must be 32 floating numbers"),
        (dict(vectors=[torch.zeros(32, dtype=torch.int64), *[None] * 9]), "norm1's weight must be 32 floating numbers"),
    ],
)
def test_what_does_not_fit_in_a_block_is_said(changed, said):
    torch.ops.swin_backbone.block(**arguments())
    with pytest.raises(ValueError, match=said):
        torch.ops.swin_backbone.block(**arguments(**changed))


def saved(change):
    """Arguments of `block_backward` with a change of what `block_saving` saved."""
    right = arguments()
    x, packed = right.pop('x'), right.pop('packed')
    C, ops = x.shape[-1], torch.ops.swin_backbone
    shapes = (3 * C, C), (C, C), (4 * C, C), (C, 4 * C)
    transposed = [ops.pack_linear(torch.zeros(shape), torch.float32, 1, True) for shape in shapes]
    memory = change(ops.block_saving(x, packed, **right)[1])
    return dict(x=x, grad=x, packed=packed, transposed=transposed, **right, saved=memory)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda saved: saved[:, :1].expand(saved.shape), 'saved must be contiguous'),
        (lambda saved: saved[:0], 'saved must be contiguous and of'),
        (lambda saved: saved.new_zeros(999, 1), 'groups must be from 0'),
        (lambda saved: saved.new_zeros(len(saved), saved.shape[1] + 1), 'saved must be contiguous and of'),
        (lambda saved: saved.flatten(), r'saved must be \(groups, bytes\)'),
        (lambda saved: torch.cat([saved.new_zeros(8), saved.flatten()])[8:].view(saved.shape), 'a multiple of 64'),
        (lambda saved: saved.float(), 'saved must be torch.uint8, got torch.float32'),
    ],
)
def test_what_was_saved_must_be_what_backward_reads(change, said):
    torch.ops.swin_backbone.block_backward(**saved(lambda memory: memory))
    with pytest.raises(ValueError, match=said):
        torch.ops.swin_backbone.block_backward(**saved(change))


@pytest.mark.parametrize('unit', [0, -1, 97, 2**62])
def test_a_unit_is_a_number_of_columns(unit):
    with pytest.raises(ValueError, match='unit must be from 1 to 96'):
        torch.ops.swin_backbone.pack_linear(torch.zeros(96, 32), torch.float32, unit)


@pytest.mark.parametrize(
    ('patch', 'said'),
    [
        ([2**40, 4], 'packed weight must be contiguous and of'),
        ([0, 4], 'packed weight must be contiguous and of'),
        ([4], 'the 2 sides of a patch'),
    ],
)
def test_a_patch_has_a_size(patch, said):
    panels = torch.ops.swin_backbone.pack_linear(torch.zeros(16, 48), torch.float32, 1)
    with pytest.raises(ValueError, match=said):
        torch.ops.swin_backbone.embed(torch.zeros(1, 3, 8, 8), panels, None, None, None, None, patch)


def test_channels_of_nothing():
    ops, nothing = torch.ops.swin_backbone, torch.zeros(0)
    for run in (
        lambda: ops.merge(torch.zeros(1, 4, 4, 0), nothing, None, None, None, False),
        lambda: ops.output_norm(torch.zeros(1, 4, 4, 0), None, None, 1e-5),
        lambda: ops.embed(torch.zeros(1, 0, 4, 4), nothing, None, None, None, None, [4, 4]),
        lambda: ops.pack_linear(torch.zeros(0, 5), torch.float32, 1),
    ):
        with pytest.raises(ValueError, match='must be from 1'):
            run()


def test_no_maps_give_no_maps():
    found = torch.ops.swin_backbone.block(**arguments(x=torch.zeros(0, 8, 8, 32)))
    assert found.shape == (0, 8, 8, 32)


def at_an_odd_address(x):
    """Return a copy of a float32 tensor."""
    return torch.frombuffer(bytearray(1) + x.contiguous().numpy().tobytes(), dtype=x.dtype, offset=1).view(x.shape)


def test_tensors_at_odd_addresses_give_the_same():
    right = arguments(vectors=[torch.randn(32), *[None] * 9])
    odd = {name: at_an_odd_address(right[name]) for name in ('x', 'position_bias')}
    odd['packed'], odd['vectors'] = list(map(at_an_odd_address, right['packed'])), right['vectors']
    odd['vectors'][0] = at_an_odd_address(right['vectors'][0])
    for block in (operators.block, torch.ops.swin_backbone.block):
        assert torch.equal(block(*{**right, **odd}.values()), block(*right.values()))
    expected, x = operators.block(*right.values()), odd['x']
    operators.block_(*{**right, **odd}.values())
    assert torch.equal(x, expected)
    weight, image = torch.randn(32, 48), torch.randn(1, 3, 8, 8)
    packed = operators.pack_linear(at_an_odd_address(weight), torch.float32, 1)
    assert torch.equal(packed, operators.pack_linear(weight, torch.float32, 1))
    others = packed, None, None, None, None, [4, 4]
    assert torch.equal(operators.embed(at_an_odd_address(image), *others), operators.embed(image, *others))


def linear_weights(C, D, dtype=torch.float32):
    """Return the weights of qkv, proj, fc1 and fc2."""
    return [torch.empty(size, dtype=dtype) for size in ((3 * C, C), (C, C), (D, C), (C, D))]


@pytest.mark.parametrize(
    ('weights', 'heads', 'window', 'reason'),
    [
        (linear_weights(32, 128), 2, (7, 7), None),
        ([*linear_weights(32, 128), None, torch.empty(32)], 4, (16, 1), None),
        (linear_weights(32, 77), 2, (7, 7), 'not 77'),
        (linear_weights(32, 0), 2, (7, 7), 'not 0'),
        (linear_weights(96, 128), 1, (7, 7), 'heads of 8, 16'),
        (linear_weights(32, 128), 0, (7, 7), 'heads of 8, 16'),
        (linear_weights(32, 128), 2, (17, 7), 'windows up to 16x16'),
        (linear_weights(32, 128, torch.float64), 2, (7, 7), 'not torch.float64'),
        ([*linear_weights(32, 128), torch.empty(32, device='meta')], 2, (7, 7), 'on meta'),
        ([torch.empty(48, 32), torch.empty(32, 16), *linear_weights(32, 128)[2:]], 2, (7, 7), '(3C, C)'),
        ([None, *linear_weights(32, 128)[1:]], 2, (7, 7), '(3C, C)'),
        ([torch.empty(32), *linear_weights(32, 128)[1:]], 2, (7, 7), '(3C, C)'),
    ],
)
def test_weights_decide_whether_a_block_is_computed(weights, heads, window, reason):
    found = operators.why_not_block(weights, heads, window)
    assert reason in found if reason else found is None
