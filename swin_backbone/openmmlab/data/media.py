"""Pictures, videos and cameras: finding them, reading them frame by frame, and writing what is made of them."""

import os
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from glob import glob, has_magic
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from ...outputs import Outputs
from ..config.paths import require_file

PICTURES = ('.bmp', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')
VIDEOS = ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.webm')
CAMERA_RATE = 10.0  # frames a second of the video that is made of a camera
LONGEST_S = 10.0  # that one of them is shown, where the machine has slept
UPRIGHT, TURNED = 4, 8  # orientations of EXIF to these: 1 to 4 keep the sides of a picture, 5 to 8 exchange them
ENDS = {b'\xff\xd8\xff': b'\xff\xd9', b'\x89PNG': b'IEND\xaeB`\x82'}  # of JPEG and PNG: how they begin and end


class Medium(NamedTuple):
    """A picture, video or camera, and what to call what is made of it."""

    path: Path  # of a camera: what it is called in messages
    name: str  # without suffix; unlike any other's, and no two media's files or folders of it are one
    is_video: bool  # or a camera
    camera: Optional[int] = None  # its number


class Frame(NamedTuple):
    """A picture, or a frame of a video, as BGR pixels (H, W, 3) uint8, which may be fewer than it has."""

    medium: Medium
    number: int  # in the video; 0 for a picture
    pixels: NDArray[Any]
    size: tuple[int, int]  # its own height and width

    @property
    def name(self) -> str:
        return f'{self.medium.name}/{self.number:06d}' if self.medium.is_video else self.medium.name


def find_media(inputs: Sequence[str], leave_out: Callable[[Path], bool] = lambda path: False) -> list[Medium]:
    """What the inputs stand for: a file each, everything below a folder, whatever a pattern matches, the camera of a
    number; each once.

    Args:
        leave_out: says of a file in a folder or of a pattern that it is none, as what an earlier run wrote there.

    Raises:
        ValueError: if an input is no file, folder, pattern that matches something or number.
        OSError: if it is the number of a camera that cannot be opened.
    """
    found: dict[Path, str] = {}
    cameras: dict[Path, int] = {}
    for given in inputs:
        path = Path(given)
        if path.is_dir():
            inside = sorted(p for p in path.rglob('*') if p.suffix.lower() in PICTURES + VIDEOS and not p.is_dir())
            inside = [p for p in inside if not leave_out(p)]
            found.update((p, str(p.relative_to(path).with_suffix(''))) for p in inside if p not in found)
            if not inside:
                raise ValueError(f'there is no picture and no video in {given!r}')
        elif path.is_file():
            found.setdefault(path, path.stem)
        elif given.isdecimal() and given.isascii():
            camera = Path(f'camera {int(given)}')
            with _open_camera(int(given)):
                found.setdefault(camera, f'camera_{int(given)}')
            cameras[camera] = int(given)
        else:
            matched = [Path(p) for p in sorted(glob(given, recursive=True))] if has_magic(given) else []
            matched = [p for p in matched if not p.is_dir() and not leave_out(p)]
            if not matched:
                raise ValueError(
                    f'an input is a picture, video, folder, pattern or number of a camera; {given!r} is none, or '
                    'matches none'
                )
            found.update((p, p.stem) for p in matched if p not in found)
    media: list[Medium] = []
    folders = {str(parent) for stem in found.values() for parent in Path(_same(stem)).parents}
    taken: set[str] = set()
    for path, stem in found.items():
        is_video = path.suffix.lower() in VIDEOS or path in cameras
        for name in (stem if not number else f'{stem}_{number}' for number in count()):
            frames = _same(name)  # the folder of what is made of each frame of a video
            files = {f'{frames}{suffix}' for suffix in ('.jpg', '.png', '.mp4')}
            if taken.isdisjoint({frames, *files}) and folders.isdisjoint({frames, *files} if is_video else files):
                break
        taken.update({frames, *files})
        media.append(Medium(path, name, is_video, cameras.get(path)))
    return media


@contextmanager
def _open_camera(number: int) -> Iterator[cv2.VideoCapture]:
    """A camera.

    Raises:
        OSError: if it cannot be opened.
    """
    level = cv2.getLogLevel()
    cv2.setLogLevel(0)  # or OpenCV prints what each of its drivers says
    try:
        camera = cv2.VideoCapture(number)
    finally:
        cv2.setLogLevel(level)
    try:
        if not camera.isOpened():
            raise OSError(
                f'there is no camera {number} here that can be opened (on Linux it is /dev/video{number}): it may have '
                'another number, be in use by another program, or not be allowed to this user'
            )
        yield camera
    finally:
        camera.release()


def _same(name: str) -> str:
    """What two names have in common that are one in some file systems."""
    return unicodedata.normalize('NFC', name).casefold()


@contextmanager
def _known_to_opencv(path: Path) -> Iterator[Path]:
    """The path of a file or folder, or a link to it where OpenCV does not take its name, as one that is not UTF-8."""
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
    """How many frames a video says that it has; 1 for a picture, 0 for a camera."""
    if not medium.is_video:
        return 1
    if medium.camera is not None or not medium.path.is_file():
        return 0
    with _known_to_opencv(medium.path) as path:
        return max(0, int(cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT)))


def read_frames(medium: Medium, max_pixels: Optional[int] = None) -> Iterator[Frame]:
    """The frames of a video or camera in order, or the picture. Those of a camera do not end.

    Args:
        max_pixels: a frame of more is reduced to as many.

    Raises:
        OSError: if there is none that can be read; or, after the last of them, if a video says that it has more, and
            where a camera gives no more.
    """
    if medium.camera is not None:
        with _open_camera(medium.camera) as camera:
            camera.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # the frame of now, not one that has waited for the model
            for index in count():
                there, pixels = camera.read()
                if not there:
                    raise OSError(f'{medium.path} gives no frame any more; {index} were read')
                yield Frame(medium, index, _reduce(pixels, max_pixels), pixels.shape[:2])
    if medium.is_video:
        require_file(medium.path)
        with _known_to_opencv(medium.path) as path:
            video = cv2.VideoCapture(str(path))
            said, rate = video.get(cv2.CAP_PROP_FRAME_COUNT), video.get(cv2.CAP_PROP_FPS) or 1.0
            index, seconds = 0, 0.0
            while (read := video.read())[0]:
                seconds = video.get(cv2.CAP_PROP_POS_MSEC) / 1000
                yield Frame(medium, index, _reduce(read[1], max_pixels), read[1].shape[:2])
                index += 1
        if not index:
            raise OSError(f'{medium.path}: no frame of it can be read as a video')
        # Where frames are not evenly spaced, the number that it says is an estimate, and its length is not.
        if said - index > 1 and said / rate - seconds > 2.5 / rate:
            raise OSError(f'{medium.path} is cut off or damaged: {index} of its {said:.0f} frames can be read')
        return
    pixels = read_picture(medium.path)
    yield Frame(medium, 0, _reduce(pixels, max_pixels), (pixels.shape[0], pixels.shape[1]))


def _reduce(pixels: NDArray[Any], max_pixels: Optional[int]) -> NDArray[Any]:
    height, width = pixels.shape[:2]
    if max_pixels is None or height * width <= max_pixels:
        return pixels
    scale = (max_pixels / (height * width)) ** 0.5
    size = max(1, int(width * scale)), max(1, int(height * scale))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def read_picture(path: Union[str, Path]) -> NDArray[Any]:
    """The pixels of a picture as BGR, (H, W, 3) uint8.

    Raises:
        OSError: if it is not there, empty, truncated or no picture, naming it.
    """
    path = Path(path)
    require_file(path)
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
    """Height and width of a picture as `read_picture` gives it: from its header, unless that says of an orientation
    what libraries read in different ways. Then it is read.

    Raises:
        OSError: if it is not there or no picture, naming it.
    """
    require_file(path)
    try:
        with Image.open(path) as image:
            width, height = image.size
            orientation, is_jpeg = image.getexif().get(ExifTags.Base.Orientation), image.format in ('JPEG', 'MPO')
            if is_jpeg and orientation is not None:  # which Pillow also takes from XMP
                exif = Image.Exif()
                exif.load(image.info.get('exif', b''))
                orientation = exif.get(ExifTags.Base.Orientation)
    except UnidentifiedImageError as error:
        raise OSError(f'{path} cannot be read as a picture') from error
    except Exception as error:  # Pillow's decoders raise many kinds, without the name
        raise OSError(f'{path} cannot be read as a picture: {error}') from error
    if orientation is None or (type(orientation) is int and orientation <= UPRIGHT):
        return height, width
    if is_jpeg and type(orientation) is int and orientation <= TURNED:
        return width, height
    pixels = read_picture(path)
    return pixels.shape[0], pixels.shape[1]


class VideoWriter:
    """Writes frames (H, W, 3) BGR as an MP4, at the rate of the video that they are of.

    What a camera sees has `CAMERA_RATE` frames a second, and each is written as often as that takes: the MP4 of a slow
    model is as long as what it shows.

    Args:
        path: of the MP4, which is there once the writer is closed.
        source: the video.
        outputs: whose file it is.

    Raises:
        FileExistsError: if there is something that may not be replaced.
    """

    def __init__(self, path: Path, source: Medium, outputs: Outputs):
        outputs.check(path)
        self.path, self.outputs = path, outputs
        path.parent.mkdir(parents=True, exist_ok=True)
        self.beside = tempfile.TemporaryDirectory(prefix='.partial-', dir=path.parent)
        self.partial = Path(self.beside.name, 'video.mp4')
        self.is_live = source.camera is not None
        if self.is_live:
            self.rate = CAMERA_RATE
        else:
            with _known_to_opencv(source.path) as known:
                self.rate = cv2.VideoCapture(str(known)).get(cv2.CAP_PROP_FPS) or 25.0
        self.writer: Optional[cv2.VideoWriter] = None
        self.frames = 0
        self.written_at, self.owed = time.monotonic(), 1.0  # frames

    def write(self, pixels: NDArray[Any]) -> None:
        for _ in range(self._times() if self.is_live else 1):
            self._write(pixels)

    def _times(self) -> int:
        """How often a frame is written now."""
        now = time.monotonic()
        seconds = min(now - self.written_at, LONGEST_S)
        times, self.owed = divmod(self.owed + seconds * self.rate, 1)
        self.written_at = now
        return int(times)

    def _write(self, pixels: NDArray[Any]) -> None:
        if self.writer is None:
            size = (pixels.shape[1], pixels.shape[0])
            with _known_to_opencv(self.partial.parent) as folder:
                name = str(folder / self.partial.name)
                self.writer = cv2.VideoWriter(name, cv2.VideoWriter.fourcc(*'mp4v'), self.rate, size)
        self.writer.write(pixels)
        self.frames += 1

    def close(self) -> None:
        """Give the file its name.

        Raises:
            OSError: if not all frames are in it. OpenCV says nothing of a full disk, or of a size that it cannot write.
        """
        with self.beside:
            if self.writer is not None:
                self.writer.release()
                if count_frames(Medium(self.partial, '', True)) < self.frames:
                    raise OSError(f'{self.path} cannot be written: not all of its {self.frames} frames are there')
                self.outputs.write_by(self.path, self.partial.replace)


def encode_picture(suffix: str, pixels: NDArray[Any]) -> bytes:
    """BGR pixels (H, W, 3) uint8 as a file of the kind that its suffix says."""
    return cv2.imencode(suffix, pixels)[1].tobytes()
