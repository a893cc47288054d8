"""What the site takes from outside `docs`: the files that a repository has at its root, as pages, and their links."""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# The pages that are made of files at the root; README is the home page, so that there is one.
PAGES = {
    'README.md': 'index.md',
    'CHANGELOG.md': 'changelog.md',
    'CONTRIBUTING.md': 'contributing.md',
    'SECURITY.md': 'security.md',
    'CODE_OF_CONDUCT.md': 'code_of_conduct.md',
    'LICENSE': 'LICENSE.txt',
}
LINK = re.compile(r'(\]\(|src=")([^)#"\s]+)')


def on_config(config):
    """A page that the navigation does not name stands at its end, so that no page is out of reach."""
    named = str(config.nav)
    others = [page.name for page in sorted((ROOT / 'docs').glob('*.md')) if f"'{page.name}'" not in named]
    if others:
        config.nav.append({'More': others})
    return config


def on_files(files: Files, config) -> Files:
    """Add a page for each file of `PAGES`."""
    for source, page in PAGES.items():
        content = (ROOT / source).read_text(encoding='utf-8')
        if page.endswith('.md'):
            content = LINK.sub(lambda link: link[1] + _from_root(link[2]), content)
        files.append(File.generated(config, page, content=content))
    for notebook in sorted((ROOT / 'notebooks').glob('*.ipynb')):
        files.append(File.generated(config, f'notebooks/{notebook.name}', abs_src_path=str(notebook)))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Links to files at the root lead to their pages."""
    return LINK.sub(lambda link: link[1] + _from_docs(link[2]), markdown)


def _from_root(target: str) -> str:
    return PAGES.get(target, target.removeprefix('docs/'))


def _from_docs(target: str) -> str:
    if not target.startswith('../'):
        return target
    target = target.removeprefix('../')
    return PAGES.get(target, target)
