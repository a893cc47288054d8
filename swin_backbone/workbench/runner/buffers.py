"""Equal running statistics in the processes of a validation."""

from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner


class SameBuffersHook(Hook):
    """Before a validation, give all processes the buffers of the first process, which are in its checkpoints.

    Running statistics of batch norm differ between processes: `DistributedDataParallel` of mmengine's runner has
    broadcast_buffers=False. Each process validates a part of the pictures.
    """

    priority = 'VERY_LOW'  # after EMAHook, which puts the averages into the model

    def before_val_epoch(self, runner: Runner) -> None:
        """See `Hook`."""
        if runner.distributed:
            saved = runner.model.state_dict()
            for name, buffer in runner.model.named_buffers():
                if name in saved and buffer.is_floating_point():
                    broadcast(buffer)
