"""Pictures and videos: finding them, reading them frame by frame, and writing a picture."""

import os
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import NamedTuple, Optional, Union

import cv2
import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from ..whole_files import PARTIAL, write_whole
from .places import require_file

PICTURES = ('.bmp', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')
VIDEOS = ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.webm')
ENDS = {b'\xff\xd8\xff': b'\xff\xd9', b'\x89PNG': b'IEND\xaeB`\x82'}  # of JPEG and PNG: how they begin and end


class Medium(NamedTuple):
    """A picture or video, and what to call what is made of it."""

    path: Path
    name: str  # without suffix; unlike any other's
    is_video: bool


class Frame(NamedTuple):
    """A picture, or a frame of a video, as BGR pixels (H, W, 3) uint8, which may be fewer than it has."""

    medium: Medium
    number: int  # in the video; 0 for a picture
    pixels: np.ndarray
    size: tuple[int, int]  # its own height and width

    @property
    def name(self) -> str:
        return f'{self.medium.name}/{self.number:06d}' if self.medium.is_video else self.medium.name


def find_media(inputs: Sequence[str]) -> list[Medium]:
    """What the inputs stand for: a file each, everything below a folder, whatever a pattern matches; each once.

    Raises:
        ValueError: if an input is no file, folder or pattern that matches something.
    """
    found: dict[Path, str] = {}
    for given in inputs:
        path = Path(given)
        if path.is_dir():
            inside = sorted(p for p in path.rglob('*') if p.suffix.lower() in PICTURES + VIDEOS and p.is_file())
            found.update((p, str(p.relative_to(path).with_suffix(''))) for p in inside if p not in found)
            if not inside:
                raise ValueError(f'there is no picture and no video in {given!r}')
        elif path.is_file():
            found.setdefault(path, path.stem)
        else:
            matched = [Path(p) for p in sorted(glob(given, recursive=True))] if has_magic(given) else []
            matched = [p for p in matched if p.is_file()]
            if not matched:
                raise ValueError(f'an input is a picture, video, folder or pattern; {given!r} is none, or matches none')
            found.update((p, p.stem) for p in matched if p not in found)
    media, taken = [], set()
    for path, stem in found.items():
        name, number = stem, 1
        while name in taken:
            name, number = f'{stem}_{number}', number + 1
        taken.add(name)
        media.append(Medium(path, name, path.suffix.lower() in VIDEOS))
    return media


def count_frames(medium: Medium) -> int:
    """How many frames a video says that it has; 1 for a picture."""
    if not medium.is_video:
        return 1
    video = cv2.VideoCapture(str(medium.path))
    return max(0, int(video.get(cv2.CAP_PROP_FRAME_COUNT)))


def read_frames(medium: Medium, max_pixels: Optional[int] = None) -> Iterator[Frame]:
    """The frames of a video in order, or the picture.

    Args:
        max_pixels: a frame of more is reduced to as many.

    Raises:
        OSError: if there is none that can be read.
    """
    if medium.is_video:
        video = cv2.VideoCapture(str(medium.path))
        index = 0
        while (read := video.read())[0]:
            yield Frame(medium, index, _reduce(read[1], max_pixels), read[1].shape[:2])
            index += 1
        if not index:
            raise OSError(f'{medium.path}: no frame of it can be read as a video')
        return
    pixels = read_picture(medium.path)
    yield Frame(medium, 0, _reduce(pixels, max_pixels), pixels.shape[:2])


def _reduce(pixels: np.ndarray, max_pixels: Optional[int]) -> np.ndarray:
    height, width = pixels.shape[:2]
    if max_pixels is None or height * width <= max_pixels:
        return pixels
    scale = (max_pixels / (height * width)) ** 0.5
    size = max(1, int(width * scale)), max(1, int(height * scale))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def read_picture(path: Union[str, Path]) -> np.ndarray:
    """The pixels of a picture as BGR, (H, W, 3) uint8.

    Raises:
        OSError: if it is not there, empty, truncated or no picture, naming it.
    """
    path = Path(path)
    require_whole(path)
    # Not cv2.imread, which cannot open every path and prints what goes wrong.
    try:
        pixels = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:  # of more than 2 ** 30 pixels
        raise OSError(f'{path} cannot be read as a picture: {error.err}') from error
    if pixels is None:
        raise OSError(f'{path} cannot be read as a picture')
    return pixels


def require_whole(path: Path) -> None:
    """See that a picture does not stop half-way: some decoders fill the rest of a JPEG with grey, and say nothing.

    Raises:
        OSError: if it is not there, empty or truncated, naming it.
    """
    require_file(path)
    with open(path, 'rb') as file:
        head = file.read(8)
        if not head:
            raise OSError(f'{path} is empty')
        file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
        tail = file.read()
    for begin, end in ENDS.items():
        if head.startswith(begin) and not tail.endswith(end):  # or something follows, which is allowed: decode it all
            try:
                with Image.open(path) as image:
                    image.load()
            except Exception as error:  # Pillow's decoders raise many kinds
                raise OSError(f'{path} is damaged: {error}') from error


def picture_size(path: Path) -> tuple[int, int]:
    """Height and width of a picture as it is shown, from its header.

    Raises:
        OSError: if it is not there or no picture, naming it.
    """
    require_file(path)
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    except UnidentifiedImageError as error:
        raise OSError(f'{path} cannot be read as a picture') from error
    except Image.DecompressionBombError as error:
        raise OSError(f'{path} cannot be read as a picture: {error}') from error
    return (width, height) if turned else (height, width)


class VideoWriter:
    """Writes frames (H, W, 3) BGR as an MP4, at the rate of the video that they are of."""

    def __init__(self, path: Path, source: Medium):
        self.path = path
        self.rate = cv2.VideoCapture(str(source.path)).get(cv2.CAP_PROP_FPS) or 25.0
        self.partial = path.with_name(PARTIAL + path.name)
        self.writer: Optional[cv2.VideoWriter] = None

    def write(self, pixels: np.ndarray) -> None:
        if self.writer is None:
            size = (pixels.shape[1], pixels.shape[0])
            self.writer = cv2.VideoWriter(str(self.partial), cv2.VideoWriter.fourcc(*'mp4v'), self.rate, size)
        self.writer.write(pixels)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.release()
            self.partial.replace(self.path)


def write_picture(path: Path, pixels: np.ndarray) -> None:
    """Write BGR pixels (H, W, 3) uint8 to a file that is whole or not there, of the kind that its suffix says.

    Raises:
        OSError: if it cannot be written.
    """
    write_whole(path, cv2.imencode(path.suffix, pixels)[1].tobytes())
