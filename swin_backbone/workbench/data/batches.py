"""Order of a training's data, from any batch on, and random numbers of each batch."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Optional, Union

from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_rank
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, DataLoader, Sampler

from .seeds import BATCH, ORDER, seed_rng

NUM_SEEDS = 1 << 64  # keeps seeds above 0: after a change of the batch size, iterations may begin below 0


class Batch(list[int]):
    """Indices of a batch, and the position that seeds its random numbers in a worker process."""

    position: tuple[int, ...] = ()


class ResumableBatchSampler(Sampler[list[int]]):
    """The batches of another batch sampler from any batch on. Earlier batches are not loaded.

    Args:
        sampler: yields the indices.
        batch_size: number of indices in a batch.
        inner: config of the batch sampler. Default: torch's, with a last batch that may not be full.
        endless: begin again at the end of the sampler, for training that counts iterations.
    """

    def __init__(
        self,
        sampler: Any,
        batch_size: Union[int, Sequence[int]],
        inner: Optional[dict[str, Any]] = None,
        endless: bool = False,
    ) -> None:
        inner = inner or dict(type=BatchSampler, drop_last=False)
        self.batches: Any = DATA_SAMPLERS.build(inner, default_args=dict(sampler=sampler, batch_size=batch_size))
        self.sampler = sampler
        self.batch_size = batch_size
        self.endless = endless
        self.begin_at(0, 0, 0)

    def begin_at(self, seed: int, iteration: int, batches_done: int) -> None:
        """Set where the next pass over the batches begins.

        Args:
            seed: seed of the run.
            iteration: finished iterations of the training, for random numbers.
            batches_done: finished batches of the epoch, or of the training if `endless`.
        """
        self.seed, self.iteration, self.batches_done = seed, iteration, batches_done

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches. A sampler with the process's generators repeats its earlier draws."""
        if isinstance(self.sampler, InfiniteSampler):
            self.sampler.indices = self.sampler._indices_of_rank()  # from its begin
        begin = self.iteration
        iteration = begin - self.batches_done
        for passes in count() if self.endless else [0]:
            if self.endless and hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(passes)
            first = iteration
            seed_rng(self.seed, ORDER, iteration % NUM_SEEDS)
            for indices in self.batches:
                if iteration >= begin:
                    batch = Batch(indices)
                    batch.position = (self.seed, BATCH, get_rank(), iteration)
                    yield batch
                iteration += 1
                seed_rng(self.seed, ORDER, iteration % NUM_SEEDS)
            if iteration == first:  # no batch: less data than a batch
                return

    def __len__(self) -> int:
        return len(self.batches)


class SeededItems:
    """`__getitems__` of a data set: seed for the batch, then load its items."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.own = getattr(dataset, '__getitems__', None)

    def __call__(self, indices: list[int]) -> list[Any]:
        if isinstance(indices, Batch):
            seed_rng(*indices.position)
        return self.own(indices) if self.own else [self.dataset[index] for index in indices]


def build_dataloader(
    runner: Runner, dataloader: Union[DataLoader[Any], dict[str, Any]], endless: bool
) -> Union[DataLoader[Any], dict[str, Any]]:
    """Return mmengine's data loader for training, with a `ResumableBatchSampler` and items seeded by their batch.

    A built loader, or one without batches, is returned unchanged.
    """
    if isinstance(dataloader, DataLoader) or dataloader.get('batch_size', 1) is None:
        return dataloader
    cfg = dict(dataloader)
    inner = dict(type=BatchSampler, drop_last=cfg.pop('drop_last', False))
    cfg['batch_sampler'] = dict(type=ResumableBatchSampler, inner=cfg.get('batch_sampler') or inner, endless=endless)
    cfg.setdefault('batch_size', 1)
    ranks_differ = runner._randomness_cfg.get('diff_rank_seed', False)
    loader: DataLoader[Any] = runner.build_dataloader(cfg, seed=runner.seed, diff_rank_seed=ranks_differ)
    loader.dataset.__getitems__ = SeededItems(loader.dataset)  # type: ignore[attr-defined]  # torch looks for it
    return loader
