"""audit.html: the most suspicious samples, for a person to decide on. One file, which works offline."""

import base64
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from curriculoss._files import write_text
from curriculoss._templates import fill_with_script
from curriculoss.auditing.audits import SUSPECT_COLUMNS, Audit
from curriculoss.data import DataError, Dataset, Images
from curriculoss.data.images import open_image

MOST_SAMPLES = 500  # on a page
MOST_FEATURES = 12  # shown of a table's row
MOST_POINTS = 40  # of a sparkline
THUMBNAIL_SIZE = 128  # pixels
PIXELATED = 40  # pixels up to which a thumbnail is shown pixel by pixel


def write_gallery(found: Audit, path: Path) -> None:
    """Write the page."""
    columns = _columns(found.data.dataset)
    items = [_item(found, int(i), len(columns)) for i in found.suspects[:MOST_SAMPLES]]
    content = {"classes": [str(name) for name in found.classes], "items": items, "features": columns}
    content["key"] = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]  # of decisions in the browser
    wrong = round(float(found.p_wrong[found.suspects[:MOST_SAMPLES]].sum()))
    values = {"found": found, "shown": len(items), "shown_wrong": wrong}
    write_text(path, fill_with_script("curriculoss.auditing", "gallery", content, values))


def _item(found: Audit, i: int, columns: int) -> dict[str, Any]:
    margins = found.trajectories.soft[:, i].astype(float)
    if len(margins) > MOST_POINTS:
        margins = margins[np.linspace(0, len(margins) - 1, MOST_POINTS).round().astype(int)]
    position, dataset = int(found.position[i]), found.data.dataset
    inputs: Any = dataset.train.inputs
    return {
        **dict(zip(SUSPECT_COLUMNS, found.row(i), strict=True)),
        "margins": [round(float(x), 2) for x in margins],
        "image": _thumbnail(inputs, position) if len(dataset.shape) == 3 else "",
        "row": [float(f"{x:.5g}") for x in inputs[position][:columns].tolist()] if columns else [],
    }


def _columns(dataset: Dataset) -> list[str]:
    """The names of the features to show; none for images and embeddings."""
    count = dataset.shape[0]
    if len(dataset.shape) != 1 or (count > MOST_FEATURES and dataset.feature_names is None):
        return []
    names = dataset.feature_names or tuple(f"feature {i}" for i in range(count))
    return list(names[:MOST_FEATURES]) if len(names) == count else []  # a column of embeddings has one name for all


def _thumbnail(inputs: Any, position: int) -> str:
    """A data: address. Image files are encoded anew, so nothing else in them is passed on."""
    from PIL import Image

    try:
        if isinstance(inputs, Images):
            picture = open_image(inputs.files[position], "RGB")
        else:
            pixels = inputs[position].permute(1, 2, 0).double().numpy()
            if inputs.is_floating_point():
                pixels = 255 * (pixels - pixels.min()) / (float(np.ptp(pixels)) or 1.0)
            channels = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
            picture = Image.fromarray(channels.astype(np.uint8))
    except DataError:  # the file has changed since it was read
        return ""
    picture.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    kind, memory = "png" if max(picture.size) <= PIXELATED else "jpeg", io.BytesIO()
    picture.save(memory, kind, quality=80)  # PNG has no quality, and ignores it
    return f"data:image/{kind};base64,{base64.b64encode(memory.getvalue()).decode()}"
