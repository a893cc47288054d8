"""Predict for pictures and videos, one after the other, past those that fail."""

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, Optional

from rich.markup import escape
from rich.progress import Progress

from ...openmmlab.errors import describe_error
from ...whole_files import CANNOT_WRITE
from ..data.media import Frame, Medium, count_frames, read_frames
from .predictor import Predictor
from .results import ResultsWriter


class LoadedFrame(NamedTuple):
    """A frame, and the input of the model for the frame: see `Predictor.preprocess`."""

    frame: Frame
    model_input: dict[str, Any]


class Inference:
    """Predictions for media, one after the other. If one fails, its error is printed, and the rest follows.

    Args:
        writer: writes the predictions.
        progress: bar that counts the frames; its console gets the lines on media that are left out.
        max_pixels: number of pixels to which a larger frame is reduced.
        batch_size: number of frames that the model gets at a time.
        debug: raise errors of the model, its pipeline and the writing.

    Attributes:
        written: media of which a frame is predicted and written.
        unreadable: media that are left out, at least in part, because they cannot be read.
        failed: media for which the model, its pipeline or an output fails, with the number of the first such frame.
            Frames from there on are left out.
        is_stopped: whether Ctrl-C has ended `run`: no further frame is read.
    """

    def __init__(
        self,
        predictor: Predictor,
        writer: ResultsWriter,
        progress: Progress,
        max_pixels: int,
        batch_size: int,
        debug: bool,
    ):
        self.predictor = predictor
        self.writer = writer
        self.progress = progress
        self.max_pixels = max_pixels
        self.batch_size = batch_size
        self.debug = debug
        self.written: set[Medium] = set()
        self.unreadable: set[Medium] = set()
        self.failed: dict[Medium, int] = {}
        self.is_stopped = False
        self.has_noted_dropped_bits = False  # all pictures have one line

    def run(self, media: Sequence[Medium]) -> None:
        """Predict for all media."""
        self.task = self.progress.add_task('predicting', total=sum(map(count_frames, media)))
        frames = self.iter_inputs(media)
        while batch := list(islice(frames, self.batch_size)):
            self.predict_and_write(batch)
        self.close_video()

    @contextmanager
    def stop_on_ctrl_c(self) -> Iterator[None]:
        """Let Ctrl-C end `run` after the frame at hand, during the context. A second Ctrl-C acts as outside of it.

        An ignored Ctrl-C stays ignored. A script's background job ignores it.
        """
        earlier_handler = signal.getsignal(signal.SIGINT)

        def stop(*_: object) -> None:
            self.is_stopped = True
            signal.signal(signal.SIGINT, earlier_handler)

        if earlier_handler is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, earlier_handler)

    def iter_inputs(self, media: Sequence[Medium]) -> Iterator[LoadedFrame]:
        """Yield the readable frames of media, each with the input of the model."""
        for medium in media:
            self.progress.update(self.task, description=escape(medium.name))
            num_done = 0
            try:
                for frame in read_frames(medium, self.max_pixels, self.predictor.read_pixels):
                    if not num_done:
                        self.note_losses(frame)
                    try:
                        model_input = self.predictor.preprocess(frame)
                    except ValueError as error:
                        self.fail_medium(medium, num_done, error)  # which names the file
                        break
                    yield LoadedFrame(frame, model_input)
                    num_done += 1
                    if self.is_stopped:
                        return
                    if medium in self.failed:  # a video, since this frame
                        break
            except OSError as error:
                self.unreadable.add(medium)
                self.print_left_out(medium, num_done, describe_error(error))

    def note_losses(self, frame: Frame) -> None:
        """Print that a frame is reduced, and once that bits or bands of a picture are dropped."""
        medium, (height, width), shape = frame.medium, frame.original_size, frame.pixels.shape
        if (height, width) != shape[:2]:
            note = f'{width}x{height} pixels are seen and drawn as {shape[1]}x{shape[0]}'
            self.print_line(f'{medium.path}: {note}; --max-pixels takes more', 'yellow')
        if not (medium.is_video or self.has_noted_dropped_bits):
            note = self.predictor.describe_dropped_bits(medium.path)
            self.has_noted_dropped_bits = bool(note)
            if note:
                self.print_line(note, 'yellow')

    def predict_and_write(self, batch: Sequence[LoadedFrame]) -> None:
        """Predict for frames together. If that fails, predict for each alone, to find the bad one."""
        group = [loaded for loaded in batch if not self.is_left_out(loaded.frame)]
        if not group:
            return
        try:
            samples = self.predictor.predict([loaded.model_input for loaded in group])
        except Exception as error:
            if len(group) == 1:
                frame = group[0].frame
                self.fail_medium(frame.medium, frame.number, error, 'the model fails on it')
                return
            for loaded in group:
                self.predict_and_write([loaded])
            return
        for (frame, model_input), sample in zip(group, samples):
            if self.is_left_out(frame):  # a video that failed at a frame before
                continue
            self.close_video(frame.medium)
            try:
                self.writer.write(frame, sample, model_input)
            except Exception as error:
                self.fail_medium(frame.medium, frame.number, error, 'its predictions cannot be drawn or written')
            else:
                self.written.add(frame.medium)
                self.progress.advance(self.task)

    def close_video(self, following: Optional[Medium] = None) -> None:
        """Complete the open video of the writer, unless it is that of the medium that follows."""
        video = self.writer.video
        if video is None or video.source == following:
            return
        try:
            self.writer.close_video()
        except Exception as error:
            self.fail_medium(video.source, 0, error, 'its video cannot be written')

    def fail_medium(self, medium: Medium, first_lost: int, error: Exception, what: str = '') -> None:
        """Leave out a medium from a frame on. Raise an error that affects all media, such as a full disk."""
        if self.debug or (isinstance(error, OSError) and error.errno in CANNOT_WRITE):
            raise error
        reason = describe_error(error).partition('\n')[0]
        self.failed[medium] = first_lost
        self.print_left_out(medium, first_lost, f'{medium.path}: {what}: {reason}' if what else reason)

    def is_left_out(self, frame: Frame) -> bool:
        return frame.number >= self.failed.get(frame.medium, math.inf)

    def print_left_out(self, medium: Medium, num_done: int, reason: str) -> None:
        """Print why the rest of a medium is left out, of which `num_done` frames are predicted."""
        self.print_line(f'{"the rest is " if num_done else ""}skipped: {reason}', 'red')
        self.progress.advance(self.task, 0 if medium.is_video else 1)

    def print_line(self, text: str, style: str) -> None:
        self.progress.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
