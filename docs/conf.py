"""Sphinx: `make docs` builds this folder into build/docs. Nothing is fetched; every warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# our extensions; farm itself, whose code the reference is made of
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from farm import RELEASE, __version__  # noqa: E402

project = "farm"
author = "the authors of farm"
copyright = "the authors of farm, Apache-2.0"  # noqa: A001 (Sphinx's name)
version = release = RELEASE  # man/farm.1 is in the repository, and has no commit of its own

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference", "glossary_links"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext"]
root_doc = "index"
smartquotes = False  # `--option` in running text stays what it is
nitpicky = True
# Types of Python's own library and of TVM: their documents are on the net, which a build never asks.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_heading_anchors = 4  # as GitHub numbers them: links work there and here
myst_enable_extensions = ["colon_fence", "deflist"]
suppress_warnings = ["myst.header"]  # generated parts go deeper at once

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"farm {__version__}"
html_static_path = ["_static"]
html_css_files = ["farm.css"]
html_show_sourcelink = False
html_copy_source = False
# furo asks no server for fonts: the reader's own.
html_theme_options = {
    "light_css_variables": {"font-stack": "system-ui, sans-serif", "font-stack--monospace": "ui-monospace, monospace"},
    "dark_css_variables": {"font-stack": "system-ui, sans-serif", "font-stack--monospace": "ui-monospace, monospace"},
}

# `make man` writes man/farm.1 from the page of commands; a fixed date, so that the same commands give the same bytes.
today = "2026-11-22"
man_pages = [("reference-cli", "farm", "Android phones on a Linux host as a measurement lab for ML compilers", [], 1)]
