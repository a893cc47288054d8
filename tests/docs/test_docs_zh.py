"""Chinese pages have the code, tables, links and names of the English pages, section by section."""

import os
import re
from itertools import zip_longest
from pathlib import Path

import pytest
from helpers import ROOT
from test_site import FENCE, anchors

TWINS = ROOT / 'docs' / 'zh_cn'
CHINESE = {
    ROOT / 'README.md': ROOT / 'README.zh-CN.md',
    **{ROOT / 'docs' / page.relative_to(TWINS): page for page in sorted(TWINS.rglob('*.md'))},
}
each = pytest.mark.parametrize('english', CHINESE, ids=lambda page: page.name)

LANGUAGES = re.compile(r'\A# .+\n\n.*(?:简体中文|English).*\n')
COMMENT = re.compile(r'(^|\s)(#|//)\s')


def sections(page):
    """Return the sections of a page, without the links between languages."""
    text = LANGUAGES.sub(lambda found: found[0].partition('\n')[0] + '\n', page.read_text(encoding='utf-8'))
    hidden = FENCE.sub(lambda block: re.sub('^#', '\0', block[0], flags=re.M), text)
    return [part.replace('\0', '#') for part in re.split(r'^(?=#+ )', hidden, flags=re.M)]


def pairs(english):
    """Return pairs of sections of both pages, with the heading as test id."""
    ours, theirs = sections(CHINESE[english]), sections(english)
    levels = [[re.match('#*', part)[0] for part in page] for page in (ours, theirs)]
    assert levels[0] == levels[1], f'{english.name}: other headings'
    return [(part.partition('\n')[0], part, own) for part, own in zip(theirs, ours)]


def blocks(section):
    return [(block[2], block[3].splitlines()) for block in FENCE.finditer(section)]


def is_translation(line, own, language):
    """Whether two lines of code are equal, but for the language of a comment at their end."""
    chinese = re.search(r'[^\x00-\x7f]', own)
    if line == own or not chinese:
        return line == own
    if not language:  # a listing with comments
        code = own[: chinese.start()]
        return code.endswith('   ') and line.startswith(code)
    comment = COMMENT.search(own)
    return bool(comment) and comment.start() < chinese.start() and line.startswith(own[: comment.end()])


@each
def test_code_is_the_same(english):
    for heading, part, own in pairs(english):
        for block, own_block in zip_longest(blocks(part), blocks(own)):
            assert own_block is not None, f'{heading}: this block is missing: {block}'
            assert block is not None, f'{heading}: this block is not in English: {own_block}'
            assert block[0] == own_block[0], heading
            for line, own_line in zip_longest(block[1], own_block[1]):
                assert is_translation(line or '', own_line or '', block[0]), f'{heading}:\n{line}\n{own_line}'


def cells(section):
    """Return the table rows of a section: the code names and numbers of each cell."""
    rows = [line.strip('|').split('|') for line in FENCE.sub('', section).splitlines() if line.startswith('|')]
    return [[names(cell) + numbers(cell) for cell in row] for row in rows]


def names(text):
    return sorted(' '.join(name.split()) for name in re.findall(r'`([^`]+)`', text))


def numbers(text):
    return sorted(re.findall(r'\d+(?:\.\d+)?', re.sub(r'`[^`]+`|\]\([^)]*\)', '', text)))


@each
def test_tables_have_the_same_rows_columns_names_and_numbers(english):
    for heading, part, own in pairs(english):
        for row, own_row in zip_longest(cells(part), cells(own)):
            assert row == own_row, heading


@each
def test_the_same_names_stand_in_each_section(english):
    for heading, part, own in pairs(english):
        assert names(FENCE.sub('', part)) == names(FENCE.sub('', own)), heading


def links(section, page):
    """Return the link targets of a section."""
    found = re.findall(r'\]\(([^)\s]+)\)', FENCE.sub('', section))
    return [link if '://' in link else resolved(link, page) for link in found]


def resolved(link, page):
    path, _, anchor = link.partition('#')
    return Path(os.path.normpath(page.parent / path)) if path else page, anchor


def translated(link):
    """Return the Chinese page and heading for an English link target, if a Chinese page exists."""
    if isinstance(link, str) or link[0] not in CHINESE:
        return link
    page, anchor = link
    if not anchor:
        return CHINESE[page], ''
    return CHINESE[page], anchors(CHINESE[page])[anchors(page).index(anchor)]


@each
def test_links_lead_to_the_same_places(english):
    for heading, part, own in pairs(english):
        expected = [translated(link) for link in links(part, english)]
        assert sorted(map(str, links(own, CHINESE[english]))) == sorted(map(str, expected)), heading


def test_the_pages_of_both_languages_lead_to_one_another():
    assert '[简体中文](README.zh-CN.md)' in (ROOT / 'README.md').read_text(encoding='utf-8')
    assert '[English](README.md)' in (ROOT / 'README.zh-CN.md').read_text(encoding='utf-8')
    nav = (ROOT / 'mkdocs.yml').read_text(encoding='utf-8')
    for page in CHINESE.values():
        assert page.parent == ROOT or f': zh_cn/{page.relative_to(TWINS).as_posix()}' in nav
