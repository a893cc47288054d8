"""Where the time of a forward goes: to the parts of a backbone, or of a whole detector.

Layout: B batch, C channels, H W height and width.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..models import pyramid
from ..models.layers import PatchEmbed, PatchMerging
from ..models.pyramid import SwinPyramid, SwinStage
from . import machine

REST = 'the rest'
Place = tuple[Any, str]  # an object, and the name of its function
Spent = defaultdict[str, float]  # by part


class Share(NamedTuple):
    """What a part of a forward takes: medians over several runs."""

    seconds: float
    flops: int = 0  # two a multiply-add
    floor: Optional[float] = None  # the seconds that these take at the rate of torch's linear layer; None: not counted


def backbone_shares(model: SwinPyramid, x_BCHW: Tensor, dtype: torch.dtype, runs: int = 5) -> dict[str, Share]:
    """The parts of a backbone: patch embedding, the blocks of each stage, patch merging, output norms.

    The floor of a part is the time of its GEMMs, those of attention among them, at the rate at which torch's linear
    layer runs on this machine. The rate is measured between the runs.

    Args:
        dtype: float32, or that of autocast.
    """
    model = model.eval()
    numbers = {id(stage): number for number, stage in enumerate(model.stages, 1)}

    def name_of_stage(stage: nn.Module, *_args: Any) -> str:
        return f'blocks of stage {numbers[id(stage)]}'

    # Of the classes: a layer with a `forward` of its own would no longer be computed by compiled operators.
    places: dict[Place, Any] = {
        (PatchEmbed, 'forward'): 'patch embedding',
        (SwinStage, 'forward'): name_of_stage,
        (PatchMerging, 'forward'): 'patch merging',
        (pyramid, 'normalised_output'): 'output norms',
    }

    def run() -> None:
        with torch.no_grad(), torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
            model(x_BCHW)

    # oneDNN's linear layer and the compiled operators are not among what the counter knows.
    with FlopCounterMode(display=False) as counter, torch.backends.mkldnn.flags(enabled=False):
        flops = _spent(run, places, counter.get_total_flops)
    measured, rates = [], []
    for turn in range(-1, runs):
        seconds = _spent(run, places, time.perf_counter)
        if turn >= 0:
            measured.append(seconds)
            rates.append(machine.linear_rate(dtype))
    rate = statistics.median(rates)
    return {name: Share(seconds, int(flops[name]), flops[name] / rate) for name, seconds in _medians(measured).items()}


def detector_shares(
    runs: dict[str, Callable[[], Any]], models: dict[str, nn.Module], rounds: int = 5
) -> dict[str, dict[Any, Share]]:
    """The parts of two-stage detectors, which are run in turn: backbone, neck, RPN and RoI heads.

    Args:
        runs: detects something with each model, by the model's name.

    Returns:
        For each model the `Share` of each part by its name.
    """
    measured: dict[str, list[Spent]] = {name: [] for name in runs}
    for turn in range(-1, rounds):
        for name, run in runs.items():
            model: Any = models[name]
            places: dict[Place, Any] = {
                (model.backbone, 'forward'): 'backbone',
                (model.neck, 'forward'): 'neck',
                (model.rpn_head, 'predict'): 'RPN',
                (model.roi_head, 'predict'): 'RoI heads',
            }
            seconds = _spent(run, places, time.perf_counter)
            if turn >= 0:
                measured[name].append(seconds)
    return {name: {part: Share(s) for part, s in _medians(of_one).items()} for name, of_one in measured.items()}


def _spent(run: Callable[[], Any], places: dict[Place, Any], read: Callable[[], float]) -> Spent:
    """By how much what `read` returns grows in each part of a run, and in the rest of it."""
    found: Spent = defaultdict(float)
    with ExitStack() as stack:
        for place, part in places.items():
            stack.enter_context(_watched(place, part, read, found))
        begin = read()
        run()
        whole = read() - begin
    found[REST] = whole - sum(found.values())
    return found


@contextmanager
def _watched(place: Place, part: Any, read: Callable[[], float], found: Spent) -> Iterator[None]:
    """While this lasts, add calls of a function to a part: a name, or what gives one for the arguments."""
    owner, name = place
    function, is_own = getattr(owner, name), name in vars(owner)

    def watched(*args: Any, **kwargs: Any) -> Any:
        begin = read()
        result = function(*args, **kwargs)
        found[part(*args) if callable(part) else part] += read() - begin
        return result

    setattr(owner, name, watched)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, function)
        else:
            delattr(owner, name)


def _medians(measured: Sequence[Spent]) -> dict[str, float]:
    return {part: statistics.median(seconds[part] for seconds in measured) for part in measured[0]}
