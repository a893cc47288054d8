"""What the tests of faults tried, and the table of it in docs/measurements/reliability.md.

A test that takes the fixture `record_fault` gets the mark `faults`, and says how much of what it tried:

    def test_damage_is_refused(record_fault, path):
        ...
        record_fault('damages')

`pytest -m faults --faults-json=F` writes the counts of the tests that passed to F, and

    python tests/helpers/faults.py F... docs/measurements/reliability.md

writes their sums between the markers of the document. `make test TESTS=faults` does both; a run in pieces
has a file F for each.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """A row of the table."""

    tried: str  # what is counted
    outcome: str  # of every one


KINDS = {
    'doors': Kind('malicious checkpoints, through each way in', 'nothing executed, no file written, no socket opened'),
    'mutations': Kind('mutated checkpoints read', 'loaded, or refused by `CheckpointError`'),
    'damages': Kind('damaged, bare or foreign checkpoints', 'one sentence that says what is wrong'),
    'kills': Kind('`kill -9`, also while a checkpoint is written', 'a whole checkpoint is left, `--resume` takes it'),
    'signals': Kind('SIGTERM, SIGINT and SIGUSR1 during training', 'the step is finished and saved'),
    'ended_tools': Kind('SIGTERM and SIGHUP to a tool while it writes', 'nothing half-written is left'),
    'full_disks': Kind('disks that are full, folders that are read-only', 'one sentence; what was whole stays whole'),
    'resumes': Kind('runs resumed', 'every tensor of the last checkpoint has the bits of the uninterrupted run'),
    'optimizer_states': Kind(
        "optimizers' states and other fields of a checkpoint that do not fit", 'one sentence, or a step as without it'
    ),
    'changed_resumes': Kind('runs resumed with something changed', 'the run goes on, and one line says what changed'),
    'foreign_names': Kind('names and links that lead out of the working folder', 'neither read, written nor removed'),
    'locks': Kind('second trainings in a working folder', 'one sentence that says who trains there'),
    'lost_ranks': Kind(
        'ranks and machines of a distributed run that are lost', 'the run continues from the last checkpoint'
    ),
    'non_finite': Kind('losses and gradients that are not finite', 'the step is skipped, the weights stay finite'),
    'annotations': Kind('annotations that pycocotools or mmdet cannot take, each way in', 'named before it is read'),
    'bad_data': Kind('data sets, pictures and labels with something wrong', 'named before it harms'),
    'unseen_writes': Kind('weights changed in ways that may leave no trace', 'the next forward and backward see it'),
    'direct_calls': Kind('compiled operators called with wrong arguments', 'a result, or one sentence'),
    'not_finite': Kind('numbers that are not finite, or overflow, in a layer', 'what comes of them is not finite'),
    'outputs': Kind(
        'commands that would overwrite a file', 'refused in a sentence that names it; the file has its bytes'
    ),
    'bad_pictures': Kind('bad pictures and videos among good ones', 'named, the rest is done, the exit status is 1'),
    'tampered': Kind(
        'exported folders that were changed or damaged', 'one sentence; no runtime crashed, no pipe was read'
    ),
    'servers': Kind(
        'answers of servers, and what an address may be', 'the checkpoint or one sentence; nothing else is kept'
    ),
    'tile_kills': Kind('`kill -9` during the tiles of a large picture', 'resumed, the results have the same bytes'),
    'tile_manifests': Kind(
        'tiles of another model, setting or process, or damaged', 'one sentence; nothing of it is in the results'
    ),
    'bad_commands': Kind('command lines and configs with something wrong', 'one sentence that names it, no traceback'),
}

BEGIN, END = '<!-- figures: make test TESTS=faults writes them -->', '<!-- end of figures -->'


def table(counts: dict[str, dict[str, int]]) -> str:
    """The counts, by test and kind, as a table in Markdown with a row for each kind."""
    lines = ['| tried | times | outcome of each | tests |', '|---|---:|---|---|']
    for name, kind in KINDS.items():
        tests = {test: found[name] for test, found in counts.items() if name in found}
        files = ', '.join(f'`{file}`' for file in sorted({test.partition('::')[0] for test in tests}))
        if tests:
            lines.append(f'| {kind.tried} | {sum(tests.values()):,} | {kind.outcome} | {files} |')
    total = sum(sum(found.values()) for found in counts.values())
    return '\n'.join([*lines, '', f'{total:,} faults in {len(counts)} tests.'])


def write_table(counts: dict[str, dict[str, int]], document: Path) -> None:
    """Put the table between the markers of a document.

    Raises:
        ValueError: if it has no markers.
    """
    from swin_backbone.whole_files import write_between  # conftest reads this file before it sets what Triton reads

    write_between(document, BEGIN, END, table(counts))


if __name__ == '__main__':
    *pieces, document = map(Path, sys.argv[1:])
    write_table({test: found for piece in pieces for test, found in json.loads(piece.read_text()).items()}, document)
