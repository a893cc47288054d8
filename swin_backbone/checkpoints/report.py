"""The report of a load."""

from dataclasses import dataclass, field
from functools import cache
from logging import getLogger

from ..checks import list_first

# Reasons to ignore a weight
UNKNOWN, OUTSIDE, COMPUTED = 'no part of a Swin backbone', 'outside the backbone', 'index tables and masks'
NOT_IN_BACKBONE, NO_OUTPUT = 'the backbone has no such weight', 'norms of outputs that the backbone does not emit'
_logger = getLogger(__name__)


@dataclass
class LoadReport:
    """Names of loaded, resized, ignored and missing weights.

    Attributes:
        checkpoint: path or address.
        origin: the format, and the prefix of the backbone's names in the checkpoint.
        loaded: names in the model.
        resized: names in the backbone, with the old and the new size.
        ignored: names in the checkpoint, by reason.
        missing: names in the model, of its backbone.
        missing_elsewhere: names in the model, outside its backbone.
        renamed: missing names, with an ignored name in the checkpoint of the same shape. The checkpoint may have the
            weight under a name that is not known here.
        other_shapes: names in the model whose weights were not loaded, with the shape in the checkpoint.
        guesses: names in the backbone for which the file names no window or image size: the rectangle of the backbone
            was assumed.
        warnings: sentences, logged as warnings.
        notes: sentences, logged once in a process.
    """

    checkpoint: str
    origin: str = ''
    loaded: list[str] = field(default_factory=list)
    resized: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    missing_elsewhere: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    other_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    guesses: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        resized = ', '.join(dict.fromkeys(self.resized.values()))
        ignored = '; '.join(f'{reason}: {list_first(names)}' for reason, names in self.ignored.items())
        return (
            f'Loaded {self.checkpoint} ({self.origin}): {len(self.loaded)} tensors, '
            f'{len(self.resized)} of them resized{f" ({resized})" if resized else ""}, '
            f'{sum(map(len, self.ignored.values()))} ignored{f" ({ignored})" if ignored else ""}, '
            f'{len(self.missing)} missing'
        )

    def log(self) -> None:
        """Log one line, and warnings."""
        _logger.info(str(self))
        warnings = [*self.warnings]
        if self.missing:
            warnings.append(f'Left at their initialisation: {", ".join(self.missing)}{self._list_others(self.missing)}')
        elsewhere = [name for name in self.missing_elsewhere if name not in self.other_shapes]
        if elsewhere:
            names = f'{list_first(elsewhere)}{self._list_others(elsewhere)}'
            warnings.append(f'Outside the backbone, not in the checkpoint: {names}')
        for warning in warnings:
            _logger.warning(warning)
        for note in self.notes:
            _log_once(note)

    def _list_others(self, missing: list[str]) -> str:
        names = [self.renamed[name] for name in missing if name in self.renamed]
        return f'. Under unknown names the checkpoint has weights of these shapes: {list_first(names)}' if names else ''


@cache
def _log_once(note: str) -> None:
    _logger.info(note)
