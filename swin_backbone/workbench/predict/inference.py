"""Predict for pictures and videos, one after the other, past those that fail."""

import math
import signal
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from rich.markup import escape
from rich.progress import Progress

from ...openmmlab.errors import describe_error
from ...whole_files import CANNOT_WRITE
from ..data.media import Frame, Medium, count_frames, read_frames
from .predictor import Predictor
from .results import ResultsWriter

Prepared = tuple[Frame, dict[str, Any]]  # a frame, and the input of the model


class Inference:
    """Predictions for media, one after the other. If one fails, its error is printed, and the rest follows.

    Args:
        results: writer of the predictions.
        progress: shows the frames.
        max_pixels: a larger frame is reduced to so many.
        batch_size: frames at a time.
        debug: raise errors of the model.

    Attributes:
        unreadable: media that were left out, at least in part, because they cannot be read.
        failed: media for which the model, its pipeline or an output failed, with the number of the first such frame.
            Frames from there on are left out.
        is_stopped: no further frame is read.
    """

    def __init__(
        self,
        predictor: Predictor,
        results: ResultsWriter,
        progress: Progress,
        max_pixels: int,
        batch_size: int,
        debug: bool,
    ):
        self.predictor, self.results, self.progress = predictor, results, progress
        self.max_pixels, self.batch_size, self.debug = max_pixels, batch_size, debug
        self.unreadable: set[Medium] = set()
        self.failed: dict[Medium, int] = {}
        self.is_stopped = False
        self.has_noted_reduction = False  # of bits and bands: one line is for all pictures

    def run(self, media: Sequence[Medium]) -> None:
        """Predict for all media."""
        self.task = self.progress.add_task('predicting', total=sum(map(count_frames, media)))
        frames = self.iter_inputs(media)
        while batch := list(islice(frames, self.batch_size)):
            self.predict(batch)

    def stop(self, *_: object) -> None:
        """End after the frame at hand: a handler of Ctrl-C. A second Ctrl-C ends at once."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.is_stopped = True

    def iter_inputs(self, media: Sequence[Medium]) -> Iterator[Prepared]:
        """Yield the readable frames of media, each with the input of the model."""
        for medium in media:
            self.progress.update(self.task, description=escape(medium.name))
            num_done = 0
            try:
                for frame in read_frames(medium, self.max_pixels, self.predictor.load):
                    if not num_done and frame.size != frame.pixels.shape[:2]:
                        self.print(f'{medium.path}: {describe_resize(frame)}', 'yellow')
                    if not (medium.is_video or self.has_noted_reduction):
                        self.note_reduction(medium)
                    try:
                        prepared = self.predictor.preprocess(frame)
                    except OSError as error:
                        self.failed[medium] = num_done
                        self.leave_out(medium, num_done, describe_error(error))
                        break
                    yield frame, prepared
                    num_done += 1
                    if self.is_stopped:
                        return
                    if medium in self.failed:  # the rest of a video
                        break
            except OSError as error:
                self.unreadable.add(medium)
                self.leave_out(medium, num_done, describe_error(error))

    def note_reduction(self, medium: Medium) -> None:
        """Print the note on a picture whose bits or bands `Predictor.load` leaves out."""
        note = self.predictor.describe_reduction(medium.path)
        self.has_noted_reduction = bool(note)
        if note:
            self.print(note, 'yellow')

    def predict(self, batch: Sequence[Prepared]) -> None:
        """Predict for frames together. If that fails, predict for each alone, to find the bad one."""
        group = [prepared for prepared in batch if not self.is_left_out(prepared[0])]
        if not group:
            return
        try:
            samples = self.predictor.predict([item for _, item in group])
        except Exception as error:
            if len(group) == 1:
                self.fail(group[0][0], 'the model fails on it', error)
            for prepared in group if len(group) > 1 else ():
                self.predict([prepared])
            return
        for (frame, item), sample in zip(group, samples):
            if self.is_left_out(frame):  # since the frame before
                continue
            try:
                self.results.write(frame, sample, item)
            except Exception as error:
                self.fail(frame, 'its predictions cannot be drawn or written', error)
            else:
                self.progress.advance(self.task)

    def fail(self, frame: Frame, what: str, error: Exception) -> None:
        """Leave out the rest of a frame's medium. Raise an error that affects all media, such as a full disk."""
        if self.debug or (isinstance(error, OSError) and error.errno in CANNOT_WRITE):
            raise error
        reason = describe_error(error).partition('\n')[0]
        self.failed[frame.medium] = frame.number
        self.leave_out(frame.medium, frame.number, f'{frame.medium.path}: {what}: {reason}')

    def is_left_out(self, frame: Frame) -> bool:
        return frame.number >= self.failed.get(frame.medium, math.inf)

    def leave_out(self, medium: Medium, num_done: int, reason: str) -> None:
        """Print why the rest of a medium is left out, of which `num_done` frames are predicted."""
        self.print(f'{"the rest is " if num_done else ""}skipped: {reason}', 'red')
        self.progress.advance(self.task, 0 if medium.is_video else 1)

    def print(self, text: str, style: str) -> None:
        self.progress.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def describe_resize(frame: Frame) -> str:
    """Return a line about the reduction of a large picture."""
    (height, width), seen = frame.size, frame.pixels.shape
    return f'{width}x{height} pixels are seen and drawn as {seen[1]}x{seen[0]}; --max-pixels takes more'
