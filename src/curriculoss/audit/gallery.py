"""audit.html: the most suspicious samples, for a person to decide on. One file, which needs no network."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from curriculoss.audit.finding import Audit
from curriculoss.audit.reading import Source
from curriculoss.data import DataError, Dataset, Images
from curriculoss.data.images import open_image
from curriculoss.training.store import write_text

MOST = 500  # samples on a page
FEATURES = 12  # of a table's row
POINTS = 40  # of a sparkline
THUMBNAIL = 128  # pixels


def build(found: Audit, source: Source, out: Path) -> Path:
    shown = found.ranked[: min(MOST, max(len(found.suspects), 50))]
    items = [_item(found, source, int(i)) for i in shown]
    classes = [str(name) for name in found.classes]
    content = {"classes": classes, "items": items, "features": _feature_names(source.dataset)}
    content["key"] = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]  # of decisions that are remembered
    script = resources.files("curriculoss.audit").joinpath("gallery.js").read_text("utf-8")
    environment = Environment(
        loader=PackageLoader("curriculoss.audit", "."),
        autoescape=True,  # names and paths are anybody's
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    low, high = found.interval
    text = environment.get_template("gallery.html.jinja").render(
        name=source.name,
        samples=len(found),
        suspects=len(found.suspects),
        shown=len(items),
        rate=f"{100 * found.noise_rate:.1f}",
        low=f"{100 * low:.1f}",
        high=f"{100 * high:.1f}",
        unreadable=len(source.unreadable),
        content=Markup(embedded(content)),  # escaped there
        script=Markup(script),  # ours
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    write_text(out, text)
    return out


def embedded(value: Any) -> str:
    """JSON that may stand inside a script element whatever its strings are."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _item(found: Audit, source: Source, i: int) -> dict[str, Any]:
    margins = found.trajectories.soft[:, i].astype(float)
    if len(margins) > POINTS:
        margins = margins[np.linspace(0, len(margins) - 1, POINTS).round().astype(int)]
    index = int(found.index[i])
    return {
        "index": index,
        "path": source.paths.get(index, ""),
        "given": str(found.given[i]),
        "suggested": str(found.suggested[i]),
        "score": round(float(found.scores[i]), 4),
        "p": round(float(found.p_wrong[i]), 4),
        "margins": [round(float(x), 2) for x in margins],
        "image": _thumbnail(source, index),
        "row": _row(source, index),
    }


def _feature_names(dataset: Dataset) -> list[str]:
    if len(dataset.shape) != 1 or (dataset.shape[0] > FEATURES and dataset.feature_names is None):
        return []
    names = dataset.feature_names or tuple(f"feature {i}" for i in range(dataset.shape[0]))
    return list(names[:FEATURES]) if len(names) == dataset.shape[0] else []  # not of a column of embeddings


def _row(source: Source, index: int) -> list[float]:
    names = _feature_names(source.dataset)
    if not names:
        return []
    inputs = source.dataset.train.inputs
    assert not isinstance(inputs, Images)
    return [float(f"{x:.5g}") for x in inputs[source.position(index)][: len(names)].tolist()]


def _thumbnail(source: Source, index: int) -> str:
    """As a data: address; empty for features. Pictures are made anew, nothing of a file is passed on."""
    from PIL import Image

    dataset, position = source.dataset, source.position(index)
    inputs = dataset.train.inputs
    if len(dataset.shape) != 3:
        return ""
    try:
        if isinstance(inputs, Images):
            picture = open_image(inputs.files[position], "RGB")
        else:
            pixels = inputs[position].permute(1, 2, 0).double().numpy()
            if inputs.dtype.is_floating_point:
                spread = float(pixels.max() - pixels.min()) or 1.0
                pixels = 255 * (pixels - pixels.min()) / spread
            channels = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
            picture = Image.fromarray(channels.astype(np.uint8))
    except DataError:  # it was readable a while ago
        return ""
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    small, memory = max(picture.size) <= 40, io.BytesIO()
    picture.save(memory, "PNG" if small else "JPEG", **({} if small else {"quality": 80}))
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(memory.getvalue()).decode()}"
