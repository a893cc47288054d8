"""Pictures and videos: find them, and read them frame by frame."""

import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import glob, has_magic
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from ...checks import require_file
from ...outputs import RESULTS_MARK
from .rasters import UPPER_8, describe_tiff, is_tiff, may_drop_bits, read_tiff, read_tiff_size, read_tiff_tags

PICTURE_SUFFIXES = (
    *('.jpg', '.jpeg', '.jpe', '.jfif', '.png', '.apng', '.webp', '.avif', '.gif', '.tif', '.tiff', '.jp2'),
    *('.bmp', '.dib', '.pbm', '.pgm', '.ppm', '.pnm', '.ras', '.sr'),
)  # what OpenCV reads; HDR and EXR have no range of colours
OTHER_SIZE = 'pictures of another size than their annotations say'  # a kind of notes
SKIP_HINT = '; --skip-unreadable goes on without such pictures'  # ends an error
VIDEOS = ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.webm')
ENDS = {b'\xff\xd8\xff': b'\xff\xd9', b'\x89PNG': b'IEND\xaeB`\x82'}  # last bytes of a file by its first: JPEG, PNG


class Medium(NamedTuple):
    """A picture or video.

    Args:
        path: path of the file.
        name: name of its results, without suffix; no other medium has it.
        is_video: whether it is a video.
    """

    path: Path
    name: str
    is_video: bool


class Frame(NamedTuple):
    """A picture or a frame of a video: pixels, maybe reduced to fewer, and the size of the original.

    Pixels are BGR, (H, W, 3) uint8, or what the loader of a config makes of a picture: (H, W) or (H, W, C).
    """

    medium: Medium
    number: int  # in the video; 0 for a picture
    pixels: NDArray[Any]
    original_size: tuple[int, int]  # height and width before a reduction

    @property
    def name(self) -> str:
        return f'{self.medium.name}/{self.number:06d}' if self.medium.is_video else self.medium.name


def make_frame(pixels: NDArray[Any], path: Path = Path('picture')) -> Frame:
    """Return the frame of pixels in memory."""
    return Frame(Medium(path, path.stem, False), 0, pixels, (pixels.shape[0], pixels.shape[1]))


def find_media(inputs: Sequence[str]) -> list[Medium]:
    """Return the pictures and videos of inputs, each once. An input is a file, a folder or a pattern.

    Folders of results inside an input folder are skipped: see `mark_folder`.

    Raises:
        ValueError: if an input is no file or folder, or a pattern matches no file.
    """
    stems: dict[Path, str] = {}
    for source in inputs:
        path = Path(source)
        if path.is_dir():
            paths = sorted(
                p for p in path.rglob('*') if p.suffix.lower() in PICTURE_SUFFIXES + VIDEOS and not p.is_dir()
            )
            paths = _leave_out_results(paths, path)
            stems.update((p, str(p.relative_to(path).with_suffix(''))) for p in paths if p not in stems)
            if not paths:
                raise ValueError(f'there is no picture and no video in {source!r}')
        elif path.is_file():
            stems.setdefault(path, path.stem)
        else:
            matched = [Path(p) for p in sorted(glob(source, recursive=True))] if has_magic(source) else []
            fixed_part = Path(*takewhile(lambda part: not has_magic(part), path.parts))
            matched = _leave_out_results([p for p in matched if not p.is_dir()], fixed_part)
            if not matched:
                is_camera = source.isdecimal() or '://' in source
                camera = '. A camera or an address is not read: record or download a file first' if is_camera else ''
                raise ValueError(
                    f'an input is a picture, video, folder or pattern; {source!r} is none, or matches none{camera}'
                )
            stems.update((p, p.stem) for p in matched if p not in stems)
    return _name_media(stems)


def _name_media(stems: dict[Path, str]) -> list[Medium]:
    """Return the files as media of different names, which begin with their stems."""
    media: list[Medium] = []
    folders = {str(parent) for stem in stems.values() for parent in Path(_fold_case(stem)).parents}
    used_names: set[str] = set()
    for path, stem in stems.items():
        is_video = path.suffix.lower() in VIDEOS
        # Results of a video's frames are in a folder of its name
        taken_names = used_names | folders if is_video else used_names
        names = (f'{stem}_{number}' if number else stem for number in count())
        name = next(name for name in names if _fold_case(name) not in taken_names)
        used_names.add(_fold_case(name))
        media.append(Medium(path, name, is_video))
    return media


def _leave_out_results(paths: Sequence[Path], root: Path) -> list[Path]:
    """Return the paths that are in no marked folder below `root`."""
    folders = {path: set(takewhile(lambda parent: parent != root, path.parents)) for path in paths}
    marked = {folder for folder in set().union(*folders.values()) if (folder / RESULTS_MARK).exists()}
    return [path for path in paths if not folders[path] & marked]


def _fold_case(name: str) -> str:
    """Return a name in the form in which file systems compare names."""
    return unicodedata.normalize('NFC', name).casefold()


@contextmanager
def link_in_utf_8(path: Path) -> Iterator[Path]:
    """Yield a path that OpenCV can open: of a file or folder or, if its name is not UTF-8, of a link to it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder, 'link')
            link.symlink_to(path.absolute())
            yield link
    else:
        yield path


def count_frames(medium: Medium) -> int:
    """Return the number of frames that a video states; 1 for a picture."""
    if not medium.is_video:
        return 1
    if not medium.path.is_file():
        return 0
    with link_in_utf_8(medium.path) as path:
        return max(0, int(cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT)))


def read_frames(
    medium: Medium,
    max_pixels: Optional[int] = None,
    read_pixels: Optional[Callable[[Path], NDArray[Any]]] = None,
) -> Iterator[Frame]:
    """Yield the picture, or the frames of a video in order.

    Args:
        max_pixels: number of pixels to which a larger frame is reduced.
        read_pixels: reads a picture, as `Predictor.read_pixels`; None: `read_picture`.

    Raises:
        OSError: if no frame can be read, or, after the last, if a video states more.
    """
    if not medium.is_video:
        pixels = (read_pixels or read_picture)(medium.path)
        yield Frame(medium, 0, _reduce(pixels, max_pixels), (pixels.shape[0], pixels.shape[1]))
        return
    require_file(medium.path)
    with link_in_utf_8(medium.path) as path:
        video = cv2.VideoCapture(str(path))
        stated_frames = video.get(cv2.CAP_PROP_FRAME_COUNT)
        rate = video.get(cv2.CAP_PROP_FPS) or 1.0
        index, seconds = 0, 0.0
        while (read := video.read())[0]:
            seconds = video.get(cv2.CAP_PROP_POS_MSEC) / 1000
            yield Frame(medium, index, _reduce(read[1], max_pixels), read[1].shape[:2])
            index += 1
    if not index:
        raise OSError(f'{medium.path}: no frame of it can be read as a video')
    # If frames are not evenly spaced, their stated number is an estimate, and the length is exact.
    if stated_frames - index > 1 and stated_frames / rate - seconds > 2.5 / rate:
        raise OSError(f'{medium.path} is cut off or damaged: {index} of its {stated_frames:.0f} frames can be read')


def _reduce(pixels: NDArray[Any], max_pixels: Optional[int]) -> NDArray[Any]:
    height, width = pixels.shape[:2]
    if max_pixels is None or height * width <= max_pixels:
        return pixels
    scale = (max_pixels / (height * width)) ** 0.5
    size = max(1, int(width * scale)), max(1, int(height * scale))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def read_picture(path: Union[str, Path]) -> NDArray[Any]:
    """Return the pixels of a picture as BGR, (H, W, 3) uint8.

    Raises:
        OSError: if it is missing, empty, truncated or no picture, with the path.
    """
    path = Path(path)
    require_file(path)
    require_complete(path)
    return decode_picture(path.read_bytes(), str(path))


def decode_picture(encoded: bytes, name: str) -> NDArray[Any]:
    """Return the pixels of a picture in memory as BGR, (H, W, 3) uint8: of a TIFF by `read_tiff`, else by OpenCV.

    Raises:
        OSError: if it cannot be decoded, with the name.
    """
    if is_tiff(encoded):
        return read_tiff(encoded, name)
    try:
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:  # of more than 2 ** 30 pixels
        raise OSError(f'{name} cannot be read as a picture: {error.err}') from error
    if pixels is None:
        raise OSError(f'{name} cannot be read as a picture')
    return pixels


def describe_dropped_bits(path: Path) -> str:
    """Return a sentence on bits and bands of a picture that 8-bit colours leave out; '' for none.

    An unreadable file has no note: its loader raises the error.
    """
    with open(path, 'rb') as file:
        first_bytes = file.read(256)
        if is_tiff(first_bytes):
            file.seek(0)
            with suppress(OSError):
                return describe_tiff(path.read_bytes(), str(path)) if may_drop_bits(read_tiff_tags(file)) else ''
            return ''
    if not _has_more_than_8_bits(first_bytes):
        return ''
    pixels = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR)
    if pixels is None or pixels.dtype != np.uint16:
        return ''
    loss = f'its largest value {pixels.max()} becomes {read_picture(path).max()} of 255'
    return f'{path} has 16 bits a channel, {UPPER_8}: {loss}'


def _has_more_than_8_bits(first_bytes: bytes) -> bool:
    """Return whether the first bytes of a PNG, PNM or JPEG 2000 state more than 8 bits a channel."""
    if first_bytes.startswith(b'\x89PNG'):
        return len(first_bytes) > 24 and first_bytes[24] > 8
    if first_bytes.startswith(b'\0\0\0\x0cjP'):
        header = first_bytes.partition(b'ihdr')[2]
        return len(header) > 10 and header[10] & 127 > 7  # counted from 0, beside the bit of a sign
    largest = re.match(rb'P[56](?:\s+(?:#.*\s+)*(\d+)){3}\s', first_bytes)
    return largest is not None and int(largest[1]) > 255


def convert_to_bgr(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return pixels of any loader as BGR, (H, W, 3) uint8: of many bands the first three, or one as grey.

    Values of another type than uint8 are scaled from their least to their largest.
    """
    bands = np.atleast_3d(pixels)
    bands = bands[..., :3] if bands.shape[2] > 2 else bands[..., :1].repeat(3, 2)
    if bands.dtype != np.uint8:
        bands = bands.astype(np.float32)
        bands = cv2.normalize(bands, np.empty_like(bands), 0, 255, cv2.NORM_MINMAX, cv2.CV_8U)
    return np.ascontiguousarray(bands)


def require_complete(path: Path) -> None:
    """Require that a picture is complete. Some decoders fill the rest of a truncated JPEG with grey, without an error.

    Raises:
        OSError: if it is missing, empty or truncated, with the path.
    """
    require_file(path)
    with open(path, 'rb') as file:
        first_bytes = file.read(8)
        if not first_bytes:
            raise OSError(f'{path} is empty')
        file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
        last_bytes = file.read()
    for begin, end in ENDS.items():
        if first_bytes.startswith(begin) and not last_bytes.endswith(end):  # cut off, or more follows, which is allowed
            try:
                with Image.open(path) as image:
                    image.load()
            except Exception as error:  # Pillow's decoders raise many kinds
                raise OSError(f'{path} is damaged: {error}') from error


def read_picture_size(path: Path) -> tuple[int, int]:
    """Return height and width of a picture as `read_picture` does.

    They are those of the header or, if it has an orientation, those of the pixels: libraries turn different formats.

    Raises:
        OSError: if it is missing or no picture, with the path.
    """
    require_file(path)
    with open(path, 'rb') as file:
        first_bytes = file.read(4)
        file.seek(0)
        tags = read_tiff_tags(file)
    if tags:
        return read_tiff_size(tags, str(path))
    try:
        if not is_tiff(first_bytes):
            with Image.open(path) as image:
                width, height = image.size
                if image.getexif().get(ExifTags.Base.Orientation) in (None, 1):
                    return height, width
    except Exception as error:  # Pillow's decoders raise many kinds, without the name
        raise OSError(f'{path} cannot be read as a picture: {error}') from error
    pixels = read_picture(path)
    return pixels.shape[0], pixels.shape[1]
