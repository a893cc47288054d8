"""Windows of large pictures, without reading the whole picture."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Union

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...checks import require_file
from ...sizes import Size
from ..data.media import require_complete
from ..data.rasters import (
    ORIENTATION,
    RGB,
    TURNS,
    Raster,
    Span,
    list_notes,
    open_gdal,
    read_tiff_tags,
    require_colours,
    require_level,
    to_bgr,
)
from .grid import Window

# GDAL opens some slides as plain TIFFs, and ignores overlaps of tiles. Only openslide reads these suffixes right.
SLIDES = ('.bif', '.mrxs', '.ndpi', '.scn', '.svslide', '.vms', '.vmu')

TURNED = ('JPEG', 'MPO', 'PNG')  # formats with an orientation that OpenCV turns by


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
        level: level of a pyramid; 0 has all pixels.

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


def compute_digest(path: Path) -> str:
    """Return a digest of a picture without reading all of it.

    It is made of the time of modification, the length, and the first and last MiB of a file, or of all times and the
    metadata of a zarr.
    """
    digest = hashlib.sha256(b'%d' % path.stat().st_mtime_ns)
    if path.is_dir():
        for entry in sorted(path.rglob('*')):
            digest.update(b'%d' % entry.stat().st_mtime_ns)
            if entry.name in ('zarr.json', '.zarray', '.zattrs'):
                digest.update(entry.read_bytes())
        return digest.hexdigest()
    with open(path, 'rb') as file:
        length = path.stat().st_size
        digest.update(b'%d' % length)
        digest.update(file.read(1 << 20))
        file.seek(max(0, length - (1 << 20)))
        digest.update(file.read())
    return digest.hexdigest()


def _open_rasterio(path: Path, level: int) -> Picture:
    require_complete(path)
    with open(path, 'rb') as file:
        tags = read_tiff_tags(file)
    raster = open_gdal(str(path), str(path), tags, level)
    picture = _make_picture(raster, path)
    notes = []
    orientation = raster.orientation
    if tags:
        rows, columns = ((side - 1, side) for side in raster.size)
        raster.read(rows, columns, RGB)  # a truncated file fails here
    else:
        with suppress(Exception), Image.open(path) as image:  # Pillow raises anything
            if image.format in TURNED:
                orientation = image.getexif().get(ORIENTATION, 1)
            if image.format in ('JPEG', 'MPO') and image.mode != 'L':
                notes.append(
                    f'{path} is decoded by GDAL: at edges, colours differ by few levels from those in training'
                )
    if orientation in TURNS:
        turn = f'is shown turned or mirrored (orientation {orientation}), and is taken as it is stored'
        notes.append(f'{path} {turn}')
    return picture._replace(notes=(*picture.notes, *notes))


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
    require_level(path, level, slide.level_count)
    width, height = slide.level_dimensions[level]
    scale_x, scale_y = slide.dimensions[0] / width, slide.dimensions[1] / height
    background = '#' + slide.properties.get('openslide.background-color', 'ffffff')

    def read(window: Window) -> NDArray[Any]:
        corner = round(window.left * scale_x), round(window.top * scale_y)
        try:
            region = slide.read_region(corner, level, window.size[::-1])
        except openslide.OpenSlideError as error:
            raise OSError(f'{path} cannot be read at {window}: {error}') from error
        opaque = Image.alpha_composite(Image.new('RGBA', region.size, background), region)
        return cv2.cvtColor(np.asarray(opaque), cv2.COLOR_RGBA2BGR)

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
            arrays = [opened[dataset['path']] for dataset in scales['datasets']]
            axes = ''.join(axis if isinstance(axis, str) else axis['name'] for axis in scales.get('axes', ())).upper()
    except Exception as error:
        raise OSError(f'{path} cannot be read as a zarr array or OME-Zarr: {error!r}') from error
    require_level(path, level, len(arrays))
    array = arrays[level]
    shape = array.shape
    bits = 1 if array.dtype == np.bool_ else 8 * array.dtype.itemsize
    if not axes:
        axes = {2: 'YX', 3: 'YXC' if shape[-1] <= 4 else 'CYX', 5: 'TCZYX'}.get(len(shape), '')
    is_single = all(length == 1 or axis in 'YXC' for axis, length in zip(axes, shape))
    if len(axes) != len(shape) or not is_single or not {'Y', 'X'} <= set(axes):
        raise OSError(f'{path} has an array of {shape} with the axes {axes or "unknown"}, which is no picture')
    size = {axis: shape[axes.index(axis)] for axis in axes}

    def read(rows: Span, columns: Span, max_bands: int) -> NDArray[Any]:
        slices = dict(Y=slice(*rows), X=slice(*columns), C=slice(max_bands))
        try:
            pixels = np.asarray(array[tuple(slices.get(axis, 0) for axis in axes)])
        except Exception as error:  # a codec raises anything
            raise OSError(f'{path} cannot be read at rows {rows}, columns {columns}: {error!r}') from error
        kept_axes = [axis for axis in axes if axis in slices]
        pixels = pixels.transpose([kept_axes.index(axis) for axis in 'YXC' if axis in kept_axes])
        return pixels.reshape(*pixels.shape[:2], -1)

    raster = Raster((size['Y'], size['X']), size.get('C', 1), array.dtype, bits, read, holds_rows=False)
    return _make_picture(raster, path)


def _make_picture(raster: Raster, path: Path) -> Picture:
    """Return a picture of the colours of a raster. Raises: see `require_colours`."""
    require_colours(raster, str(path))

    def read(window: Window) -> NDArray[Any]:
        pixels = raster.read((window.top, window.bottom), (window.left, window.right), RGB)
        return to_bgr(raster, pixels)

    read_held = _hold_rows(read, raster.size[1]) if raster.holds_rows else read
    return Picture(raster.size, read_held, list_notes(raster, str(path)), raster.crs, raster.transform)
