"""The documentation in a real Chromium, from disk and without a network: maths, pictures, tables, search, explorer."""

from tests.browser import browse, in_browser

pytestmark = in_browser

ROWS = "[...document.querySelectorAll('article table')].at(-1).tBodies[0].rows"


def test_the_site_works_offline_in_a_browser(site, tmp_path):
    async def visit(tab):
        await tab.open(site / "ideas/shift-and-scale.html")
        await tab.until("document.querySelectorAll('mjx-container svg').length >= 6")  # maths
        pictures = "[...document.querySelectorAll('article img')].map((x) => x.complete && x.naturalWidth > 100)"
        assert await tab.value(pictures) == [True, True]
        await tab.open(site / "generated/api/curriculoss.html")
        await tab.until("document.querySelectorAll('mjx-container svg').length >= 15")
        assert await tab.value("document.querySelectorAll('mjx-merror').length") == 0

        await tab.open(site / "generated/results/auto.html")  # tables can be sorted, by a key too
        first = "document.querySelector('article table')"
        heads = "[...document.querySelectorAll('article table')].at(-1).tHead.rows[0].cells"
        column = f"[...{ROWS}].map((row) => parseFloat(row.cells[2].textContent))"
        await tab.value(f"{heads}[2].querySelector('button').focus()")
        await tab.press("Enter")
        await tab.until(f"{heads}[2].getAttribute('aria-sort') === 'ascending'")
        found = [x for x in await tab.value(column) if x is not None]
        assert found == sorted(found)
        accuracies = f"[...{first}.tBodies[0].rows].map((row) => row.cells[8].textContent)"  # logit bias
        for _ in range(2):  # what is not compared is last, whichever way the numbers go
            await tab.value(f"{first}.tHead.rows[0].cells[8].querySelector('button').click()")
            cells = await tab.value(accuracies)
            ran = [cell != "/" for cell in cells]
            assert ran == sorted(ran, reverse=True) and ran[0] and not ran[-1], cells

        await tab.open(site / "search.html", "?q=RobustLoss")
        await tab.until("[...document.querySelectorAll('#search-results a')].some((a) => a.href.includes('api/'))")
        asked = [url for url in tab.requests() if not url.startswith("file:")]
        assert (asked, tab.troubles()) == ([], [])

    browse(tmp_path / "browser", visit)


def test_the_explorer_is_a_page_of_the_site(site, tmp_path):
    async def visit(tab):
        await tab.open(site / "generated/explorer.html")
        await tab.until("document.querySelector('iframe.explorer') !== null")
        await tab.open(site / "explore.html")
        await tab.until("document.querySelector('svg path, canvas') !== null")
        assert tab.troubles() == []

    browse(tmp_path / "browser", visit)
