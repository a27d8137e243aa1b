"""What the page is made of: vendored files are those of their packages, and nothing runs or comes from elsewhere."""

import hashlib
import json
import re
from pathlib import Path

import pytest

import farm.web
from farm.web.rendering import read_assets

WEB = Path(farm.web.__file__).parent
VENDOR = WEB / "static" / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text())
FILES = [(package["package"], file) for package in MANIFEST["packages"] for file in package["files"]]
TEMPLATES = [*sorted((WEB / "templates").glob("*.html")), *sorted((WEB.parent / "kinds").glob("*/page.html"))]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


OWN = [path for path in sorted((WEB / "static").glob("*")) if path.suffix in {".js", ".css", ".svg"}]


@pytest.mark.parametrize(("package", "file"), FILES, ids=[file["name"] for _, file in FILES])
def test_a_vendored_file_is_that_of_its_package(package: str, file: dict[str, str]) -> None:
    assert hashlib.sha256((VENDOR / file["name"]).read_bytes()).hexdigest() == file["sha256"], package


def test_every_vendored_file_is_in_the_manifest_with_its_licence() -> None:
    assert {file["name"] for _, file in FILES} == {path.name for path in VENDOR.iterdir()} - {"manifest.json"}
    for package in MANIFEST["packages"]:
        assert package["license"]
        assert package["version"]
        assert any(file["name"].endswith("LICENSE") for file in package["files"])


@pytest.mark.parametrize("path", TEMPLATES, ids=name)
def test_a_template_has_no_script_or_style_of_its_own(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"<style|\sstyle=|javascript:", text)
    assert not re.search(r"\son[a-z]+=", text)
    assert "|safe" not in text.replace(" ", "")
    assert "autoescape" not in text


@pytest.mark.parametrize("path", [*TEMPLATES, *OWN], ids=name)
def test_nothing_is_fetched_from_elsewhere(path: Path) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"')]*", path.read_text()))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, never fetched


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=lambda path: path.name)
def test_no_script_makes_code_or_markup_of_text(path: Path) -> None:
    assert not re.search(r"\beval\(|new Function|innerHTML\s*=|insertAdjacentHTML|document\.write", path.read_text())


def test_every_file_is_served_under_its_hash() -> None:
    assets = read_assets()
    assert assets["app.css"].body == (WEB / "static" / "app.css").read_bytes()
    assert assets["app.css"].version == hashlib.sha256(assets["app.css"].body).hexdigest()[:12]
    assert assets["vendor/htmx.min.js"].media_type.startswith("text/javascript")
    assert {"vendor/uPlot.LICENSE", "vendor/htmx.LICENSE"} <= assets.keys()
