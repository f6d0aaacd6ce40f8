"""Every table and figure by name, and the claims: what it shows, its label in the paper, and the runs it needs."""

from dataclasses import dataclass, replace

from curriculoss.paper import experiments
from curriculoss.paper.experiments import CE, CLEAN, FEW, HUMAN, MAE, MAE_SCALE, MAE_SHIFT, MANY, Cell, cells
from curriculoss.paper.scales import Scale


@dataclass(frozen=True)
class Artefact:
    """A table, a figure, or the claims.

    Attributes:
        name: "table:...", "figure:..." or "claims".
        title: What it shows.
        source: Its label in the paper; empty for what is ours.
        cells: Its runs, in the paper's order; none for figures and tables of formulae.
        needs: Other artefacts whose runs it uses.
        seeds_of: The artefact that decides how many seeds it shows, if not itself.
    """

    name: str
    title: str
    source: str
    cells: tuple[Cell, ...] = ()
    needs: tuple["Artefact", ...] = ()
    seeds_of: str = ""

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def stem(self) -> str:
        """Its file name, without a suffix."""
        return self.name.replace(":", "-")

    def seeds(self, scale: Scale, wanted: int | None = None) -> int:
        """How many seeds of each cell are run at a scale."""
        return wanted or scale.seeds.get(self.seeds_of or self.name, 1)


_ASYMMETRIC, _SYMMETRIC = experiments.ASYMMETRIC, experiments.SYMMETRIC
_, _SCE, _GCE, _AUL, _, _AGCE = experiments.ROBUST
_FIX_NOISES = (CLEAN, _SYMMETRIC[1], _SYMMETRIC[3], _ASYMMETRIC[3], HUMAN)
_UNDERFIT = (*cells(experiments.UNDERFIT, FEW, experiment="underfit"), *cells(experiments.UNDERFIT, MANY))
_WEBVISION = tuple(
    Cell(row if row.fix is None else replace(row, tau=tau), data, *where)
    for where in ((CLEAN,), (_SYMMETRIC[0], experiments.STAND_IN))
    for row in (CE, MAE, MAE_SHIFT, MAE_SCALE)
    for data, tau in experiments.WEBVISION.items()
)
_TAUS = tuple(
    Cell(replace(MAE_SCALE, tau=tau), MANY, noise) for tau in experiments.TAUS for noise in (CLEAN, *_SYMMETRIC)
)
_SCHEDULES = tuple(
    Cell(row, "mnist", noise, "schedules", rate)
    for noise in (_SYMMETRIC[0], _SYMMETRIC[2])
    for row, rate in ((MAE, 1e-2), *((CE, rate) for rate in experiments.MORE_RATES))
)

_SHOWN = (
    Artefact("table:losses", "standard-form losses and their weights, from the code", "table:weight_extend"),
    Artefact("table:regularizers", "losses with a second term, from the code", "table:weight_regularizer"),
    Artefact("table:underfit", "what is fitted with few and with many classes", "table:ulearn", _UNDERFIT),
    Artefact("table:fix", "MAE and AGCE, shifted and scaled, beside other losses", "table:correct",
             cells(experiments.FIXED, MANY, _FIX_NOISES)),
    Artefact("table:fix-symmetric", "the fixes at more rates of symmetric noise", "table:correct_symmetric",
             cells(experiments.FIXED, MANY, (CLEAN, *_SYMMETRIC))),
    Artefact("table:fix-asymmetric", "the fixes at more rates of asymmetric noise", "table:correct_asymmetric",
             cells(experiments.FIXED, MANY, (CLEAN, *_ASYMMETRIC))),
    Artefact("table:webvision", "the fixes on WebVision", "table:correct_real", _WEBVISION),
    Artefact("table:snr", "weights of clean over noisy samples, and what noise costs", "table:snr",
             cells(experiments.ROBUST, FEW, (CLEAN, "asymmetric:0.2", *_SYMMETRIC[:2], _SYMMETRIC[3], HUMAN))),
    Artefact("figure:weights", "weights by expected degree of underfitting, over initial margins", "fig:loss_weight"),
    Artefact("figure:elr", "effective learning rate during training: NCE and its bound, good and bad AUL", "fig:elr",
             cells((CE, experiments.NCE, experiments.GOOD_AUL, experiments.BAD_AUL), MANY)),
    Artefact("figure:dynamics", "margins of clean and noisy samples during training", "fig:robust",
             cells((CE, _SCE, MAE), FEW, _SYMMETRIC[1:2])),
    Artefact("figure:dynamics-noise", "the same with other noise", "fig:robust_extend",
             tuple(Cell(row, FEW, noise) for noise in (_SYMMETRIC[0], HUMAN, _ASYMMETRIC[3])
                   for row in (CE, _SCE, MAE))),
    Artefact("figure:dynamics-losses", "the same with other losses", "fig:robust_extend2",
             tuple(Cell(row, FEW, noise) for noise in (_SYMMETRIC[1], HUMAN, _ASYMMETRIC[3])
                   for row in (_AGCE, _GCE, _AUL))),
    Artefact("figure:schedules", "MAE and CE trained long on MNIST, at constant learning rates",
             "fig:robust:overfitmae", _SCHEDULES),
    Artefact("figure:hyperparameters", "how each hyperparameter changes its weight function", "fig:loss_params"),
    Artefact("figure:simulated-margins", "initial margins, simulated and real", "fig:simulate"),
    Artefact("figure:shift-scale", "shifted and scaled weights of MAE", "fig:shift_scale"),
    Artefact("figure:snr-weights", "weights of the losses in table:snr", "fig:snr_weight"),
    Artefact("figure:summary-underfitting", "Underfitting with many classes", "", _UNDERFIT,
             seeds_of="table:underfit"),
    Artefact("figure:summary-memorising", "Memorising wrong labels", "", cells((CE, _SCE, MAE), FEW, _SYMMETRIC[1:2]),
             seeds_of="table:snr"),
    Artefact("figure:summary-fix", "The fix", "", cells((CE, MAE, MAE_SHIFT, MAE_SCALE), MANY, _FIX_NOISES),
             seeds_of="table:fix"),
)  # fmt: skip

ARTEFACTS = {artefact.name: artefact for artefact in _SHOWN}
ARTEFACTS["claims"] = Artefact("claims", "each claim of the paper, tested on all runs", "", _TAUS, needs=_SHOWN)
