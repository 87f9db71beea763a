"""How Sphinx builds this documentation, with the pages that it makes from the code.

`make docs` builds the site into site/. It loads nothing from the network and opens from disk.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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


def fill_in(_: Sphinx, page: str, source: list[str]) -> None:
    """Replace a page that is made from something else: the file in docs/ only says what it is made from."""
    if page in GENERATED:
        source[0] = GENERATED[page]()


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
