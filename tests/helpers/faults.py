"""Counts of the faults that tests provoke, and their table in docs/measurements/reliability.md.

A test with the fixture `record_fault` gets the marker `faults`, and reports a kind and a number:

    def test_damage_is_refused(record_fault, path):
        ...
        record_fault('damages')

`pytest -m faults --faults-json=F` writes the counts of the tests that passed to F, and

    python tests/helpers/faults.py F... docs/measurements/reliability.md

writes the sums between the markers of the document. `make test TESTS=faults` runs both commands. A run in pieces
has one file F for each piece.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """A row of the table."""

    tried: str  # the counted attempts
    outcome: str  # the outcome of all attempts


KINDS = {
    'doors': Kind('malicious checkpoints, through each way in', 'nothing executed, no file written, no socket opened'),
    'mutations': Kind('mutated checkpoints read', 'loaded, or refused by `CheckpointError`'),
    'damages': Kind('damaged, bare or foreign checkpoints', 'one sentence with the fault'),
    'kills': Kind(
        '`kill -9`, also while a checkpoint is written', 'a whole checkpoint remains, and `--resume` loads it'
    ),
    'ended_trainings': Kind(
        'trainings that a hook, an error of the data or a validation ends', 'the last step is saved, and resumes'
    ),
    'signals': Kind('SIGTERM, SIGINT and SIGUSR1 during training', 'the step is finished and saved'),
    'ended_tools': Kind('SIGTERM and SIGHUP to a tool while it writes', 'nothing half-written is left'),
    'full_disks': Kind('disks that are full, folders that are read-only', 'one sentence; whole files stay whole'),
    'resumes': Kind('runs resumed', 'every tensor of the last checkpoint has the bits of the uninterrupted run'),
    'optimizer_states': Kind(
        "optimizers' states and other fields of a checkpoint that do not fit",
        'one sentence, or a step without the state',
    ),
    'changed_resumes': Kind('runs resumed with something changed', 'the run continues, and one line names the change'),
    'locks': Kind('second trainings in a working folder', 'one sentence with the process that trains there'),
    'lost_ranks': Kind(
        'ranks and machines of a distributed run that are lost', 'the run continues from the last checkpoint'
    ),
    'non_finite': Kind('losses and gradients that are not finite', 'the step is skipped, the weights stay finite'),
    'annotations': Kind(
        'annotations that pycocotools or mmdet cannot read, through each way in', 'named before pycocotools reads them'
    ),
    'bad_data': Kind('data sets, pictures and labels with something wrong', 'named before training'),
    'unseen_writes': Kind(
        'weights changed without a new version number', 'the next forward and backward use the new weights'
    ),
    'wrong_weights': Kind('weights of another shape, dtype or memory in a layer', "torch's result, or its error"),
    'not_finite': Kind('numbers in a layer that are not finite, or overflow', 'the output is not finite'),
    'outputs': Kind(
        'commands that would overwrite a file', 'refused in a sentence that names the file; its bytes stay'
    ),
    'bad_pictures': Kind(
        'bad pictures and videos among good files', 'named; the good files are done; the exit status is 1'
    ),
    'tampered': Kind(
        'exported folders that were changed or damaged', 'one sentence; no runtime crashes, no pipe is read'
    ),
    'servers': Kind('answers of servers, and addresses', 'the checkpoint or one sentence; no other file remains'),
    'tile_kills': Kind('`kill -9` during the tiles of a large picture', 'resumed, the results have the same bytes'),
    'tile_manifests': Kind(
        'tiles of another model, setting or process',
        'one sentence; the results contain nothing of the tile',
    ),
    'bad_commands': Kind(
        'command lines and configs with something wrong', 'one sentence that names the fault, no traceback'
    ),
}

BEGIN, END = '<!-- figures: make test TESTS=faults writes them -->', '<!-- end of figures -->'


def table(counts: dict[str, dict[str, int]]) -> str:
    """Return the counts of tests and kinds as a Markdown table with one row for each kind."""
    lines = ['| tried | times | outcome of each | tests |', '|---|---:|---|---|']
    for name, kind in KINDS.items():
        tests = {test: numbers[name] for test, numbers in counts.items() if name in numbers}
        files = ', '.join(f'`{file}`' for file in sorted({test.partition('::')[0] for test in tests}))
        if tests:
            lines.append(f'| {kind.tried} | {sum(tests.values()):,} | {kind.outcome} | {files} |')
    total = sum(sum(numbers.values()) for numbers in counts.values())
    return '\n'.join([*lines, '', f'{total:,} faults in {len(counts)} tests.'])


def write_table(counts: dict[str, dict[str, int]], document: Path) -> None:
    """Write the table between the markers of a document. A document without markers is a ValueError."""
    before, begin, rest = document.read_text(encoding='utf-8').partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f'{document} has no lines {BEGIN!r} and {END!r}')
    document.write_text(f'{before}{BEGIN}\n\n{table(counts)}\n\n{END}{after}', encoding='utf-8')


if __name__ == '__main__':
    *pieces, document = map(Path, sys.argv[1:])
    write_table({test: found for piece in pieces for test, found in json.loads(piece.read_text()).items()}, document)
