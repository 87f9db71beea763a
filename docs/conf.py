"""How Sphinx builds this documentation, with the pages that it makes from the code.

`make docs` builds the site into site/. It loads nothing from the network and opens from disk.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import matplotlib
import matplotlib.pyplot as plt
import typer.main
from sphinx.application import Sphinx

import cnfgnn
from cnfgnn.cli.main import app as command_line
from cnfgnn.config.settings import settings_table
from cnfgnn.config.toml import toml_value
from cnfgnn.exit_codes import EXIT_CODES

ROOT = Path(__file__).parents[1]

project = "cnfgnn"
author = "The cnfgnn developers"
copyright = author
version = release = cnfgnn.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["figures"]
highlight_language = "none"  # unless a block names one
default_role = "code"  # docstrings write code in single backticks

myst_heading_anchors = 4  # links to headings are checked
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_default_options = {"undoc-members": True}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"cnfgnn {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-docstring", keep_columns)


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace a page that is made from something else: the file in docs/ only says what it is made from."""
    if page in GENERATED:
        source[0] = GENERATED[page]()
    if page in NOTEBOOKS:
        source[0] = notebook_page(page, NOTEBOOKS[page], Path(app.outdir))


def keep_columns(
    _app: Sphinx, _what: str, _name: str, _thing: object, _options: object, lines: list[str]
) -> None:
    """Show a paragraph that is laid out in columns, such as fields with their shapes, as it stands."""
    paragraphs = [text.split("\n") for text in re.split(r"\n\s*\n", "\n".join(lines))]
    shown: list[str] = []
    for paragraph in paragraphs:
        in_columns = [line for line in paragraph if re.search(r"\S {2,}\S", line)]
        if len(in_columns) >= 2:
            shown += ["::", "", *(f"    {line}" for line in paragraph), ""]
        else:
            shown += [*paragraph, ""]
    lines[:] = shown


def from_the_root(name: str) -> str:
    """A page at the top of the repository, with its links as they are from docs/."""
    text = (ROOT / f"{name}.md").read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\]\((CONTRIBUTING|SECURITY|CHANGELOG)\.md", lambda m: f"]({m[1].lower()}.md", text)


# ---- settings ---------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A setting as the page shows it."""

    key: str
    kind: str
    default: str
    meaning: str


def settings_page() -> str:
    """Every setting with its type, default and meaning, a table per section."""
    lines = [
        "# Settings",
        "",
        "Set one on the command line with `--set training.rounds=3`, several in a TOML file with `--config`,"
        ' or in Python with `cnfgnn.fit(data, "cnfgnn", training__rounds=3)`. `cnfgnn settings` prints the'
        " values that a method uses. The defaults below are those of `Config()`; the presets of the methods"
        " change some of them.",
    ]
    section = None
    for row in setting_rows():
        of_row = row.key.rpartition(".")[0]
        if of_row != section:
            section = of_row
            lines += ["", f"## `{section}`" if section else "## Top level", ""]
            lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
        lines.append(f"| `{row.key}` | {row.kind} | `{row.default}` | {escaped(row.meaning)} |")
    return "\n".join(lines) + "\n"


def setting_rows() -> list[Row]:
    rows = []
    for declared in settings_table(include_hidden=True):
        kind = ", ".join(f"`{choice}`" for choice in declared.choices) or declared.type_name
        if declared.range and not declared.choices:
            kind += f", {declared.range}"
        rows.append(Row(declared.key, kind, toml_value(declared.default), declared.help))
    return rows


# ---- notebooks --------------------------------------------------------------------------------------------

NOTEBOOKS: Mapping[str, Path] = {
    "own-data": ROOT / "examples" / "own_data.py",
    "comparing-methods": ROOT / "examples" / "comparing_methods.py",
    "what-a-server-sees": ROOT / "examples" / "what_a_server_sees.py",
}


class Cell(NamedTuple):
    """A part of a script in the percent format, which editors open as a notebook."""

    kind: str
    text: str


def cells(script: Path) -> list[Cell]:
    found = []
    for part in re.split(r"^# %%", script.read_text(), flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            found.append(Cell("markdown", re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            found.append(Cell("code", body.strip()))
    return found


def notebook_page(page: str, script: Path, site: Path) -> str:
    """A script with what it prints and draws: it is run for this. The site also has it as a notebook."""
    matplotlib.use("Agg")
    pictures, lines, names = site / "_images", list[str](), {"__name__": "__main__"}
    pictures.mkdir(parents=True, exist_ok=True)

    def show() -> None:
        picture = f"{page}-{len(plt.get_fignums())}-{len(lines)}.png"
        plt.savefig(pictures / picture, dpi=110, bbox_inches="tight")
        plt.close("all")
        shown.append(f'<img src="_images/{picture}" alt="the figure that this code draws">')

    for kind, text in cells(script):
        if kind == "markdown":
            lines += [text, ""]
            continue
        printed, shown = io.StringIO(), list[str]()
        with contextlib.redirect_stdout(printed), mock.patch.object(plt, "show", show):
            exec(compile(text, str(script), "exec"), names)
        lines += ["```python", text, "```", ""]
        if printed.getvalue():
            lines += ["```text", printed.getvalue().rstrip(), "```", ""]
        lines += [*shown, ""]
    file = site / "notebooks" / f"{script.stem}.ipynb"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(as_notebook(cells(script)), indent=1))
    download = f'<a href="notebooks/{file.name}" download>a Jupyter notebook</a>'
    return "\n".join([*lines, f"This page is `examples/{script.name}`, run; here it is as {download}.", ""])


def as_notebook(found: list[Cell]) -> dict[str, Any]:
    """The same as a file that Jupyter opens."""
    outputs: Mapping[str, Any] = {"outputs": [], "execution_count": None}
    made = [
        {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}, "source": cell.text}
        | (outputs if cell.kind == "code" else {})
        for number, cell in enumerate(found)
    ]
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


# ---- exit codes and commands ------------------------------------------------------------------------------


def exit_codes_page() -> str:
    lines = ["# Exit codes", "", "Errors are one sentence on stderr; the exit code says what kind it is.", ""]
    lines += ["| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {escaped(meaning)} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def commands_page() -> str:
    """The help of every command, as `cnfgnn COMMAND --help` shows it, as Markdown."""
    lines = ["# Commands", "", "The same text as `cnfgnn COMMAND --help`."]
    for name, command in leaves("cnfgnn", typer.main.get_command(command_line)):
        lines += ["", f"## `{name}`", "", inspect.cleandoc(command.help or "")]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        shown = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments]
        usage = " ".join([name, *shown])
        lines += ["", "```", f"{usage} [OPTIONS]" if options else usage, "```"]
        if arguments or options:
            lines += ["", "| argument or option | meaning |", "|---|---|"]
            lines += [f"| `{p.name.upper()}` | {escaped(p.help or '')} |" for p in arguments]
            lines += [f"| `{p.opts[0]}` | {escaped(p.help or '')} |" for p in options]
    return "\n".join(lines) + "\n"


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands below a group, by their full names."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for child, below in sorted(command.commands.items()):
        yield from leaves(f"{name} {child}", below)


GENERATED: Mapping[str, Callable[[], str]] = {
    "settings": settings_page,
    "exit-codes": exit_codes_page,
    "commands": commands_page,
    "contributing": lambda: from_the_root("CONTRIBUTING"),
    "security": lambda: from_the_root("SECURITY"),
    "changelog": lambda: from_the_root("CHANGELOG"),
}
