"""What the tools have in common."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Optional

BROKEN_PIPE = 128 + 13  # of SIGPIPE


def run(main: Callable[[], Optional[int]]) -> NoReturn:
    """Run a tool, and say nothing of it where the reader of what it prints has gone, as in `TOOL | head`.

    It ends with the status that a shell gives to what such a pipe ends. What goes through a logger alone, as in
    training, goes on: the log file is still there.
    """
    logging.raiseExceptions = False  # or a handler prints a traceback for each line that it cannot write
    status: Optional[int] = None
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_stdout_broken():  # but another pipe, as that of a worker
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        status = BROKEN_PIPE
    sys.exit(status)


def _is_stdout_broken() -> bool:
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The toolboxes' conventions; a launcher's own --local-rank is passed on to mmengine."""
    parser.add_argument(
        '--work-dir', metavar='D', help="folder for logs and checkpoints (default: work_dirs/ and the config's name)"
    )
    add_config_arguments(parser)
    add_unsafe_load(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher')
    parser.add_argument('--local_rank', '--local-rank', type=_export_local_rank, help=argparse.SUPPRESS)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """What every tool does to a config: swap its backbone, then override settings."""
    from mmengine.config import DictAction  # here: not every tool has a config, and it takes seconds

    from swin_backbone.openmmlab.swap import RECIPES
    from swin_backbone.openmmlab.swins import SWINS

    parser.add_argument('--backbone', choices=list(SWINS), help="put this backbone in place of the config's own")
    parser.add_argument(
        '--recipe',
        choices=RECIPES,
        default='swin',
        help="with --backbone: the Swin recipe's optimizer, or the config's own (default: swin)",
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='K=V',
        help='override settings of the config: key=value, key="[a,b]" or key=a,b, nested keys with dots',
    )


def add_unsafe_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--unsafe-load',
        action='store_true',
        help='let checkpoints execute whatever they want when they are read: only for those whose maker you trust',
    )


USER_ERRORS = (ValueError, TypeError, FileNotFoundError)


@contextmanager
def stop_on_user_errors(errors: tuple[type[Exception], ...] = USER_ERRORS) -> Iterator[None]:
    """One sentence instead of a traceback for what a user passed wrongly."""
    try:
        yield
    except errors as error:
        sys.exit(f'{sys.argv[0]}: {error}')


def _export_local_rank(rank: str) -> int:
    os.environ.setdefault('LOCAL_RANK', rank)
    return int(rank)
