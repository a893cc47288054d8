"""Write docs/reference/api.md, the Python reference, from the docstrings of the package: python docs/write_api.py."""

import inspect
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / 'docs' / 'reference' / 'api.md'
HEAD = """# Python reference

This page is for users of `import swin_backbone`. `python docs/write_api.py` writes the page from the docstrings. The
tests run all examples.

## What is stable

A release that changes one of these has a new major version, and the [changelog](../../CHANGELOG.md) has the
replacement:

- the names of this page, with their arguments and results;
- arguments of the backbones in a config, and names and shapes of parameters in a checkpoint;
- [command lines](tools.md): names, options, exit statuses, and the files that they write;
- the folder of `tools/export.py`, and `swin_backbone/workbench/export/runtime.py`, which runs it.

Everything else may change in any release: modules and names that are not on this page, logged lines, the C interface
of the library, pictures and pages, and the last bits of results.
"""
SECTIONS = {
    'From a name to predictions': (
        *('load', 'Model', 'Model.train', 'Model.test', 'Model.report', 'Model.predict', 'Prediction'),
        *('Prediction.draw', 'Prediction.coco', 'Model.features', 'Model.export'),
    ),
    'Backbones': (
        *('SwinBackbone', 'SwinBackbone.forward', 'SwinBackbone.map_sizes', 'SwinV2Backbone', 'SwinMLPBackbone'),
        *('ARCHS', 'ARCHS_V2', 'ARCHS_MLP'),
    ),
    'Checkpoints': ('load_checkpoint', 'convert_checkpoint', 'checkpoints.LoadReport'),
    'Configs': (
        *('swap_backbone', 'SwinLayerDecayOptimizerConstructor', 'NonFiniteGuardHook'),
        *('accelerate', 'restore', 'AccelerateHook', 'mixed_precision', 'library_path'),
    ),
    'Looking inside': (
        *(
            'workbench.pictures.attention.attention_maps',
            'workbench.pictures.attention.AttentionMap',
            'workbench.pictures.attention.AttentionMap.of_token',
        ),
        *('workbench.pictures.attention.AttentionMap.number_of', 'workbench.pictures.cam.reshape_transform'),
    ),
}
WIDTH = 100  # of a signature on one line
QUOTE = "'"


def find(name: str) -> Any:
    """Return the object of a dotted name below the package."""
    package = import_module('swin_backbone')
    there: Any = sys.modules[package.Model.__module__] if name.startswith('Prediction') else package
    for part in name.split('.'):
        there = getattr(there, part) if hasattr(there, part) else import_module(f'{there.__name__}.{part}')
    return there


def signature(name: str, there: Any) -> str:
    """Return the call of a function or class, with types and defaults."""
    call = inspect.signature(there)
    parts: list[str] = []
    for parameter in call.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and '*' not in parts:
            parts.append('*')
        if parameter.name != 'self':
            # `str` writes quotes around the annotations of a file with `from __future__ import annotations`
            parts.append(re.sub(r": '(.+?)'(?= = |$)", r': \1', str(parameter)))
    returned = '' if isinstance(there, type) else f' -> {inspect.formatannotation(call.return_annotation).strip(QUOTE)}'
    line = f'{name}({", ".join(parts)}){returned}'
    if len(line) > WIDTH:
        line = '\n'.join([f'{name}(', *(f'    {part},' for part in parts), f'){returned}'])
    line = re.sub(r'~\w+', 'Module', line)  # a type variable
    line = re.sub(r'\b(?:\w+\.)+(?=[A-Z])', '', line.removeprefix(name))  # modules of types
    return f'```py\n{name}{line}\n```\n'


def items(body: str) -> list[str]:
    """Return the entries of a section, each on a line."""
    return re.sub(r'\n +', ' ', textwrap.dedent(body).strip()).splitlines()


def markdown(docstring: str) -> str:
    """Return a docstring of Google's style in Markdown."""
    text, *sections = re.split(r'^(Args|Attributes|Returns|Raises|Examples):\n', docstring, flags=re.M)
    parts = [text.strip()]
    for title, body in zip(sections[::2], sections[1::2]):
        if title == 'Examples':
            parts.append(f'```pycon\n{textwrap.dedent(body).strip()}\n```')
        elif title == 'Returns':
            parts.append(f'**Returns:** {" ".join(body.split())}')
        else:
            entries = (entry.partition(': ') for entry in items(body))
            parts.append(f'**{title.replace("Args", "Arguments")}:**')
            parts.append('\n'.join(f'- `{entry}`: {meaning}' for entry, _, meaning in entries))
    return re.sub(r'docs/(\w+/(\w+)\.md)', r'[\2](../\1)', '\n\n'.join(parts)) + '\n'


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f'## {title}\n')
        for name in names:
            there = find(name)
            parts.append(f'### {name}\n')
            if isinstance(there, dict):
                parts.append(f'The sizes: {", ".join(f"`{key}`" for key in there)}.\n')
                continue
            docstring = inspect.getdoc(there) or ''
            if not isinstance(there, type) or 'Args:' in docstring:
                parts.append(signature(name, there))
            parts.append(markdown(docstring))
    return '\n'.join(parts)


if __name__ == '__main__':
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding='utf-8')
