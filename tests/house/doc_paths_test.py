#!/usr/bin/env python3
"""Every file, folder and heading that the documentation points at is there.

Links are checked in all pages. Names of files in code (`ep/layout.hpp`) are checked where a page describes the present; the
changelog and the journal describe the past.
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
HISTORIES = ["CHANGELOG.md", "docs/journal/"]
# Where a name in code may begin.
FOLDERS = ["", "include/switchyard", "include/switchyard/detail", "src", "tools", "docs"]
# Names of what is not there yet, or not kept.
EXCEPTIONS = ["transport/", "build/", "build/unchecked/", "build/host/"]

CODE_PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:hpp|cpp|cuh|cu|py|sh|md|svg))?)`")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


def anchors_of(text):
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_history(page):
    return str(page.relative_to(ROOT)).startswith(tuple(HISTORIES))


def broken_links(page):
    for match in LINK.finditer(page.read_text()):
        file, anchor = match.groups()
        if re.match(r"\w+:", file):
            continue
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: {file} is not there"
        elif anchor and anchor[1:] not in anchors_of(target.read_text()):
            yield f"{page.relative_to(ROOT)}: {file} has no heading {anchor}"


def missing_paths(page):
    for path in sorted(set(CODE_PATH.findall(page.read_text()))):
        if path not in EXCEPTIONS and not any((ROOT / folder / path).exists() for folder in FOLDERS):
            yield f"{page.relative_to(ROOT)}: {path} is not there"


class DocPaths(unittest.TestCase):
    maxDiff = None

    def test_links_lead_to_a_page_and_a_heading(self):
        self.assertEqual([link for page in PAGES for link in broken_links(page)], [])

    def test_files_and_folders_that_are_named_exist(self):
        self.assertEqual([path for page in PAGES if not is_history(page) for path in missing_paths(page)], [])


if __name__ == "__main__":
    unittest.main()
