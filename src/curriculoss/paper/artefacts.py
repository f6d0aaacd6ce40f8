"""Every table, figure and claim of the paper by name: what it shows, where it is from, and the runs that it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from curriculoss.curricula.registry import suggestion
from curriculoss.paper import settings
from curriculoss.paper.settings import ASYMMETRIC, CLEAN, HUMAN, SYMMETRIC, Cell, Scale, cells


@dataclass(frozen=True)
class Artefact:
    """`cells` are its runs, in the order of the paper; figures of formulae have none."""

    name: str
    title: str
    source: str  # the paper's label
    cells: tuple[Cell, ...] = ()
    needs: tuple[Artefact, ...] = ()  # whose runs it reads too

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def stem(self) -> str:
        """Of its files."""
        return self.name.replace(":", "-")

    def seeds(self, scale: Scale, wanted: int | None = None) -> int:
        return wanted or scale.seeds.get(self.name, 1)


_UNDERFIT = (*cells(settings.UNDERFIT, "cifar10", experiment="underfit"), *cells(settings.UNDERFIT, "cifar100"))
_SNR = tuple(cells(settings.ROBUST, "cifar10", (CLEAN, "asymmetric:0.2", *SYMMETRIC[:2], SYMMETRIC[3], HUMAN)))
_FIX = tuple(cells(settings.FIXED, "cifar100", (CLEAN, SYMMETRIC[1], SYMMETRIC[3], ASYMMETRIC[3], HUMAN)))
_SYMMETRIC = tuple(cells(settings.FIXED, "cifar100", (CLEAN, *SYMMETRIC)))
_ASYMMETRIC = tuple(cells(settings.FIXED, "cifar100", (CLEAN, *ASYMMETRIC)))
_WEBVISION = tuple(
    Cell(row if row.fix is None else replace(row, tau=tau), data)
    for row in (settings.CE, settings.MAE, settings.MAE_SHIFT, settings.MAE_SCALE)
    for data, tau in settings.WEBVISION.items()
)
_CE, _SCE, _GCE, _AUL, _MAE, _AGCE = settings.ROBUST
_TAUS = tuple(
    Cell(replace(settings.MAE_SCALE, tau=tau), "cifar100", noise)
    for tau in settings.TAUS
    for noise in (CLEAN, *SYMMETRIC)
)
_SCHEDULES = tuple(
    Cell(row, "mnist", noise, "schedules", rate)
    for noise in (SYMMETRIC[0], SYMMETRIC[2])
    for row, rate in ((_CE, 0.01), (_MAE, 0.01), (_CE, 0.0001), (_CE, 0.1))
)

_RUNS = (
    Artefact("table:losses", "losses of the standard form and their weights, from the code", "table:weight_extend"),
    Artefact("table:regularizers", "losses with a second term, from the code", "table:weight_regularizer"),
    Artefact("table:underfit", "what is fitted with few and with many classes", "table:ulearn", _UNDERFIT),
    Artefact("table:fix", "MAE and AGCE, shifted and scaled, beside others", "table:correct", _FIX),
    Artefact("table:fix-symmetric", "the fixes at more rates of symmetric noise", "table:correct_symmetric",
             _SYMMETRIC),
    Artefact("table:fix-asymmetric", "the fixes at more rates of asymmetric noise", "table:correct_asymmetric",
             _ASYMMETRIC),
    Artefact("table:webvision", "the fixes on WebVision", "table:correct_real", _WEBVISION),
    Artefact("table:snr", "weights of clean samples over those of noisy ones, and what noise costs", "table:snr",
             _SNR),
    Artefact("figure:weights", "weights by the degree of underfitting to be expected, over initial margins",
             "fig:loss_weight"),
    Artefact("figure:elr", "effective learning rate over training: NCE and its bound, good and bad AUL", "fig:elr",
             tuple(cells((settings.CE, settings.NCE, settings.GOOD_AUL, settings.BAD_AUL), "cifar100"))),
    Artefact("figure:dynamics", "margins of clean and noisy samples over the epochs", "fig:robust",
             tuple(cells((_CE, _SCE, _MAE), "cifar10", SYMMETRIC[1:2]))),
    Artefact("figure:dynamics-noise", "the same with other noise", "fig:robust_extend",
             tuple(Cell(row, "cifar10", noise) for noise in (SYMMETRIC[0], HUMAN, ASYMMETRIC[3])
                   for row in (_CE, _SCE, _MAE))),
    Artefact("figure:dynamics-losses", "the same with other losses", "fig:robust_extend2",
             tuple(Cell(row, "cifar10", noise) for noise in (SYMMETRIC[1], HUMAN, ASYMMETRIC[3])
                   for row in (_AGCE, _GCE, _AUL))),
    Artefact("figure:schedules", "MAE and CE trained long on MNIST, at constant learning rates",
             "fig:robust:overfitmae", _SCHEDULES),
    Artefact("figure:hyperparameters", "what each hyperparameter does to its weight function", "fig:loss_params"),
    Artefact("figure:simulated-margins", "initial margins, simulated and real", "fig:simulate"),
    Artefact("figure:shift-scale", "shifted and scaled weights of MAE", "fig:shift_scale"),
    Artefact("figure:snr-weights", "weights of the losses of table:snr", "fig:snr_weight"),
)  # fmt: skip


ARTEFACTS = {artefact.name: artefact for artefact in _RUNS}
ARTEFACTS["claims"] = Artefact(
    "claims", "each claim of the paper, tested on the runs of all of these", "", _TAUS, needs=_RUNS
)


def get(name: str) -> Artefact:
    if name not in ARTEFACTS:
        raise ValueError(f"unknown artefact {name!r}{suggestion(name, ARTEFACTS)}")
    return ARTEFACTS[name]
