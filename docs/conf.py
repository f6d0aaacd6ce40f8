"""The documentation site: `make docs`. It asks no network; what is generated goes to docs/generated."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "site"), str(DOCS.parent / "src")]

import commands  # noqa: E402
import docstrings  # noqa: E402
import pages  # noqa: E402
import pictures  # noqa: E402

from curriculoss import __version__ as release  # noqa: E402

project = "curriculoss"
author = "The curriculoss authors"
copyright = "2026, the curriculoss authors"  # noqa: A001  Sphinx's name for it
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build", "site"]
nitpicky = True
# Names of other libraries, whose inventories would have to be fetched: by module, or as annotations have them.
OTHERS = "torch|np|numpy|matplotlib|lightning|transformers|sklearn|scipy|optuna|ray|triton|collections|pathlib|typing"
BARE = r"Tensor|Module|Optimizer|Path|Callable|Iterable|Iterator|Mapping|Sequence|Figure|Axes|Any|Self|Array|NDArray"
nitpick_ignore_regex = [
    ("py:.*", rf"({OTHERS})\..*"),
    ("py:.*", rf"({BARE}|tuple\[int)"),
    ("py:.*", r"curriculoss\._.*"),  # private rooms have no page
]

# Maths by the MathJax of sphinx-mathjax-offline. Of its many files this one needs no other.
mathjax_path = "tex-svg.js"
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a page that is copied from results/ may start at any level

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "py:obj"  # what has one backtick in a docstring is linked if the site has it, and code otherwise

html_theme = "furo"
html_title = f"curriculoss {release}"
html_static_path = ["_static", *pages.mathjax()]
html_extra_path = pages.explorer()
html_js_files = ["tables.js"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it fetches pages, which a browser refuses for files on disk


def setup(app: object) -> None:
    """Generate pages and pictures before Sphinx looks for its sources."""
    pages.write_all()
    commands.write(pages.MADE / "commands.md")
    pictures.write_all(pages.MADE / "pictures")
    docstrings.connect(app)
