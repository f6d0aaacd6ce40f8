"""Data sets: embedded, published, or the user's own, all as tensors or lazily decoded image files."""

from curriculoss.data.batches import Batches
from curriculoss.data.dataset import Dataset, InputFormat, Split
from curriculoss.data.files import DATA_SETS, NamedData, data_folder
from curriculoss.data.images import Images
from curriculoss.data.loading import Inputs, available, load, load_inputs
from curriculoss.errors import DataError

__all__ = [
    "DATA_SETS", "Batches", "DataError", "Dataset", "Images", "InputFormat", "Inputs", "NamedData", "Split",
    "available", "data_folder", "load", "load_inputs",
]  # fmt: skip
