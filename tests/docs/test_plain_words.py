"""The lint of plain words counts docstrings, comments and paragraphs, and nothing else."""

from pathlib import Path

import pytest
from helpers import ROOT
from helpers.plain_words import FOLDERS, measure, sentences

HARD = 'It is what they say that it is, which one of those others wants.'
PLAIN = 'The backbone emits maps of four strides in evaluation.'
FILES = {
    'a.py': f'"""{PLAIN}"""\n\n# {HARD}\ntext = "{HARD}"\n',
    'a.md': f'# {HARD}\n\n{PLAIN}\n\n```\n{HARD}\n```\n\n{HARD}\n',
    'a.h': f'// {PLAIN}\nint it;\n/* {HARD} */\n',
}


@pytest.mark.parametrize('name', FILES)
def test_text_is_counted_and_code_is_not(tmp_path, name):
    (tmp_path / name).write_text(FILES[name])
    hard, plain = sorted(sentences(tmp_path), key=lambda sentence: sentence.text)
    assert (hard.text.removesuffix(' */'), plain.text) == (HARD, PLAIN)
    assert (hard.num_pointing(), plain.num_pointing()) == (10, 0)
    assert measure([hard, plain]) == (round(100 * 10 / 23, 1), 50.0)


def test_all_limits_are_of_existing_folders():
    assert all(Path(ROOT, name).exists() for name in FOLDERS)
