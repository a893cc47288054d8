"""Load and convert published checkpoints. `load.Backbone` lists what a load reads of a backbone.

This folder does not import models/.
A checkpoint is read (reading.py, download.py), recognised (recognise.py, by the tables of formats.py), adapted to a
model and loaded (load.py, resize.py, lora.py; report.py), or written in another format (convert.py). damage.py refuses
damaged weights. stored_sizes.py has the sizes that weights do not tell.
"""

from .convert import FORMATS, convert_checkpoint
from .errors import CheckpointError
from .load import load_checkpoint
from .reading import read_checkpoint, trust_checkpoints
from .report import LoadReport

__all__ = [
    'FORMATS',
    'CheckpointError',
    'LoadReport',
    'convert_checkpoint',
    'load_checkpoint',
    'read_checkpoint',
    'trust_checkpoints',
]
