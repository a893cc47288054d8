"""Checks of arguments: allowed values pass, and errors name argument, allowed values and value."""

import math
from functools import partial

import numpy as np
import pytest

from swin_backbone.checks import check_choice, check_int, check_number, check_sequence, check_size, check_type, refusal


def test_allowed_values_pass():
    assert check_int('n', np.int64(3), 1) == 3
    assert check_number('n', np.float32(0.5)) == 0.5
    assert check_choice('n', 'a', {'a': 1, 'b': 2}) == 'a'
    assert check_size('n', 7) == (7, 7)
    assert check_size('n', [7, 12]) == (7, 12)
    assert check_sequence('n', range(2), 'two', 2) == (0, 1)


@pytest.mark.parametrize(
    ('check', 'value', 'error', 'message'),
    [
        (check_int, True, TypeError, 'n takes a whole number, got True'),
        (partial(check_int, least=1), 0, ValueError, 'n takes a whole number of at least 1, got 0'),
        (check_number, '3', TypeError, "n takes a finite number, got '3'"),
        (check_number, math.nan, ValueError, 'n takes a finite number, got nan'),
        (check_number, 10**400, ValueError, 'n takes a finite number, got 1000*[.]{3}'),
        (partial(check_choice, choices=['a', 'b']), 'c', ValueError, "n takes one of 'a', 'b', got 'c'"),
        (
            partial(check_choice, choices=['swin-t', 'swin-b']),
            'swin-tiny',
            ValueError,
            "n takes one of 'swin-t', 'swin-b', got 'swin-tiny'; did you mean 'swin-t'\\?",
        ),
        (partial(check_choice, choices=['a']), None, TypeError, "n takes one of 'a', got None"),
        (partial(check_sequence, allowed='a list'), 'ab', TypeError, "n takes a list, got 'ab'"),
        (partial(check_sequence, allowed='two names', length=2), [1], ValueError, r'n takes two names, got \[1\]'),
        (check_size, (1, 2, 3), ValueError, r'n takes a whole number of at least 1, or a pair .*, got \(1, 2, 3\)'),
        (partial(check_type, kinds=dict, allowed='a dict'), [], TypeError, r'n takes a dict, got \[\]'),
    ],
)  # fmt: skip
def test_errors_name_argument_range_and_value(check, value, error, message):
    with pytest.raises(error, match=f'^{message}$'):
        check('n', value)


def test_long_values_are_shortened():
    assert refusal('n', 'a name', 'x' * 1000) == f"n takes a name, got '{'x' * 199}..."
