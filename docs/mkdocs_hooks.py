"""Pages of the site for files at the root of the repository, and the navigation of two languages."""

import posixpath
import re
from copy import copy
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# Pages from files at the root. README is the home page.
PAGES = {
    'README.md': 'index.md',
    'README.zh-CN.md': 'zh_cn/index.md',
    'CHANGELOG.md': 'changelog.md',
    'CONTRIBUTING.md': 'contributing.md',
    'SECURITY.md': 'security.md',
    'CODE_OF_CONDUCT.md': 'code_of_conduct.md',
    'LICENSE': 'LICENSE.txt',
}
CHINESE = 'zh_cn/'
LINK = re.compile(r'(\]\(|src=")([^)#"\s]+)')


def on_config(config):
    """Append pages without an entry to the navigation."""
    named = str(config.nav)
    pages = [page.relative_to(ROOT / 'docs').as_posix() for page in sorted((ROOT / 'docs').rglob('*.md'))]
    others = [page for page in pages if f"'{page}'" not in named]
    if others:
        config.nav.append({'More': others})
    return config


def on_files(files: Files, config) -> Files:
    """Add a page for each file of `PAGES`."""
    for source, page in PAGES.items():
        content = (ROOT / source).read_text(encoding='utf-8')
        if page.endswith('.md'):
            content = with_links(content, source, page)
        files.append(File.generated(config, page, content=content))
    for notebook in sorted((ROOT / 'notebooks').glob('*.ipynb')):
        files.append(File.generated(config, f'notebooks/{notebook.name}', abs_src_path=str(notebook)))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Point links to files at the root to the pages of these files."""
    source = page.file.src_uri
    return markdown if source in PAGES.values() else with_links(markdown, f'docs/{source}', source)


def with_links(markdown: str, source: str, page: str) -> str:
    """Return the text of the file `source` with the links of the site's `page`."""

    def moved(link: re.Match) -> str:
        target = link[2]
        if '://' not in target:
            there = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
            target = posixpath.relpath(PAGES.get(there, there.removeprefix('docs/')), posixpath.dirname(page) or '.')
        return link[1] + target

    return LINK.sub(moved, markdown)


def on_page_context(context, page, config, nav):
    """Add the navigation of the page's language, and a switch to the twin page, or to the home page."""
    here = page.file.src_uri
    chinese = here.startswith(CHINESE)
    names = {one.file.src_uri: one.url for one in nav.pages}
    english = names.get(here.removeprefix(CHINESE), names['index.md'])
    other = names.get(CHINESE + here.removeprefix(CHINESE), names[f'{CHINESE}index.md'])
    config.extra['alternate'] = [
        {'name': 'English', 'lang': 'en', 'link': english},
        {'name': '简体中文', 'lang': 'zh', 'link': other},
    ]
    config.theme['language'] = 'zh' if chinese else 'en'
    context['nav'] = own = copy(nav)
    section = next(item for item in nav.items if item.title == '简体中文')
    own.items = section.children if chinese else [item for item in nav.items if item is not section]
    return context
