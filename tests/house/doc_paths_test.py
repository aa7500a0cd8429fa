#!/usr/bin/env python3
"""Every file, folder, heading and commit that the documentation points at is there.

Links are checked in all pages. Names of files in code (`ep/layout.hpp`) are checked where a page describes the present; the
changelog and the journal describe the past. Commits are checked in all pages, where the whole history is there: a number
whose commit was lost in a rebase cannot be repeated.
"""
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
HISTORIES = ["CHANGELOG.md", "docs/journal/"]
# Where a name in code may begin.
FOLDERS = ["", "include/switchyard", "include/switchyard/detail", "src", "tools", "docs"]
# Names of what is not kept.
EXCEPTIONS = ["build/", "build/unchecked/", "build/host/"]
# Where the project's history begins. A checkout that does not reach it has another history, such as that of an import.
FIRST_COMMIT = "8e5aa477a194185c68b8f2f813a3e35224cb2f8e"
# Commits of other projects: DeepEP, SGLang, vLLM, FlashAttention, DeepGEMM.
COMMITS_ELSEWHERE = ["29d31c0", "cce0a1244b5", "a014e35f38c", "0251105a", "54e2261"]

CODE_PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:hpp|cpp|cuh|cu|py|sh|md|svg))?)`")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
# With a digit and a letter: neither a plain number nor a word. Numbers such as 0xff or 1e-36 have other characters beside them.
COMMIT = re.compile(r"(?<![\w.#/-])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,40}(?![\w/-])")


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


def git(*arguments):
    """What git says about the project; None if it is no checkout, or there is no git."""
    try:
        answer = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def all_commits():
    """The commits that led here; None in a tarball, a shallow clone or an import, and inside another project's checkout."""
    commits = (git("rev-list", "HEAD") or "").split()
    return commits if FIRST_COMMIT in commits else None


def missing_commits(page, commits):
    for commit in sorted(set(COMMIT.findall(page.read_text())) - set(COMMITS_ELSEWHERE)):
        if not any(known.startswith(commit) for known in commits):
            yield f"{page.relative_to(ROOT)}: commit {commit} is not in the history"


class DocPaths(unittest.TestCase):
    maxDiff = None

    def test_links_lead_to_a_page_and_a_heading(self):
        self.assertEqual([link for page in PAGES for link in broken_links(page)], [])

    def test_files_and_folders_that_are_named_exist(self):
        self.assertEqual([path for page in PAGES if not is_history(page) for path in missing_paths(page)], [])

    def test_commits_that_are_named_are_in_the_history(self):
        commits = all_commits()
        if commits is None:
            self.skipTest("the history is not here, or not all of it")
        self.assertEqual([commit for page in PAGES for commit in missing_commits(page, commits)], [])


if __name__ == "__main__":
    unittest.main()
