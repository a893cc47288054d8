"""The order of a training's data, which can begin anywhere, and the random numbers that its batches are made with."""

from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_rank
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, DataLoader, Sampler

from .seeds import BATCH, ORDER, seed_generators

NUMBERS = 1 << 64  # a seed takes no number below 0, which the first batch has where batches became smaller


class Batch(list[int]):
    """Indices of a batch, and the place of its random numbers, which a worker is told with them."""

    place: tuple[int, ...] = ()


class PlacedBatchSampler(Sampler[list[int]]):
    """The batches of another batch sampler from any place on, without loading what comes before it.

    Args:
        sampler: gives the indices.
        batch_size: indices a batch.
        drop_last: leave out a last batch that is not full.
        inner: the config of the batch sampler that makes batches of them. Default: torch's.
        endless: begin again when the sampler is at its end, for training that counts iterations.
    """

    def __init__(
        self,
        sampler: Any,
        batch_size: Union[int, Sequence[int]],
        drop_last: bool = False,
        inner: Optional[dict[str, Any]] = None,
        endless: bool = False,
    ) -> None:
        default = dict(sampler=sampler, batch_size=batch_size)
        if inner is None:
            self.batches: Any = BatchSampler(drop_last=drop_last, **default)
        else:
            self.batches = DATA_SAMPLERS.build(inner, default_args=default)
        self.sampler = sampler
        self.batch_size = batch_size
        self.endless = endless
        self.begin_at(0, 0, 0)

    def begin_at(self, seed: int, number: int, gone: int) -> None:
        """Where the next iteration over this begins.

        Args:
            seed: the run's.
            number: iterations that training has behind it, which is what random numbers go by.
            gone: batches that the order has behind it: of this epoch, or if it is endless of all.
        """
        self.seed, self.number, self.gone = seed, number, gone

    def __iter__(self) -> Iterator[Batch]:
        place = (self.seed, BATCH, get_rank())
        first = self.number
        for number, indices in self._order():
            if number >= first:
                batch = Batch(indices)
                batch.place = (*place, number)
                yield batch

    def __len__(self) -> int:
        return len(self.batches)

    def _order(self) -> Iterator[tuple[int, list[int]]]:
        """All batches and their numbers. A sampler that draws from the process's generators draws the same again."""
        if isinstance(self.sampler, InfiniteSampler):
            self.sampler.indices = self.sampler._indices_of_rank()  # else it goes on from where it was left
        number = self.number - self.gone
        passes = 0
        while True:
            if self.endless and hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(passes)
            first = number
            seed_generators(self.seed, ORDER, number % NUMBERS)
            for indices in self.batches:
                yield number, indices
                number += 1
                seed_generators(self.seed, ORDER, number % NUMBERS)
            if not self.endless or number == first:
                return
            passes += 1


class SeededItems:
    """A dataset's `__getitems__`, by which torch gets a whole batch: seeds for the batch, then loads its items."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.own = getattr(dataset, '__getitems__', None)

    def __call__(self, indices: list[int]) -> list[Any]:
        if isinstance(indices, Batch):
            seed_generators(*indices.place)
        return self.own(indices) if self.own else [self.dataset[index] for index in indices]


def build_dataloader(
    runner: Runner, dataloader: Union[DataLoader[Any], dict[str, Any]], endless: bool
) -> Union[DataLoader[Any], dict[str, Any]]:
    """mmengine's data loader for training, with a `PlacedBatchSampler`, and items seeded by their batch.

    One that is built already, or makes no batches, stays as it is.
    """
    if isinstance(dataloader, DataLoader) or dataloader.get('batch_size', 1) is None:
        return dataloader
    cfg = dict(dataloader)
    cfg['batch_sampler'] = dict(
        type=PlacedBatchSampler,
        drop_last=cfg.pop('drop_last', False),
        inner=cfg.get('batch_sampler'),
        endless=endless,
    )
    cfg.setdefault('batch_size', 1)
    ranks_differ = runner._randomness_cfg.get('diff_rank_seed', False)
    loader: DataLoader[Any] = runner.build_dataloader(cfg, seed=runner.seed, diff_rank_seed=ranks_differ)
    loader.dataset.__getitems__ = SeededItems(loader.dataset)  # type: ignore[attr-defined]  # torch looks for it
    return loader


def is_placed(dataloader: Any) -> bool:
    """Whether the config of a data loader is one that `build_dataloader` made, for training."""
    batch_sampler = (dataloader.get('batch_sampler') or {}) if isinstance(dataloader, dict) else {}
    return batch_sampler.get('type') is PlacedBatchSampler
