"""Options of the tools, their types, and the exit status of a tool."""

import argparse
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from types import FrameType
from typing import Any, NoReturn, Optional, Union

BROKEN_PIPE = 128 + 13  # exit status, as for SIGPIPE
LARGEST_SIDE = 16384  # pixels of a picture
LARGEST = 2**31 - 1  # limit of all numbers in options


def run(main: Callable[[], Optional[int]]) -> NoReturn:
    """Run a tool and exit with its status.

    A closed pipe on stdout, as in `TOOL | head`, ends the tool silently with status 141, the shell's for SIGPIPE. A
    training continues, and writes to the log file.

    A full disk ends the tool with one sentence and status 1. The output is flushed before the exit, because Python
    ignores a full disk later.

    SIGTERM, SIGHUP and SIGINT (Ctrl-C) end the tool with status 143, 129 and 130, after temporary files are removed. A
    training handles SIGTERM and SIGINT itself.
    """
    received = _end_on_signals()
    logging.raiseExceptions = False  # no traceback for each log line on a closed pipe
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')  # for file names that are not UTF-8
    status: Union[int, str, None] = None
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_stdout_broken():  # the pipe of a worker, for example
            raise
        status = BROKEN_PIPE
        _print_no_more()
    except OSError as error:
        from swin_backbone.whole_files import CANNOT_WRITE

        if error.errno not in CANNOT_WRITE:
            raise
        place = error.filename or 'cannot write its output'
        status = f'{sys.argv[0]}: {place} ({error.strerror})'
        _print_no_more()
    except BaseException:
        if not received:
            raise
    if received:  # an error after a signal may be what a library made of SystemExit
        status = 128 + received[0]
    sys.exit(status)


def _end_on_signals() -> list[int]:
    """Raise SystemExit on SIGTERM, SIGHUP and Ctrl-C. Context managers then remove temporary files.

    Returns:
        The received signal, as soon as there is one.
    """
    process, received = os.getpid(), list[int]()

    def end(number: int, _frame: Optional[FrameType]) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
        if os.getpid() != process:  # a forked worker: the files belong to its parent
            os.kill(os.getpid(), number)
        if number == signal.SIGINT:
            os.write(2, f'{sys.argv[0]}: stopped by Ctrl-C\n'.encode())  # print is not allowed inside of print
        received.append(number)
        sys.exit(128 + number)

    for name in ('SIGTERM', 'SIGHUP', 'SIGINT'):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end)  # else ignored, as SIGHUP by nohup
    return received


def _print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at its end


def _is_stdout_broken() -> bool:
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def number(least: float, most: float = LARGEST, kind: type = float) -> Callable[[str], Any]:
    """Return the type of an option that takes a number from `least` to `most`.

    Args:
        kind: float, or int for whole numbers.
    """

    def parse(text: str) -> Any:
        with suppress(ValueError):
            value = kind(text)
            if least <= value <= most:  # false for NaN
                return value
        words = 'a whole number' if kind is int else 'a number'
        raise argparse.ArgumentTypeError(f'it takes {words} from {least} to {most}, got {text[:40]!r}')

    return parse


def whole(least: int, most: int = LARGEST) -> Callable[[str], int]:
    return number(least, most, int)


positive = whole(1)


def _set_timeout(text: str) -> float:
    import_package()
    from swin_backbone.checkpoints.download import set_timeout

    seconds: float = number(0.001)(text)
    set_timeout(seconds)
    return seconds


def score_thr(text: str) -> Any:
    """Return a number from 0 to 1, or the thresholds in a report."""
    if not os.path.exists(text):
        return number(0, 1)(text)
    import_package()
    from swin_backbone.workbench.predict.thresholds import read_score_thr

    try:
        return read_score_thr(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class Shape(argparse.Action):
    """`--shape H [W]`: a tuple of height and width in pixels; one number is a square."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Optional[str] = None
    ) -> None:
        if len(values) > 2:
            parser.error(f'{option} takes height and width, got {len(values)} numbers')
        setattr(namespace, self.dest, (values[0], values[-1]))


class CfgOptions(argparse.Action):
    """`--cfg-options K=V ...`, once or several times: a dict of values by their keys."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Optional[str] = None
    ) -> None:
        import_package()
        from swin_backbone.workbench.configs.cfg_options import parse_options

        try:
            options = parse_options(values)
        except ValueError as error:
            parser.error(str(error))
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **options})


def _names(text: str) -> list[str]:
    import_package()
    from swin_backbone.workbench.configs.cfg_options import parse_value

    names = parse_value(f'[{text.strip().removeprefix("[").removesuffix("]")}]')
    return [str(name) for name in names]


def _export_local_rank(rank: str) -> int:
    os.environ.setdefault('LOCAL_RANK', rank)
    return int(rank)


# Arguments of several tools, in the order of every --help. docs/reference/tools.md has this table.
ARGUMENTS: dict[str, dict[str, Any]] = {
    'image': dict(help='a picture'),
    'config': dict(help='path of a config, or mmdet::..., mmseg::..., swin_backbone::...'),
    'checkpoint': dict(help='path or URL of a checkpoint'),
    '--data': dict(
        metavar='D',
        help='your own pictures and annotations: a folder with a COCO or labelme JSON, YOLO text files, Pascal VOC or '
        'CVAT XML, label PNGs or a folder for each class, or the JSON itself; replaces data sets, classes and metrics '
        'of the config',
    ),
    '--backbone': dict(metavar='NAME', help="put this Swin in place of the config's backbone: swin-t, swinv2-b, ..."),
    '--epochs': dict(
        type=positive, metavar='N', help='passes over the training pictures; schedule and validation are adapted'
    ),
    '--batch': dict(type=positive, metavar='N', help='pictures per step and process; the learning rate stays'),
    '--shape': dict(
        type=whole(1, LARGEST_SIDE),
        nargs='+',
        action=Shape,
        metavar=('H', 'W'),
        help='height and width in pixels; one number is a square',
    ),
    '--lr': dict(type=number(1e-12), metavar='R', help='learning rate; later rates of the schedule scale with it'),
    '--auto-scale-lr': dict(
        action='store_true',
        help='learning rate in proportion to the batch, from auto_scale_lr.base_batch_size of the config',
    ),
    '--balance': dict(
        action='store_true',
        help='let rare classes count more: repeat their pictures; of a segmentor, weigh the loss by class',
    ),
    '--annotations': dict(
        metavar='A', help='with --data: file or folder of annotations outside the folder of pictures'
    ),
    '--classes': dict(
        type=_names,
        metavar='NAMES',
        help='with --data: names of the classes, as "road,traffic light", if no file below D has them',
    ),
    '--at': dict(metavar='KEY', help='with --backbone: the key of the backbone, if the config has several'),
    '--recipe': dict(
        choices=('swin', 'keep'),
        default='swin',
        help="with --backbone: the optimizer of the Swin recipe, or the config's own (default: swin)",
    ),
    '--weights': dict(
        metavar='W', help='path or URL of a checkpoint, or the name of published weights: docs/measurements/zoo.md'
    ),
    '--resume': dict(
        nargs='?',
        const='auto',
        metavar='CKPT',
        help='continue from CKPT, or from the last checkpoint in the working folder',
    ),
    '--amp': dict(
        nargs='?',
        const='auto',
        choices=('auto', 'float16', 'bfloat16'),
        help='mixed precision; auto, the default, is float16 on a GPU and bfloat16 on a CPU',
    ),
    '--precision': dict(
        choices=('int8',), help='let the layers of a Swin multiply in eight bits, on a CPU; also together with --amp'
    ),
    '--compile': dict(
        action='store_true', help='compile backbone and neck by torch.compile, with free sizes of pictures; on a GPU'
    ),
    '--val-loss': dict(
        action='store_true', help='compute the losses on the validation set too, at each validation: val_loss'
    ),
    '--score-thr': dict(
        type=score_thr,
        metavar='S',
        help='leave out boxes with lower scores: 0 to 1, or the report.json of tools/report.py, with a threshold for '
        'each class (default: 0.3)',
    ),
    '--device': dict(metavar='DEV', help='cpu or cuda:0'),
    '--threads': dict(type=positive, metavar='N', help='threads on a CPU'),
    '--first-label': dict(
        type=whole(0, 1),
        default=0,
        metavar='N',
        help="value of a segmentor's first class in label PNGs: 0 (default), or 1 as for ADE20K's server and in label "
        'files with reduce_zero_label',
    ),
    '--work-dir': dict(metavar='D', help="folder of logs and checkpoints (default: work_dirs/ and the config's name)"),
    '--out-dir': dict(type=Path, metavar='D', help='folder to write'),
    '--out': dict(type=Path, metavar='F', help='file to write'),
    '--json': dict(type=Path, metavar='F', help='write the figures to F'),
    '--dpi': dict(type=whole(1, 1000), default=100, metavar='N', help='pixels of a PNG per inch (default: 100)'),
    '--overwrite': dict(action='store_true', help='replace existing files'),
    '--cfg-options': dict(
        nargs='+',
        action=CfgOptions,
        metavar='K=V',
        help='override settings of the config: key=value, key="[a,b]" or key=a,b; dots between nested keys; '
        '+key=value adds a new key',
    ),
    '--skip-unreadable': dict(action='store_true', help='skip pictures that cannot be read, and count them'),
    '--allow-missing': dict(action='store_true', help='continue if the checkpoint lacks weights; these stay random'),
    '--unsafe-load': dict(
        action='store_true', help='load a checkpoint that can run code; only from an author you trust'
    ),
    '--timeout': dict(
        type=_set_timeout,
        default=30.0,
        metavar='S',
        help='end a download after S seconds without data (default: 30)',
    ),
    '--launcher': dict(choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher'),
    '--local-rank': dict(also=['--local_rank'], type=_export_local_rank, help=argparse.SUPPRESS),
    '--debug': dict(action='store_true', help='print the traceback of an error'),
    '--pictures': dict(metavar='P', help='pictures'),
}

# Options of other programs, and ours
OTHER_NAMES = {
    **{'--imgsz': '--shape', '--img-size': '--shape', '--image-size': '--shape'},
    **{'--checkpoint': '--weights', '--ckpt': '--weights', '--model': '--weights', '--pretrained': '--weights'},
    **{'--learning-rate': '--lr', '--conf': '--score-thr', '--threshold': '--score-thr', '--output': '--out-dir'},
}
CONFIG = 'config backbone at recipe cfg_options debug'  # for `make_job`
TRAINING_OPTIONS = 'epochs batch shape lr auto_scale_lr balance'  # for `make_job`


class Help(argparse.RawDescriptionHelpFormatter):
    """Fill the paragraphs of a description, except commands and indented paragraphs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split('\n\n')
        return '\n\n'.join(part if part.startswith(('python', ' ')) else fill(part, width) for part in paragraphs)


def import_package() -> None:
    """Import torch, mmengine and the package, which takes seconds, and prepare the process."""
    from swin_backbone.workbench.process import prepare_process

    prepare_process()


class Parser(argparse.ArgumentParser):
    """A parser of a tool: arguments of `ARGUMENTS` in that order, then the tool's own arguments.

    Args:
        needs_package: returns whether the tool needs torch and the package for parsed arguments. Default: always.
    """

    def __init__(self, needs_package: Callable[[argparse.Namespace], bool] = lambda _: True, **settings: Any):
        super().__init__(**{'formatter_class': Help, **settings})
        self.needs_package = needs_package

    def add(self, names: str, **changes: dict[str, Any]) -> None:
        """Add arguments of `ARGUMENTS`.

        Args:
            names: without dashes, with a space between two: 'config data work_dir'.
            changes: settings of `add_argument` for this tool, by name.
        """
        left = set(names.split())
        for name, settings in ARGUMENTS.items():
            key = name.lstrip('-').replace('-', '_')
            if key in left:
                settings = {**settings, **changes.get(key, {})}
                self.add_argument(name, *settings.pop('also', ()), **settings)
                left.remove(key)
        assert not left, left

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse, then import the package: help and wrong arguments need no torch."""
        parsed: argparse.Namespace = super().parse_args(args, namespace)
        if self.needs_package(parsed):
            import_package()
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        args = list(sys.argv[1:] if args is None else args)
        for index, (word, following) in enumerate(zip(args, args[1:])):
            action = self._option_string_actions.get(word)
            if action is not None and action.nargs == '?':  # a config behind the option is not the option's value
                is_value = following in action.choices if action.choices else not is_config(following)
                args[index] = word if is_value else f'{word}={action.const}'
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and a message, which names similar options beside unknown ones."""
        _, unknown, rest = message.partition('unrecognized arguments:')
        words = [word.partition('=')[0] for word in rest.split()] if unknown else []
        meant = {word: self._similar_option(word) for word in words if word.startswith('--')}
        hints = [f'{option} in place of {word}' for word, option in meant.items() if option]
        super().error(message + (f'; did you mean {", ".join(hints)}?' if hints else ''))

    def _similar_option(self, word: str) -> Optional[str]:
        """Return the option that other programs call `word`, or the option with the most similar name."""
        options = [name for name in self._option_string_actions if name.startswith('--')]
        usual = OTHER_NAMES.get(word.replace('_', '-'))
        near = get_close_matches(word, options, 1)
        return usual if usual in options else near[0] if near else None


def is_config(word: str) -> bool:
    """Return whether a word of a command line is a config: a Python file, or package::path."""
    return word.endswith('.py') or '::' in word


def make_job(args: argparse.Namespace) -> Any:
    """Return the job of a command line: see `workbench.job.Job`.

    Raises:
        ValueError: if config and checkpoint are swapped, or by the job.
    """
    checkpoint = getattr(args, 'checkpoint', None)
    if checkpoint and is_config(checkpoint) and not is_config(args.config):
        raise ValueError(f'the config comes before the checkpoint, got {args.config} {checkpoint}: arguments swapped?')
    from swin_backbone.workbench.configs.training_settings import TrainingSettings
    from swin_backbone.workbench.job import Job, Options

    given = vars(args)
    names = [field.name for field in fields(Options) if field.name in given and given[field.name] is not None]
    options = Options(**{name: given[name] for name in names})
    if 'auto_scale_lr' in given:
        shape = args.shape and args.shape[::-1]
        settings = TrainingSettings(args.epochs, args.batch, shape, args.lr, args.auto_scale_lr, args.balance)
        options = replace(options, settings=settings)
    return Job(args.config, options)


USER_ERRORS = (ValueError, TypeError, OSError)
BUILD_ERRORS = (Exception,)  # for code that depends only on the command line and the config


@contextmanager
def stop_on_user_errors(errors: Sequence[type[Exception]] = USER_ERRORS, debug: bool = False) -> Iterator[None]:
    """End with one sentence and exit status 1 on an error of the user.

    Args:
        errors: the kinds of error that a user makes.
        debug: raise the error, with its traceback.
    """
    try:
        yield
    except tuple(errors) as error:
        if debug or isinstance(error, BrokenPipeError):
            raise
        from swin_backbone.openmmlab.errors import sentence_of

        sys.exit(f'{sys.argv[0]}: {sentence_of(error)}')
