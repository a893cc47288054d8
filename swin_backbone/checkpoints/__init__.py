"""Load and convert published checkpoints. Names and shapes only: nothing here knows the modules.

A checkpoint is read (reading.py, download.py), recognised (recognise.py, by the tables of formats.py), adapted to a
model and loaded (adapt.py, resize.py, sizes.py, lora.py), or written in another format (convert.py). state_dict.py has
the sizes that weights do not tell.
"""

from .adapt import LoadReport, load_checkpoint
from .convert import FORMATS, convert_checkpoint
from .errors import CheckpointError
from .reading import read_checkpoint, trust_checkpoints

__all__ = [
    'FORMATS',
    'CheckpointError',
    'LoadReport',
    'convert_checkpoint',
    'load_checkpoint',
    'read_checkpoint',
    'trust_checkpoints',
]
