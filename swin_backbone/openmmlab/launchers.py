"""What starts the processes of a distributed run, and what it tells them."""

import os

# The variables that mmengine reads, the process's rank first.
VARIABLES = {
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
    """See that this process was started by the launcher that it is told it was.

    Args:
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        ValueError: if a variable that it sets is not there.
    """
    missing = [name for name in VARIABLES[launcher] if name not in os.environ]
    if missing:
        raise ValueError(
            f'--launcher {launcher} is for processes that {STARTED_BY[launcher]}; {", ".join(missing)} is not set'
        )


def rank(launcher: str) -> int:
    """The number of this process among those that the launcher started.

    Raises:
        ValueError: see `require_launcher`.
    """
    require_launcher(launcher)
    return int(os.environ[VARIABLES[launcher][0]]) if VARIABLES[launcher] else 0


def processes(launcher: str) -> int:
    """How many processes the launcher started.

    Raises:
        ValueError: see `require_launcher`.
    """
    require_launcher(launcher)
    name = COUNTED_BY.get(launcher)
    return int(os.environ[name]) if name else 1
