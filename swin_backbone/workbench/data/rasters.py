"""Bands of TIFFs and other rasters, and the one rule that makes 8-bit colours of them.

OpenCV reads the other pictures. Of a TIFF, OpenCV may drop bands, multiply colours by alpha, or return zeros for a
compression that it lacks, all without an error.

Layout: H W height and width, C bands.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple, Optional

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import TiffImagePlugin

Span = tuple[int, int]  # first row or column, and the end
BEGINNINGS = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')  # first bytes of TIFF and BigTIFF, little and big endian
UPPER_8 = 'of which the upper 8 are used'
RGB = 3  # bands
MAX_BANDS = 4  # more bands are no colours with alpha
CACHE = 64  # MB, of GDAL
ORIENTATION = 274  # tag of TIFF and EXIF
GREY_OR_RGB = (0, 1, 2, 3)  # photometric interpretations: white is 0, black is 0, RGB, palette
CONVERTED = (5, 6, 8)  # CMYK, YCbCr, CIELab, which GDAL converts to RGB
WHITE_IS_0, PALETTE, YCBCR = 0, 3, 6
JPEG = (6, 7)  # compressions
# From stored to shown pixels: whether rows and columns are swapped, then whether rows and columns are reversed
TURNS = {2: (False, False, True), 3: (False, True, True), 4: (False, True, False), 5: (True, False, False),
         6: (True, False, True), 7: (True, True, True), 8: (True, True, False)}  # fmt: skip


class Raster(NamedTuple):
    """A raster that is read by windows.

    Attributes:
        size: height and width.
        bands: number of bands.
        dtype: dtype of the stored values.
        bits: number of bits of a stored value.
        read: returns the stored bands (H, W, C) of rows and columns, or raises an OSError with the file's name. Further
            bands than the wanted number are left out.
        colours: RGB of each value of a palette, (values, 3) uint8; None without a palette.
        is_inverted: white is 0.
        orientation: EXIF's number of a turn, 1 for none. `read` does not turn.
        holds_rows: rows are stored one after the other, and not in tiles.
        crs, transform: rasterio's coordinate reference system and affine transform of pixels; None if unknown.
    """

    size: tuple[int, int]
    bands: int
    dtype: Any
    bits: int
    read: Callable[[Span, Span, int], NDArray[Any]]
    colours: Optional[NDArray[np.uint8]] = None
    is_inverted: bool = False
    orientation: int = 1
    holds_rows: bool = True
    crs: Any = None
    transform: Any = None


def is_tiff(first_bytes: bytes) -> bool:
    """Return whether a file that begins so is a TIFF."""
    return first_bytes.startswith(BEGINNINGS)


def read_tiff_tags(file: BinaryIO) -> Mapping[int, Any]:
    """Return the tags of the first page of a TIFF by their numbers; none of another or a damaged file."""
    first_bytes = file.read(8)
    if not is_tiff(first_bytes):
        return {}
    order = first_bytes[:2]
    if b'+' in first_bytes[:4]:  # Pillow looks for BigTIFF's mark at the place of little endian
        first_bytes = b'II+\0' + first_bytes[4:] + file.read(8)
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(first_bytes, prefix=order)
        file.seek(tags.next)
        tags.load(file)
    except Exception:  # a damaged file: the decoders raise
        return {}
    known: Mapping[int, Any] = tags
    return known


def read_tiff(data: bytes, name: str, color_type: str = 'color') -> NDArray[Any]:
    """Return the pixels of a TIFF, decoded by rasterio, or by tifffile where rasterio is missing or lacks the codec.

    Args:
        data: contents of the file.
        name: name of the file, for errors.
        color_type: of mmcv's `LoadImageFromFile`. 'color': BGR, (H, W, 3) uint8; 'grayscale': (H, W) uint8; both turned
            by the orientation tag, unless '_ignore_orientation' follows; 'unchanged': the stored values, (H, W) or (H,
            W, C), with the first three bands as BGR.

    Raises:
        OSError: if the file is damaged, needs a missing package, or has no colours.
    """
    tags = read_tiff_tags(BytesIO(data))
    with ExitStack() as stack:
        raster = _open(data, name, tags, stack)
        rows, columns = ((0, side) for side in raster.size)
        if color_type == 'unchanged':
            return _keep_values(raster, raster.read(rows, columns, raster.bands))
        require_colours(raster, name)
        _require_few_bands(raster.bands, name)
        pixels = to_bgr(raster, raster.read(rows, columns, RGB))
    if not color_type.endswith('_ignore_orientation'):
        pixels = turn(pixels, raster.orientation)
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY) if color_type.startswith('grayscale') else pixels


def read_tiff_size(tags: Mapping[int, Any], name: str) -> tuple[int, int]:
    """Return height and width of a TIFF as it is shown. Raises an OSError for a TIFF without them."""
    try:
        width, height = int(tags[TiffImagePlugin.IMAGEWIDTH]), int(tags[TiffImagePlugin.IMAGELENGTH])
    except (KeyError, TypeError, ValueError) as error:
        raise OSError(f'{name} cannot be read as a picture: it has no size') from error
    _require_few_bands(tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1), name)
    is_transposed = TURNS.get(_read_orientation(tags.get(ORIENTATION, 1)), (False,))[0]
    return (width, height) if is_transposed else (height, width)


def may_drop_bits(tags: Mapping[int, Any]) -> bool:
    """Return whether 8-bit colours may leave out bits or bands of a TIFF, also of one whose tags are unknown."""
    bits = np.ravel(tags.get(TiffImagePlugin.BITSPERSAMPLE, 1 if tags else 16))
    return bool(bits.max() > 8) or tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1) not in (1, RGB)


def describe_tiff(data: bytes, name: str) -> str:
    """Return a sentence on bits and bands that 8-bit colours leave out, with the largest value; '' for none."""
    with ExitStack() as stack:
        raster = _open(data, name, read_tiff_tags(BytesIO(data)), stack)
        if not has_colours(raster):
            return ''
        note = '; '.join(list_notes(raster, name))
        if raster.bits > 8 and raster.colours is None and not raster.is_inverted:
            rows, columns = ((0, side) for side in raster.size)
            largest = raster.read(rows, columns, RGB).max()
            note += f': its largest value {largest} becomes {int(largest) >> raster.bits - 8} of 255'
    return note


def list_notes(raster: Raster, name: str) -> tuple[str, ...]:
    """Return sentences on bits and bands that colours leave out."""
    notes = []
    if raster.bits > 8 and raster.colours is None:
        notes.append(f'{name} has {raster.bits} bits a channel, {UPPER_8}')
    if raster.bands == 2 or raster.bands > 3:
        taken = 'the first is grey' if raster.bands == 2 else 'the first three are red, green and blue'
        notes.append(f'{name} has {raster.bands} channels, of which {taken}')
    return tuple(notes)


def has_colours(raster: Raster) -> bool:
    """Return whether the range of a raster's values is that of a colour."""
    return np.dtype(raster.dtype) in (np.uint8, np.uint16, np.bool_)


def require_colours(raster: Raster, name: str) -> None:
    """Raise an OSError if the values of a raster are no colours."""
    if not has_colours(raster):
        raise OSError(
            f'{name} has values of {raster.dtype}, whose range of colours is unknown: scale it to uint8 or uint16, or '
            'write a config for these values, see docs/guides/more_bands.md'
        )


def to_bgr(raster: Raster, pixels_HWC: NDArray[Any]) -> NDArray[Any]:
    """Return colours (H, W, 3) uint8 BGR of stored values: of a palette, or else the upper 8 bits of a value.

    Of two bands the first is grey, of more the first three are red, green and blue. No band multiplies another one.
    """
    pixels = pixels_HWC
    bits = raster.bits
    if raster.colours is not None:
        pixels = raster.colours[pixels[..., 0]]
    elif bits < 8:
        pixels = (pixels * (255 // ((1 << bits) - 1))).astype(np.uint8)
    elif bits > 8:
        pixels = (pixels >> bits - 8).astype(np.uint8)
    if raster.is_inverted:
        pixels = 255 - pixels
    if pixels.shape[2] < 3:
        return cv2.cvtColor(np.ascontiguousarray(pixels[..., 0]), cv2.COLOR_GRAY2BGR)
    return cv2.cvtColor(np.ascontiguousarray(pixels[..., :3]), cv2.COLOR_RGB2BGR)


def turn(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return stored pixels (H, W, ...) as they are shown."""
    if orientation not in TURNS:
        return pixels
    is_transposed, *reversed_ = TURNS[orientation]
    pixels = pixels.swapaxes(0, 1) if is_transposed else pixels
    steps = tuple(slice(None, None, -1 if is_reversed else 1) for is_reversed in reversed_)
    return np.ascontiguousarray(pixels[steps])


def _keep_values(raster: Raster, pixels_HWC: NDArray[Any]) -> NDArray[Any]:
    if raster.colours is not None:
        return to_bgr(raster, pixels_HWC)
    if raster.bits < 8:
        return to_bgr(raster, pixels_HWC)[..., 0]
    if raster.is_inverted and np.dtype(raster.dtype).kind == 'u':
        pixels_HWC = ((1 << raster.bits) - 1 - pixels_HWC).astype(pixels_HWC.dtype)
    if raster.bands < 3:
        return pixels_HWC[..., 0] if raster.bands == 1 else pixels_HWC
    return np.ascontiguousarray(pixels_HWC[..., [2, 1, 0, *range(3, raster.bands)]])


def _open(data: bytes, name: str, tags: Mapping[int, Any], stack: ExitStack) -> Raster:
    """Open a TIFF in memory with one of the decoders. `stack` closes it."""
    reason = 'it is a TIFF, which needs rasterio or tifffile'
    try:
        import rasterio
    except ImportError:
        pass
    else:
        memory = stack.enter_context(rasterio.MemoryFile(data))
        try:
            return open_gdal(memory.name, name, tags, stack=stack)
        except OSError as error:
            if 'missing codec' not in str(error):
                raise
            reason = str(error.__cause__ or error)
    try:
        import tifffile  # noqa: F401
    except ImportError:
        raise OSError(f"{name} cannot be read: {reason}: pip install 'swin_backbone[tiles]'") from None
    return _open_tifffile(data, name, tags)


def open_gdal(
    address: str, name: str, tags: Mapping[int, Any], level: int = 0, stack: Optional[ExitStack] = None
) -> Raster:
    """Open a raster with rasterio.

    Args:
        address: the file's address for GDAL.
        name: for errors.
        tags: see `read_tiff_tags`.
        level: level of a pyramid; 0 has all pixels.
        stack: closes the raster; None keeps it open while `read` is in use.

    Raises:
        OSError: if it is damaged, or no picture.
        ValueError: if there is no such level.
    """
    with _run_gdal(name):
        pages = _open_pages(address, name, level, stack or ExitStack())
        page = pages[0]
        dtype = np.dtype(page.dtypes[0])
        bits = int(page.tags(1, ns='IMAGE_STRUCTURE').get('NBITS', 8 * dtype.itemsize))
        structure = page.tags(ns='IMAGE_STRUCTURE')
        is_converted = page.driver == 'GTiff' and 'SOURCE_COLOR_SPACE' in structure
        _require_photometric(name, tags, GREY_OR_RGB + (CONVERTED if is_converted else ()))
        is_inverted = structure.get('MINISWHITE') == 'YES'
        colours = None
        photometric = tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, GREY_OR_RGB[1])
        has_palette = photometric == PALETTE if tags else page.colorinterp[0].name == 'palette' and not is_inverted
        if has_palette:
            colours = np.zeros((1 << 8 * dtype.itemsize, 3), np.uint8)
            for value, colour in page.colormap(1).items():
                colours[value] = colour[:3]
    bands = 1 if colours is not None else 3 if is_converted else sum(page.count for page in pages)

    def read(rows: Span, columns: Span, max_bands: int) -> NDArray[Any]:
        bands_of_pages: list[NDArray[Any]] = []
        with _run_gdal(f'{name} at rows {rows[0]} to {rows[1]}, columns {columns[0]} to {columns[1]}'):
            for page in pages:
                count = min(page.count, max_bands - sum(map(len, bands_of_pages)))
                if count > 0:
                    bands_of_pages.append(page.read(list(range(1, count + 1)), window=(rows, columns)))
        bands_CHW: NDArray[Any] = np.concatenate(bands_of_pages)
        return bands_CHW.transpose(1, 2, 0)

    return Raster(
        page.shape, bands, dtype, bits, read, colours, is_inverted, _read_orientation(tags.get(ORIENTATION, 1)),
        page.block_shapes[0][1] >= page.width, page.crs, page.transform,
    )  # fmt: skip


@contextmanager
def _run_gdal(name: str) -> Iterator[None]:
    """Run GDAL with a small cache. Any error of GDAL is an OSError that begins with `name`."""
    import rasterio

    try:
        with rasterio.Env(GDAL_CACHEMAX=CACHE, GDAL_ERROR_ON_LIBJPEG_WARNING=True):
            yield
    except (rasterio.errors.RasterioError, rasterio._err.CPLE_BaseError) as error:
        raise OSError(f'{name} cannot be read: {error.__cause__ or error}') from error


def _open_pages(address: str, name: str, level: int, stack: ExitStack) -> list[Any]:
    """Return the open datasets of a level. Their bands together are the channels.

    Levels are overviews, or (in SVS) tiled pages with the proportions of the first. An OME-TIFF may have a page for
    each channel.
    """
    import rasterio

    def open_dataset(address: str, **settings: Any) -> Any:
        return stack.enter_context(rasterio.open(address, **settings))

    whole = open_dataset(address)
    pages = [open_dataset(page) for page in whole.subdatasets[1:]] if whole.driver == 'GTiff' else []
    channels = [whole, *(page for page in pages if page.shape == whole.shape)]
    description = whole.tags().get('TIFFTAG_IMAGEDESCRIPTION', '')
    if len(channels) > 1 and not all(f'Size{axis}="1"' in description for axis in 'ZT'):
        raise OSError(describe_pages(name, whole.width, whole.height))
    reduced = [
        [open_dataset(channel.name, OVERVIEW_LEVEL=level) for channel in channels]
        for level in range(len(whole.overviews(1)))
    ]
    reduced += [[page] for page in pages if page.block_shapes[0][1] < page.width < whole.width]  # a thumbnail: strips
    ratio = whole.width / whole.height
    reduced = [pages for pages in reduced if abs(pages[0].height * ratio - pages[0].width) <= 1 + ratio]
    levels = [channels, *sorted(reduced, key=lambda pages: -pages[0].width)]
    require_level(name, level, len(levels))
    return levels[level]


def _open_tifffile(data: bytes, name: str, tags: Mapping[int, Any]) -> Raster:
    """Decode a whole TIFF with tifffile."""
    import tifffile

    _require_photometric(name, tags, GREY_OR_RGB + ((YCBCR,) if tags.get(TiffImagePlugin.COMPRESSION) in JPEG else ()))
    try:
        with tifffile.TiffFile(BytesIO(data)) as file:
            series, page = file.series[0], file.pages.first
            pixels, axes, shape, bits = series.asarray(), series.axes, series.shape, page.bitspersample
            colormap = page.colormap if page.photometric == PALETTE else None
    except Exception as error:  # readers raise errors of any kind
        raise OSError(f'{name} cannot be read: {error}') from error
    kept = [axis for axis, length in zip(axes, shape) if axis in 'YX' or length > 1]
    if len(kept) > 3 or not set(kept) <= set('YXSC'):
        raise OSError(describe_pages(name, page.imagewidth, page.imagelength))
    pixels = pixels.reshape([length for axis, length in zip(axes, shape) if axis in 'YX' or length > 1])
    order = sorted(range(len(kept)), key=lambda index: 'YXSC'.index(kept[index]))
    pixels = pixels.transpose(order).reshape(page.imagelength, page.imagewidth, -1)
    colours = None
    if colormap is not None:
        scale = 1 if colormap.max() < 256 else 257 if (colormap % 256).any() else 256  # as GDAL guesses
        colours = (colormap.T // scale).astype(np.uint8)
    inverted = tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == WHITE_IS_0
    return Raster(
        pixels.shape[:2], pixels.shape[2], pixels.dtype, bits,
        lambda rows, columns, max_bands: pixels[slice(*rows), slice(*columns), :max_bands],
        colours, inverted, _read_orientation(tags.get(ORIENTATION, 1)),
    )  # fmt: skip


def describe_pages(name: str, width: int, height: int) -> str:
    """Return the message for a file that is a stack of pictures."""
    return f'{name} has several pages of {width}x{height} pixels, and is no single picture'


def require_level(name: Any, level: int, levels: int) -> None:
    """Raise a ValueError for a level that a pyramid lacks."""
    if not 0 <= level < levels:
        raise ValueError(f'level takes 0 to {levels - 1} for {name}, got {level}')


def _require_few_bands(bands: int, name: str) -> None:
    if bands > MAX_BANDS:
        raise OSError(f'{name} has {bands} bands: write a config for more than three, see docs/guides/more_bands.md')


def _require_photometric(name: str, tags: Mapping[int, Any], allowed: tuple[int, ...]) -> None:
    interpretation = tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, GREY_OR_RGB[1])
    if interpretation not in allowed:
        names = {5: 'CMYK', 6: 'YCbCr', 8: 'CIELab'}
        colours = names.get(interpretation, interpretation)
        raise OSError(f'{name} has the colours {colours} (photometric interpretation): convert it to RGB')


def _read_orientation(value: Any) -> int:
    value = value[0] if isinstance(value, tuple) and value else value
    return int(value) if str(value).isdecimal() else 1
