"""What train.py and test.py have in common."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.config import DictAction


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The toolboxes' conventions; a launcher's own --local-rank is passed on to mmengine."""
    parser.add_argument(
        '--work-dir', metavar='D', help="folder for logs and checkpoints (default: work_dirs/ and the config's name)"
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='K=V',
        help='override settings of the config: key=value, key="[a,b]" or key=a,b, nested keys with dots',
    )
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher')
    parser.add_argument('--local_rank', '--local-rank', type=_export_local_rank, help=argparse.SUPPRESS)


@contextmanager
def stop_on_user_errors() -> Iterator[None]:
    """One sentence instead of a traceback for what a user passed wrongly."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        sys.exit(f'{sys.argv[0]}: {error}')


def _export_local_rank(rank: str) -> int:
    os.environ.setdefault('LOCAL_RANK', rank)
    return int(rank)
