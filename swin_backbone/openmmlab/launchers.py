"""Launchers of distributed runs and their environment variables."""

import os
import subprocess

from torch.distributed import DistError

# The variables that mmengine reads; the rank is first.
RANK_VARIABLES = {
    'none': (),
    'pytorch': ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_NODELIST'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_SIZE', 'MASTER_ADDR'),
}
COUNTED_BY = {'pytorch': 'WORLD_SIZE', 'slurm': 'SLURM_NTASKS', 'mpi': 'OMPI_COMM_WORLD_SIZE'}
STARTED_BY = {
    'pytorch': 'torchrun or tools/dist_train.sh starts',
    'slurm': 'srun starts in a job of Slurm',
    'mpi': "Open MPI's mpirun starts, with MASTER_ADDR the first machine's address",
}


def require_launcher(launcher: str) -> None:
    """Raise an error if the environment variables of `--launcher` are missing.

    Args:
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        ValueError: naming the missing variables.
    """
    missing = [name for name in RANK_VARIABLES[launcher] if name not in os.environ]
    if missing:
        raise ValueError(
            f'--launcher {launcher} is for processes that {STARTED_BY[launcher]}; {", ".join(missing)} is not set'
        )


def rank(launcher: str) -> int:
    """Return the number of this process among all processes of the run.

    Raises:
        ValueError: see `require_launcher`.
    """
    require_launcher(launcher)
    return int(os.environ[RANK_VARIABLES[launcher][0]]) if RANK_VARIABLES[launcher] else 0


def processes(launcher: str) -> int:
    """Return the number of processes of the run.

    Raises:
        ValueError: see `require_launcher`.
    """
    require_launcher(launcher)
    name = COUNTED_BY.get(launcher)
    return int(os.environ[name]) if name else 1


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error means a lost process of the run; gloo has no class of errors for this."""
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and 'gloo/transport' in str(error))


def name_ranks_of_slurm() -> None:
    """Set torch's variables of a distributed run from the variables of srun."""
    os.environ.setdefault('MASTER_PORT', '29500')
    if 'MASTER_ADDR' not in os.environ:
        hosts = subprocess.check_output(['scontrol', 'show', 'hostnames', os.environ['SLURM_NODELIST']], text=True)
        os.environ['MASTER_ADDR'] = hosts.split()[0]
    os.environ['RANK'] = os.environ['SLURM_PROCID']
    os.environ['WORLD_SIZE'] = os.environ['SLURM_NTASKS']
    os.environ['LOCAL_RANK'] = os.environ.get('SLURM_LOCALID', '0')
