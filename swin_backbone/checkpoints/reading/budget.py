"""How much memory reading a checkpoint may take."""

import os

from ..errors import CheckpointError

VARIABLE = 'SWIN_BACKBONE_LOAD_MIB'
# A file of torch.save is stored as it is: its tensors take what it takes, and once more where they are copied. The
# rest is for pickles, whose objects are larger in memory than on disk.
BASE_BYTES = 64 << 20
TIMES_SIZE = 8


class Budget:
    """Memory that reading one file may take. What is to be allocated is charged before it is.

    Args:
        file_bytes: the file's size. The limit is 64 MiB and 8 times that, or what the environment variable
            SWIN_BACKBONE_LOAD_MIB says.

    Raises:
        CheckpointError: if the variable holds no number of MiB.
    """

    def __init__(self, file_bytes: int):
        self.limit = BASE_BYTES + TIMES_SIZE * file_bytes
        self.charged = 0
        said = os.environ.get(VARIABLE)
        if said is not None:
            if not said.isdecimal():
                raise CheckpointError(f'the environment variable {VARIABLE} takes a number of MiB, got {said!r}')
            self.limit = int(said) << 20

    def charge(self, number_of_bytes: int) -> None:
        """Note an allocation that is about to be made.

        Raises:
            CheckpointError: if it is beyond the limit.
        """
        self.charged += number_of_bytes
        if self.charged > self.limit:
            raise CheckpointError(
                f'it would take more memory than the {self.limit >> 20} MiB that a file of its size may; if that is '
                f'right, allow more with the environment variable {VARIABLE}'
            )
