"""Pages of the site that are kept elsewhere in the repository, the API, and the files that the site brings along."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import curriculoss

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / "docs" / "generated"
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
NO_API = ("cli", "paper", "__main__")  # commands have a page of their own; the paper's room serves one of them
ALSO = {  # types that a room returns or takes but does not export
    "auditing": ("trajectories.Trajectories", "audited_data.AuditedData", "cleaning.CleaningReport"),
    "data": ("files.Remote",),
    "losses": ("batch.Batch", "criterion.Criterion", "regularized.Regularized", "auto.Bell"),
    "report": ("groups.Group", "groups.Mean"),
    "runs": ("facts.TrainResult", "facts.TaskFacts", "facts.Divergence", "facts.FixFacts", "facts.NetworkFacts"),
}
EXPLORER = """# Explorer

Pick losses, move their hyperparameters, and see how much samples count. `curriculoss explore` writes the same page as
one file, and with `--run` puts your own runs into it.

```{raw} html
<p><a href="../explore.html">Open it on a page of its own</a></p>
<iframe src="../explore.html" title="Explorer of losses" class="explorer"></iframe>
```
"""


def copied() -> dict[Path, Path]:
    """The page of each file outside docs/ that the site shows."""
    found = {ROOT / "CHANGELOG.md": MADE / "changelog.md", ROOT / "CONTRIBUTING.md": MADE / "contributing.md"}
    found[ROOT / "results/README.md"] = MADE / "results/index.md"
    for path in sorted((ROOT / "results").glob("*/README.md")):
        found[path] = MADE / "results" / f"{path.parent.name}.md"
    for name in ("claims", "differences"):
        found[ROOT / f"results/{name}.md"] = MADE / f"results/{name}.md"
    return {source: page for source, page in found.items() if source.exists()}


def with_links(text: str, source: Path, page: Path) -> str:
    """Let links of a source that is shown as `page` lead to pages of the site, or to the files themselves."""
    shown = copied()

    def replace(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        target = shown.get(target / "README.md" if target.is_dir() else target, target)
        return f"]({os.path.relpath(target, page.parent)}{match[2] or ''})"

    return LINK.sub(replace, text)


def write_all() -> None:
    """Write the copied pages, the API, and a page around the explorer."""
    for source, page in copied().items():
        _write(page, with_links(source.read_text(encoding="utf-8"), source, page))
    for name, text in _api():
        _write(MADE / f"api/{name}.md", text)
    _write(MADE / "explorer.md", EXPLORER)


def _write(path: Path, text: str) -> None:
    """Write only what changed, so that Sphinx reads only that again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _api() -> Iterator[tuple[str, str]]:
    """A page for the package's own names, and one for every room with names that are not among them."""
    seen: set[int] = set()
    names = [*curriculoss.__all__, "audit", "load_model"]
    yield "curriculoss", _module_page(curriculoss, names, seen)
    for each in pkgutil.iter_modules(curriculoss.__path__):
        if each.name.startswith("_") or each.name in NO_API:
            continue
        room = importlib.import_module(f"curriculoss.{each.name}")
        rooms = [room]
        if each.name == "integrations":
            inner = [x.name for x in pkgutil.iter_modules(room.__path__) if x.name != "watch"]
            rooms = [importlib.import_module(f"{room.__name__}.{name}") for name in inner]
        also = ALSO.get(each.name, ())
        sections = [_module_page(x, [*_public(x), *also], seen) for x in rooms]
        if any(sections):
            yield each.name, "\n".join(sections)


def _public(module: ModuleType) -> list[str]:
    """What a room exports: its `__all__`, or what it defines and documents."""
    listed: list[str] | None = getattr(module, "__all__", None)
    mine = (name for name, x in vars(module).items() if getattr(x, "__module__", None) == module.__name__)
    return listed or [name for name in mine if not name.startswith("_") and inspect.getdoc(vars(module)[name])]


def _module_page(module: ModuleType, names: list[str], seen: set[int]) -> str:
    entries = []
    for name in names:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part)
        if id(value) in seen or inspect.ismodule(value) or not callable(value) or _foreign(value):
            continue
        seen.add(id(value))
        kind = "function" if not inspect.isclass(value) else "exception" if issubclass(value, Exception) else "class"
        members = "\n   :members:\n   :special-members: __call__" if kind == "class" else ""
        path = f"{module.__name__}.{name}" if "." in name else name
        entries.append(f".. auto{kind}:: {path}{members}\n")
    if not entries:
        return ""
    about = inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0]
    body = "\n".join(entries)
    return f"# {module.__name__}\n\n{about}\n\n```{{eval-rst}}\n.. currentmodule:: {module.__name__}\n\n{body}```\n"


def _foreign(value: Any) -> bool:
    return not str(getattr(value, "__module__", "")).startswith("curriculoss")


def mathjax() -> list[str]:
    """The one file of MathJax that needs no other, as sphinx-mathjax-offline ships it."""
    found = find_spec("sphinx-mathjax-offline")
    if found is None or found.origin is None:
        raise SystemExit("the site needs sphinx-mathjax-offline: pip install -c constraints.txt -e '.[docs]'")
    return [str(Path(found.origin).parent / "static/mathjax/tex-svg.js")]


def explorer() -> list[str]:
    """The explorer's page, made by its command."""
    page = MADE / "extra" / "explore.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "curriculoss", "explore", "--out", str(page)]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL)
    return [str(page)]
