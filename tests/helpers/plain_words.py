"""Count hard English in comments, docstrings and pages, and compare the counts with the limits.

    python tests/helpers/plain_words.py              check all folders of `FOLDERS`
    python tests/helpers/plain_words.py FOLDER...    print the hardest sentences

A pointing word stands for a thing instead of a name. A hard sentence has at least 2 pointing words more than 1 for
each 8 words. Sentences of less than 6 words do not count.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The most pointing words of 100, and the most percent of hard sentences, of each folder or file
MOST_POINTING, MOST_HARD = 6.5, 1.0
FOLDERS = (
    *('swin_backbone', 'csrc', 'tests', 'tools', 'configs', 'benchmarks', 'examples', 'docs'),
    *('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md'),
)
POINTING = {
    'it', 'its', 'that', 'what', 'whatever', 'which', 'whichever', 'who', 'whose', 'whom', 'this', 'these', 'those',
    'they', 'them', 'their', 'one', 'ones', 'none', 'other', 'others', 'another', 'so', 'such', 'same', 'both',
    'each', 'there', 'where', 'as', 'else', 'otherwise', 'said', 'says', 'wants', 'knows', 'asks', 'asked', 'told',
}  # fmt: skip
SUFFIXES = ('.py', '.md', '.h', '.cpp')
MOST_PRINTED = 40


class Sentence(NamedTuple):
    place: str
    text: str

    def words(self) -> list[str]:
        return re.findall(r"[a-z']+", self.text.lower())

    def num_pointing(self) -> int:
        return sum(word in POINTING for word in self.words())

    def score(self) -> float:
        return self.num_pointing() - len(self.words()) / 8


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers and texts: docstrings, runs of comments, or the paragraphs of a page."""
    source = path.read_text(encoding='utf-8')
    if path.suffix == '.py':
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(ast.parse(source)):
            docstring = ast.get_docstring(node) if isinstance(node, kinds) else None
            if docstring:
                yield node.body[0].lineno, docstring
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {token.start[0]: token.string.lstrip('# ') for token in tokens if token.type == tokenize.COMMENT}
        for line in comments:
            if line - 1 not in comments:
                end = next(number for number in range(line, sys.maxsize) if number not in comments)
                yield line, ' '.join(comments[number] for number in range(line, end))
    elif path.suffix == '.md':
        source = re.sub(r'^(```|~~~).*?^(```|~~~)', lambda code: '\n' * code[0].count('\n'), source, flags=re.S | re.M)
        source = re.sub(r'\]\([^)]*\)', ']', source)  # addresses of links
        source = re.sub(r'^\s*(#|\||<).*$', '', source, flags=re.M)  # headings, tables, HTML
        for paragraph in re.finditer(r'(?:.*\S.*\n?)+', source):
            yield source.count('\n', 0, paragraph.start()) + 1, paragraph[0]
    else:
        for comment in re.finditer(r'/\*.*?\*/|(?:^[ \t]*//[^\n]*\n)+|//[^\n]*', source, flags=re.S | re.M):
            text = re.sub(r'^\s*(//+|/?\*+/?)', ' ', comment[0], flags=re.M)
            yield source.count('\n', 0, comment.start()) + 1, text


def sentences(root: Path) -> list[Sentence]:
    """Return the sentences of a file, or of all files below a folder."""
    paths = sorted(path for path in root.rglob('*') if path.suffix in SUFFIXES) if root.is_dir() else [root]
    split = []
    for path in paths:
        for line, text in texts(path):
            text = re.sub(r'```.*?```', ' ', text, flags=re.S)
            text = re.sub(r'`[^`]*`', 'NAME', text)
            for block in re.split(r'\n\s*\n|\n\s*(?=[\w*]+ ?(?:\([^)]*\))?: )|\n\s*[-*] |>>>', text):
                parts = re.split(r'(?<=[.!?;])\s+(?=[A-Z`(])', ' '.join(block.split()))
                split += [Sentence(f'{path}:{line}', part) for part in parts]
    return [sentence for sentence in split if len(sentence.words()) >= 6]


def measure(found: list[Sentence]) -> tuple[float, float]:
    """Return pointing words of 100, and percent of hard sentences, to one decimal."""
    num_words = sum(len(sentence.words()) for sentence in found) or 1
    num_pointing = sum(sentence.num_pointing() for sentence in found)
    num_hard = sum(sentence.score() >= 2 for sentence in found)
    return round(100 * num_pointing / num_words, 1), round(100 * num_hard / (len(found) or 1), 1)


def main() -> int:
    status = 0
    for root in sys.argv[1:] or FOLDERS:
        counted = sentences(Path(root))
        pointing, hard = measure(counted)
        print(f'{root}: {pointing} of 100 words point, {hard} % of {len(counted)} sentences are hard')
        if not sys.argv[1:] and (pointing > MOST_POINTING or hard > MOST_HARD):
            status = 1
            print(f'  allowed: {MOST_POINTING} and {MOST_HARD} %; python tests/helpers/plain_words.py {root}')
        for sentence in sorted(counted, key=Sentence.score, reverse=True)[: MOST_PRINTED if sys.argv[1:] else 0]:
            print(f'{sentence.score():.1f} {sentence.place}: {sentence.text[:300]}')
    return status


if __name__ == '__main__':
    sys.exit(main())
