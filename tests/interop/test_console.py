"""The console in a real Chromium: each view, by mouse and keyboard, on a phone, in the dark, with hostile records, with
ten thousand partitions, while a broker goes away; and what axe says of all of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import NewTopic
from tests.console import scene
from tests.console.asking import Started, start
from tests.console.browser import Browser, install
from tests.ecosystem.artefacts import npm_modules
from tests.kit.topics import commit, committed, create_topics, values, write_all

pytestmark = pytest.mark.xdist_group("browser")
_AXE = "axe-core@4.10.3"
_DESK = (1360, 900)
_PHONE = (390, 840)
_READY = "document.querySelector('.steps .now') !== null && document.querySelector('.fields') !== null"


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    install()


@pytest.fixture(scope="module")
def axe() -> str:
    """The program that checks a page for accessibility."""
    return (npm_modules(_AXE) / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("console-scene")
    scene.make(path)
    return path


@pytest.fixture(scope="module")
def started(directories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    with start(tmp_path_factory.mktemp("console"), str(directories)) as running:
        yield running


@pytest.fixture(scope="module")
def addresses(started: Started) -> Iterator[str]:
    """The console's addresses, each of which opens it once."""

    def following() -> Iterator[str]:
        yield started.url
        while True:
            yield started.next_url()

    return following()


@pytest.fixture(scope="module")
def desk(addresses: Iterator[str]) -> Iterator[Browser]:
    with Browser(*_DESK) as browser:
        browser.open(next(addresses))
        browser.see("flights", ".list")
        yield browser


def _go(browser: Browser, place: str) -> None:
    """A fresh page at this place, so that nothing of another test is on it."""
    host = browser.url.partition("/#")[0].rstrip("/")
    browser.open("about:blank")
    browser.open(f"{host}/#/{place}")


def _check(browser: Browser, axe: str) -> None:
    """No violation that axe knows, and no complaint of the browser's, such as of the CSP."""
    browser.run(f"{axe}\nreturn true")
    found = browser.run_async(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
        ".then(found => done(found.violations.map(one =>"
        " `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(' | ')}`)),"
        " error => done([String(error)]))"
    )
    assert found == []
    assert browser.logs() == []


def test_the_token_leaves_the_address(desk: Browser) -> None:
    assert "token" not in desk.url
    assert desk.run("return document.cookie") == ""
    assert desk.run("return history.length") <= 3


def test_the_disk_is_drawn(desk: Browser, started: Started) -> None:
    _go(desk, "disk?topic=flights&partition=0")
    desk.wait(_READY)
    picture = started.asked.ask("partition", topic="flights", partition=0)
    assert desk.count(".log .segment") == len(picture["segments"])
    assert desk.count(".log .aborted") == len(picture["aborted"])
    assert desk.count(".log .replica") == 2
    desk.see(f"LEO {picture['end']:,}", ".log")
    desk.see("behind", ".log")
    base = int(desk.run("return document.querySelector('.segment.selected').dataset.base"))
    index = started.asked.ask("index", topic="flights", partition=0, base=base, count=48, around=0)
    assert desk.count(".entries:not(.times) .entry") == len(index["slots"])
    assert desk.count(".batch") == len(
        started.asked.ask("batches", topic="flights", partition=0, base=base, count=400)["batches"]
    )
    for kind in ("time", "bytes", "offset"):
        desk.run("document.querySelector(`input[value=${arguments[0]}]`).click()", kind)
        assert desk.count(".log .segment") == len(picture["segments"])
    desk.run("document.querySelector('input[value=producer]').click()")
    desk.see("producer 4001", ".legend")
    assert desk.logs() == []


def test_a_look_up_plays_to_the_bytes_of_the_record(desk: Browser, started: Started) -> None:
    _go(desk, "disk?topic=flights&partition=0")
    desk.wait(_READY)
    offset = started.asked.ask("partition", topic="flights", partition=0)["end"] // 3
    found = started.asked.ask("lookup", topic="flights", partition=0, offset=offset)
    desk.type("input[aria-label='Offset to look up']", str(offset))
    desk.press("Enter")
    desk.wait("document.querySelector('.goal b')?.innerText === arguments[0]", f"{offset:,}")
    desk.wait("document.querySelector('.steps li:last-child').classList.contains('now')")
    assert desk.count(".steps li") == len(found["steps"]) + 1
    desk.see("Scan of batch headers", ".steps")
    assert f"offset={offset}" in desk.url
    assert desk.count(".entry.found") == 1
    slots = next(one["visits"] for one in found["steps"] if one["step"] == "index")
    desk.see(" → ".join(map(str, slots)), ".steps")
    desk.wait("document.querySelector('.hex-where')?.innerText.includes('record')")
    desk.see(f'"{found["key"]}'.strip('"'), ".fields")
    desk.click(".steps li:nth-child(2) button")
    desk.see("relativeOffset", ".fields")
    desk.press("ArrowDown")
    desk.see("baseOffset", ".fields")
    assert desk.count(".hex-dump .byte.field-0") >= 8
    desk.type("input[aria-label='Time to look up']", str(found["timestamp"]))
    desk.click(".find button")
    desk.see("Time index, by binary search", ".steps")


def test_a_click_on_the_log_looks_up_the_offset_there(desk: Browser) -> None:
    _go(desk, "disk?topic=flights&partition=0")
    desk.wait(_READY)
    before = desk.text(".goal")
    desk.run(
        "const box = document.querySelector('.log').getBoundingClientRect();"
        "const bar = document.querySelector('.segment rect.outline').getBoundingClientRect();"
        "document.querySelector('.log').dispatchEvent(new MouseEvent('click',"
        " {bubbles: true, clientX: box.left + box.width * .21, clientY: bar.top + 9}))"
    )
    desk.wait("document.querySelector('.goal').innerText !== arguments[0]", before)
    desk.see("Play again", ".steps-place")  # until then the segment is drawn again
    desk.run(
        "const rows = [...document.querySelectorAll('.batch rect')];"
        "rows.sort((a, b) => b.getBoundingClientRect().width - a.getBoundingClientRect().width);"
        "rows[0].parentNode.dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    desk.see("Batch of offsets", ".chosen-batch")


def test_everything_goes_by_keyboard(desk: Browser) -> None:
    _go(desk, "disk")
    desk.see("flights-0", "h1")
    desk.press("/")
    desk.wait("document.activeElement.type === 'search'")
    desk.press("p", "r", "i", "c", "e", "s")
    desk.wait("document.querySelectorAll('.list .row').length === 1")
    desk.press("ArrowDown", "Enter")
    desk.see("prices-0", "h1")
    desk.wait(_READY)
    desk.run("document.querySelector('.segment.selected').focus()")
    first = desk.run("return document.activeElement.dataset.base")
    desk.press("ArrowLeft")
    desk.wait("document.querySelector('.segment.selected')?.dataset.base !== arguments[0]", first)


def test_bytes_are_checked_and_damage_has_a_remedy(directories: Path, tmp_path: Path) -> None:
    path = tmp_path / "broker-1"
    shutil.copytree(directories / "broker-1", path)
    log = path / "flights-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[5000] ^= 0xFF
    log.write_bytes(data)
    with start(tmp_path, str(path)) as running, Browser(*_DESK) as browser:
        browser.open(running.url)
        browser.see("flights-0", "h1")
        browser.wait(_READY)
        browser.click(".actions button")
        browser.see("Damage in 1 place", ".banner.bad")
        browser.see("seglog repair", ".banner.bad")


def test_hostile_records_are_text(desk: Browser) -> None:
    _go(desk, "records?topic=hostile&partition=0&offset=0")
    desk.see("6 records", ".says")
    assert desk.count(".records tbody tr") == 6
    desk.see(scene.SCRIPT[:50], ".records")
    assert desk.count("td img, td script, td b") == 0
    desk.see("\\u202eevil\\u202c", ".records")
    desk.see("null: a tombstone", ".records")
    desk.click(".records tbody tr:nth-child(1) button")
    desk.see(f"{scene.SCRIPT}: {scene.SCRIPT}", ".detail")
    desk.click(".records tbody tr:nth-child(1) button")
    desk.wait("document.querySelectorAll('.detail').length === 0")
    desk.click(".records tbody tr:nth-child(5) button")
    desk.wait("[...document.querySelectorAll('.detail pre')].some(one => one.textContent.length > 1000000)")
    assert desk.run("return document.title") == "Records · seglog console"
    assert desk.logs() == []


def test_records_are_filtered(desk: Browser) -> None:
    _go(desk, "records?topic=flights&partition=0&offset=0")
    desk.see("50 records", ".says")
    desk.type("input[name=path]", "to=ORD")
    desk.press("Enter")
    desk.wait(
        "[...document.querySelectorAll('.records .value')].length > 0 &&"
        " [...document.querySelectorAll('.records .value')].every(one => one.innerText.includes('\"to\": \"ORD\"'))"
    )


def test_ten_thousand_partitions_are_a_short_list(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    (path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    for number in range(10_000):
        (path / f"many-{number:05d}").mkdir()
    for number in range(10_000):
        (path / f"many-{number:05d}").rename(path / f"many-{number}")
    with start(tmp_path, str(path)) as running, Browser(*_DESK) as browser:
        browser.open(running.url)
        browser.see("10,000 partitions", ".total")
        browser.see("many-0", ".list")
        assert 0 < browser.count(".list .row") < 60
        browser.run("document.querySelector('.list').focus()")
        browser.press("End")
        browser.see("many-9999", ".list")
        assert browser.count(".list .row") < 60
        browser.press("Enter")
        browser.see("many-9999", "h1")
        browser.see("The log is empty", ".steps-place")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [_DESK, _PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_on_the_disk_and_records(
    addresses: Iterator[str], axe: str, size: tuple[int, int], dark: bool
) -> None:
    with Browser(*size, dark=dark) as browser:
        browser.open(next(addresses))
        browser.see("flights-0", "h1")
        browser.wait(_READY)
        _check(browser, axe)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        _go(browser, "records?topic=hostile&partition=0&offset=0")
        browser.see("6 records", ".says")
        browser.click(".records tbody tr:nth-child(1) button")
        browser.see("Headers", ".detail")
        _check(browser, axe)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_the_work_is_shown_live_and_changed_on_demand(tmp_path: Path, axe: str) -> None:
    with RunningNode(tmp_path / "log") as broker:
        create_topics(broker.bootstrap, NewTopic("work", 2, 1))
        write_all(broker.bootstrap, "work", [str(number) for number in range(20)], batch=20)
        commit(broker.bootstrap, "readers", "work", 5)
        arguments = (str(broker.path), "-b", broker.bootstrap, "--write", "--timeout", "5")
        with start(tmp_path, *arguments) as running, Browser(*_DESK) as browser:
            browser.open(running.url)
            browser.see("Live", "nav")
            _go(browser, "live")
            browser.see("Healthy", ".findings")
            browser.see("readers", ".live table")
            browser.see("work-0", ".live .list")
            browser.wait("[...document.querySelectorAll('.plain-table td')].some(one => one.innerText === '15')")
            browser.click(".plain-table button.plain")
            browser.see("Group readers", ".live")
            browser.run("document.querySelector(\"select[aria-label='Where to']\").value = 'offset'")
            browser.type("input[aria-label='Offset, records or time']", "2")
            browser.press("Enter")
            browser.see("Commit these offsets", ".reset")
            assert committed(broker.bootstrap, "readers", "work") == 5
            _check(browser, axe)
            browser.click(".reset button.primary")
            browser.see("The group continues there", ".reset")
            assert committed(broker.bootstrap, "readers", "work") == 2
            browser.devices(*_PHONE)
            browser.wait("document.documentElement.scrollWidth <= innerWidth")
            browser.devices(*_DESK)
            _go(browser, "records?topic=work&partition=1")
            browser.click("summary")
            browser.type(".produce input[name=key]", "k")
            browser.type(".produce textarea", "from the page")
            browser.click(".produce button.primary")
            browser.see("Sent: work-1, offset 0", ".toast")
            browser.click(".actions button")
            browser.see("from the page", ".records")
            assert len(values(broker.bootstrap, "work")) == 20
            _go(browser, "live")
            browser.see("Healthy", ".findings")
            broker.stop()
            browser.wait("document.querySelector('.findings .bad') !== null")
            browser.see(broker.bootstrap, ".findings")
