"""What the tools have in common."""

import argparse
import io
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, Optional, Union

BROKEN_PIPE = 128 + 13  # of SIGPIPE
LARGEST_SIDE = 16384  # of a picture that is measured, in pixels
LARGEST = 2**31 - 1  # number that an option takes


def run(main: Callable[[], Optional[int]]) -> NoReturn:
    """Run a tool to its exit status, whatever takes what it prints.

    Where the reader has gone, as in `TOOL | head`, it says nothing and ends with the status that a shell gives to what
    such a pipe ends. What goes through a logger alone, as in training, goes on: the log file is still there.

    Where the disk is full, it ends with one sentence and status 1. Python itself prints what it has kept only when it
    ends, and a full disk is no error to it any more by then.

    SIGTERM and SIGHUP end it with the status that a shell gives to what they end, and nothing half-written stays.
    """
    with suppress(ImportError):  # `info` runs without torch and mmengine
        from .compat import print_no_debug_messages

        print_no_debug_messages()
    _clean_up_on_signals()
    logging.raiseExceptions = False  # or a handler prints a traceback for each line that it cannot write
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')  # names of files may not be UTF-8
    status: Union[int, str, None] = None
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_stdout_broken():  # but another pipe, as that of a worker
            raise
        status = BROKEN_PIPE
        _print_no_more()
    except OSError as error:
        if not _cannot_write(error):
            raise
        place = error.filename or 'cannot write its output'
        status = f'{sys.argv[0]}: {place} ({error.strerror})'
        _print_no_more()
    sys.exit(status)


def _clean_up_on_signals() -> None:
    """Raise SystemExit on a signal that would end the process at once, so that all on the way out removes its files."""
    process = os.getpid()

    def end(number: int, _frame: Optional[FrameType]) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)  # a second one does end it at once
        if os.getpid() != process:  # a worker, which has this handler too: the files are not its own
            os.kill(os.getpid(), number)
        sys.exit(128 + number)

    for name in ('SIGTERM', 'SIGHUP'):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, end)


def _print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends


def _cannot_write(error: OSError) -> bool:
    from swin_backbone.whole_files import CANNOT_WRITE

    return error.errno in CANNOT_WRITE


def _is_stdout_broken() -> bool:
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def size(text: str) -> tuple[int, int]:
    """The type of an option that takes HxW, or one side of a square."""
    height, _, width = text.partition('x')
    side = whole(1, LARGEST_SIDE)
    return side(height), side(width or height)


def device(text: str) -> str:
    """The type of an option that takes a device."""
    from swin_backbone.devices import require_device

    try:
        require_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The toolboxes' conventions; a launcher's own --local-rank is passed on to mmengine."""
    parser.add_argument(
        '--work-dir', metavar='D', help="folder for logs and checkpoints (default: work_dirs/ and the config's name)"
    )
    add_config_arguments(parser)
    add_checkpoint_arguments(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher')
    parser.add_argument('--local_rank', '--local-rank', type=_export_local_rank, help=argparse.SUPPRESS)


def add_config_arguments(parser: argparse.ArgumentParser, at: bool = True) -> None:
    """What every tool does to a config: swap its backbone, then override settings.

    Args:
        at: add --at; a tool may have another option of that name.
    """
    from swin_backbone.openmmlab.swap.replace import RECIPES  # here: not every tool has a config, and it takes seconds
    from swin_backbone.openmmlab.swap.variants import SWINS

    parser.add_argument('--backbone', choices=list(SWINS), help="put this backbone in place of the config's own")
    if at:
        parser.add_argument('--at', metavar='KEY', help='with --backbone: which of several is replaced')
    parser.add_argument(
        '--recipe',
        choices=RECIPES,
        default='swin',
        help="with --backbone: the Swin recipe's optimizer, or the config's own (default: swin)",
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=CfgOptions,
        metavar='K=V',
        help='override settings of the config: key=value, key="[a,b]" or key=a,b, nested keys with dots; a key that is '
        'not in the config is an error, and +key=value adds it',
    )
    parser.add_argument(
        '--debug', dest='traceback', action='store_true', help='print the traceback of an error, not only one line'
    )


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """The user's own pictures, in the place of the config's."""
    parser.add_argument(
        '--data',
        metavar='D',
        help='your own pictures with their annotations: a folder with a COCO JSON, YOLO text files, Pascal VOC XML or '
        'label PNGs, or the JSON itself; data sets, classes and evaluators follow, and what was found is printed',
    )
    parser.add_argument(
        '--annotations', metavar='A', help='with --data: their file or folder, where it is not below the pictures'
    )


def load_config(args: argparse.Namespace, **more: Any) -> Any:
    """The config that a command line says: CONFIG, and what `add_common_arguments` or `add_config_arguments`, and
    `add_data_arguments`, where the tool has them, do to it.

    Args:
        more: for `runtime.load_config`.
    """
    from swin_backbone.openmmlab import runtime

    given: dict[str, Any] = {name: getattr(args, name, None) for name in ('work_dir', 'at', 'data', 'annotations')}
    return runtime.load_config(
        args.config,
        cfg_options=args.cfg_options,
        launcher=getattr(args, 'launcher', 'none'),
        backbone=args.backbone,
        recipe=args.recipe,
        **given,
        **more,
    )


def add_training_settings(parser: argparse.ArgumentParser) -> None:
    """What of a training takes one number each, whatever in the config hangs together with it."""
    parser.add_argument(
        '--epochs', type=positive, metavar='N', help='train for N epochs: schedule, warm-up, validation, checkpoints'
    )
    parser.add_argument(
        '--batch', type=positive, metavar='N', help='pictures a step and process; the learning rate in proportion'
    )
    parser.add_argument(
        '--img-scale', type=picture_scale, metavar='WxH', help='resize pictures to W x H; crops and paddings follow'
    )
    parser.add_argument(
        '--lr', type=number(1e-12), metavar='R', help="the learning rate; a schedule's last one follows"
    )


def training_settings(args: argparse.Namespace) -> Any:
    """What `add_training_settings` was given."""
    from swin_backbone.openmmlab.config.training_settings import Settings

    return Settings(args.epochs, args.batch, args.img_scale, args.lr)


def picture_scale(text: str) -> tuple[int, int]:
    """The type of an option that takes WxH, a width and a height."""
    width, x, height = text.partition('x')
    if not x:
        raise argparse.ArgumentTypeError(f'it takes WxH, as 1024x512, got {text[:40]!r}')
    side = whole(1, LARGEST_SIDE)
    return side(width), side(height)


def add_amp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--amp', action='store_true', help='mixed precision: bfloat16 on a CPU, float16 on a GPU')


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--overwrite',
        action='store_true',
        help='replace files that are there already, also if no tool wrote them or they were changed since',
    )


def add_skip_unreadable(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--skip-unreadable', action='store_true', help='skip pictures that cannot be read, and count them'
    )


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """What every tool that reads a checkpoint takes."""
    parser.add_argument(
        '--timeout', type=number(0.001), default=30.0, action=Timeout, metavar='S',
        help='give up a download on which a server stands still for S seconds (default: 30)',
    )  # fmt: skip
    parser.add_argument(
        '--unsafe-load',
        action='store_true',
        help='let checkpoints run any code when they are read: only if you trust whoever made them',
    )


def add_weights(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument(
        '--weights', metavar='NAME', help=f'{help}, by the name of its config; docs/measurements/zoo.md has a table'
    )


def add_allow_missing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--allow-missing',
        action='store_true',
        help='continue even if the checkpoint does not have all weights of the model; the others stay random',
    )


def whole(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """The type of an option that takes a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            limit = f', {most} at most' if value > most else ''
            raise argparse.ArgumentTypeError(f'it takes a whole number of at least {least}{limit}, got {text[:40]!r}')
        return value

    return parse


positive = whole(1)


def number(least: float, most: float = LARGEST) -> Callable[[str], float]:
    """The type of an option that takes a number from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:  # also if it is none
            raise argparse.ArgumentTypeError(f'it takes a number from {least:g} to {most:g}, got {text[:40]!r}')
        return value

    return parse


class Timeout(argparse.Action):
    """`--timeout`, for whatever this process downloads."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Optional[str] = None
    ) -> None:
        from swin_backbone.checkpoints.download import set_timeout

        set_timeout(values)
        setattr(namespace, self.dest, values)


class CfgOptions(argparse.Action):
    """`--cfg-options`, once or several times: a dict of values by their keys."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Optional[str] = None
    ) -> None:
        from swin_backbone.openmmlab.config.cfg_options import parse_options

        try:
            options = parse_options(values)
        except ValueError as error:
            parser.error(str(error))
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **options})


USER_ERRORS = (ValueError, TypeError, OSError)
BUILD_ERRORS = (Exception,)  # where everything follows from the command line and the config


@contextmanager
def stop_on_user_errors(errors: Sequence[type[Exception]] = USER_ERRORS, traceback: bool = False) -> Iterator[None]:
    """One sentence, and exit status 1, for what a user passed wrongly; with the traceback if that was asked for.

    A process that torchrun started hands the sentence to it, so that it is printed once and not by each rank.
    """
    try:
        yield
    except tuple(errors) as error:
        if traceback or isinstance(error, BrokenPipeError):
            raise
        from swin_backbone.openmmlab.errors import sentence_of
        from swin_backbone.openmmlab.launchers import tell_torchrun

        sentence = f'{sys.argv[0]}: {sentence_of(error)}'
        sys.exit(1 if tell_torchrun(sentence) else sentence)


def _export_local_rank(rank: str) -> int:
    os.environ.setdefault('LOCAL_RANK', rank)
    return int(rank)
