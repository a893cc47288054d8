"""`torch.export` with free sizes: a `Dim` with a range, for a side, for two sides, and for small pictures."""

import pytest
import torch
from helpers.models.small_models import TWO_STAGES, randomised
from helpers.versions import needs_torch
from torch.export import Dim

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone

ONE_STAGE = dict(depths=(2,), num_heads=(2,), strides=(4,), out_indices=(0,))


def assert_exports(backbone, example, dims, sizes, **arguments):
    """Check an exported model at sizes different from the example's."""
    model = randomised(kind=backbone, **{**TWO_STAGES, **arguments})
    with torch.no_grad():
        exported = torch.export.export(model, (torch.randn(example),), dynamic_shapes=(dims,), strict=False).module()
        for size in sizes:
            image = torch.randn(size)
            for output, expected in zip(exported(image), model(image)):
                torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-3)


def side(name, low=64, high=400):
    return Dim(name, min=low, max=high)


@needs_torch('2.6', 'export of a map whose padding depends on the size')
@pytest.mark.parametrize(
    ('backbone', 'dims', 'sizes', 'arguments'),
    [
        (SwinMLPBackbone, None, [(1, 3, 65, 160)], {}),
        (SwinV2Backbone, {3: side('W')}, [(1, 3, 65, 64), (1, 3, 65, 400), (1, 3, 65, 163)], ONE_STAGE),
        (SwinBackbone, {2: side('H')}, [(1, 3, 224, 160)], dict(ONE_STAGE, use_abs_pos_embed=True)),
    ],
)
def test_a_fixed_size_and_a_range(backbone, dims, sizes, arguments):
    assert_exports(backbone, (1, 3, 65, 160), dims, sizes, **arguments)


# Maps are larger than the window: smaller maps need a second graph.
SHRINK = dict(small_map='shrink', window_size=7)


SMALL = {2: side('H', 1, 32), 3: side('W', 1, 32)}
SMALL_SIZES = [(2, 3, 1, 1), (2, 3, 4, 4), (2, 3, 5, 32), (2, 3, 32, 29)]


@pytest.mark.slow
@pytest.mark.parametrize('arguments', [dict(), dict(mask_padding=True), dict(use_abs_pos_embed=True), SHRINK], ids=str)
@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone, SwinMLPBackbone])
def test_each_side_batch_all_and_small_pictures(backbone, arguments):
    if backbone is SwinMLPBackbone and 'mask_padding' in arguments:
        pytest.skip('Swin-MLP has no mask of padding')
    if arguments is not SHRINK:
        assert_exports(backbone, (2, 3, 20, 24), SMALL, SMALL_SIZES, **arguments)
    for dims, sizes in [
        ({3: side('W')}, [(2, 3, 128, 64), (2, 3, 128, 399)]),
        ({2: side('H')}, [(2, 3, 64, 160), (2, 3, 399, 160)]),
        ({0: Dim('B', min=1, max=8)}, [(1, 3, 128, 160), (5, 3, 128, 160)]),
        ({0: Dim('B', min=1, max=8), 2: side('H'), 3: side('W')}, [(1, 3, 64, 64), (3, 3, 400, 131)]),
        ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}, [(1, 3, 129, 270)]),
        ({2: 4 * side('h', 16, 100), 3: 4 * side('w', 16, 100)}, [(2, 3, 64, 400)]),
    ]:
        assert_exports(backbone, (2, 3, 128, 160), dims, sizes, **arguments)
