"""The report page as a file: text of others stays text, nothing is fetched, and the policy names the scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from recorded import finish, gpas, make_project

from gpas_cli.page.document import ASSETS, SCRIPTS

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
GRIDS = """\
  quick:
    title: '<b onmouseover=alert(3)>bold</b> & </title>'
    base: BASE
    axes: {gate: [none, gpas], seed: [1, 2]}
    table: {rows: [gate], columns: size, against: {gate: none}}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("project")
    entries = make_project(folder, GRIDS)
    for number, entry in enumerate(entries[:3]):
        finish(folder / "runs", entry, 30.0 + number, host=HOSTILE)
    finish(folder / "runs", entries[3], 33.0, cause=HOSTILE, stop=20)
    done = gpas(folder, "report", "-o", "out/page.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Wrote out/page.html (")
    return (folder / "out/page.html").read_text()


def data(page: str, name: str) -> dict[str, Any]:
    found = re.search(f'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def test_text_of_others_adds_no_element(page: str) -> None:
    assert page.count("<script") == page.count("</script>") == 3
    for markup in ("<img", "<b ", "onerror=alert(2)>", "alert(1)</script>"):
        assert markup not in page
    assert "&lt;b onmouseover=alert(3)&gt;" in page


def test_the_page_of_one_grid_has_its_title(page: str) -> None:
    title = "&lt;b onmouseover=alert(3)&gt;bold&lt;/b&gt; &amp; &lt;/title&gt;"
    assert f"<title>{title}: GPAS report</title>" in page
    assert f"<h1>{title}</h1>" in page


def test_a_shadow_shows_that_a_wide_table_continues(page: str) -> None:
    assert re.search(r"\n\.wide \{[^}]*overflow-x: auto;[^}]*no-repeat local[^}]*no-repeat scroll", page)


def test_cells_have_their_text_unchanged(page: str) -> None:
    cells = data(page, "data")["cells"]
    assert [cell["state"] for cell in cells] == ["done", "done", "done", "failed"]
    assert cells[3]["cause"] == HOSTILE
    assert (cells[0]["result"], cells[0]["metric"]) == (30.0, "perplexity")
    details = data(page, "detail-data")
    assert details["cells"][cells[0]["id"]]["attempts"][0]["host"] == HOSTILE
    assert details["settings"]["optim.steps"] == 40
    assert HOSTILE in " ".join(details["cells"][cells[3]["id"]]["log"])


def test_policy_allows_only_the_script_and_style_of_the_page(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src &#39;none&#39;" in policy[1] or "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag in ("script", "style"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert text
        assert base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode() in policy[1]


def test_nothing_is_fetched(page: str) -> None:
    addresses = re.findall(r'(?:src|href|action|data|poster)="([^"]*)"', page)
    assert addresses
    assert all(address.startswith(("#", "data:,")) for address in addresses)
    assert not re.search(r"url\((?!#)|@import", page)


def test_every_script_is_on_the_page() -> None:
    assert sorted(SCRIPTS) == sorted(path.name for path in ASSETS.glob("*.js"))


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    make_project(tmp_path, GRIDS)
    (tmp_path / "folder").mkdir()
    done = gpas(tmp_path, "report", "-o", "folder")
    assert done.returncode == 2
    assert done.stderr == "gpas: folder is a folder; name a file in it: `gpas report -o folder/report.html`\n"
