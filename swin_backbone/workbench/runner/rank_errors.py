"""Errors of one process of a run, which end all of its processes: the others would wait for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.dist import all_gather_object

from ...openmmlab.errors import describe_error


@contextmanager
def collect_error(errors: list[str]) -> Iterator[None]:
    """Add an error to a list, as a sentence, in place of raising it: see `raise_together`."""
    try:
        yield
    except Exception as error:
        errors.append(describe_error(error))


def raise_together(errors: list[str], group: Any = None) -> None:
    """Raise ValueError in all processes of a run if one of them has errors. All processes call this function.

    Args:
        group: a group of `torch.distributed`; None for the group of the run.
    """
    sentences = [sentence for errors_of_rank in all_gather_object(errors, group) for sentence in errors_of_rank]
    if sentences:
        raise ValueError(sentences[0])
