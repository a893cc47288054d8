"""Operators of runtimes beside the package, in one process: each has the instruction set of its own weights."""

import ctypes
from ctypes import byref, c_char_p, c_double, c_int64, c_void_p

import pytest
import torch

from swin_backbone import SwinBackbone
from swin_backbone.kernels.native.library import load_library

SIZES = dict(embed_dims=32, depths=(2,), num_heads=(2,), strides=(4,), out_indices=(0,))


@torch.no_grad()
@pytest.mark.parametrize('isa', load_library()[0].isas if load_library()[0] else [])
def test_an_operator_leaves_the_instruction_set_of_the_process(isa, monkeypatch):
    """The packed weights of another set are in another order, and a block of them would give other numbers."""
    library = load_library()[0]
    in_use, functions = library.isa, library._library
    model, x = SwinBackbone(**SIZES, backend='native').eval(), torch.randn(1, 3, 40, 44)
    (expected,) = model(x)
    functions.swin_operator_create.restype = functions.swin_operator_run.restype = c_char_p
    weight_C, bias_C, made = torch.randn(8), torch.randn(8), c_void_p()
    weights, counts = (c_void_p * 2)(weight_C.data_ptr(), bias_C.data_ptr()), (c_int64 * 2)(8, 8)
    monkeypatch.setenv('SWIN_BACKBONE_ISA', isa)
    error = functions.swin_operator_create(b'OutputNorm', (c_double * 2)(8, 1e-5), weights, counts, byref(made))
    if error is not None:
        assert b'no instruction set named' in error
        pytest.skip(error.decode())
    try:
        assert library.isa == in_use
        assert torch.equal(model(x)[0], expected)
        x_BHWC, y_BCHW = torch.randn(2, 3, 5, 8), torch.empty(2, 8, 3, 5)
        addresses = [ctypes.cast(one.data_ptr(), c_void_p) for one in (x_BHWC, y_BCHW)]
        sizes = (c_int64 * 4)(*x_BHWC.shape)
        assert functions.swin_operator_run(made, sizes, addresses[0], 1, addresses[1]) is None
        normed_BHWC = torch.nn.functional.layer_norm(x_BHWC, (8,), weight_C, bias_C)
        torch.testing.assert_close(y_BCHW, normed_BHWC.permute(0, 3, 1, 2), rtol=1e-4, atol=1e-5)
        assert library.isa == in_use
    finally:
        functions.swin_operator_free.restype = None
        functions.swin_operator_free(made)
