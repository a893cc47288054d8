"""Windows of each kind of large picture are those of the whole picture."""

import sys

import cv2
import numpy as np
import pytest
from helpers.openmmlab.oracles import Detector, Segmentor, noise

from swin_backbone.openmmlab.inference.tiles import infer_tiled, open_picture
from swin_backbone.openmmlab.inference.tiles.grid import Window
from swin_backbone.openmmlab.inference.tiles.readers import require

SIZE = (150, 210)
RGB = noise(SIZE)[..., ::-1]
WINDOWS = [Window(0, 0, *SIZE), Window(31, 40, 97, 169), Window(149, 209, 150, 210), Window(0, 64, 64, 128)]


def same(picture, wanted_bgr, tolerance=0):
    assert picture.size == wanted_bgr.shape[:2]
    for window in WINDOWS:
        pixels = picture.read(window)
        assert pixels.dtype == np.uint8
        wanted = wanted_bgr[window.top : window.bottom, window.left : window.right]
        assert np.abs(pixels.astype(int) - wanted).max(initial=0) <= tolerance


@pytest.fixture
def tifffile():
    return pytest.importorskip('tifffile', reason='tifffile is not installed')


def tiffs():
    deep = RGB.astype(np.uint16) * 256 + 77
    yield 'tiled', RGB, dict(tile=(64, 48), compression='zlib', photometric='rgb'), ''
    yield 'stripes', RGB, dict(rowsperstrip=7, compression='zlib', photometric='rgb'), ''
    yield 'contiguous', RGB, dict(photometric='rgb'), ''
    yield 'planes', RGB.transpose(2, 0, 1), dict(tile=(64, 64), photometric='rgb', planarconfig='separate'), ''
    yield 'planes in strips', RGB.transpose(2, 0, 1), dict(photometric='rgb', planarconfig='separate'), ''
    yield '16 bits', deep, dict(tile=(64, 64), photometric='rgb'), '16 bits a channel'
    yield '16 bits, big endian', deep, dict(byteorder='>', photometric='rgb'), '16 bits a channel'
    yield 'BigTIFF', RGB, dict(bigtiff=True, tile=(32, 32), photometric='rgb'), ''
    turned = [(274, 'H', 1, 6, True)]
    yield 'turned', RGB, dict(photometric='rgb', extratags=turned), 'orientation 6'
    alpha = np.dstack([RGB, RGB[..., 0]])
    yield '4 channels', alpha, dict(tile=(32, 32), photometric='rgb', extrasamples=['unspecified']), '4 channels'
    yield (
        'OME',
        RGB.transpose(2, 0, 1),
        dict(ome=True, tile=(64, 64), metadata=dict(axes='CYX'), photometric='minisblack'),
        '',
    )


@pytest.mark.parametrize('made', tiffs(), ids=lambda made: made[0])
def test_tiffs(tmp_path, tifffile, made):
    name, pixels, settings, note = made
    path = tmp_path / f'{name}.tif'
    tifffile.imwrite(path, pixels, **settings)
    picture = open_picture(path)
    same(picture, RGB[..., ::-1])
    assert bool(picture.notes) == bool(note)
    assert note in ''.join(picture.notes)


def test_grey_palette_and_inverse_tiffs(tmp_path, tifffile):
    grey = RGB[..., 0]
    for photometric, wanted in (('minisblack', grey), ('miniswhite', ~grey)):
        tifffile.imwrite(tmp_path / 'a.tif', grey, photometric=photometric, tile=(64, 64))
        same(open_picture(tmp_path / 'a.tif'), np.repeat(wanted[..., None], 3, 2))
    colours = np.random.default_rng(0).integers(0, 256, (256, 3))
    tifffile.imwrite(tmp_path / 'a.tif', grey, photometric='palette', colormap=(colours.T * 257).astype(np.uint16))
    same(open_picture(tmp_path / 'a.tif'), colours[grey][..., ::-1])


def test_a_sparse_tiff(tmp_path, tifffile):
    """Of which most tiles were never written."""
    tile = np.full((64, 64, 3), 200, np.uint8).tobytes()
    tiles = (tile if index == 5 else b'' for index in range(12))
    tifffile.imwrite(tmp_path / 'a.tif', tiles, shape=(*SIZE, 3), dtype='uint8', tile=(64, 64), photometric='rgb')
    wanted = np.zeros((*SIZE, 3), np.uint8)
    wanted[64:128, 64:128] = 200
    same(open_picture(tmp_path / 'a.tif'), wanted)


def test_levels_of_a_pyramid(tmp_path, tifffile):
    with tifffile.TiffWriter(tmp_path / 'a.ome.tif') as file:
        file.write(np.repeat(np.repeat(RGB, 2, 0), 2, 1), subifds=1, tile=(64, 64), photometric='rgb')
        file.write(RGB, subfiletype=1, tile=(64, 64), photometric='rgb')
    assert open_picture(tmp_path / 'a.ome.tif').size == (300, 420)
    same(open_picture(tmp_path / 'a.ome.tif', 1), RGB[..., ::-1])
    with pytest.raises(ValueError, match='level takes 0 to 1'):
        open_picture(tmp_path / 'a.ome.tif', 2)


def test_bad_tiffs(record_fault, tmp_path, tifffile):
    tifffile.imwrite(tmp_path / 'whole.tif', RGB, tile=(64, 64), compression='zlib', photometric='rgb')
    data = (tmp_path / 'whole.tif').read_bytes()
    path = tmp_path / 'a.tif'
    for length in (0, 3, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(OSError, match=r'a\.tif'):
            open_picture(path)
        record_fault('bad_pictures')
    path.write_bytes(data[: len(data) // 2] + b'\xff' * (len(data) - len(data) // 2))
    with pytest.raises(OSError, match=r'a\.tif'):
        open_picture(path).read(WINDOWS[0])
    tifffile.imwrite(path, RGB.astype(np.float32), photometric='rgb')
    with pytest.raises(OSError, match='pixels of float32'):
        open_picture(path)
    tifffile.imwrite(path, np.zeros((5, 30, 40), np.uint8), photometric='minisblack', metadata=dict(axes='ZYX'))
    with pytest.raises(OSError, match='is no picture'):
        open_picture(path)
    record_fault('bad_pictures', 3)


def test_opencv(tmp_path):
    cv2.imwrite(str(tmp_path / 'a.png'), RGB[..., ::-1])
    same(open_picture(tmp_path / 'a.png'), RGB[..., ::-1])
    cv2.imwrite(str(tmp_path / 'deep.png'), RGB[..., ::-1].astype(np.uint16) * 256)
    same(open_picture(tmp_path / 'deep.png'), RGB[..., ::-1])
    cv2.imwrite(str(tmp_path / 'alpha.png'), np.dstack([RGB[..., ::-1], RGB[..., 0]]))
    same(open_picture(tmp_path / 'alpha.png'), RGB[..., ::-1])
    with pytest.raises(ValueError, match='level takes 0 to 0'):
        open_picture(tmp_path / 'a.png', 1)
    with pytest.raises(OSError, match=r'absent\.png'):
        open_picture(tmp_path / 'absent.png')


def test_zarr(tmp_path):
    zarr = pytest.importorskip('zarr', reason='zarr is not installed')
    for name, pixels in (('yxc', RGB), ('cyx', RGB.transpose(2, 0, 1)[[0, 1, 2, 0, 0]])):
        zarr.save_array(tmp_path / f'{name}.zarr', np.ascontiguousarray(pixels))
        same(open_picture(tmp_path / f'{name}.zarr'), RGB[..., ::-1])
    group = zarr.open_group(tmp_path / 'ome.zarr', mode='w')
    for level in (0, 1):
        group.create_array(
            f's{level}', data=np.ascontiguousarray(RGB.transpose(2, 0, 1)[None, :, None][..., level * 9 :])
        )
    axes = [dict(name=name) for name in 'tczyx']
    group.attrs['multiscales'] = [dict(axes=axes, datasets=[dict(path='s0'), dict(path='s1')])]
    same(open_picture(tmp_path / 'ome.zarr'), RGB[..., ::-1])
    assert open_picture(tmp_path / 'ome.zarr', 1).size == (150, 201)
    with pytest.raises(OSError, match='no folder'):
        open_picture(tmp_path / 'none.zarr')


@pytest.fixture
def geotiff(tmp_path):
    rasterio = pytest.importorskip('rasterio', reason='rasterio is not installed')
    path = tmp_path / 'geo.tif'
    profile = dict(driver='GTiff', height=150, width=210, count=3, dtype='uint8', crs='EPSG:32632', tiled=True)
    transform = rasterio.Affine(0.5, 0, 691000, 0, -0.5, 5335000)
    with rasterio.open(path, 'w', **profile, blockxsize=64, blockysize=64, transform=transform) as file:
        file.write(RGB.transpose(2, 0, 1))
    with rasterio.open(path, 'r+') as file:
        file.build_overviews([2])
    return path


def test_a_geotiff_and_where_its_labels_lie(tmp_path, geotiff, tifffile):
    import rasterio

    picture = open_picture(geotiff)
    same(picture, RGB[..., ::-1])
    for level, side in ((0, 0.5), (1, 1.0)):
        (labels,) = infer_tiled(Segmentor(), geotiff, tmp_path / str(level), tile=96, overlap=32, level=level).files
        with rasterio.open(labels) as found, rasterio.open(geotiff) as source:
            assert found.crs == source.crs
            assert found.transform == rasterio.Affine(side, 0, 691000, 0, -side, 5335000)
            assert found.nodata == 255
            assert found.bounds == source.bounds
            assert found.read(1).shape == (150 // (level + 1), 210 // (level + 1))
            assert found.colormap(1)[2] == (40, 40, 255, 255)


@pytest.mark.parametrize('masks', [True, False])
def test_objects_in_longitude_and_latitude(tmp_path, geotiff, masks):
    import json

    import rasterio
    from rasterio.warp import transform

    pytest.importorskip('shapely', reason='shapely is not installed')
    with rasterio.open(geotiff, 'r+') as file:
        pixels = np.full((3, 150, 210), 90, np.uint8)
        pixels[:, 40:60, 70:150] = np.array([40, 40, 255])[:, None, None]
        file.write(pixels)
    *_, geojson = infer_tiled(Detector(masks=masks), geotiff, tmp_path, tile=96, overlap=32).files
    (feature,) = json.loads(geojson.read_text())['features']
    assert feature['properties']['class'] == 'one'
    corners = np.array(feature['geometry']['coordinates'][0])
    assert len(corners) == 5
    (x1, x2), (y1, y2) = transform('EPSG:32632', 'EPSG:4326', [691035, 691075], [5334980, 5334970])
    np.testing.assert_allclose(corners.min(0), [x1, y2], atol=1e-5)
    np.testing.assert_allclose(corners.max(0), [x2, y1], atol=1e-5)


def test_a_slide(tmp_path, tifffile):
    pytest.importorskip('openslide', reason='openslide is not installed')
    with tifffile.TiffWriter(tmp_path / 'a.svs') as file:
        file.write(np.repeat(np.repeat(RGB, 2, 0), 2, 1), tile=(64, 64), photometric='rgb')
        file.write(RGB, subfiletype=1, tile=(64, 64), photometric='rgb')
    same(open_picture(tmp_path / 'a.svs', 1), RGB[..., ::-1])
    assert open_picture(tmp_path / 'a.svs').size == (300, 420)
    (tmp_path / 'b.svs').write_bytes(b'no slide')
    with pytest.raises(OSError, match=r'b\.svs cannot be read as a slide'):
        open_picture(tmp_path / 'b.svs')


@pytest.mark.parametrize(
    ('name', 'module', 'package'),
    [('a.tif', 'tifffile', 'tifffile'), ('a.jp2', 'rasterio', 'rasterio'), ('a.zarr', 'zarr', 'zarr'),
     ('a.svs', 'openslide', 'openslide-python openslide-bin')],
)  # fmt: skip
def test_a_missing_library_is_named(tmp_path, monkeypatch, name, module, package):
    (tmp_path / name).write_bytes(b'x')
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f'{name} needs {package}, which is not installed: pip install'):
        open_picture(tmp_path / name)
    with pytest.raises(ValueError, match='pip install'):
        require(package, module, tmp_path)
