"""Progress bars on stderr, for terminals alone."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from curriculoss.fitting import Callback, EpochResult, Loop, Step

QUIET_SECONDS = 2.0  # work that ends sooner needs no bar


def _new_progress(quiet: bool) -> Progress:
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal or int(os.environ.get("RANK", 0)) > 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=hidden)


@contextmanager
def progress_bar(description: str, total: int | None = None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs, from two seconds on; the function that it gives takes the number done so far."""
    progress = _new_progress(quiet)
    task = progress.add_task(description, total=total)
    begin = threading.Timer(QUIET_SECONDS, progress.start)
    begin.start()
    try:
        yield lambda completed: progress.update(task, completed=completed)
    finally:
        begin.cancel()
        begin.join()
        progress.stop()


class TrainingProgress(Callback):
    """A bar for the steps of a training run, with the last test accuracy, and a line for each remark."""

    def __init__(self, quiet: bool) -> None:
        self.progress = _new_progress(quiet)
        self.task = self.progress.add_task("reading the data", total=None)
        self.scores = ""

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def on_fit_begin(self, loop: Loop) -> None:
        self.loop = loop

    def on_note(self, text: str) -> None:
        if not self.progress.disable:
            self.progress.console.print(text, markup=False, highlight=False)

    def on_epoch_begin(self, epoch: int) -> None:
        if not self.progress.tasks[0].total:
            steps = self.loop.steps or 1
            self.progress.reset(self.task, total=self.loop.epochs * steps, completed=(epoch - 1) * steps)
        self.progress.update(self.task, description=f"epoch {epoch} of {self.loop.epochs}{self.scores}")

    def on_step(self, step: Step) -> None:
        self.progress.advance(self.task)

    def on_epoch_end(self, result: EpochResult) -> None:
        if result.test_accuracy is not None:
            self.scores = f", test {result.test_accuracy:.1f} %"
