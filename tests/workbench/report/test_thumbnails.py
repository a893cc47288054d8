"""Thumbnails of pictures that read_picture does not take."""

import numpy as np
import pytest

from swin_backbone.workbench.report.thumbnails import draw, draw_labels


@pytest.mark.parametrize('shape', [(6, 8, 5), (6, 8, 2), (6, 8)])
def test_a_tiff_of_other_bands_has_thumbnails(tmp_path, shape):
    """It stopped the report of a segmentor after the test."""
    tifffile = pytest.importorskip('tifffile', reason='tifffile is not installed')
    bands = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * 200
    path = str(tmp_path / 'bands.tif')
    tifffile.imwrite(path, bands, photometric='minisblack', planarconfig='contig' if bands.ndim > 2 else None)
    assert draw(path)['part'] == [0, 0, 8, 6]
    label = np.zeros((6, 8), np.uint8)
    addresses = [draw_labels(file, label, label, [(1, 2, 3)], 255)['address'] for file in (path, f'{tmp_path}/no.tif')]
    assert all(address.startswith('data:image/webp;base64,') for address in addresses)
    assert addresses[0] != addresses[1]  # grey
    assert draw(f'{tmp_path}/no.tif') == {}
