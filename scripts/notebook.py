#!/usr/bin/env python3
"""Executes the code cells of a notebook, in order, in this Python: no Jupyter is needed.

scripts/notebook.py FILE..           checks that every cell runs and shows what the file says; a cell that is tagged
                                     "varies" may show other text and other plots of the same kinds
scripts/notebook.py --write FILE..   stores what the cells show
"""

import argparse
import ast
import contextlib
import io
import json
import sys
import traceback

KINDS = {"image/svg+xml": "_repr_svg_", "text/html": "_repr_html_", "text/plain": "__repr__"}


def run_cell(source, name, namespace):
    """Runs a cell. Returns what it prints, and the value of its last expression."""
    tree = ast.parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        value = eval(compile(last, name, "eval"), namespace) if last else None
    return printed.getvalue(), value


def lines_of(text):
    return text.splitlines(keepends=True)


def outputs_of(printed, value, count):
    """As a notebook stores them."""
    outputs = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines_of(printed)})
    if value is not None:
        data = {kind: lines_of(getattr(value, method)()) for kind, method in KINDS.items() if hasattr(value, method)}
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def kinds_of(outputs):
    return [sorted(output.get("data", {"stream": None})) for output in outputs]


def execute(path, is_written):
    """Runs a notebook. Returns what is wrong with it, in words."""
    with open(path, encoding="utf-8") as file:
        notebook = json.load(file)
    namespace, wrong, count = {"__name__": "__main__"}, [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        name = f"{path}, cell {count}"
        try:
            outputs = outputs_of(*run_cell("".join(cell["source"]), name, namespace), count)
        except Exception:
            return [f"{name}:\n{traceback.format_exc()}"]
        varies = "varies" in cell["metadata"].get("tags", [])
        if not is_written and (kinds_of if varies else list)(outputs) != (kinds_of if varies else list)(
            cell["outputs"]
        ):
            wrong.append(f"{name} shows something else than the file says; --write stores it")
        cell["outputs"], cell["execution_count"] = outputs, count
    if is_written:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(notebook, file, indent=1, ensure_ascii=False)
            file.write("\n")
    if not wrong:
        print(f"{path}: {count} cells ran")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    wrong = [what for path in arguments.files for what in execute(path, arguments.write)]
    for what in wrong:
        print(what, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
