"""The counts of faults: a passed test with `record_fault` adds to the table."""

import json

from helpers.faults import BEGIN, END, write_table

pytest_plugins = ['pytester']

TESTS = """
import pytest

def test_plain():
    pass

@pytest.mark.parametrize('n', [1, 2])
def test_passes(record_fault, n):
    record_fault('kills', n)
    record_fault('kills')
    record_fault('doors', 1000)

def test_fails(record_fault):
    record_fault('memory')
    assert False

def test_unknown(record_fault):
    with pytest.raises(ValueError, match='one of doors, .*got .nonsense.'):
        record_fault('nonsense')
"""


def test_what_passed_is_counted_by_kind(pytester, request):
    here = request.path.parent
    pytester.mkpydir('helpers')
    for name in ('conftest.py', 'helpers/faults.py'):
        (pytester.path / name).write_text((here / name).read_text())
    pytester.makepyfile(TESTS)
    pytester.makeini('[pytest]\nmarkers =\n    faults: provokes something')
    options = ['-m', 'faults', '--strict-markers', '--faults-json', 'out/faults.json']
    pytester.runpytest(*options).assert_outcomes(passed=3, failed=1, deselected=1)
    counts = json.loads((pytester.path / 'out' / 'faults.json').read_text())
    assert list(counts.values()) == [{'kills': 2, 'doors': 1000}, {'kills': 3, 'doors': 1000}]

    document = pytester.path / 'reliability.md'
    document.write_text(f'before\n{BEGIN}\nold\n{END}\nafter\n')
    for _ in range(2):
        write_table(counts, document)
        text = document.read_text()
        assert text.startswith('before\n')
        assert text.endswith(f'{END}\nafter\n')
        assert '| 5 | a whole checkpoint remains' in text
        assert '2,005 faults in 2 tests.' in text
        assert 'old' not in text
