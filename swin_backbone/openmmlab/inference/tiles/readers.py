"""Windows of large pictures. Each library is imported where it is used, and named where it is missing.

A picture is never read whole, but by OpenCV, which can do nothing else.
"""

import hashlib
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import cv2
import numpy as np
from numpy.typing import NDArray

from ....windows.grid import Size
from ...config.paths import require_file
from ...data.media import read_picture
from .grid import Window

SLIDES = ('.bif', '.mrxs', '.ndpi', '.scn', '.svs', '.svslide', '.vms', '.vmu')
TIFFS = ('.btf', '.tf2', '.tf8', '.tif', '.tiff')
OPENCV = ('.bmp', '.jpeg', '.jpg', '.png', '.ppm', '.webp')
GEO_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)  # scale, tie points, transformation; keys, and their values
ORIENTATION = 274
SEPARATE, MINISWHITE, PALETTE = 2, 0, 3  # planar configuration; photometric interpretations
MOST_BYTES = 1 << 28  # that are decoded at once: a file that is one strip would be read whole
CACHE = 64  # MB, of GDAL


class Coordinates(NamedTuple):
    """Where a picture lies.

    Attributes:
        crs: its coordinate reference system, as WKT.
        transform: (a, b, c, d, e, f): x = a column + b row + c, y = d column + e row + f.
    """

    crs: str
    transform: tuple[float, ...]


class Picture(NamedTuple):
    """A picture of which windows are read.

    Attributes:
        size: its height and width, at the level that was asked for.
        read: gives the pixels of a window as BGR, (H, W, 3) uint8, or raises an OSError that names the file.
        notes: what is not taken as it is, in sentences.
        coordinates: None: it has none.
    """

    path: Path
    size: Size
    read: Callable[[Window], NDArray[Any]]
    notes: tuple[str, ...] = ()
    coordinates: Optional[Coordinates] = None


def open_picture(path: Union[str, Path], level: int = 0) -> Picture:
    """Open a picture with the library for its suffix: openslide for slides; rasterio for a TIFF with coordinates and
    for what no other reads; tifffile for any other TIFF; zarr for a folder `.zarr`; OpenCV for JPEG, PNG, BMP, WebP,
    PPM.

    Args:
        level: of a pyramid; 0 has all pixels.

    Raises:
        OSError: if the file is missing, damaged, or not of a kind that is read.
        ValueError: if the library is not installed, or there is no such level.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == '.zarr':
        return _open_zarr(path, level)
    require_file(path)
    if suffix in OPENCV:
        return _open_opencv(path, level)
    if suffix in SLIDES:
        return _open_openslide(path, level)
    return _open_tiff(path, level) if suffix in TIFFS else _open_rasterio(path, level)


def digest_of(path: Path) -> str:
    """What tells two pictures apart without reading them whole: the length of a file, its first and its last MiB."""
    digest = hashlib.sha256()
    if path.is_dir():
        described = [one for one in sorted(path.rglob('*')) if one.name in ('zarr.json', '.zarray', '.zattrs')]
        for one in described:
            digest.update(one.read_bytes())
        return digest.hexdigest()
    with open(path, 'rb') as file:
        length = path.stat().st_size
        digest.update(b'%d' % length)
        digest.update(file.read(1 << 20))
        file.seek(max(0, length - (1 << 20)))
        digest.update(file.read())
    return digest.hexdigest()


def require(package: str, module: str, path: Path) -> Any:
    """Import a library that reads `path`, or writes it.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f'{path} needs {package}, which is not installed: pip install {package}') from error


def _open_opencv(path: Path, level: int) -> Picture:
    _require_level(path, level, 1)
    pixels = read_picture(path)
    height, width = pixels.shape[:2]
    return Picture(path, (height, width), lambda window: pixels[window.within(Window(0, 0, height, width))])


def _open_tiff(path: Path, level: int) -> Picture:
    tifffile = require('tifffile', 'tifffile', path)
    try:
        file = tifffile.TiffFile(path)
        first, series = file.pages.first, file.series[0]
        if any(tag in first.tags for tag in GEO_TAGS):
            file.close()
            return _open_rasterio(path, level)
        levels = series.levels
    except Exception as error:  # of many kinds
        if isinstance(error, ValueError) and 'not installed' in str(error):
            raise
        raise OSError(f'{path} cannot be read as a TIFF: {error}') from error
    _require_level(path, level, len(levels))
    chosen = levels[level]
    axes = ''.join(axis for axis, length in zip(chosen.axes, chosen.shape) if length > 1 or axis in 'YX')
    if axes not in ('YX', 'YXS', 'SYX', 'CYX'):
        raise OSError(f'{path} has the axes {chosen.axes} of {chosen.shape}, of which {axes or "none"} is no picture')
    pages = [page.aspage() for page in chosen.pages[: 3 if axes == 'CYX' else 1]]
    height, width = (chosen.shape[chosen.axes.index(axis)] for axis in 'YX')
    channels = chosen.shape[chosen.axes.index(axes.strip('YX'))] if len(axes) == 3 else 1
    for page in pages:
        _require_segments(path, page, file.filehandle.size)
    palette = pages[0].photometric == PALETTE and pages[0].colormap is not None
    invert = pages[0].photometric == MINISWHITE

    def read(window: Window) -> NDArray[Any]:
        try:
            planes = [_read_page(page, window) for page in pages]
        except Exception as error:  # decoders raise many kinds
            raise OSError(f'{path} cannot be read at {window}: {error}') from error
        pixels = np.concatenate(planes, 2)
        if palette:
            pixels = pages[0].colormap.T[pixels[..., 0]]
        return _to_bgr(~pixels if invert else pixels)

    notes = _notes(path, 3 if palette else channels, 'uint8' if palette else pages[0].dtype)
    orientation = first.tags.valueof(ORIENTATION, 1)
    if orientation != 1:
        notes += (f'{path} is shown turned or mirrored (orientation {orientation}), and is taken as it is stored',)
    return Picture(path, (height, width), read, notes)


def _require_segments(path: Path, page: Any, length: int) -> None:
    """See that no tile or strip of a page is beyond the end of the file, or too large to be read at once."""
    if any(start + count > length for start, count in zip(page.dataoffsets, page.databytecounts)):
        raise OSError(f'{path} is truncated: it has {length} bytes, and its tiles or strips are beyond them')
    shape = page.tile if page.is_tiled else (min(page.rowsperstrip, page.imagelength), page.imagewidth)
    size = int(np.prod(shape)) * page.samplesperpixel * page.dtype.itemsize
    if size > MOST_BYTES and not page.is_memmappable:
        raise OSError(
            f'{path} is stored in pieces of {shape[0]}x{shape[1]} pixels, each of which is read whole: write it in '
            'tiles'
        )


def _read_page(page: Any, window: Window) -> NDArray[Any]:
    """A window of a page of a TIFF, (H, W, C), decoding no tile or strip beside it."""
    height, width = window.size
    planar = page.planarconfig == SEPARATE and page.samplesperpixel > 1
    file = page.parent.filehandle
    if page.is_memmappable and not page.is_tiled:
        stored = np.memmap(file.path, page.parent.byteorder + page.dtype.char, 'r', page.dataoffsets[0], page.shape)
        rows, columns = slice(window.top, window.bottom), slice(window.left, window.right)
        pixels = stored[:, rows, columns].transpose(1, 2, 0) if planar else stored[rows, columns]
        return np.array(pixels, page.dtype).reshape(height, width, -1)
    pixels = np.full((height, width, page.samplesperpixel), page.nodata, page.dtype)
    deep, wide = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, page.imagewidth)
    across, down = -(-page.imagewidth // wide), -(-page.imagelength // deep)
    jpeg = {'jpegtables': page.jpegtables} if page.jpegtables is not None else {}
    for plane in range(page.samplesperpixel if planar else 1):
        for row in range(window.top // deep, -(-window.bottom // deep)):
            for column in range(window.left // wide, -(-window.right // wide)):
                index = (plane * down + row) * across + column
                count = page.databytecounts[index]
                if not count:  # never written
                    continue
                file.seek(page.dataoffsets[index])
                segment, at, shape = page.decode(file.read(count), index, **jpeg)
                if segment is None:
                    continue
                here = Window(at[2], at[3], at[2] + shape[1], at[3] + shape[2])
                both = Window(*map(max, window[:2], here[:2]), *map(min, window[2:], here[2:]))
                rows, columns = both.within(window)
                channels = slice(at[0], at[0] + 1) if planar else slice(None)
                pixels[rows, columns, channels] = segment[0][both.within(here)]
    return pixels


def _open_rasterio(path: Path, level: int) -> Picture:
    rasterio = require('rasterio', 'rasterio', path)
    from rasterio.errors import NotGeoreferencedWarning, RasterioError
    from rasterio.windows import Window as Part

    options = {'OVERVIEW_LEVEL': level - 1} if level else {}
    with rasterio.Env(GDAL_CACHEMAX=CACHE), warnings.catch_warnings():
        warnings.simplefilter('ignore', NotGeoreferencedWarning)
        try:
            with rasterio.open(path) as whole:
                levels = 1 + len(whole.overviews(1))
            _require_level(path, level, levels)
            file = rasterio.open(path, **options)
        except RasterioError as error:
            raise OSError(f'{path} cannot be read: {error}') from error
    bands = list(range(1, min(file.count, 3) + 1)) if file.count != 2 else [1]

    def read(window: Window) -> NDArray[Any]:
        part = Part(window.left, window.top, window.size[1], window.size[0])
        try:
            with rasterio.Env(GDAL_CACHEMAX=CACHE):
                pixels = file.read(bands, window=part).transpose(1, 2, 0)
        except RasterioError as error:
            raise OSError(f'{path} cannot be read at {window}: {error}') from error
        return _to_bgr(palette_UC[pixels[..., 0]] if palette_UC is not None else pixels)

    palette_UC = None
    if file.colorinterp[0].name == 'palette':
        palette_UC = np.zeros((256, 3), np.uint8)
        for value, colour in file.colormap(1).items():
            palette_UC[value] = colour[:3]
    placed = file.crs is not None
    coordinates = Coordinates(file.crs.to_wkt(), tuple(file.transform)[:6]) if placed else None
    notes = _notes(path, 3 if palette_UC is not None else file.count, file.dtypes[0])
    return Picture(path, (file.height, file.width), read, notes, coordinates)


def _open_openslide(path: Path, level: int) -> Picture:
    openslide = require('openslide-python openslide-bin', 'openslide', path)
    try:
        slide = openslide.OpenSlide(path)
    except openslide.OpenSlideError as error:
        raise OSError(f'{path} cannot be read as a slide: {error}') from error
    _require_level(path, level, slide.level_count)
    width, height = slide.level_dimensions[level]
    scale_y, scale_x = slide.dimensions[1] / height, slide.dimensions[0] / width
    background = '#' + slide.properties.get('openslide.background-color', 'ffffff')

    def read(window: Window) -> NDArray[Any]:
        from PIL import Image

        corner = round(window.left * scale_x), round(window.top * scale_y)
        try:
            region = slide.read_region(corner, level, window.size[::-1])
        except openslide.OpenSlideError as error:
            raise OSError(f'{path} cannot be read at {window}: {error}') from error
        return _to_bgr(np.asarray(Image.alpha_composite(Image.new('RGBA', region.size, background), region)))

    return Picture(path, (height, width), read)


def _open_zarr(path: Path, level: int) -> Picture:
    zarr = require('zarr', 'zarr', path)
    if not path.is_dir():
        raise OSError(f'{path} is no folder, as a zarr is')
    try:
        opened = zarr.open(path, mode='r')
        axes, arrays = None, [opened]
        if isinstance(opened, zarr.Group):
            attributes = dict(opened.attrs)
            scales = (attributes.get('ome') or attributes)['multiscales'][0]  # OME-Zarr 0.5, and before
            arrays = [opened[one['path']] for one in scales['datasets']]
            axes = ''.join(one if isinstance(one, str) else one['name'] for one in scales.get('axes', ())).upper()
    except Exception as error:
        raise OSError(f'{path} cannot be read as a zarr array or OME-Zarr: {error!r}') from error
    _require_level(path, level, len(arrays))
    array = arrays[level]
    shape = array.shape
    if not axes:
        axes = {2: 'YX', 3: 'YXC' if shape[-1] <= 4 else 'CYX', 5: 'TCZYX'}.get(len(shape), '')
    few = all(length == 1 or axis in 'YXC' for axis, length in zip(axes, shape))
    if len(axes) != len(shape) or not few or not {'Y', 'X'} <= set(axes):
        raise OSError(f'{path} has an array of {shape} with the axes {axes or "unknown"}, which is no picture')
    size = {axis: shape[axes.index(axis)] for axis in axes}

    def read(window: Window) -> NDArray[Any]:
        part = dict(Y=slice(window.top, window.bottom), X=slice(window.left, window.right), C=slice(3))
        try:
            pixels = np.asarray(array[tuple(part.get(axis, 0) for axis in axes)])
        except Exception as error:  # of a codec
            raise OSError(f'{path} cannot be read at {window}: {error!r}') from error
        left = [axis for axis in axes if axis in part]
        pixels = pixels.transpose([left.index(axis) for axis in 'YXC' if axis in left])
        return _to_bgr(pixels.reshape(*window.size, -1))

    return Picture(path, (size['Y'], size['X']), read, _notes(path, size.get('C', 1), array.dtype))


def _require_level(path: Path, level: int, levels: int) -> None:
    if not 0 <= level < levels:
        raise ValueError(f'level takes 0 to {levels - 1} for {path}, got {level}')


def _notes(path: Path, channels: int, dtype: Any) -> tuple[str, ...]:
    """What is not taken as it is.

    Raises:
        OSError: if numbers of such a type are no colours.
    """
    dtype = np.dtype(dtype)
    if dtype not in (np.uint8, np.uint16, np.bool_):
        raise OSError(f'{path} has pixels of {dtype}, and uint8 and uint16 are read: convert it')
    notes = []
    if dtype == np.uint16 and channels:
        notes.append(f'{path} has 16 bits a channel, of which the upper 8 are taken')
    if channels == 2 or channels > 3:
        taken = 'the first is taken as grey' if channels == 2 else 'the first three are taken as red, green and blue'
        notes.append(f'{path} has {channels} channels, of which {taken}')
    return tuple(notes)


def _to_bgr(pixels: NDArray[Any]) -> NDArray[Any]:
    """Grey, RGB or more channels (H, W, C) of 1, 8 or 16 bits as BGR (H, W, 3) uint8, as OpenCV reads them."""
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    elif pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8) * 255
    if pixels.shape[2] < 3:
        return cv2.cvtColor(np.ascontiguousarray(pixels[..., 0]), cv2.COLOR_GRAY2BGR)
    return cv2.cvtColor(np.ascontiguousarray(pixels[..., :3]), cv2.COLOR_RGB2BGR)
