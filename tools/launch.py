"""Start this machine's processes of a distributed run with torchrun, and end with one sentence if one of them fails.

python tools/launch.py PROCESSES SCRIPT [what torchrun takes] [what SCRIPT takes]

Of torchrun's options it takes --nnodes N or MIN:MAX, --node-rank, --master-addr, --master-port, --max-restarts,
--rdzv-backend, --rdzv-endpoint, --rdzv-id and --rdzv-conf. NNODES, NODE_RANK, MASTER_ADDR and PORT stand for the first
four, as in the toolboxes. With --max-restarts or MIN:MAX machines the processes meet through c10d, else at the first
machine's port (static), which keeps the ranks in the order of the machines.

Exit status: 75 where the training was stopped and can be resumed, else as torchrun's.
"""

import argparse
import logging
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

RESUMABLE = os.EX_TEMPFAIL  # what swin_backbone.openmmlab.training.signals ends a training with
GO_ON = '--resume goes on from the last checkpoint'


def parse_args() -> tuple[argparse.Namespace, list[str]]:
    """Torchrun's options, and what is left for the script."""
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False, allow_abbrev=False)
    environment = os.environ.get
    parser.add_argument('--nnodes', default=environment('NNODES', '1'))
    parser.add_argument('--node-rank', '--node_rank', default=environment('NODE_RANK'))
    parser.add_argument('--master-addr', '--master_addr', default=environment('MASTER_ADDR'))
    parser.add_argument('--master-port', '--master_port', default=environment('PORT', '29500'))
    parser.add_argument('--max-restarts', '--max_restarts', default='0')
    for name in ('backend', 'endpoint', 'id', 'conf'):
        parser.add_argument(f'--rdzv-{name}', f'--rdzv_{name}')
    return parser.parse_known_args(sys.argv[3:])


def torchrun_options(args: argparse.Namespace, rest: list[str]) -> list[str]:
    """The options for torchrun; what it would fail at later, or wait for in vain, stops here with a sentence."""
    bounds = re.fullmatch(r'([1-9]\d{0,5})(?::([1-9]\d{0,5}))?', args.nnodes)
    if not bounds or int(bounds[2] or bounds[1]) < int(bounds[1]):
        stop(f'NNODES takes a number of machines, or MIN:MAX, got {args.nnodes!r}')
    most = int(bounds[2] or bounds[1])
    rank = whole(args.node_rank or '0', 'NODE_RANK', 0, most - 1)
    port = whole(args.master_port, 'PORT', 1, 65535)
    restarts = whole(args.max_restarts, '--max-restarts', 0, 1000)
    elastic = restarts > 0 or bounds[2] is not None
    backend = args.rdzv_backend or ('c10d' if elastic or args.rdzv_endpoint else 'static')
    if backend not in ('c10d', 'static'):
        stop(f"--rdzv-backend takes 'c10d' or 'static', got {backend!r}")
    if elastic and backend == 'static':
        stop('--max-restarts and MIN:MAX machines take --rdzv-backend c10d, got static')
    if elastic and not resumes_by_itself(rest):
        stop(
            '--max-restarts and MIN:MAX machines take --resume without a checkpoint: what starts again goes on from '
            'the last one in the working folder'
        )
    if most > 1 and not (args.master_addr or args.rdzv_endpoint):
        stop(f"NNODES={args.nnodes} takes MASTER_ADDR or --master-addr, the first machine's address")
    address = args.master_addr or '127.0.0.1'
    options = [f'--nnodes={args.nnodes}', f'--rdzv-backend={backend}', f'--max-restarts={restarts}']
    if backend == 'static':
        listens = rank == 0
        options += [f'--node-rank={rank}', f'--master-addr={address}', f'--master-port={port}']
    else:
        listens = not args.rdzv_endpoint and (most == 1 or (args.node_rank is not None and rank == 0))
        host = f'[{address}]' if ':' in address else address
        options += [f'--rdzv-endpoint={args.rdzv_endpoint or f"{host}:{port}"}', f'--rdzv-id={args.rdzv_id or "swin"}']
        conf = [args.rdzv_conf] if args.rdzv_conf else []
        if args.node_rank is not None and 'is_host' not in (args.rdzv_conf or ''):
            conf.append(f'is_host={int(rank == 0)}')  # else torchrun guesses it from the machine's names
        if conf:
            options.append(f'--rdzv-conf={",".join(conf)}')
    if listens and not is_free(port):
        stop(f'port {port} is in use; name another with PORT=...')
    return options


def resumes_by_itself(rest: list[str]) -> bool:
    """Whether the script goes on from the last checkpoint that there is each time it starts."""
    if '--resume' not in rest:
        return False
    after = rest[rest.index('--resume') + 1 :]
    return not after or after[0].startswith('-')


def whole(text: str, name: str, least: int, most: int) -> int:
    if not re.fullmatch(r'\d{1,9}', text) or not least <= int(text) <= most:
        stop(f'{name} takes a number from {least} to {most}, got {text!r}')
    return int(text)


def is_free(port: int) -> bool:
    try:
        socket.create_server(('', port)).close()
    except OSError:
        return False
    return True


def sentence(rank: int, failure: 'ProcessFailure') -> str:
    """Why a run failed, or '' if the process has printed it."""
    if failure.exitcode < 0:
        ended = f'rank {rank} (process {failure.pid} on {socket.gethostname()}) was ended by {failure.signal_name()}'
        return f'{ended}, and the others with it; {GO_ON}'
    message = failure.error_file_data['message']
    if isinstance(message, dict):  # torch's own form
        message = message['message']
    return '' if message == '<NONE>' else str(message)


def stop(message: str, status: int = 2) -> NoReturn:
    print(f'{Path(sys.argv[0]).parent}/dist_{Path(sys.argv[2]).stem}.sh: {message}', file=sys.stderr)
    sys.exit(status)


def launch(arguments: list[str], where: str) -> None:
    """Run torchrun, and leave with one sentence and a status where it fails.

    Args:
        where: the machines meet.
    """
    level = os.environ.get('TORCH_CPP_LOG_LEVEL')
    os.environ['TORCH_CPP_LOG_LEVEL'] = level or 'FATAL'  # else a stack in C++ goes before each sentence
    # Else all restarts share one store, in which ranks find the addresses of those that are gone (torch 2.13)
    os.environ.setdefault('TORCH_DISABLE_SHARE_RDZV_TCP_STORE', '1')
    from torch.distributed import DistError  # here: it takes seconds, and a mistake is said at once
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import main

    os.environ['TORCH_CPP_LOG_LEVEL'] = level or 'ERROR'  # of the processes: no warning for each that they lost
    logging.disable(logging.CRITICAL)  # torchrun's own lines, which say no more than the sentence
    try:
        main(arguments)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()  # the launcher ends the others
        if first.exitcode == RESUMABLE:
            sys.exit(RESUMABLE)
        said = sentence(rank, first)
        if said:
            print(said, file=sys.stderr)
        sys.exit(1)
    except SignalException as error:  # it has passed the signal on, and waited for 30 s
        sys.exit(RESUMABLE if error.sigval in (signal.SIGTERM, signal.SIGINT) else 128 + error.sigval)
    except (DistError, RendezvousError, TimeoutError, ConnectionError) as error:
        text = ' '.join(str(error).split())[:300] or type(error).__name__
        stop(f'the machines cannot meet, or no longer, at {where} ({text}); {GO_ON}', 1)


if __name__ == '__main__':
    processes, script = sys.argv[1:3]
    args, rest = parse_args()
    options = torchrun_options(args, rest)
    script = str(Path(__file__).parent / script)
    where = args.rdzv_endpoint or f'{args.master_addr or "127.0.0.1"}:{args.master_port}'
    launch([f'--nproc-per-node={processes}', *options, script, *rest, '--launcher', 'pytorch'], where)
