"""Sphinx configuration; ``make docs`` builds with warnings as errors."""

import re

import cyconv

project = "cyconv"
author = "The cyconv developers"
copyright = "2026, The cyconv developers"
version = release = cyconv.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
# cyconv.config is another page, also where file names ignore case.
autosummary_filename_map = {"cyconv.Config": "cyconv.Config-settings"}
autodoc_typehints = "none"
numpydoc_show_class_members = False
# Summary, form and parameters, which every public docstring must have.
numpydoc_validation_checks = {"GL05", "GL06", "GL07", "GL08", "GL10", "SS01", "SS04", "PR01"}
# Classes that users read but do not make: they document attributes instead of parameters.
numpydoc_validation_exclude = {r"\.(Candidate|Config|Explanation|Moments|Node|Plan)$"}

html_theme = "pydata_sphinx_theme"
html_title = f"cyconv {version}"
html_show_sourcelink = False
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}


def escape_stars(app, what, name, obj, options, lines):
    """Escape the star of a shape such as ``(N, C, *spatial)``, which opens emphasis in reST."""
    for number, line in enumerate(lines):
        plain_and_literal = line.split("``")
        plain_and_literal[::2] = [
            re.sub(r"(?<=, )\*(?=[a-z])", r"\\*", text) for text in plain_and_literal[::2]
        ]
        lines[number] = "``".join(plain_and_literal)


def setup(app):
    """Let the escape run before numpydoc (priority 500) reads a docstring."""
    app.connect("autodoc-process-docstring", escape_stars, priority=400)
