"""Windows of every kind of large picture equal parts of the whole picture.

tests/workbench/data/test_one_reader.py has the layouts of plain TIFFs.
"""

import json

import cv2
import numpy as np
import pytest
from helpers.openmmlab.oracles import Detector, Segmentor, noise
from PIL import Image

pytest.importorskip('swin_backbone.workbench.tiles', reason='the extra tiles is not installed')

import rasterio
import tifffile
from rasterio.warp import transform

from swin_backbone.workbench.tiles import TiledInference, open_picture
from swin_backbone.workbench.tiles.grid import Window
from swin_backbone.workbench.tiles.readers import _hold_rows

SIZE = (150, 210)
RGB = np.ascontiguousarray(noise(SIZE)[..., ::-1])
GREY = np.repeat(RGB[..., :1], 3, 2)
DEEP = RGB.astype(np.uint16) * 256 + 77
CMYK = np.asarray(Image.fromarray(RGB).convert('CMYK'))
ALPHA = np.dstack([RGB, RGB[..., 0]])
WINDOWS = [Window(0, 0, *SIZE), Window(31, 40, 97, 169), Window(149, 209, 150, 210), Window(0, 64, 64, 128)]
EXACT, SAME_JPEG, UPSAMPLED = 0, 2, 50  # levels of 255; GDAL's libjpeg interpolates subsampled colours differently


def same(picture, wanted_bgr, tolerance=EXACT):
    assert picture.size == wanted_bgr.shape[:2]
    for window in WINDOWS:
        pixels = picture.read(window)
        assert pixels.dtype == np.uint8
        expected = wanted_bgr[window.top : window.bottom, window.left : window.right]
        difference = np.abs(pixels.astype(int) - expected)
        assert difference.max(initial=0) <= tolerance
        assert difference.mean() <= tolerance / 10


def by_tifffile(path, pixels, **settings):
    if settings.keys() & {'compression', 'bitspersample'}:  # without imagecodecs tifffile writes plain numbers only
        pytest.importorskip('imagecodecs', '2026.3' if 'bitspersample' in settings else None)  # packs integers
    tifffile.imwrite(path, pixels, **dict(dict(photometric='rgb'), **settings))


def by_gdal(path, pixels, driver='GTiff', colormap=None, **settings):
    bands = np.atleast_3d(pixels).transpose(2, 0, 1)
    profile = dict(height=SIZE[0], width=SIZE[1], count=len(bands), dtype=pixels.dtype)
    if driver == 'GTiff':
        settings = dict(dict(tiled=True, blockxsize=64, blockysize=64), **settings)
    with rasterio.open(path, 'w', driver=driver, **profile, **settings) as file:
        file.write(bands)
        if colormap is not None:
            file.write_colormap(1, dict(enumerate(map(tuple, colormap))))


def by_pillow(path, image, **settings):
    image.save(path, **settings)


def by_vips(path, pixels, **settings):
    vips = pytest.importorskip('pyvips', reason='pyvips is not installed', exc_type=ImportError)
    vips.Image.new_from_array(pixels).tiffsave(str(path), **settings)


TILED = dict(tile=(64, 48))
JPEG = dict(TILED, compression='jpeg', compressionargs=dict(level=90))
IMAGE = Image.fromarray(RGB)
TURNED = Image.Exif()
TURNED[274] = 6
CASES = {  # name, which may have a suffix: writer, pixels, settings, expected RGB (None: by Pillow), tolerance, note
    '12 bits': (by_tifffile, RGB.astype(np.uint16) * 16 + 7, dict(bitspersample=12), RGB, EXACT, '12 bits a channel'),
    'turned': (by_tifffile, RGB, dict(extratags=[(274, 'H', 1, 6, True)]), RGB, EXACT, 'orientation 6'),
    'CMYK': (by_tifffile, CMYK, dict(photometric='separated'), None, SAME_JPEG, ''),
    'OME of 3 pages': (
        by_tifffile, RGB.transpose(2, 0, 1), dict(TILED, ome=True, metadata=dict(axes='CYX'), photometric='minisblack'),
        RGB, EXACT, '',
    ),
    'OME of 5 pages': (
        by_tifffile, RGB.transpose(2, 0, 1)[[0, 1, 2, 0, 1]],
        dict(TILED, ome=True, metadata=dict(axes='CYX'), photometric='minisblack'), RGB, EXACT, '5 channels',
    ),
    'JPEG': (by_tifffile, RGB, JPEG, None, UPSAMPLED, ''),
    'JPEG of RGB': (
        by_tifffile, RGB, dict(JPEG, compressionargs=dict(level=90, outcolorspace='rgb')), None, SAME_JPEG, '',
    ),
    'GDAL, JPEG': (by_gdal, RGB, dict(compress='jpeg', photometric='ycbcr'), None, UPSAMPLED, ''),
    'GDAL, no JPEGTables': (
        by_gdal, RGB, dict(compress='jpeg', photometric='ycbcr', jpegtablesmode=0), None, UPSAMPLED, '',
    ),
    'GDAL, JPEG of RGB': (by_gdal, RGB, dict(compress='jpeg', photometric='rgb'), None, SAME_JPEG, ''),
    'GDAL, JPEG planes': (by_gdal, RGB, dict(compress='jpeg', interleave='band'), None, SAME_JPEG, ''),
    'GDAL, COG': (by_gdal, RGB, dict(driver='COG', compress='deflate', blocksize=128), RGB, EXACT, ''),
    'libvips, JPEG': (by_vips, RGB, dict(tile=True, compression='jpeg'), None, UPSAMPLED, ''),
    'libvips, WebP': (by_vips, RGB, dict(tile=True, compression='webp', lossless=True), RGB, EXACT, ''),
    'libvips, pyramid': (by_vips, RGB, dict(tile=True, pyramid=True, compression='jpeg'), None, UPSAMPLED, ''),
    'alpha.png': (by_pillow, Image.fromarray(ALPHA), {}, RGB, EXACT, '4 channels'),
    'grey.png': (by_pillow, Image.fromarray(RGB[..., 0]), {}, GREY, EXACT, ''),
    'bits.png': (by_pillow, IMAGE.convert('1'), {}, None, EXACT, ''),
    'few.png': (by_pillow, IMAGE.quantize(16), {}, None, EXACT, ''),
    '16 bits.png': (by_gdal, DEEP, dict(driver='PNG'), RGB, EXACT, '16 bits'),
    'turned.jpg': (by_pillow, IMAGE, dict(exif=TURNED), None, UPSAMPLED, 'orientation 6'),
    'CMYK.jpg': (by_pillow, IMAGE.convert('CMYK'), {}, None, UPSAMPLED, 'decoded by GDAL'),
}  # fmt: skip


@pytest.mark.parametrize('name', CASES)
def test_kinds_of_files(tmp_path, name):
    write, pixels, settings, expected, tolerance, note = CASES[name]
    path = tmp_path / (name if '.' in name else f'{name} [1].tif')
    write(path, pixels, **settings)
    picture = open_picture(path)
    expected = np.asarray(Image.open(path).convert('RGB')) if expected is None else expected
    same(picture, expected[..., ::-1], tolerance)
    assert bool(picture.notes) == bool(note)
    assert note in ''.join(picture.notes)


def test_a_sparse_tiff(tmp_path):
    """Read a TIFF with many missing tiles."""
    tile = np.full((64, 64, 3), 200, np.uint8).tobytes()
    tiles = (tile if index == 5 else b'' for index in range(12))
    tifffile.imwrite(tmp_path / 'a.tif', tiles, shape=(*SIZE, 3), dtype='uint8', tile=(64, 64), photometric='rgb')
    expected = np.zeros((*SIZE, 3), np.uint8)
    expected[64:128, 64:128] = 200
    same(open_picture(tmp_path / 'a.tif'), expected)


TWICE = RGB.repeat(2, 0).repeat(2, 1)


def pyramid(path, subifds):
    with tifffile.TiffWriter(path) as file:
        file.write(TWICE, subifds=subifds, tile=(64, 64), photometric='rgb')
        file.write(RGB, subfiletype=1, tile=(64, 64), photometric='rgb')


def ome_pyramid(path):
    """A page for each channel, with the lower level in SubIFDs."""
    planes, settings = RGB.transpose(2, 0, 1), dict(tile=(64, 64), photometric='minisblack')
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(planes.repeat(2, 1).repeat(2, 2), subifds=1, metadata=dict(axes='CYX'), **settings)
        file.write(planes, subfiletype=1, **settings)


def slide(path, **settings):
    """Write an SVS of two levels with a thumbnail in between, then a label."""
    tiles, strips = dict(tile=(64, 64), **settings), dict(rowsperstrip=16, compression='zlib')
    name = 'Aperio Image Library v11.2.1\n'
    with tifffile.TiffWriter(path) as file:
        for pixels, text, how in (
            (TWICE, '420x300 [0,0 420x300] (64x64) JPEG/RGB Q=70|MPP = 0.5', tiles),
            (RGB[::2, ::2], '420x300 -> 105x75 - |MPP = 0.5', strips),
            (RGB, '420x300 [0,0 420x300] (64x64) -> 210x150 JPEG/RGB Q=70|MPP = 0.5', tiles),
            (RGB[:90, :90], 'label 90x90', dict(strips, subfiletype=1)),
        ):
            file.write(np.ascontiguousarray(pixels), photometric='rgb', metadata=None, description=name + text, **how)


@pytest.mark.parametrize(
    'write',
    [
        lambda path: pyramid(path, subifds=0),
        lambda path: pyramid(path, subifds=1),
        lambda path: by_vips(path, TWICE, pyramid=True, subifd=True, tile=True, tile_width=64, tile_height=64),
        ome_pyramid,
        slide,
    ],
    ids=['pages', 'SubIFDs', 'libvips', 'OME', 'SVS'],
)  # fmt: skip
def test_levels_of_a_pyramid(tmp_path, write):
    write(tmp_path / 'a.tif')
    assert open_picture(tmp_path / 'a.tif').size == (300, 420)
    same(open_picture(tmp_path / 'a.tif', 1), RGB[..., ::-1])
    with pytest.raises(ValueError, match=r'level takes 0 to [123] for'):
        open_picture(tmp_path / 'a.tif', 4)


def test_slides(record_fault, tmp_path):
    """Read slides with JPEG and JPEG 2000. GDAL cannot read JPEG 2000."""
    pytest.importorskip('imagecodecs', reason='imagecodecs is not installed')
    slide(tmp_path / 'a.svs', compression='jpeg', compressionargs=dict(outcolorspace='rgb', level=98))
    same(open_picture(tmp_path / 'a.svs', 1), RGB[..., ::-1], 6)
    pytest.importorskip('openslide', reason='openslide is not installed')
    slide(tmp_path / 'b.svs', compression='aperio_jp2000_rgb')
    same(open_picture(tmp_path / 'b.svs', 1), RGB[..., ::-1])
    for name, words in (('b.svs', 'cannot be read: '), ('b.ndpi', 'cannot be read as a slide')):
        (tmp_path / name).write_bytes(b'no slide')
        with pytest.raises(OSError, match=f'{name} {words}'):
            open_picture(tmp_path / name)
        record_fault('bad_pictures')


def test_bad_tiffs(record_fault, tmp_path):
    by_tifffile(tmp_path / 'whole.tif', RGB, tile=(64, 64), compression='zlib')
    data = (tmp_path / 'whole.tif').read_bytes()
    path = tmp_path / 'a.tif'
    for length in (0, 3, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(OSError, match=r'a\.tif'):
            open_picture(path)
        record_fault('bad_pictures')
    path.write_bytes(data[:384] + bytes(99) + data[483:])  # the beginning of the first tile
    picture = open_picture(path)
    with pytest.raises(OSError, match=r'a\.tif at rows 0 to .* cannot be read: .*Tile'):
        picture.read(WINDOWS[0])
    by_tifffile(path, RGB.astype(np.float32))
    with pytest.raises(OSError, match='values of float32'):
        open_picture(path)
    by_tifffile(path, np.zeros((5, 30, 40), np.uint8), photometric='minisblack', metadata=dict(axes='ZYX'))
    with pytest.raises(OSError, match='has several pages of 40x30 pixels'):
        open_picture(path)
    record_fault('bad_pictures', 3)


@pytest.mark.parametrize('suffix', ['.png', '.jpg', '.webp', '.bmp', '.ppm', '.jp2'])
def test_common_pictures(record_fault, tmp_path, suffix):
    path, bgr = tmp_path / f'a{suffix}', RGB[..., ::-1]
    cv2.imwrite(str(path), bgr, [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444])
    picture = open_picture(path)
    same(picture, cv2.imread(str(path)), SAME_JPEG)
    same(picture._replace(read=open_picture(path).read), picture.read(WINDOWS[0]))  # windows in a new order
    with pytest.raises(ValueError, match='level takes 0 to'):
        open_picture(path, 9)
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(OSError, match=rf'a\{suffix}'):
        open_picture(path).read(WINDOWS[0])
    record_fault('bad_pictures')


def test_a_file_of_rows_is_read_once_from_top_to_bottom():
    rows, whole = [], noise((2500, 1100))

    def read(window):
        assert window.size[1] == 1100
        rows.append((window.top, window.bottom))
        return whole[window.top : window.bottom]

    read_held = _hold_rows(read, 1100)
    for top in range(0, 2500, 448):
        for left in (0, 448):
            window = Window(top, left, min(top + 512, 2500), left + 512)
            assert (read_held(window) == whole[window.top : window.bottom, left : window.right]).all()
    assert rows == [(0, 512), (512, 960), (960, 1408), (1408, 1856), (1856, 2304), (2304, 2500)]
    assert (read_held(Window(7, 3, 9, 4)) == whole[7:9, 3:4]).all()


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
    path = tmp_path / 'geo.tif'
    profile = dict(driver='GTiff', height=150, width=210, count=3, dtype='uint8', crs='EPSG:32632', tiled=True)
    transform = rasterio.Affine(0.5, 0, 691000, 0, -0.5, 5335000)
    with rasterio.open(path, 'w', **profile, blockxsize=64, blockysize=64, transform=transform) as file:
        file.write(RGB.transpose(2, 0, 1))
    with rasterio.open(path, 'r+') as file:
        file.build_overviews([2])
    return path


def test_a_geotiff_and_where_its_labels_lie(tmp_path, geotiff):
    picture = open_picture(geotiff)
    same(picture, RGB[..., ::-1])
    for level, side in ((0, 0.5), (1, 1.0)):
        (labels,) = (
            TiledInference(Segmentor(), geotiff, tmp_path / str(level), tile=96, overlap=32, level=level).run().files
        )
        with rasterio.open(labels) as results, rasterio.open(geotiff) as source:
            assert results.crs == source.crs
            assert results.transform == rasterio.Affine(side, 0, 691000, 0, -side, 5335000)
            assert results.nodata == 255
            assert results.bounds == source.bounds
            assert results.read(1).shape == (150 // (level + 1), 210 // (level + 1))
            assert results.colormap(1)[2] == (40, 40, 255, 255)


@pytest.mark.parametrize('masks', [True, False])
def test_objects_in_longitude_and_latitude(tmp_path, geotiff, masks):
    with rasterio.open(geotiff, 'r+') as file:
        pixels = np.full((3, 150, 210), 90, np.uint8)
        pixels[:, 40:60, 70:150] = np.array([40, 40, 255])[:, None, None]
        file.write(pixels)
    *_, geojson = TiledInference(Detector(masks=masks), geotiff, tmp_path, tile=96, overlap=32).run().files
    (feature,) = json.loads(geojson.read_text())['features']
    assert feature['properties']['class'] == 'one'
    corners = np.array(feature['geometry']['coordinates'][0])
    assert len(corners) == 5
    (x1, x2), (y1, y2) = transform('EPSG:32632', 'EPSG:4326', [691035, 691075], [5334980, 5334970])
    np.testing.assert_allclose(corners.min(0), [x1, y2], atol=1e-5)
    np.testing.assert_allclose(corners.max(0), [x2, y1], atol=1e-5)
