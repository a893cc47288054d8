"""Parsers of the tools, and the exit status of a tool."""

from __future__ import annotations

import argparse
import io
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from textwrap import fill
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Union

from swin_backbone.options import ARGUMENTS, DEFAULTS, Options, ToolOptions, import_package, refuse_options

if TYPE_CHECKING:
    from swin_backbone.workbench.job import Job
    from swin_backbone.workbench.predict.predictor import Predictor

BROKEN_PIPE = 128 + 13  # exit status, as for SIGPIPE


def run(main: Callable[[], Optional[int]]) -> NoReturn:
    """Run a tool and exit with its status.

    A closed pipe on stdout, as in `TOOL | head`, ends the tool silently with status 141, the shell's for SIGPIPE. A
    training continues, and writes to the log file.

    A full disk ends the tool with one sentence and status 1. The output is flushed before the exit, because Python
    ignores a full disk later.

    SIGTERM, SIGHUP and SIGINT (Ctrl-C) end the tool with status 143, 129 and 130, after temporary files are removed. A
    training handles these itself.
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
        problem = (
            f'{error.filename}: {error.strerror}' if error.filename else f'cannot write its output ({error.strerror})'
        )
        status = f'{sys.argv[0]}: {problem}'
        _print_no_more()
    except BaseException:
        if not received:
            raise
    if received:  # a library may have replaced our SystemExit by another error
        status = 128 + received[0]
    sys.exit(status)


def _end_on_signals() -> list[int]:
    """Raise SystemExit on SIGTERM, SIGHUP and Ctrl-C. Context managers then remove temporary files.

    Returns:
        The received signal, as soon as there is one.
    """
    process = os.getpid()
    received: list[int] = []

    def end(signum: int, _frame: Optional[FrameType]) -> NoReturn:
        signal.signal(signum, signal.SIG_DFL)  # a second signal ends the process at once
        if os.getpid() != process:  # a forked worker: the files belong to its parent
            os.kill(os.getpid(), signum)
        if signum == signal.SIGINT:
            os.write(2, f'{sys.argv[0]}: stopped by Ctrl-C\n'.encode())  # print is not allowed inside of print
        received.append(signum)
        sys.exit(128 + signum)

    for name in ('SIGTERM', 'SIGHUP', 'SIGINT'):  # Windows has no SIGHUP
        signum = getattr(signal, name, None)
        if signum is not None and signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signum, end)  # else ignored, as SIGHUP by nohup
            if name == 'SIGTERM' and hasattr(os, 'register_at_fork'):  # not on Windows
                # A pool ends its workers by SIGTERM. Python may run no handler in a worker that waits for a lock.
                os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))
    return received


def _print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at its end


def _is_stdout_broken() -> bool:
    if not hasattr(select, 'poll'):  # Windows
        return True
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))  # only errors are polled: no reader is left


# Options of other programs, and ours
OTHER_NAMES = {
    **{'--imgsz': '--shape', '--img-size': '--shape', '--image-size': '--shape'},
    **{'--checkpoint': '--weights', '--ckpt': '--weights', '--model': '--weights', '--pretrained': '--weights'},
    **{'--learning-rate': '--lr', '--conf': '--score-thr', '--threshold': '--score-thr', '--output': '--out-dir'},
    **{'--num-workers': '--workers', '--random-seed': '--seed', '--early-stopping': '--patience'},
}
JOB_OPTIONS = 'config backbone at recipe cfg_options debug'  # for `make_job`


class Help(argparse.RawDescriptionHelpFormatter):
    """Fill the paragraphs of a description, except commands and indented paragraphs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split('\n\n')
        return '\n\n'.join(part if part.startswith(('python', ' ')) else fill(part, width) for part in paragraphs)


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
            names: names without dashes, with a space between two: 'config data work_dir'.
            changes: settings of `add_argument` for this tool, by name.
        """
        missing = set(names.split())
        for name, settings in ARGUMENTS.items():
            key = name.lstrip('-').replace('-', '_')
            if key in missing:
                settings = {**settings, **changes.get(key, {})}
                self.add_argument(name, *settings.pop('other_names', ()), **settings)
                missing.remove(key)
        assert not missing, missing

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse, then import the package (help and wrong arguments need no torch), and set up the process."""
        parsed: argparse.Namespace = super().parse_args(args, namespace)
        if getattr(parsed, 'local_rank', None) is not None:
            os.environ.setdefault('LOCAL_RANK', str(parsed.local_rank))
        if self.needs_package(parsed):
            import_package()
        if getattr(parsed, 'timeout', ToolOptions.timeout) != ToolOptions.timeout:
            from swin_backbone.checkpoints import download

            download.set_timeout(parsed.timeout)
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        args = list(sys.argv[1:] if args is None else args)
        for index, (word, following) in enumerate(zip(args, args[1:])):
            action = self._option_string_actions.get(word)
            if action is not None and action.nargs == '?':  # `--resume CONFIG.py`: the config is no value
                is_value = following in action.choices if action.choices else not is_config(following)
                args[index] = word if is_value else f'{word}={action.const}'
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and a message, which names similar options beside unknown ones."""
        _, unknown, rest = message.partition('unrecognized arguments:')
        words = [word.partition('=')[0] for word in rest.split()] if unknown else []
        meant = {word: self._find_similar_option(word) for word in words if word.startswith('--')}
        hints = [f'{option} in place of {word}' for word, option in meant.items() if option]
        super().error(message + (f'; did you mean {", ".join(hints)}?' if hints else ''))

    def refuse(self, args: argparse.Namespace, names: Collection[str], reason: str) -> None:
        """Exit with status 2 and the error of `refuse_options`."""
        defaults = {action.dest: action.default for action in self._actions if action.dest in names}
        try:
            refuse_options(args, defaults, reason, defaults)
        except ValueError as error:
            self.error(str(error))

    def _find_similar_option(self, word: str) -> Optional[str]:
        """Return the option that other programs call `word`, or the option with the most similar name."""
        options = [name for name in self._option_string_actions if name.startswith('--')]
        usual = OTHER_NAMES.get(word.replace('_', '-'))
        similar = get_close_matches(word, options, 1)
        return usual if usual in options else similar[0] if similar else None


def is_config(word: str) -> bool:
    """Return whether a word of a command line is a config: a Python file, or package::path."""
    return word.endswith('.py') or '::' in word


def make_job(args: argparse.Namespace) -> Job:
    """Return the job of a command line: see `workbench.job.Job`.

    Raises:
        ValueError: if config and checkpoint are swapped, or by the job.
    """
    checkpoint = getattr(args, 'checkpoint', None) or getattr(args, 'weights', None)
    if checkpoint and is_config(checkpoint) and not is_config(args.config):
        raise ValueError(f'the config comes before the checkpoint, got {args.config} {checkpoint}: arguments swapped?')
    from swin_backbone.workbench.job import Job

    return Job(args.config, read_options(args))


def read_options(args: argparse.Namespace) -> Options:
    """Return the options of a command line."""
    return Options(**{name: value for name, value in vars(args).items() if name in DEFAULTS and value is not None})


PREDICTOR_OPTIONS = (  # for `make_predictor`
    f'{JOB_OPTIONS} weights amp precision compile device threads allow_missing unsafe_load timeout'
)


def make_predictor(args: argparse.Namespace) -> Predictor:
    """Return the predictor of a config and a checkpoint, or of an exported folder.

    Raises:
        ValueError: for neither, or if config, checkpoint or folder do not fit each other.
    """
    from swin_backbone.workbench.export.predictor import is_exported
    from swin_backbone.workbench.job import open_exported, open_predictor

    if is_exported(args.config):
        return open_exported(args.config, read_options(args))
    if args.weights is None:
        raise ValueError(f'give CONFIG --weights CKPT, or DIR of tools/export.py, got {args.config}')
    return open_predictor(make_job(args), args.weights)


USER_ERRORS = (ValueError, TypeError, OSError)
ANY_ERROR = (Exception,)  # while a config is built: third-party code in it raises errors of any type


@contextmanager
def exit_with_message(errors: Sequence[type[Exception]] = USER_ERRORS, debug: bool = False) -> Iterator[None]:
    """Exit with one sentence and status 1 on an error.

    Args:
        errors: their types. Default: what the package raises for a user's mistake.
        debug: raise the error, with its traceback.
    """
    try:
        yield
    except tuple(errors) as error:
        if debug or isinstance(error, BrokenPipeError):
            raise
        from swin_backbone.openmmlab.errors import describe_error

        sys.exit(f'{sys.argv[0]}: {describe_error(error)}')
