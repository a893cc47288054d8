"""The table of limits is that of the library: for sizes at its edges, both take them or both refuse them."""

import ctypes
from ctypes import byref

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from swin_backbone.kernels.native import library as c
from swin_backbone.kernels.native.size_limits import LIMITS, find_reason_against_sizes

PLACE = ctypes.create_string_buffer(256)
HERE = ctypes.addressof(PLACE) + -ctypes.addressof(PLACE) % 64  # an address for arrays that no call reads
DTYPES = torch.float32, torch.bfloat16, torch.int8
# Numbers around all limits.
edges = st.sampled_from([n + d for n in (0, 1, 2**16, 2**20, 2**31) for d in (-1, 0, 1)] + [2, 8, 16, 17, 24, 64, 72])
sides, small = st.one_of(st.integers(1, 40), edges), st.one_of(st.integers(0, 20), edges)
channels = st.one_of(st.integers(1, 40), st.sampled_from([64, 96, 4096, 2**14, 2**16, 2**16 + 8, 2**20, 2**20 + 8]))
threads = st.sampled_from([1, 1, 1, 2, 1024, 1025, 0])


def complaint(function, *arguments):
    """Return the library's error on the sizes of a call; None: it takes them.

    A call whose arrays are all at one address computes nothing: it stops where it compares the arrays.
    """
    try:
        getattr(c.load_library()[0], function)(*arguments)
    except ValueError as error:
        return None if 'must not overlap' in str(error) or 'must not be null' in str(error) else str(error)
    return None


def block(threads, dtype, B, H, W, C, D, h, Wh, Ww, down, right):
    number = DTYPES.index(dtype)
    pointers = [(HERE,) * 4, (None,) * 4, *[None] * 6, HERE, None, None]
    sizes = number, threads, B, H, W, C, D, h, Wh, Ww, down, right
    described = c.BlockStruct(*sizes, 0, 0, 1.0, 1e-5, 1e-5, 0.0, *pointers)
    return complaint('block_forward', byref(described), HERE, HERE, None, 0)


def projection(threads, dtype, N, norm_after):
    return c.ProjectionStruct(DTYPES.index(dtype), threads, N, HERE, None, True, norm_after, 1e-5, None, None)


def gradients(function, places, projected, has_gradients):
    """Return the complaint of a forward, or of a backward without the gradient of the input."""
    if not has_gradients:
        return complaint(f'{function}_forward', byref(places), byref(projected), HERE)
    to = c.ProjectionGradientsStruct(*[HERE] * 5)
    return complaint(f'{function}_backward', byref(places), byref(projected), None, HERE, byref(to))


def embed(threads, dtype, B, C, H, W, patch_H, patch_W, N, has_gradients):
    places = c.ImagesStruct(HERE, B, C, H, W, (0, 0, 0, 0), patch_H, patch_W)
    return gradients('embed', places, projection(threads, dtype, N, True), has_gradients)


def merge(threads, dtype, B, H, W, C, N, has_gradients):
    places = c.MapsStruct(HERE, B, H, W, C)
    return gradients('merge', places, projection(threads, dtype, N, False), has_gradients)


def output_norm(threads, B, area, C):
    return complaint('output_norm_forward', HERE, B, area, C, None, None, 1e-5, threads, HERE)


def convolution(threads, tile, B, H, W, C, N):
    described = c.ConvolutionStruct(0, threads, tile, B, H, W, C, N, HERE, None)
    return complaint('convolution_forward', byref(described), HERE, HERE)


def roi_align(threads, B, C, H, W, regions, down, across, samples):
    strides = C * H * W, H * W, W, 1
    assume(B * max(strides) <= 2**44)  # no memory has more
    call = c.RoiAlignStruct(0, threads, B, C, H, W, strides, regions, None, down, across, samples, 1.0, False)
    return complaint('roi_align_forward', byref(call), HERE, None)


def deformable(threads, B, queries, tokens, h, d, levels, points):
    call = c.DeformableStruct(threads, B, queries, tokens, h, d, levels, points, None)
    return complaint('deformable_forward', byref(call), None, None, None, None)


def nms(threads, boxes):
    return complaint('nms', HERE, HERE, boxes, 0.5, 0.0, threads, HERE, byref(ctypes.c_int64()))


CALLS = dict(
    block=(block, st.tuples(st.sampled_from(DTYPES), small, sides, sides, channels, channels, small, *[small] * 4)),
    embed=(embed, st.tuples(st.sampled_from(DTYPES), small, *[sides] * 5, channels, st.booleans())),
    merge=(merge, st.tuples(st.sampled_from(DTYPES), small, sides, sides, channels, channels, st.booleans())),
    output_norm=(output_norm, st.tuples(small, sides, channels)),
    convolution=(convolution, st.tuples(st.sampled_from([4, 6]), small, sides, sides, channels, channels)),
    roi_align=(roi_align, st.tuples(*[small] * 2, sides, sides, *[small] * 4)),
    deformable=(deformable, st.tuples(*[small] * 7)),
    nms=(nms, st.tuples(edges)),
)


def test_every_row_is_compared():
    assert CALLS.keys() == LIMITS.keys()


@pytest.mark.parametrize('function', CALLS)
def test_the_library_refuses_what_the_table_refuses(function):
    call, sizes = CALLS[function]

    @settings(max_examples=100)
    @given(threads, sizes)
    def compare(threads, sizes):
        assume(not (torch.int8 in sizes and sizes[-1] is True))  # in eight bits there are no gradients
        in_table, in_library = find_reason_against_sizes(function, threads, *sizes), call(threads, *sizes)
        assume(function != 'roi_align' or 'all bins' not in str(in_table))  # the library reads the boxes before
        assert (in_table is None) == (in_library is None), (in_table, in_library)

    compare()
