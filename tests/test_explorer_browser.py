"""The explorer in a real Chromium: its formulas are the package's, its controls work, its lines run."""

from __future__ import annotations

import asyncio
import itertools
import json
import shlex

import pytest
import torch
from typer.testing import CliRunner

from curriculoss import cli, explorer, fix, underfitting
from curriculoss.fixing import plan_fix
from curriculoss.losses import Curriculum, Designed, registry
from curriculoss.losses.ranges import RANGES
from curriculoss.runs import Run
from tests.browser import browse, in_browser
from tests.test_report import make_run

pytestmark = in_browser

F64 = torch.float64
MARGINS = torch.linspace(-60, 60, 49, dtype=F64)
FIXES = [(None, None), ("scale", 2.6), ("scale", 0.7), ("shift", 2.6), ("shift", 0.5), ("logit-bias", None)]
POINTS = [[-9.5, 0.0], [-5.0, 1.0], [-2.05, 0.3], [4.0, 0.0]]
HOSTILE = "<img src=x onerror=window.ran=1></script><script>window.ran=2</script>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return explorer.build(tmp_path_factory.mktemp("explorer") / "explorer.html")


@pytest.fixture(scope="module")
def with_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(folder / "first", loss="ce", test=(90, 80, 65.7), snr=0.5),
        make_run(folder / "second", loss="mae", fix="scale", test=(60, 97, 98.5, 98.7), snr=3.9, epochs=4),
        make_run(folder / "plain", loss="nce+mae", noise="clean", data="digits-100"),
    ]
    return explorer.build(folder / "page.html", runs)


def families() -> dict[str, list[dict[str, float]]]:
    """Every registered curriculum with its default hyperparameters, the ends of their ranges and a point between."""
    found: dict[str, list[dict[str, float]]] = {}
    for names in registry.synonyms().values():
        if registry.get(names[0]).curriculum is not None:
            spans = RANGES.get(names[0], {})
            values = [
                [each.low, round((each.low + 2 * each.high) / 3, 0 if each.whole else 2), each.high]
                for each in spans.values()
            ]
            settings = [dict(zip(spans, each, strict=True)) for each in itertools.product(*values)]
            default = registry.get(names[0])
            found[names[0]] = [{key: getattr(default, key) for key in spans}, *(settings if spans else [])]
    return found


def fixed(base: Curriculum, method: str | None, tau: float | None, num_classes: int) -> Curriculum:
    return base if method is None else plan_fix(base, method, tau=tau, num_classes=num_classes).curriculum


def entry(loss: str, params: dict[str, float] | None = None, method: str | None = None, tau: float | None = None):
    return {"loss": loss, "params": params or {}, "fix": method or "", "tau": tau, "points": POINTS}


def visit_page(path, folder, visit, width=1200, height=900):
    """What `visit` returns for the open page, which must have thrown nothing and asked for nothing."""

    async def whole(tab):
        await tab.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        await tab.open(path)
        found = await visit(tab)
        assert tab.requests() == [path.as_uri()] and tab.troubles() == []
        return found

    return browse(folder / "browser", whole)


def test_weights_losses_and_peaks_in_the_page_are_those_of_the_package(page, tmp_path):
    numbers = (2, 3, 10, 100, 10_000)
    settings = families()
    assert len(settings) >= 9
    cases = [
        (name, given, *how, number)
        for name, some in settings.items()
        for given in some
        for how in FIXES
        for number in numbers
    ]
    asked = json.dumps([[entry(name, given, *how), number] for name, given, *how, number in cases])

    async def visit(tab):
        return await tab.value(
            f"{asked}.map(([entry, number]) => {{ const made = explorer.made(entry, number);"
            f"return [{MARGINS.tolist()}.map(made.weight), {MARGINS.tolist()}.map(made.loss), made.peak]; }})"
        )

    for (name, given, method, tau, number), (weights, losses, peak) in zip(
        cases, visit_page(page, tmp_path, visit), strict=True
    ):
        curriculum = fixed(registry.get(name, **given), method, tau, number)
        said = str((curriculum, number))
        torch.testing.assert_close(
            torch.tensor(weights, dtype=F64), curriculum.weight(MARGINS), rtol=1e-9, atol=0, msg=said
        )
        torch.testing.assert_close(
            torch.tensor(losses, dtype=F64), curriculum.loss(MARGINS), rtol=1e-9, atol=1e-300, msg=said
        )
        assert peak == pytest.approx(curriculum.peak.weight, rel=1e-9), said


def test_a_drawn_curve_is_designed_from_points(page, tmp_path):
    cases = [[[-8.0, 0.0], [0.0, 1.0], [2.0, 0.5]], [[-3.0, 0.4], [1.0, 0.0]], POINTS]

    async def visit(tab):
        found = []
        for points in cases:
            made = f"explorer.made({json.dumps({**entry('drawn'), 'points': points})}, 100)"
            both = ", ".join(f"{MARGINS.tolist()}.map({made}.{kind})" for kind in ("weight", "loss"))
            expression = f"[{both}, {made}.peak, explorer.noiseRatio({made})]"
            found.append(await tab.value(expression))
        return found

    for points, (weights, losses, peak, ratio) in zip(cases, visit_page(page, tmp_path, visit), strict=True):
        designed = Designed.from_points(*zip(*points, strict=True))
        torch.testing.assert_close(torch.tensor(weights, dtype=F64), designed.weight(MARGINS), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.tensor(losses, dtype=F64), designed.loss(MARGINS), rtol=1e-12, atol=1e-12)
        assert peak == designed.peak.weight and ratio == pytest.approx(designed.max_noise_ratio, rel=1e-4, abs=1e-9)


def test_verdicts_and_refusals_have_the_words_of_the_package(page, tmp_path):
    losses = [("ce", {}), ("mae", {}), ("gce", {"q": 0.7}), ("aul", {"a": 1.1, "q": 5.0}), ("tce", {"q": 4})]
    cases = [(*loss, *how, number) for loss in losses for how in FIXES for number in (2, 5, 10, 50, 100, 1000, 10_000)]
    asked = json.dumps([[entry(name, given, *how), number] for name, given, *how, number in cases])

    async def visit(tab):
        return await tab.value(
            f"{asked}.map(([entry, number]) => [explorer.verdict(entry, number), explorer.made(entry, number).reason])"
        )

    levels, refused = set(), 0
    for (name, given, method, tau, number), (verdict, reason) in zip(
        cases, visit_page(page, tmp_path, visit), strict=True
    ):
        base = registry.get(name, **given)
        expected = underfitting(fixed(base, method, tau, number), number)
        assert (verdict["sentence"], verdict["level"]) == (expected.sentence, expected.level)
        assert verdict["weight"] == pytest.approx(expected.mean_weight, rel=1e-9)
        assert verdict["share"] == pytest.approx(expected.share_of_ce, rel=1e-9)
        assert reason == ("" if method is None else plan_fix(base, method, tau=tau, num_classes=number).reason)
        levels.add(verdict["level"])
        refused += bool(reason)
    assert levels == {"none", "mild", "severe"} and refused


def test_the_noise_ratio_in_the_page_is_that_of_the_package(page, tmp_path):
    cases = [(name, given, None, None, 100) for name, some in families().items() for given in some]
    cases += [("mae", {}, *how, number) for how in FIXES for number in (3, 100)]
    shapes = [
        ("aul", {"a": 1.1, "q": 0.5}),
        ("aul", {"a": 2.0, "q": 2.0}),
        ("agce", {"a": 1.6, "q": 2.0}),
        ("agce", {"a": 0.3, "q": 4.0}),
    ]
    cases += [(*shape, "shift", tau, 100) for shape in shapes for tau in (2.6, 4.9)]
    asked = json.dumps([[entry(name, given, *how), number] for name, given, *how, number in cases])

    async def visit(tab):
        return await tab.value(f"{asked}.map(([entry, number]) => explorer.noiseRatio(explorer.made(entry, number)))")

    for (name, given, method, tau, number), ratio in zip(cases, visit_page(page, tmp_path, visit), strict=True):
        curriculum = fixed(registry.get(name, **given), method, tau, number)
        assert ratio == pytest.approx(curriculum.max_noise_ratio, rel=1e-5, abs=1e-12), (curriculum, number)


PICTURE = "[...document.querySelectorAll('figure svg')].map((svg) => svg.innerHTML).join('')"
CONTROLS = "[...document.querySelectorAll('main input, main select, main button:not(.copy, #draw, #reset), .point')]"
# The number of a control → what a person does with it; a slider at its end goes to the other one.
USE = """((control) => {
  if (control.matches('input')) {
    control.value = control.value === control.max ? control.min : control.max;
    control.dispatchEvent(new Event('input'));
  } else if (control.matches('select')) {
    control.selectedIndex = (control.selectedIndex + 1) % control.options.length;
    control.dispatchEvent(new Event('change'));
  } else if (control.matches('.point')) {
    control.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true, cancelable: true }));
  } else { control.click(); }
})"""


def test_every_control_changes_the_picture(with_runs, tmp_path):
    async def visit(tab):
        everything = (
            "document.getElementById('draw').click(); document.querySelectorAll('#cards select')[2].value = 'agce'; "
        )
        everything += "document.querySelectorAll('#cards select')[2].dispatchEvent(new Event('change'))"
        await tab.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        await tab.value(everything)
        kinds = await tab.value(f"{CONTROLS}.map((x) => x.outerHTML)")
        assert sum("range" in kind for kind in kinds) == 5 and sum("<select" in kind for kind in kinds) == 8
        assert sum("point" in kind for kind in kinds) == 7 + 2 and sum("aria-pressed" in kind for kind in kinds) == 3
        for number, kind in enumerate(kinds):
            await tab.value("document.getElementById('reset').click()")
            await tab.value(everything)
            before = await tab.value(PICTURE)
            await tab.value(f"{USE}({CONTROLS}[{number}])")
            assert await tab.value(PICTURE) != before, kind
        await tab.value("document.getElementById('reset').click()")
        before = await tab.value(PICTURE)
        await tab.value("document.getElementById('draw').click()")
        assert await tab.value(PICTURE) != before
        await tab.value("document.querySelector('.choose').dispatchEvent(new MouseEvent('click'))")
        assert await tab.value("document.getElementById('epoch-now').textContent") == "1 of 4"

    visit_page(with_runs, tmp_path, visit)


def test_the_copied_lines_make_the_loss_that_is_shown(page, tmp_path):
    entries = [
        entry("ce"), entry("gce", {"q": 0.35}, "shift", 2.5), entry("aul", {"a": 1.3, "q": 4.5}, "scale", 2.6),
        entry("tce", {"q": 3}, "logit-bias"), entry("drawn"), entry("drawn", {}, "scale", 2.6),
        entry("mae", {}, "scale", 7.5),
    ]  # fmt: skip

    async def copied(tab, button):
        await tab.value(f"document.querySelector({button!r}).click()")
        await tab.until(f"document.querySelector({button!r}).textContent === 'copied'")
        return await tab.value("navigator.clipboard.readText()")

    async def visit(tab):
        await tab.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        found = []
        for each in entries:
            await tab.value(f"explorer.show([{json.dumps(each)}])")
            command = "" if each["loss"] == "drawn" else await copied(tab, ".by-command .copy")
            lines = await copied(tab, ".by-python .copy")
            weights = f"{MARGINS.tolist()}.map(explorer.made({json.dumps(each)}, 100).weight)"
            found.append((lines, command, await tab.value(weights)))
        return found

    for each, (lines, command, weights) in zip(entries, visit_page(page, tmp_path, visit), strict=True):
        names: dict[str, Curriculum] = {}
        exec(lines, names)
        torch.testing.assert_close(
            names["loss"].weight(MARGINS), torch.tensor(weights, dtype=F64), rtol=1e-9, atol=1e-15
        )
        if command:
            out = tmp_path / each["loss"]
            given = shlex.split(command.replace("DATA", "digits-100").replace("RUN", shlex.quote(str(out))))
            done = CliRunner().invoke(cli.app, [*given[1:], "--subset", "200", "--epochs", "1"], prog_name=given[0])
            assert done.exit_code == 0, done.output
            plan, curriculum = Run(out).result.fix_plan, Run(out).spec.curriculum
            trained = (
                curriculum if plan is None else fix(curriculum, plan.method, tau=Run(out).spec.tau, num_classes=100)
            )
            assert trained == names["loss"]


def test_a_drawn_loss_is_the_sixth_at_most_and_takes_nobodys_place(page, tmp_path):
    async def visit(tab):
        await tab.value("[1, 2, 3, 4].forEach(() => document.getElementById('add').click())")
        await tab.value("document.getElementById('draw').click()")
        assert await tab.value("explorer.state.entries.map((each) => each.loss)") == ["ce", "mae", "mae", *["gce"] * 3]
        assert await tab.value("document.getElementById('draw').disabled && document.getElementById('add').disabled")
        await tab.value("document.querySelector('.remove').click()")
        await tab.value("document.getElementById('draw').click()")
        assert await tab.value("document.getElementById('key').children[5].textContent") == "drawn by hand"
        await tab.value("explorer.state.entries[5].fix = 'scale'; document.getElementById('draw').click()")
        assert await tab.value("document.getElementById('key').children[5].textContent") == "drawn by hand, scaled"

    visit_page(page, tmp_path, visit)


def test_points_are_dragged_by_mouse_and_moved_by_keyboard(page, tmp_path):
    async def visit(tab):
        await tab.value("document.getElementById('draw').click()")
        assert await tab.value("document.activeElement.getAttribute('aria-label')") == "Point 1 of 7"
        await tab.press("ArrowUp", "ArrowRight")
        assert await tab.value("explorer.state.entries[3].points[0]") == [-9.9, 0.12]
        await tab.press("+")
        assert await tab.value("document.activeElement.getAttribute('aria-label')") == "Point 2 of 8"
        await tab.press("Delete", "Delete")
        assert await tab.value("explorer.state.entries[3].points.map((point) => point[0])") == [-9.9, -5, -2, 0, 3, 6]
        box = "document.querySelectorAll('.point')[3].getBoundingClientRect()"
        x, y = await tab.value(f"[{box}.x + 7, {box}.y + 7]")
        for kind, dx, dy in (
            ("mousePressed", 0, 0),
            ("mouseMoved", 30, -20),
            ("mouseMoved", 55, -60),
            ("mouseReleased", 55, -60),
        ):
            await tab.command(
                "Input.dispatchMouseEvent", type=kind, x=x + dx, y=y + dy, button="left", buttons=1, clickCount=1
            )
        margin, weight = await tab.value("explorer.state.entries[3].points[3]")
        assert 1 < margin < 2.9 and 0.6 < weight < 0.8
        after = await tab.value(f"[{box}.x + 7, {box}.y + 7]")
        assert after == pytest.approx([x + 55, y - 60], abs=2)  # where the mouse let it go
        await tab.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="none")
        assert await tab.value("explorer.state.entries[3].points[3]") == [margin, weight]
        points = await tab.value("explorer.state.entries[3].points")
        return points, await tab.value("document.querySelectorAll('.python')[3].textContent")

    points, lines = visit_page(page, tmp_path, visit)
    names: dict[str, Curriculum] = {}
    exec(lines, names)
    assert names["loss"] == Designed.from_points(*zip(*points, strict=True))


def test_points_are_dragged_by_a_finger_and_the_page_stays(page, tmp_path):
    async def visit(tab):
        await tab.command("Emulation.setTouchEmulationEnabled", enabled=True)
        await tab.value("document.getElementById('draw').click()")
        box = "document.querySelectorAll('.point')[3].getBoundingClientRect()"
        x, y = await tab.value(f"[{box}.x + 7, {box}.y + 7]")
        await tab.command("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        for step in range(1, 8):
            touch = [{"x": x + 4 * step, "y": y + 8 * step}]
            await tab.command("Input.dispatchTouchEvent", type="touchMove", touchPoints=touch)
        await tab.command("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        after = await tab.value(f"[{box}.x + 7, {box}.y + 7]")
        assert after == pytest.approx([x + 28, y + 56], abs=2)

    visit_page(page, tmp_path, visit, width=375)


def test_what_gets_the_focus_is_not_hidden_by_the_picture_that_stays_above(page, tmp_path):
    backwards = {"key": "Tab", "windowsVirtualKeyCode": 9, "modifiers": 8}

    async def visit(tab):
        await tab.value("[...document.querySelectorAll('pre')].at(-1).focus()")
        for _ in range(12):
            await tab.command("Input.dispatchKeyEvent", type="keyDown", **backwards)
            await tab.command("Input.dispatchKeyEvent", type="keyUp", **backwards)
            await tab.value("new Promise(requestAnimationFrame)")
            top = "document.activeElement.getBoundingClientRect().top"
            assert await tab.value(
                f"{top} >= document.querySelector('.pictures figure').getBoundingClientRect().bottom"
            )

    visit_page(page, tmp_path, visit, width=375, height=500)


def test_runs_are_scrubbed_and_compared(with_runs, tmp_path):
    async def visit(tab):
        async def shown():
            return await tab.value(
                "[...document.querySelectorAll('.pair figure:not([hidden]) b')].map((x) => x.textContent)"
            )

        assert await shown() == ["first", "second"]
        assert await tab.value("document.getElementById('accuracy-now').textContent") == "65.7 · 98.7"
        assert await tab.value("document.querySelectorAll('.ridge.noisy').length") == 2 * 1 + 3 + 4
        await tab.value("document.getElementById('epoch').focus()")
        await tab.press("ArrowLeft", "ArrowLeft")
        assert await tab.value("document.getElementById('epoch').getAttribute('aria-valuetext')") == "epoch 2 of 4"
        assert await tab.value("document.getElementById('accuracy-now').textContent") == "80 · 97"
        assert await tab.value("document.getElementById('snr-now').textContent") == "0.5 · 3.9"
        assert await tab.value("[...document.querySelectorAll('.epoch')].map((x) => x.textContent)") == ["epoch 2"] * 2
        await tab.value("document.querySelectorAll('#runs button')[2].click()")
        assert await shown() == ["second", "plain"]
        await tab.value("document.querySelectorAll('#runs button')[1].click()")
        assert await shown() == ["plain"]
        assert await tab.value("document.getElementById('snr').closest('figure').hidden")  # no wrong labels are known
        assert await tab.value("document.querySelectorAll('#run-0 .ridge.all').length") == 1 + 3
        assert "no fixed function" in await tab.value("document.getElementById('run-0-about').textContent")
        await tab.value("document.querySelectorAll('#runs button')[2].click()")
        assert await shown() == ["plain"]

    visit_page(with_runs, tmp_path, visit)


def test_names_from_runs_are_text_and_never_run(tmp_path):
    run = make_run(tmp_path / HOSTILE.replace("/", "_"), data=HOSTILE)
    path = explorer.build(tmp_path / "page.html", [run])

    async def visit(tab):
        await asyncio.sleep(0.3)  # an image that fails to load says so a moment later
        assert await tab.value("typeof window.ran") == "undefined"
        assert await tab.value("document.querySelectorAll('img').length") == 0
        assert await tab.value("document.querySelector('#runs b').textContent") == run.path.name
        assert HOSTILE in await tab.value("document.getElementById('run-0-about').textContent")
        assert run.path.name in await tab.value("document.getElementById('run-0-margins').getAttribute('aria-label')")

    visit_page(path, tmp_path, visit)


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_its_screen_and_every_control_has_a_name(with_runs, tmp_path, width):
    async def visit(tab):
        await tab.value("document.getElementById('draw').click()")
        seen = []
        for scheme in ("light", "dark"):
            await tab.command(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            seen.append(await tab.value("getComputedStyle(document.body).backgroundColor"))
        assert await tab.value("document.documentElement.scrollWidth") <= width
        nodes = (await tab.command("Accessibility.getFullAXTree"))["nodes"]
        roles = ("slider", "combobox", "button", "image", "region")
        named = [
            (each["role"]["value"], each["name"]["value"])
            for each in nodes
            if not each["ignored"] and each["role"]["value"] in roles
        ]
        assert len(named) > 30 and all(name.strip() for _, name in named), named
        assert len({name for role, name in named if role == "slider"}) == 10  # classes, τ, epoch, points
        await tab.value(f"{USE}(document.getElementById('classes'))")
        await tab.until("document.getElementById('said').textContent.includes('MAE: It will underfit severely')")
        return seen

    assert visit_page(with_runs, tmp_path, visit, width) == ["rgb(253, 253, 251)", "rgb(22, 24, 27)"]
