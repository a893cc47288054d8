"""What the tools have in common."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.config import DictAction

from swin_backbone.openmmlab.swap import RECIPES
from swin_backbone.openmmlab.swins import SWINS


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


def add_allow_missing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--allow-missing',
        action='store_true',
        help='go on although the checkpoint leaves weights of the model random',
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
