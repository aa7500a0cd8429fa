#!/usr/bin/env python3
"""Writes docs/api.md, the reference of the public API, from the headers in include/switchyard/.

Usage: scripts/api_reference.py [--write]

Without --write the script compares the page with the headers, prints the names by which they differ, and exits with 1 if
they do. A test does the same (tests/house/api_reference_test.py), so the page cannot drift from the headers.

The page holds, for each header, its opening comment and what it declares: classes and structs with their public members,
enums with their enumerators, concepts with what they ask for, functions, constants, aliases and macros, each with its
comment. Of a member the first sentence is taken. Declarations without a comment are listed too. The parser knows the part of C++ in which the
public headers are written, formatted by clang-format; it is not a compiler.
"""
import argparse
import dataclasses
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include" / "switchyard"
PAGE = ROOT / "docs" / "api.md"
WIDTH = 120
TOPIC = r"(Ownership|Streams?|Flights|Sends that return|Threads|Errors|Lifetimes?|Validity)[:.] "  # of the contract of a class

OPENING = """# The public API

What an application may include, and what each header declares. The headers in `include/switchyard/` are contracts, one for
each thing that an application makes or calls. The headers in `include/switchyard/types/` hold the values and the concepts
that the contracts name; each comes with a contract, so nobody has to include one. The headers in
`include/switchyard/detail/` are installed because kernels are templates; they may change with any version.

This page is written by `scripts/api_reference.py --write` from the comments of the headers. Change those, not the page:
a test compares the two."""


@dataclasses.dataclass
class Declaration:
    comment: str  # paragraphs, with a newline between two; a paragraph that begins with two spaces is an example
    text: str  # up to the body or the semicolon
    body: str  # between the braces; empty: there are none
    source: str = ""  # as it stands in the header, of a concept


# Reading


def comment_text(lines):
    """The paragraphs of a block of // lines. An indented line behind an empty one is code; a topic opens a paragraph."""
    paragraphs, is_open = [], False
    for line in lines:
        text = re.sub(r"^//\s?", "", line.strip())
        if not text.strip():
            is_open = False
        elif is_open:
            paragraphs[-1] += " " + text.strip()
        else:
            is_open = not text.startswith("  ")
            paragraphs.append(text.strip() if is_open else text.rstrip())
    return "\n".join(re.sub(rf"(?<=[.:)]) (?={TOPIC})", "\n", paragraph) for paragraph in paragraphs)


def end_of(pair, text, begin):
    """The position behind the bracket that closes the one at `begin`; pair is "()" or "{}"."""
    depth = 0
    for i in range(begin, len(text)):
        depth += {pair[0]: 1, pair[1]: -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    raise ValueError(f"a bracket is not closed: {text[begin:begin + 60]!r}")


def without_template(text):
    return re.sub(r"^template\s*<.*?>\s*(?=\w)", "", text, flags=re.S)


def is_type(text):
    return re.match(r"(class|struct|enum|union)\b", without_template(text)) is not None


def has_body(text):
    """Whether a brace after `text` opens a body and not an initialiser."""
    plain = without_template(text)
    if re.search(r"\) : .*\w$", plain, re.S):  # of a member, in a constructor; clang-format puts a space before a body
        return False
    return is_type(text) or plain.startswith("namespace") or ("(" in plain and not plain.startswith("concept"))


def trailing_comment(text, i):
    """The comment behind position i on its line, with the lines below that continue it in its column, and their end."""
    match = re.compile(r"[ \t]*(//[^\n]*)").match(text, i)
    if match is None:
        return [], i
    lines, end = [match.group(1)], match.end()
    column = match.start(1) - (text.rfind("\n", 0, match.start(1)) + 1)
    while continued := re.compile(r"\n {%d}(//[^\n]*)" % column).match(text, end):
        lines.append(continued.group(1))
        end = continued.end()
    return [] if "NOLINT" in lines[0] else lines, end


def declarations(text, separator=";"):
    """The declarations of a namespace, a class (separated by ';') or an enum (by ',')."""
    found, comment, code, begin, i = [], [], "", 0, 0

    def finish(body, end):
        nonlocal comment, code
        code_end = end
        behind, end = trailing_comment(text, end)
        if code.strip():
            tidy = re.sub(r"\s+", " ", code.strip()).replace("( ", "(")
            source = text[begin:code_end].strip() if kind_of(tidy) == "concept" else ""
            found.append(Declaration(comment_text(behind or comment), tidy, body, source))
        comment, code = [], ""
        return end

    while i < len(text):
        if not code.strip():
            begin = i
        if not code.strip() and (match := re.compile(r"\s*(//[^\n]*)\n?").match(text, i)):
            comment.append(match.group(1))
            i = match.end()
            if re.compile(r"[ \t]*\n").match(text, i):  # a blank line: a comment of its own
                comment = []
        elif not code.strip() and (match := re.compile(r"\s*#(?:[^\n]*\\\n)*[^\n]*").match(text, i)):
            if macro := re.match(r"\s*#\s*define\s+(\w+(?:\([^)]*\))?)", match.group(0)):
                found.append(Declaration(comment_text(comment), "#define " + macro.group(1), ""))
            comment, i = [], match.end()
        elif not code.strip() and (match := re.compile(r"\s*(public|private|protected)\s*:").match(text, i)):
            found.append(Declaration("", match.group(1) + ":", ""))
            comment, i = [], match.end()
        elif text.startswith("//", i):
            i = text.find("\n", i)
        elif text[i] == "(":
            end = end_of("()", text, i)
            code += re.sub(r"//[^\n]*", "", text[i:end])
            i = end
        elif text[i] == "{" and has_body(code.lstrip()):
            end = end_of("{}", text, i)
            closing = re.compile(r"\s*;").match(text, end) if is_type(code.strip()) else None
            i = finish(text[i + 1:end - 1] or " ", closing.end() if closing else end)
        elif text[i] == "{":
            end = end_of("{}", text, i)
            code += text[i:end]
            i = end
        elif text[i] == separator:
            i = finish("", i + 1)
        else:
            code += text[i]
            i += 1
    if separator == ",":
        finish("", len(text))
    return found


# What is public


def without_default(text):
    """The text before an initialiser, and the initialiser."""
    depth = 0
    for i, c in enumerate(text):
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(c, 0)
        if c == "=" and depth == 0 and text[i:i + 2] != "==" and "operator" not in text[:i]:
            return text[:i].strip(), text[i + 1:].strip()
    return text, ""


def signature(text):
    """A function without attributes and the initialisers of a constructor."""
    text = re.sub(r"\[\[.*?\]\]\s*", "", text)
    text = re.sub(r"\b(SWITCHYARD_\w+|inline)\s+", "", text)
    return re.sub(r"\) : .*", ")", text).strip()


def name_of(text):
    """The name that a declaration declares."""
    plain = re.sub(r"\[\[.*?\]\]\s*|alignas\(.*?\)\s*", "", without_template(text))
    if match := re.match(r"(?:#define|class|struct|enum class|enum|union|concept|using)\s+(\w+)", plain):
        return match.group(1)
    if match := re.search(r"(~?\w+|operator\s*\S+?)\s*\(", signature(plain)):
        return match.group(1)
    return re.search(r"(\w+)$", re.sub(r"\[[^\]]*\]|\{.*", "", without_default(plain)[0]).strip()).group(1)


def kind_of(text):
    plain = without_template(text)
    for kind in ("namespace", "class", "struct", "enum", "concept", "using", "#define"):
        if plain.startswith(kind + " "):
            return kind
    return "function" if "(" in without_default(signature(text))[0] else "variable"


def is_left_out(declaration, owner=""):
    """Forward declarations, assertions, friends, and what every class `owner` has: moves, copies, a destructor."""
    text = declaration.text
    if re.match(r"static_assert|friend|extern|typedef", text) or re.search(r"= (delete|default)$", text):
        return True
    if is_type(text) and not declaration.body:
        return True
    special = rf"~{owner}\(|(explicit )?{owner}\((const )?{owner}(<.*>)?\s?&|.*operator=\("
    return owner != "" and re.match(special, signature(text)) is not None


def public_members(declaration):
    is_public, members = kind_of(declaration.text) == "struct", []
    for member in declarations(declaration.body):
        if member.text in ("public:", "private:", "protected:"):
            is_public = member.text == "public:"
        elif is_public and not is_left_out(member, name_of(declaration.text)):
            members.append(member)
    return members


def public_declarations(text):
    """Everything in the namespaces of a header, and its macros."""
    found = []
    for declaration in declarations(text):
        if kind_of(declaration.text) == "namespace":
            found += public_declarations(declaration.body)
        elif not is_left_out(declaration):
            found.append(declaration)
    return found


# Writing


def first_sentence(comment):
    text = " ".join(line for line in comment.split("\n") if not line.startswith("  "))
    return re.split(r"(?<=[.])\s+(?=[A-Z`\[])", text, maxsplit=1)[0]


def escaped(text):
    """Prose in which no < opens an HTML tag; code between backticks is left alone."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("<", "\\<") for i, part in enumerate(parts))


def wrapped(text, indent=""):
    text = escaped(text)
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def paragraphs_of(comment):
    """A whole comment: examples become code, and the topics of a contract a list."""
    lines, previous = [], ""
    for paragraph in comment.split("\n"):
        kind = "text"
        if paragraph.startswith("  "):
            kind, shown = "code", "  " + paragraph
        elif topic := re.match(TOPIC, paragraph):
            kind, shown = "item", wrapped(f"- **{topic.group(1)}**: {paragraph[topic.end():]}", "  ")
        else:
            shown = wrapped(paragraph)
        if lines and (kind == "text" or kind != previous):
            lines.append("")
        lines.append(shown)
        previous = kind
    return "\n".join(lines)


def row_of(declaration):
    """A declaration as a table shows it, and the first sentence of its comment."""
    kind, text = kind_of(declaration.text), declaration.text
    if kind == "enum":
        text += " { " + ", ".join(value.text for value in declarations(declaration.body, ",")) + " }"
    elif kind == "struct":
        text += " { " + " ".join(f"{member.text};" for member in public_members(declaration)) + " }"
    elif kind == "function":
        text = signature(text)
    return text, first_sentence(declaration.comment)


def table(rows):
    def cell(text):
        return text.replace("|", "\\|")

    lines = [f"| `{cell(left)}` | {cell(escaped(right))} |" for left, right in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def members_of(declaration):
    """The members of a class or struct, or the enumerators of an enum; a mere list where none has a comment."""
    if not declaration.body.strip():
        return ""
    if kind_of(declaration.text) != "enum":
        return table([row_of(member) for member in public_members(declaration)])
    values = declarations(declaration.body, ",")
    if any(value.comment for value in values):
        return table([(value.text, first_sentence(value.comment)) for value in values])
    return wrapped("Enumerators: " + ", ".join(f"`{value.text}`" for value in values) + ".")


def section_of(declaration):
    title = re.sub(r"\[\[.*?\]\] ?|alignas\(.*?\) ?| : .*", "", declaration.text)
    parts = [f"### `{title}`", paragraphs_of(declaration.comment), members_of(declaration)]
    return "\n\n".join(part for part in parts if part)


def section_of_concept(declaration):
    parts = [f"### `concept {name_of(declaration.text)}`", paragraphs_of(declaration.comment),
             f"```cpp\n{declaration.source}\n```"]
    return "\n\n".join(part for part in parts if part)


def opening_of(text):
    lines = []
    for line in text.split("\n"):
        if not line.startswith("//"):
            break
        lines.append(line)
    return comment_text(lines)


def has_section(declaration):
    return is_type(declaration.text) or kind_of(declaration.text) == "concept"


def section_of_header(name, text):
    parts = [f"## {name}", paragraphs_of(opening_of(text))]
    found = public_declarations(re.sub(r"^(//[^\n]*\n)*", "", text))
    sections = [section_of(declaration) if is_type(declaration.text) else section_of_concept(declaration)
                for declaration in found if has_section(declaration)]
    others = [declaration for declaration in found if not has_section(declaration)]
    parts += sections
    if sections and others:
        parts.append("### Functions, constants, macros")
    if others:
        parts.append(table([row_of(declaration) for declaration in others]))
    return "\n\n".join(part for part in parts if part)


def public_headers():
    """The contracts, and the headers that come with them."""
    return sorted(HEADERS.glob("*.hpp")), sorted(HEADERS.glob("types/*.hpp"))


def title_of(path):
    return str(path.relative_to(HEADERS))


def links_to(paths):
    return ", ".join(f"[{title_of(path)}](#{re.sub('[^a-z0-9_]', '', title_of(path))})" for path in paths)


def page():
    contracts, types = public_headers()
    lists = [wrapped(f"Contracts: {links_to(contracts)}.")]
    if types:
        lists.append(wrapped(f"Types: {links_to(types)}."))
    sections = [section_of_header(title_of(path), path.read_text()) for path in contracts + types]
    return "\n\n".join([OPENING, *lists, *sections]) + "\n"


def differences(text):
    """What the page `text` lacks of the headers, or has beyond them: a line for each."""
    wanted, has = page().splitlines(), text.splitlines()
    found = [f"missing: {line}" for line in wanted if line not in has]
    found += [f"no longer in a header: {line}" for line in has if line not in wanted]
    return found or ([] if wanted == has else ["the lines are in another order than those of the headers"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/api.md")
    if parser.parse_args().write:
        PAGE.write_text(page())
        return 0
    found = differences(PAGE.read_text() if PAGE.exists() else "")
    print("\n".join(found) or "docs/api.md says what the headers say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
