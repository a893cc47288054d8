"""What starts the processes of a distributed run, and what it tells them."""

import json
import os
import subprocess
import time

from torch.distributed import DistError

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


def tell_torchrun(sentence: str) -> bool:
    """Hand torchrun the sentence that this process ends with; it prints the first one of all ranks.

    Returns:
        False if this process was not started by torchrun.
    """
    path = os.environ.get('TORCHELASTIC_ERROR_FILE')
    if not path:
        return False
    with open(path, 'w', encoding='utf-8') as file:
        json.dump(dict(message=sentence, timestamp=int(time.time())), file)
    return True


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error says that another process of the run does not answer any more; gloo has no class for it."""
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and 'gloo/transport' in str(error))


def name_ranks_of_slurm() -> None:
    """Set the variables by which torch joins processes, from those of srun."""
    os.environ.setdefault('MASTER_PORT', '29500')
    if 'MASTER_ADDR' not in os.environ:
        hosts = subprocess.check_output(['scontrol', 'show', 'hostnames', os.environ['SLURM_NODELIST']], text=True)
        os.environ['MASTER_ADDR'] = hosts.split()[0]
    os.environ['RANK'] = os.environ['SLURM_PROCID']
    os.environ['WORLD_SIZE'] = os.environ['SLURM_NTASKS']
    os.environ['LOCAL_RANK'] = os.environ.get('SLURM_LOCALID', '0')
