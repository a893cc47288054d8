"""All ways into the package read a TIFF to the same pixels, and these are the bands of the file."""

import itertools
import sys

import cv2
import numpy as np
import pytest
from helpers import ROOT
from mmengine.registry import TRANSFORMS
from PIL import ExifTags, Image, ImageOps

pytest.importorskip('rasterio', reason='rasterio is not installed')
pytest.importorskip('tifffile', reason='tifffile is not installed')
pytest.importorskip('imagecodecs', reason='imagecodecs is not installed')
pytest.importorskip('shapely', reason='the extra tiles is not installed')

import rasterio
import tifffile
from helpers.openmmlab.jobs import open_predictor

from swin_backbone.workbench.data.guard import explain_unreadable
from swin_backbone.workbench.data.load_picture import LoadPicture, loads_annotations, loads_picture, use_load_picture
from swin_backbone.workbench.data.media import (
    Frame,
    Medium,
    describe_dropped_bits,
    find_media,
    read_frames,
    read_picture,
    read_picture_size,
)
from swin_backbone.workbench.data.rasters import read_tiff
from swin_backbone.workbench.export import runtime
from swin_backbone.workbench.job import Job
from swin_backbone.workbench.report.thumbnails import read_shown
from swin_backbone.workbench.tiles import open_picture
from swin_backbone.workbench.tiles.grid import Window

H, W = 34, 50
CONFIG = f'{ROOT}/configs/demo/swin-nano_upernet_shapes.py'


@pytest.fixture(scope='module')
def predictor():
    return open_predictor(CONFIG, None)


def by_rasterio(path, bands_CHW, photometric, planar, compression, tiled):
    compress = dict(zlib='deflate').get(compression, compression)
    profile = dict(driver='GTiff', width=W, height=H, count=len(bands_CHW), dtype=bands_CHW.dtype, tiled=tiled)
    profile |= dict(blockxsize=16, blockysize=16) if tiled else {}
    profile |= dict(photometric=photometric) if photometric else {}
    profile |= dict(compress=compress) if compress else {}
    with rasterio.open(path, 'w', **profile, interleave='band' if planar else 'pixel') as file:
        file.write(bands_CHW)


def by_tifffile(path, bands_CHW, photometric, planar, compression, tiled):
    pixels = bands_CHW if planar else bands_CHW.transpose(1, 2, 0)
    pixels = bands_CHW[0] if len(bands_CHW) == 1 else pixels
    layout = dict(tile=(16, 16)) if tiled else dict(rowsperstrip=5)
    if len(bands_CHW) > 1:
        layout['planarconfig'] = 'separate' if planar else 'contig'
    tifffile.imwrite(path, pixels, photometric=photometric or 'minisblack', compression=compression, **layout)


WRITERS = dict(rasterio=by_rasterio, tifffile=by_tifffile)
DTYPES = (np.uint8, np.uint16)
NUMBERS = (1, 2, 3, 4)
LAYOUTS = list(itertools.product((False, True), ('zlib', 'lzw', 'zstd', None), (False, True)))


def bands_of(dtype, number):
    return np.random.default_rng(number).integers(0, np.iinfo(dtype).max, (number, H, W), dtype, endpoint=True)


def colours_of(bands_CHW):
    """Return the wanted BGR pixels, by the words of docs/guides/large_pictures.md."""
    bands = bands_CHW >> 8 if bands_CHW.dtype == np.uint16 else bands_CHW
    bands = bands[:3] if len(bands) > 2 else bands[[0, 0, 0]]
    return bands[::-1].transpose(1, 2, 0).astype(np.uint8)


def ways_in(path, predictor):
    """Return the pixels of each way into the package, by name."""
    (medium,) = find_media([str(path)])
    (frame,) = read_frames(medium, read_pixels=predictor.read_pixels)
    picture = open_picture(path)
    parts = [[picture.read(Window(top, left, min(top + 20, H), min(left + 20, W))) for left in range(0, W, 20)]
             for top in range(0, H, 20)]  # fmt: skip
    return dict(
        training=LoadPicture().transform(dict(img_path=str(path)))['img'],
        checks=read_picture(path),
        inference=frame.pixels,
        tiles=np.concatenate([np.concatenate(row, 1) for row in parts]),
        report=read_shown(str(path)),
    )


@pytest.mark.parametrize('writer', WRITERS)
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('number', NUMBERS)
def test_bands_stay_bands_on_all_ways(writer, dtype, number, predictor, tmp_path, monkeypatch, record_fault):
    bands_CHW = bands_of(dtype, number)
    wanted = colours_of(bands_CHW)
    for photometric in (None, 'minisblack', *(['rgb'] if number > 2 else [])):
        for planar, compression, tiled in LAYOUTS if number == 3 else LAYOUTS[::5]:
            path = tmp_path / f'{photometric}-{planar}-{compression}-{tiled}.tif'
            WRITERS[writer](path, bands_CHW, photometric, planar, compression, tiled)
            for way, pixels in ways_in(path, predictor).items():
                np.testing.assert_array_equal(pixels, wanted, f'{path.name} by {way}')
            assert read_picture_size(path) == (H, W)
            assert explain_unreadable(dict(img_path=str(path))) is None
            notes = describe_dropped_bits(path), ''.join(open_picture(path).notes)
            for words, is_said in (('16 bits a channel', dtype == np.uint16), ('channels', number in (2, 4))):
                assert all((words in note) == is_said for note in notes), (path.name, notes)
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, 'rasterio', None)
                np.testing.assert_array_equal(read_picture(path), wanted, f'{path.name} by tifffile')
    record_fault('bad_pictures')


WITHOUT_RANGE = ('int8', 'int16', 'int32', 'uint32', 'uint64', 'float16', 'float32', 'float64', 'complex64')


@pytest.mark.parametrize('dtype', WITHOUT_RANGE)
def test_values_that_are_no_colours_are_an_error(dtype, predictor, tmp_path, monkeypatch, record_fault):
    path = tmp_path / 'a.tif'
    by_tifffile(path, bands_of(np.uint8, 3).astype(dtype), 'rgb', False, None, False)
    reason = r'a\.tif has values of \w+, whose range of colours is unknown'
    (medium,) = find_media([str(path)])
    for read in (
        lambda: LoadPicture().transform(dict(img_path=str(path))),
        lambda: read_picture(path),
        lambda: list(read_frames(medium, read_pixels=predictor.read_pixels)),
        lambda: open_picture(path),
    ):
        with pytest.raises(OSError, match=reason):
            read()
    assert 'range of colours is unknown' in explain_unreadable(dict(img_path=str(path)))
    if dtype != 'complex64':
        assert read_shown(str(path)).shape == (H, W, 3)  # a thumbnail is scaled
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, 'rasterio', None)
        with pytest.raises(OSError, match=reason):
            read_picture(path)
    record_fault('bad_pictures')


BIG_ENDIAN = dict(bigtiff=True, byteorder='>')


@pytest.mark.parametrize('order', [{}, BIG_ENDIAN], ids=['TIFF', 'BigTIFF'])
def test_colours_of_other_photometric_interpretations(tmp_path, predictor, monkeypatch, order):
    grey_HW, colours = bands_of(np.uint8, 1)[0], np.random.default_rng(0).integers(0, 65535, (3, 256), np.uint16)
    rgb_CHW = bands_of(np.uint8, 3)
    cases = dict(
        white_is_0=(grey_HW, dict(photometric='miniswhite'), 255 - grey_HW),
        white_is_0_deep=(grey_HW.astype(np.uint16) * 256, dict(photometric='miniswhite'), 255 - grey_HW),
        bits=(grey_HW > 99, dict(photometric='minisblack'), (grey_HW > 99) * np.uint8(255)),
        white_bits=(grey_HW > 99, dict(photometric='miniswhite'), (grey_HW <= 99) * np.uint8(255)),
        palette=(grey_HW, dict(photometric='palette', colormap=colours), (colours.T // 257)[grey_HW][..., ::-1]),
        bits_of_12=(grey_HW.astype(np.uint16) * 16 + 5, dict(nbits=12), grey_HW),
        bands_in_front=(rgb_CHW, dict(photometric='rgb', planarconfig='separate'), rgb_CHW[::-1].transpose(1, 2, 0)),
    )
    for name, (pixels, settings, wanted) in cases.items():
        path = tmp_path / f'{name}.tif'
        if 'nbits' in settings:  # tifffile packs 12 bits in little endian alone, and not with the imagecodecs of 2025
            profile = dict(driver='GTiff', width=W, height=H, count=1, dtype='uint16', **settings)
            with rasterio.open(path, 'w', **profile) as file:
                file.write(pixels, 1)
        else:
            tifffile.imwrite(path, pixels, **settings, **order)
        wanted = np.broadcast_to(np.atleast_3d(wanted), (H, W, 3))
        for way, found in ways_in(path, predictor).items():
            np.testing.assert_array_equal(found, wanted, f'{name} by {way}')
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, 'rasterio', None)
            np.testing.assert_array_equal(read_picture(path), wanted, f'{name} by tifffile')


def test_what_no_decoder_reads_has_a_reason(tmp_path, monkeypatch, record_fault):
    rgb = bands_of(np.uint8, 3).transpose(1, 2, 0)
    tifffile.imwrite(tmp_path / 'a.tif', rgb, photometric='rgb', compression='jpeg2000')
    np.testing.assert_array_equal(read_picture(tmp_path / 'a.tif'), rgb[..., ::-1])  # tifffile, as GDAL lacks the codec
    with pytest.raises(OSError, match=r'a\.tif cannot be read: .*missing codec JP2000'):
        open_picture(tmp_path / 'a.tif')
    monkeypatch.setitem(sys.modules, 'tifffile', None)
    with pytest.raises(OSError, match=r"missing codec JP2000.*pip install 'swin_backbone\[tiles\]'"):
        read_picture(tmp_path / 'a.tif')
    monkeypatch.setitem(sys.modules, 'rasterio', None)
    with pytest.raises(OSError, match=r"needs rasterio or tifffile: pip install 'swin_backbone\[tiles\]'"):
        read_picture(tmp_path / 'a.tif')
    record_fault('bad_pictures', 3)


@pytest.mark.parametrize('orientation', range(1, 9))
def test_a_tiff_is_turned_as_a_jpeg_is(tmp_path, orientation, predictor):
    rgb = bands_of(np.uint8, 3).transpose(1, 2, 0)
    tag = [(274, 'H', 1, orientation, True)]
    tifffile.imwrite(tmp_path / 'a.tif', rgb, photometric='rgb', extratags=tag)
    with Image.open(tmp_path / 'a.tif') as image:  # OpenCV reads no TIFF of another proportion
        turned = np.asarray(ImageOps.exif_transpose(image))[..., ::-1]
    if orientation % 2:  # Pillow reads no BigTIFF in big endian
        tifffile.imwrite(tmp_path / 'a.tif', rgb, photometric='rgb', extratags=tag, **BIG_ENDIAN)
    assert read_picture_size(tmp_path / 'a.tif') == turned.shape[:2]
    for pixels in (read_picture(tmp_path / 'a.tif'), predictor.read_pixels(tmp_path / 'a.tif')):
        np.testing.assert_array_equal(pixels, turned)
    stored = LoadPicture(color_type='color_ignore_orientation').read(str(tmp_path / 'a.tif'))
    np.testing.assert_array_equal(stored, rgb[..., ::-1])
    assert (f'orientation {orientation}' in ''.join(open_picture(tmp_path / 'a.tif').notes)) == (orientation != 1)


def test_unchanged_values_are_those_of_the_file(tmp_path):
    for dtype, number in itertools.product((np.uint8, np.int16, np.float32), (1, 2, 3, 4, 10)):
        bands_CHW = bands_of(np.uint8, number).astype(dtype)
        by_tifffile(tmp_path / 'a.tif', bands_CHW, 'minisblack', False, 'zlib', True)
        order = [0] if number == 1 else [0, 1] if number == 2 else [2, 1, 0, *range(3, number)]
        wanted = bands_CHW[order].transpose(1, 2, 0)
        loaded = LoadPicture(color_type='unchanged').transform(dict(img_path=str(tmp_path / 'a.tif')))
        np.testing.assert_array_equal(np.atleast_3d(loaded['img']), wanted)
        assert loaded['img'].dtype == dtype
        assert loaded['img_shape'] == loaded['ori_shape'] == (H, W)


def test_every_loader_of_a_config_is_ours():
    """A name with a scope, a class, and steps inside other steps."""
    from mmcv.transforms import LoadImageFromFile

    cfg = Job(CONFIG).cfg
    steps = cfg.train_dataloader.dataset.pipeline, cfg.test_dataloader.dataset.pipeline
    assert [pipeline[0].type for pipeline in steps] == ['swin_backbone.LoadPicture'] * 2
    cfg.train_pipeline = [
        dict(type='mmdet.LoadImageFromFile', color_type='grayscale'),
        dict(type='TestTimeAug', transforms=[[dict(type=LoadImageFromFile)], [dict(type=LoadPicture)]]),
        dict(type='mmseg.LoadImageFromNDArray'),
        dict(type='LoadAnnotations'),
        dict(type='NoSuchStep'),
    ]
    use_load_picture(cfg)
    first, second, third, *others = cfg.train_pipeline
    assert first == dict(type='swin_backbone.LoadPicture', color_type='grayscale')
    assert [step.type for (step,) in second.transforms] == ['swin_backbone.LoadPicture'] * 2
    assert [loads_picture(step) for step in cfg.train_pipeline] == [True, False, True, False, False]
    assert [loads_annotations(step) for step in (third, *others)] == [False, True, False]
    assert isinstance(TRANSFORMS.build(first), LoadPicture)


SETTINGS = {
    'grey': dict(color_type='grayscale'),
    'as stored': dict(color_type='color_ignore_orientation'),
    'Pillow': dict(imdecode_backend='pillow'),
    'unchanged': dict(color_type='unchanged'),
}


@pytest.mark.parametrize('name', SETTINGS)
def test_inference_loads_as_the_test_pipeline_does(tmp_path, name):
    from mmcv.transforms import LoadImageFromFile

    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    rgb = cv2.resize(bands_of(np.uint8, 3).transpose(1, 2, 0), (96, 64))
    Image.fromarray(rgb).save(tmp_path / 'a.jpg', exif=exif, quality=70)
    cfg = Job(CONFIG).cfg
    cfg.test_dataloader.dataset.pipeline[0] = dict(type=LoadImageFromFile, **SETTINGS[name])
    cfg.model.backbone.in_channels = 1 if name == 'grey' else 3
    cfg.model.data_preprocessor.update(mean=[100.0], std=[60.0], bgr_to_rgb=False)
    predictor = open_predictor(cfg, None)
    (medium,) = find_media([str(tmp_path)])
    (frame,) = read_frames(medium, read_pixels=predictor.read_pixels)
    wanted = LoadImageFromFile(**SETTINGS[name]).transform(dict(img_path=str(tmp_path / 'a.jpg')))
    np.testing.assert_array_equal(frame.pixels, wanted['img'])
    assert frame.original_size == wanted['ori_shape']
    inputs = predictor.preprocess(frame)['inputs']
    assert inputs.shape[0] == (1 if name == 'grey' else 3)
    assert predictor.predict([predictor.preprocess(frame)])[0].pred_sem_seg.shape == frame.original_size
    video = Frame(Medium(tmp_path / 'a.mp4', 'a', True), 0, read_picture(tmp_path / 'a.jpg'), (96, 64))
    assert predictor.preprocess(video)['inputs'].shape[0] == inputs.shape[0]


def test_pictures_of_a_folder_are_those_that_are_read_when_named(tmp_path):
    rgb = bands_of(np.uint8, 3).transpose(1, 2, 0)
    kinds = {'.jfif': '.jpg', '.jpe': '.jpg', '.JFIF': '.jpg', '.dib': '.bmp', '.pbm': '.pbm', '.pgm': '.pgm',
             '.pnm': '.ppm', '.jp2': '.jp2', '.ras': '.ras', '.webp': '.webp'}  # fmt: skip
    for number, (suffix, encoder) in enumerate(kinds.items()):
        pixels = rgb[..., 0] if encoder in ('.pbm', '.pgm') else rgb
        (tmp_path / f'{number}{suffix}').write_bytes(cv2.imencode(encoder, pixels)[1].tobytes())
    found = find_media([str(tmp_path)])
    assert {medium.path.name for medium in found} == {path.name for path in tmp_path.iterdir()}
    for medium in found:
        assert read_picture(medium.path).shape == (H, W, 3)
        assert read_picture_size(medium.path) == (H, W), medium.path


def test_a_damaged_tiff_is_an_error_with_its_name(tmp_path, record_fault):
    by_tifffile(tmp_path / 'a.tif', bands_of(np.uint8, 3), 'rgb', False, 'zlib', True)
    data = (tmp_path / 'a.tif').read_bytes()
    for length in (5, 100, len(data) // 2, len(data) - 40):
        with pytest.raises(OSError, match=r'a\.tif'):
            read_tiff(data[:length], 'a.tif')
    record_fault('bad_pictures', 4)


def test_the_runtime_alone_refuses_a_tiff_that_opencv_would_decode(tmp_path, record_fault):
    path, pixels = str(tmp_path / 'a.tif'), bands_of(np.uint8, 3).transpose(1, 2, 0)
    tifffile.imwrite(path, pixels, photometric='minisblack', planarconfig='contig')
    with pytest.raises(runtime.RuntimeProblem, match='it is a TIFF, which OpenCV may decode wrongly'):
        runtime.read_pixels(path)
    np.testing.assert_array_equal(runtime.read_pixels(path, imdecode_backend='tifffile'), pixels)
    record_fault('bad_pictures')


@pytest.mark.parametrize(
    'color_type', ['color', 'grayscale', 'color_ignore_orientation', 'grayscale_ignore_orientation']
)
def test_the_runtime_alone_takes_the_color_type_of_a_config(tmp_path, color_type):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    path, bands = str(tmp_path / 'a.jpg'), 1 if color_type.startswith('gray') else 3
    Image.fromarray(bands_of(np.uint8, 3).transpose(1, 2, 0)).save(path, exif=exif)
    wanted = np.atleast_3d(LoadPicture(color_type=color_type).read(path))
    np.testing.assert_array_equal(
        runtime.read_pixels(path, bands, color_type=color_type, imdecode_backend='cv2'), wanted
    )
    with pytest.raises(runtime.RuntimeProblem, match='the config decodes pictures by'):
        runtime.read_pixels(path, bands, imdecode_backend='pillow')
