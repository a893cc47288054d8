"""mmengine's training loops with a start in the middle, and random numbers that depend on the iteration alone."""

from collections.abc import Sequence
from typing import Any, Optional, Union

from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..data.batches import PlacedBatchSampler, build_dataloader
from ..data.seeds import STEP, seed_generators


class PlacedEpochLoop(EpochBasedTrainLoop):
    """mmengine's EpochBasedTrainLoop, with a start in the middle of an epoch; same arguments."""

    batches_done = 0  # of this epoch

    def __init__(
        self, runner: Runner, dataloader: Union[DataLoader[Any], dict[str, Any]], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(runner, build_dataloader(runner, dataloader, endless=False), *args, **kwargs)

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        begin_at(self, self.batches_done)
        for idx, data_batch in enumerate(self.dataloader, self.batches_done):
            self.run_iter(idx, data_batch)
        self.batches_done = 0
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Sequence[dict[str, Any]]) -> None:
        self.batches_done = idx + 1
        seed_generators(self.runner.seed, STEP, self.runner.rank, self.iter)
        super().run_iter(idx, data_batch)


class PlacedIterLoop(IterBasedTrainLoop):
    """mmengine's IterBasedTrainLoop, with a start at any iteration, without loading earlier batches; same arguments."""

    batches_done = 0  # of the whole training

    def __init__(
        self, runner: Runner, dataloader: Union[DataLoader[Any], dict[str, Any]], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(runner, build_dataloader(runner, dataloader, endless=True), *args, **kwargs)

    def run(self) -> Any:
        if begin_at(self, self.batches_done):
            self.dataloader_iterator = _Batches(self.dataloader, self.iter)
        return super().run()

    def run_iter(self, data_batch: Sequence[dict[str, Any]]) -> None:
        self.batches_done += 1
        seed_generators(self.runner.seed, STEP, self.runner.rank, self.iter)
        super().run_iter(data_batch)


def begin_at(loop: Union[PlacedEpochLoop, PlacedIterLoop], gone: int) -> bool:
    """Place a loop's data after `gone` batches; return whether its sampler allows this."""
    sampler = loop.dataloader.batch_sampler
    if not isinstance(sampler, PlacedBatchSampler):
        return False
    sampler.begin_at(loop.runner.seed, loop.iter, gone)
    return True


class _Batches:
    """Iterator of the loop. mmengine's own first loads all earlier batches."""

    def __init__(self, loader: DataLoader[Any], gone: int) -> None:
        self.loader = loader
        self.gone = gone
        self.iterator: Optional[Any] = None

    def skip_iter(self, num_iters: int) -> None:
        """Skip earlier batches: a call of mmengine 0.10.12."""
        self.gone = 0

    def __next__(self) -> Any:
        if self.gone:  # mmengine 0.10.7 draws earlier batches
            self.gone -= 1
            return None
        if self.iterator is None:
            self.iterator = iter(self.loader)
        return next(self.iterator)


def placed(loop: dict[str, Any]) -> dict[str, Any]:
    """Replace mmengine's loop by ours in the config of a training loop. Other loops stay.

    Raises:
        ValueError: if a number of epochs or iterations is below 1 or no whole number.
    """
    cfg = dict(loop)
    for name in ('max_epochs', 'max_iters', 'val_interval'):
        value = cfg.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value == value // 1:
            raise ValueError(f'train_cfg.{name} takes a whole number from 1, got {value!r:.80}')
    if 'by_epoch' in cfg and 'type' not in cfg:
        cfg['type'] = EpochBasedTrainLoop if cfg.pop('by_epoch') else IterBasedTrainLoop
    kind = LOOPS.get(cfg['type']) if isinstance(cfg.get('type'), str) else cfg.get('type')
    ours = {EpochBasedTrainLoop: PlacedEpochLoop, IterBasedTrainLoop: PlacedIterLoop}
    return dict(cfg, type=ours[kind]) if kind in ours else loop
