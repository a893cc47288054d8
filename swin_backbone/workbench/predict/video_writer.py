"""Write the frames of a video with their predictions as a video."""

import tempfile
from pathlib import Path
from typing import Any, Optional

import cv2
from numpy.typing import NDArray

from ...whole_files import make_temporary_name, write_whole_by
from ..data.media import Medium, count_frames, link_in_utf_8


class VideoWriter:
    """Write frames (H, W, 3) BGR as an MP4, at the rate of their video.

    Args:
        path: path of the MP4, which is complete after `close`.
        source: the video.
    """

    def __init__(self, path: Path, source: Medium):
        self.path, self.source = path, source
        path.parent.mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.TemporaryDirectory(prefix=make_temporary_name(path).name, dir=path.parent)
        self.partial = Path(self.folder.name, 'video.mp4')
        with link_in_utf_8(source.path) as readable:
            self.rate = cv2.VideoCapture(str(readable)).get(cv2.CAP_PROP_FPS) or 25.0
        self.writer: Optional[cv2.VideoWriter] = None
        self.num_frames = 0

    def write(self, pixels: NDArray[Any]) -> None:
        if self.writer is None:
            size = (pixels.shape[1], pixels.shape[0])
            with link_in_utf_8(self.partial.parent) as folder:
                name = str(folder / self.partial.name)
                self.writer = cv2.VideoWriter(name, cv2.VideoWriter.fourcc(*'mp4v'), self.rate, size)
        self.writer.write(pixels)
        self.num_frames += 1

    def close(self) -> None:
        """Give the file its name.

        Raises:
            OSError: if a frame is missing. OpenCV reports neither a full disk nor a size that it cannot write.
        """
        with self.folder:
            if self.writer is not None:
                self.writer.release()
                if count_frames(Medium(self.partial, '', True)) < self.num_frames:
                    raise OSError(f'{self.path} cannot be written: not all of its {self.num_frames} frames are there')
                write_whole_by(self.path, self.partial.replace)
