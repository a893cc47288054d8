"""Launchers of distributed runs and their environment variables."""

import os
import subprocess

from torch.distributed import DistError

# Variables with the number of this process and the number of processes
VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE'),
}


def read_rank(launcher: str) -> int:
    """Return the number of this process among all processes of the run.

    Args:
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        ValueError: if the launcher did not start this process.
    """
    return 0 if launcher == 'none' else _read_variable(launcher, 0)


def read_world_size(launcher: str) -> int:
    """Return the number of processes of the run.

    Raises:
        ValueError: see `read_rank`.
    """
    return 1 if launcher == 'none' else _read_variable(launcher, 1)


def _read_variable(launcher: str, index: int) -> int:
    name = VARIABLES[launcher][index]
    if name not in os.environ:
        raise ValueError(f'--launcher {launcher} takes processes that it starts, got a process without {name}')
    return int(os.environ[name])


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error means a lost process of the run; gloo has no class of errors for this."""
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and 'gloo/transport' in str(error))


def set_ranks_from_slurm() -> None:
    """Set torch's variables of a distributed run from the variables of srun."""
    os.environ.setdefault('MASTER_PORT', '29500')
    if 'MASTER_ADDR' not in os.environ:
        hosts = subprocess.check_output(['scontrol', 'show', 'hostnames', os.environ['SLURM_NODELIST']], text=True)
        os.environ['MASTER_ADDR'] = hosts.split()[0]
    os.environ['RANK'] = os.environ['SLURM_PROCID']
    os.environ['WORLD_SIZE'] = os.environ['SLURM_NTASKS']
    os.environ['LOCAL_RANK'] = os.environ.get('SLURM_LOCALID', '0')
