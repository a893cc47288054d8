"""Write the pages of the shared options, in two languages, from the package's table: python docs/write_options.py."""

import argparse
import inspect
import os
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PAGES = {language: ROOT / 'docs' / language / 'reference' / 'options.md' for language in ('', 'zh_cn')}
HEAD = """# Options

This page is for users of the command line and of `load`: the options that several tools share, in the order of every
`--help`, and their names in Python. [Command lines](tools.md) has the tools. `python docs/write_options.py` writes the
page from `swin_backbone/options.py`, of which the command lines and the arguments of `load` and `Model.train` are made
too.

| option | in Python | value |
|---|---|---|
"""


def page(language: str) -> str:
    """Return the text of a page. The texts of another language are in the file `options.yml` beside the page."""
    from swin_backbone.options import OPTION_FIELDS
    from swin_backbone.workbench.model import Model, load

    helps = {name: field.metadata['settings']['help'] for name, field in OPTION_FIELDS.items()}
    texts = {name: re.sub('--[a-z-]+', r'`\g<0>`', text) for name, text in helps.items()}
    texts.update(head=HEAD, more='more')
    if language:
        texts = yaml.safe_load(PAGES[language].with_suffix('.yml').read_text(encoding='utf-8'))
    calls = {'load': inspect.signature(load).parameters, 'train': inspect.signature(Model.train).parameters}
    rows = []
    for name, field in OPTION_FIELDS.items():
        settings, see = field.metadata['settings'], field.metadata['see']
        if settings['help'] == argparse.SUPPRESS:
            continue
        choices = ', '.join(f'`{choice}`' for choice in settings.get('choices', ()))
        target, hash_sign, anchor = see.partition('#')
        own = ROOT / 'docs' / language / target
        link = os.path.relpath(own if own.is_file() else ROOT / 'docs' / target, PAGES[language].parent)
        link = f'[{texts["more"]}]({link}{hash_sign}{anchor})' if see else ''
        value = settings.get('metavar', 'NAME' if choices else '')
        words = [f'--{name}'.replace('_', '-'), *([value] if isinstance(value, str) else value)]
        python = ', '.join(f'`{call}({name}=...)`' for call, parameters in calls.items() if name in parameters)
        cells = (f'`{" ".join(filter(None, words))}`', python, '. '.join(filter(None, [texts[name], choices, link])))
        rows.append(f'| {" | ".join(cells)} |\n')
    return texts['head'] + ''.join(rows)


if __name__ == '__main__':
    sys.path.insert(0, str(ROOT))
    for language, path in PAGES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(language), encoding='utf-8')
