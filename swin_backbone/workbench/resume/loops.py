"""mmengine's training loops with a start at any iteration, and random numbers that depend only on the iteration."""

from typing import Any, Optional, Union

from mmengine.hooks import Hook
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..data.batches import ResumableBatchSampler, build_dataloader
from ..data.seeds import STEP, seed_rng


class ResumableLoop(BaseLoop):
    """What `ResumableEpochLoop` and `ResumableIterLoop` share."""

    batches_done = 0  # in this epoch or, in a loop of iterations, in the whole training
    validated_iter = -1  # iteration of the last finished validation
    is_between_steps = True
    endless: bool  # see `ResumableBatchSampler`

    def __init__(
        self, runner: Runner, dataloader: Union[DataLoader[Any], dict[str, Any]], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(runner, build_dataloader(runner, dataloader, self.endless), *args, **kwargs)

    def begin_at_position(self) -> bool:
        """Place the data after the finished batches, and return whether the sampler can do this."""
        sampler = self.dataloader.batch_sampler
        if not isinstance(sampler, ResumableBatchSampler):
            return False
        sampler.begin_at(self.runner.seed, self.iter, self.batches_done)
        return True

    def run_iter(self, *args: Any) -> None:
        self.is_between_steps = False
        self.batches_done += 1
        seed_rng(self.runner.seed, STEP, self.runner.rank, self.iter)
        super().run_iter(*args)
        self.is_between_steps = True


class ResumableEpochLoop(ResumableLoop, EpochBasedTrainLoop):
    """mmengine's EpochBasedTrainLoop, with a start in the middle of an epoch."""

    endless = False

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        self.begin_at_position()
        for idx, data_batch in enumerate(self.dataloader, self.batches_done):
            self.run_iter(idx, data_batch)
        self.batches_done = 0
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


class ResumableIterLoop(ResumableLoop, IterBasedTrainLoop):
    """mmengine's IterBasedTrainLoop, with a start at any iteration, without loading earlier batches."""

    endless = True

    def run(self) -> Any:
        if self.begin_at_position():
            self.dataloader_iterator = _Batches(self.dataloader, self.iter)
        return super().run()


class RepeatValidationHook(Hook):
    """Begin a resumed training with the validation that its checkpoint waits for.

    A checkpoint is written before the validation of its iteration. What follows from the metrics (the best checkpoint,
    a rate that follows a metric) is lost if the training ends between the two.
    """

    priority = 'LOWEST'  # the other hooks are ready

    def before_train(self, runner: Runner) -> None:
        loop = runner.train_loop
        if isinstance(loop, ResumableLoop) and _awaits_validation(loop):
            runner.logger.info(f'The validation after iteration {loop.iter} is repeated.')
            runner.val_loop.run()


def _awaits_validation(loop: Any) -> bool:
    """Return whether mmengine's loop would validate now, and has not."""
    by_epoch = isinstance(loop, ResumableEpochLoop)
    done, end = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
    if loop.runner.val_loop is None or not done or loop.validated_iter == loop.iter or (by_epoch and loop.batches_done):
        return False
    loop._decide_current_val_interval()
    return bool(done >= loop.val_begin and (done % loop.val_interval == 0 or done == end))


class _Batches:
    """The iterator of a `ResumableIterLoop`. mmengine's own loads all earlier batches.

    Args:
        skipped: number of earlier batches.
    """

    def __init__(self, loader: DataLoader[Any], skipped: int) -> None:
        self.loader = loader
        self.skipped = skipped
        self.iterator: Optional[Any] = None

    def skip_iter(self, num_iters: int) -> None:
        """Skip earlier batches: a call of mmengine 0.10.12."""
        self.skipped = 0

    def __next__(self) -> Any:
        if self.skipped:  # mmengine 0.10.7 takes earlier batches from the iterator
            self.skipped -= 1
            return None
        if self.iterator is None:
            self.iterator = iter(self.loader)
        return next(self.iterator)


def make_resumable(loop: dict[str, Any]) -> dict[str, Any]:
    """Replace mmengine's training loop by ours in the config of a loop. Foreign loops stay."""
    cfg = dict(loop)
    if 'by_epoch' in cfg and 'type' not in cfg:
        cfg['type'] = EpochBasedTrainLoop if cfg.pop('by_epoch') else IterBasedTrainLoop
    cls = LOOPS.get(cfg['type']) if isinstance(cfg.get('type'), str) else cfg.get('type')
    resumable = {EpochBasedTrainLoop: ResumableEpochLoop, IterBasedTrainLoop: ResumableIterLoop}
    return dict(cfg, type=resumable[cls]) if cls in resumable else loop
