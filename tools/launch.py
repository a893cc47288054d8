"""Run torchrun, and end with 75 where the training was stopped and can be resumed; torchrun itself ends with 1.

python tools/launch.py [what torchrun takes] SCRIPT ...
"""

import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

RESUMABLE = os.EX_TEMPFAIL  # what swin_backbone.openmmlab.training.signals ends a training with

if __name__ == '__main__':
    try:
        main()
    except ChildFailedError as error:
        _, first = error.get_first_failure()  # the launcher ends the others
        if first.exitcode != RESUMABLE:
            raise
        sys.exit(RESUMABLE)
    except SignalException as error:  # it has passed the signal on, and waited for 30 s
        sys.exit(RESUMABLE if error.sigval in (signal.SIGTERM, signal.SIGINT) else 128 + error.sigval)
