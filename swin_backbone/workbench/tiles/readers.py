"""Windows of large pictures, without reading the whole picture."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Union

import cv2
import numpy as np
import rasterio
import tifffile
from numpy.typing import NDArray
from PIL import Image

from ...positions import Size
from ..configs.paths import require_file
from ..data.media import UPPER_8, require_whole
from .grid import Window

# GDAL opens some slides as plain TIFFs, and ignores overlaps of tiles. Only openslide reads these suffixes right.
SLIDES = ('.bif', '.mrxs', '.ndpi', '.scn', '.svslide', '.vms', '.vmu')
ORIENTATION = 274  # tag of TIFF
CACHE = 64  # MB, of GDAL


class Picture(NamedTuple):
    """A picture that is read by windows.

    Attributes:
        size: height and width at the chosen level.
        read: returns the pixels of a window as BGR, (H, W, 3) uint8, or raises an OSError that names the file.
        notes: sentences on what is read differently from what the file stores.
        crs, transform: rasterio's coordinate reference system and affine transform of pixels; None if unknown.
    """

    size: Size
    read: Callable[[Window], NDArray[Any]]
    notes: tuple[str, ...] = ()
    crs: Any = None
    transform: Any = None


def open_picture(path: Union[str, Path], level: int = 0) -> Picture:
    """Open a picture: a folder `.zarr` with zarr, a slide with openslide, any other file with rasterio.

    An SVS that rasterio cannot open, as with JPEG 2000 inside, is opened with openslide if installed.

    Args:
        level: of a pyramid; 0 has all pixels.

    Raises:
        OSError: if the file is missing, damaged, or not of a kind that is read.
        ValueError: if there is no such level.
        ImportError: if openslide or zarr is not installed.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == '.zarr':
        return _open_zarr(path, level)
    require_file(path)
    if suffix in SLIDES:
        return _open_openslide(path, level)
    try:
        return _open_rasterio(path, level)
    except OSError:
        if suffix == '.svs':  # of damaged TIFFs openslide ends the process
            with suppress(OSError, ImportError):
                return _open_openslide(path, level)
        raise


def digest_of(path: Path) -> str:
    """Return a digest of a picture without reading the whole.

    The digest is of time of modification, length, first MiB and last MiB of a file. Of a folder, it is of all times and
    of zarr's metadata.
    """
    digest = hashlib.sha256(b'%d' % path.stat().st_mtime_ns)
    if path.is_dir():
        for one in sorted(path.rglob('*')):
            digest.update(b'%d' % one.stat().st_mtime_ns)
            if one.name in ('zarr.json', '.zarray', '.zattrs'):
                digest.update(one.read_bytes())
        return digest.hexdigest()
    with open(path, 'rb') as file:
        length = path.stat().st_size
        digest.update(b'%d' % length)
        digest.update(file.read(1 << 20))
        file.seek(max(0, length - (1 << 20)))
        digest.update(file.read())
    return digest.hexdigest()


def _open_rasterio(path: Path, level: int) -> Picture:
    require_whole(path)
    with _gdal(str(path)):
        pages = _pages_of(path, level)
        page = pages[0]
        size, dtype = page.shape, np.dtype(page.dtypes[0])
        bits = int(page.tags(1, ns='IMAGE_STRUCTURE').get('NBITS', 8 * dtype.itemsize))
        notes = _notes(path, sum(one.count for one in pages), dtype, bits)
        palette_UC = None
        if page.colorinterp[0].name == 'palette':
            palette_UC = np.zeros((1 << 8 * dtype.itemsize, 3), np.uint8)
            for value, colour in page.colormap(1).items():
                palette_UC[value] = colour[:3]
            notes = ()
        orientation = int(page.tags().get('EXIF_Orientation', 1))
    if page.driver == 'GTiff':  # GDAL does not expose the orientation
        with suppress(tifffile.TiffFileError), tifffile.TiffFile(path) as file:
            orientation = file.pages.first.tags.valueof(ORIENTATION, 1)
    if orientation != 1:
        notes += (f'{path} is shown turned or mirrored (orientation {orientation}), and is taken as it is stored',)

    def read(window: Window) -> NDArray[Any]:
        part = rasterio.windows.Window(window.left, window.top, window.size[1], window.size[0])
        with _gdal(f'{path} at {window}'):
            bands = [one.read(list(range(1, min(one.count, 3) + 1)), window=part) for one in pages[:3]]
        pixels = np.concatenate(bands).transpose(1, 2, 0)
        return _to_bgr(pixels, bits) if palette_UC is None else _to_bgr(palette_UC[pixels[..., 0]], 8)

    if page.driver == 'GTiff':
        read(Window(size[0] - 1, size[1] - 1, *size))  # a truncated file fails here
    is_rows = page.block_shapes[0][1] >= size[1]
    return Picture(size, _hold_rows(read, size[1]) if is_rows else read, notes, page.crs, page.transform)


@contextmanager
def _gdal(name: str) -> Iterator[None]:
    """Run GDAL with a small cache, and without the warning of missing coordinates.

    Raises:
        OSError: for any error of GDAL; the message starts with `name`.
    """
    try:
        with rasterio.Env(GDAL_CACHEMAX=CACHE, GDAL_ERROR_ON_LIBJPEG_WARNING=True), warnings.catch_warnings():
            warnings.simplefilter('ignore', rasterio.errors.NotGeoreferencedWarning)
            yield
    except rasterio.errors.RasterioError as error:
        raise OSError(f'{name} cannot be read: {error.__cause__ or error}') from error


def _pages_of(path: Path, level: int) -> list[Any]:
    """Return the open datasets of a level. Their bands together are the channels.

    Levels are overviews, or (in SVS) tiled pages with the proportions of the first. An OME-TIFF may have a page for
    each channel.
    """
    whole = rasterio.open(path)
    pages = [rasterio.open(name) for name in whole.subdatasets[1:]] if whole.driver == 'GTiff' else []
    channels = [whole, *(page for page in pages if page.shape == whole.shape)]
    description = whole.tags().get('TIFFTAG_IMAGEDESCRIPTION', '')
    if len(channels) > 1 and not all(f'Size{axis}="1"' in description for axis in 'ZT'):
        raise OSError(f'{path} has several pages of {whole.width}x{whole.height} pixels, and is no single picture')
    reduced = [
        [rasterio.open(channel.name, OVERVIEW_LEVEL=number) for channel in channels]
        for number in range(len(whole.overviews(1)))
    ]
    reduced += [[page] for page in pages if page.block_shapes[0][1] < page.width < whole.width]  # a thumbnail: strips
    ratio = whole.width / whole.height
    reduced = [pages for pages in reduced if abs(pages[0].height * ratio - pages[0].width) <= 1 + ratio]
    levels = [channels, *sorted(reduced, key=lambda pages: -pages[0].width)]
    _require_level(path, level, len(levels))
    return levels[level]


def _hold_rows(read: Callable[[Window], NDArray[Any]], width: int) -> Callable[[Window], NDArray[Any]]:
    """Read whole rows from top to bottom, and keep the rows of a window: PNG and JPEG decoders cannot go back."""
    rows = Window(0, 0, 0, width)
    rows_HWC: NDArray[Any] = np.zeros((0, width, 3), np.uint8)

    def read_part(window: Window) -> NDArray[Any]:
        nonlocal rows, rows_HWC
        if not rows.top <= window.top <= window.bottom <= rows.bottom:
            first = rows.bottom if rows.top <= window.top <= rows.bottom else window.top
            new_HWC = read(Window(first, 0, window.bottom, width))
            rows_HWC = np.concatenate([rows_HWC[window.top - rows.top : first - rows.top], new_HWC])
            rows = Window(window.top, 0, window.bottom, width)
        return rows_HWC[window.within(rows)]

    return read_part


def _open_openslide(path: Path, level: int) -> Picture:
    import openslide

    try:
        slide = openslide.OpenSlide(path)
    except openslide.OpenSlideError as error:
        raise OSError(f'{path} cannot be read as a slide: {error}') from error
    _require_level(path, level, slide.level_count)
    width, height = slide.level_dimensions[level]
    scale_y, scale_x = slide.dimensions[1] / height, slide.dimensions[0] / width
    background = '#' + slide.properties.get('openslide.background-color', 'ffffff')

    def read(window: Window) -> NDArray[Any]:
        corner = round(window.left * scale_x), round(window.top * scale_y)
        try:
            region = slide.read_region(corner, level, window.size[::-1])
        except openslide.OpenSlideError as error:
            raise OSError(f'{path} cannot be read at {window}: {error}') from error
        return _to_bgr(np.asarray(Image.alpha_composite(Image.new('RGBA', region.size, background), region)))

    return Picture((height, width), read)


def _open_zarr(path: Path, level: int) -> Picture:
    import zarr

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
    shape, bits = array.shape, 1 if array.dtype == np.bool_ else 8 * array.dtype.itemsize
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
        return _to_bgr(pixels.reshape(*window.size, -1), bits)

    return Picture((size['Y'], size['X']), read, _notes(path, size.get('C', 1), array.dtype, bits))


def _require_level(path: Path, level: int, levels: int) -> None:
    if not 0 <= level < levels:
        raise ValueError(f'level takes 0 to {levels - 1} for {path}, got {level}')


def _notes(path: Path, channels: int, dtype: Any, bits: int) -> tuple[str, ...]:
    """Return sentences on channels and bits that are left out.

    Raises:
        OSError: if the numbers are no colours.
    """
    dtype = np.dtype(dtype)
    if dtype not in (np.uint8, np.uint16, np.bool_):
        raise OSError(f'{path} has pixels of {dtype}, and uint8 and uint16 are read: convert it')
    notes = []
    if bits > 8:
        notes.append(f'{path} has {bits} bits a channel, {UPPER_8}')
    if channels == 2 or channels > 3:
        taken = 'the first is taken as grey' if channels == 2 else 'the first three are taken as red, green and blue'
        notes.append(f'{path} has {channels} channels, of which {taken}')
    return tuple(notes)


def _to_bgr(pixels: NDArray[Any], bits: int = 8) -> NDArray[Any]:
    """Return grey, RGB or more channels (H, W, C) of 1 to 16 bits as BGR (H, W, 3) uint8, as OpenCV reads them."""
    if bits < 8:
        pixels = (pixels * (255 // ((1 << bits) - 1))).astype(np.uint8)
    elif bits > 8:
        pixels = (pixels >> bits - 8).astype(np.uint8)
    if pixels.shape[2] < 3:
        return cv2.cvtColor(np.ascontiguousarray(pixels[..., 0]), cv2.COLOR_GRAY2BGR)
    return cv2.cvtColor(np.ascontiguousarray(pixels[..., :3]), cv2.COLOR_RGB2BGR)
