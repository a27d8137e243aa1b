"""README and documents: commands, keys and links are right; all that the code has is in the reference."""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fault_table import FAULTS
from farm.common.errors import ExitCode, UserError
from farm.config import load
from farm.kinds import KINDS as SPECS
from farm.metrics.catalogue import METRICS
from farm.model.device import Life
from farm.model.event_kinds import KINDS
from farm.model.job import JobState
from farm.model.specs import JobSpec, ModelSpec, fields_of
from farm.store.event_history import TRANSIENT
from tests.support.pages import BLOCK, ROOT, blocks, links, pages, section, slugs
from tests.support.verbs import every_verb

sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import diagrams
import generate

PAGES = pages()
SPEC_KEYS = {"kind", "matrix", "job"}  # of spec files (docs/scripts.md), which are TOML too
BUNDLE_KEYS = {"abi", "platform"}  # of bundle.toml
COMMANDS = dict(generate.commands())
NAMES = {name.split()[1] for name in COMMANDS if " " in name}
ANY = "ANY"
# How the sentence of a hint continues after a command.
AFTER = " and farm| (?:and|brings|checks|lists|makes|prints|replaces|shows|starts|tells|writes) "


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, heading = link.partition("#")
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), link
        assert not heading or heading in slugs(there), link


def paths_in(page: Path) -> set[str]:
    """Every path of this repository that a page names in code, those with a placeholder apart."""
    tops = "|".join(re.escape(each.name) for each in ROOT.iterdir() if each.name not in (".git", ".venv"))
    return set(re.findall(rf"(?<![\w./<>-])((?:{tops})/[\w./-]*)(?=[`\s)])", page.read_text("utf-8")))


def test_every_path_in_contributing_exists() -> None:
    found = paths_in(ROOT / "CONTRIBUTING.md")
    assert len(found) > 60
    assert [each for each in sorted(found) if not (ROOT / each).exists()] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_module_that_a_document_names_exists(page: Path) -> None:
    named = set(re.findall(r"\b(?:farm|tests|benchmarks)/[\w/]+\.py\b", page.read_text()))
    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []


# --- commands ---------------------------------------------------------------------------------------------------------


def typed(page: Path) -> Iterator[list[str]]:
    """Each `farm ...` in a page's blocks of commands, as words; what stands for something else is a word, too."""
    for text in blocks(page, "console", "sh", "bash", "shell", ""):
        for line in text.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line.removeprefix("$ "), comments=True)
            except ValueError:
                continue  # output, or prose with an apostrophe
            if words[:1] == ["sudo"]:
                words = words[1:]
            if words[:1] in (["farm"], [".venv/bin/farm"]) and not "".join(words[1:2]).isupper():
                end = next((at for at, word in enumerate(words) if word in ("&", "|", "&&", ";", ">")), len(words))
                yield words[1:end]


def mentioned(page: Path) -> Iterator[list[str]]:
    """Each `farm ...` in a page's running text; of `farm job list|show` both."""
    text = BLOCK.sub("", page.read_text("utf-8")).replace("\n", " ").replace("\\|", "|")
    for span in re.findall(r"`farm ([a-z-][^`]*)`", text):
        try:
            words = shlex.split(re.sub(r"\[|\]|\|(?= )", "", span))  # [--option X]: it may be left out
        except ValueError:
            continue  # a piece of a line
        choices = max((word.count("|") for word in words), default=0) + 1
        for at in range(choices):
            yield [word.split("|")[min(at, word.count("|"))] for word in words]


def hints() -> Iterator[tuple[str, list[str]]]:
    """Each command that a hint or a doctor's finding names: file and words, ANY for what the code fills in."""
    for path in sorted((ROOT / "farm").rglob("*.py")):
        if not re.search(r"hint=|Finding\(", text := path.read_text("utf-8")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                said = [node.value]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                said = node.args[3:]
            else:
                continue
            for text in (_text(each) for expression in said for each in ast.walk(expression)):
                for found in re.findall(rf"\bfarm ([a-z].*?)(?:[`;,:()&|]|{AFTER}|$)", text):
                    with contextlib.suppress(ValueError):
                        if (words := shlex.split(found.rstrip(". ")))[0] in NAMES:
                            yield path.name, words


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def mistake(words: list[str], *, complete: bool = False) -> str:
    """What the command line says against these words, `complete` or the beginning of a command; "": nothing."""
    import typer

    from farm.cli.main import app

    command: Any = typer.main.get_command(app)
    name = "farm"
    while hasattr(command, "list_commands"):
        context = command.make_context(name, [], resilient_parsing=True)
        while words and words[0].startswith("-"):
            known = next((each for each in command.params if words[0].split("=")[0] in each.opts), None)
            if known is None and words[0] != "--help":
                return f"{name} has no option {words[0]}"
            words = words[1 if known is None or known.is_flag else 2 :]
        if not words:
            return ""
        below = command.get_command(context, words[0])
        if below is None:
            return "" if command.invoke_without_command else f"{name} has no command {words[0]}"
        command, name, words = below, f"{name} {words[0]}", words[1:]
    return _mistaken_words(name, command, words, complete=complete)


def _mistaken_words(name: str, command: Any, words: list[str], *, complete: bool) -> str:
    options = {opt: each for each in command.params for opt in (*each.opts, *each.secondary_opts)}
    options |= {"--help": None, "-h": None}
    given: list[str] = []  # to its arguments
    left = iter(words)
    for word in left:
        if word == "--":
            return ""
        option, _, value = word.partition("=")
        if not word.startswith("-") or re.fullmatch(r"-\d+|-", word):
            given.append(word)
        elif option not in options:
            return f"{name} has no option {word}"
        elif (known := options[option]) is not None and not known.is_flag:
            value = value or next(left, "")
            if not value.isupper() and not _may_be(known, value):
                return f"{value} is no {option} of {name}"
    takes = [each for each in command.params if each.param_type_name == "argument"]
    if wrong := [word for each, word in zip(takes, given, strict=False) if not _may_be(each, word)]:
        return f"{name} does not take {wrong[0]}"
    if len(given) > len(takes) and all(each.nargs > 0 for each in takes):
        return f"{name} takes {len(takes)} arguments"
    lacks = len(given) < sum(each.required for each in takes)
    if lacks and (complete or any(word.isupper() for word in given)) and "--help" not in words:
        return f"{name} takes more arguments"
    return ""


def _may_be(taken: Any, word: str) -> bool:
    choices = [str(getattr(each, "value", each)) for each in getattr(taken.type, "choices", ())]
    return not choices or word in (*choices, ANY, "...", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_block_or_a_sentence_is_one(page: Path) -> None:
    wrong = [(words, said) for words in typed(page) if (said := mistake(words, complete=True))]
    wrong += [(words, said) for words in mentioned(page) if (said := mistake(words))]
    assert not wrong


def test_each_command_has_a_line_of_its_own() -> None:
    lines = [(page.name, line) for page in PAGES for line in page.read_text("utf-8").splitlines()]
    commands = re.compile(rf"farm (?:{'|'.join(sorted(COMMANDS))}) [\w.-]")
    assert [
        (page, line)
        for page, line in lines
        if line.startswith(("    farm ", "$ farm ")) and len(commands.findall(line)) > 1
    ] == []


def test_every_command_in_a_hint_is_one() -> None:
    found = list(hints())
    assert len(found) > 60
    assert [(name, words, said) for name, words in found if (said := mistake(words))] == []


def test_a_command_that_is_none_is_found() -> None:
    assert mistake(["device", "adop", "x"])
    assert mistake(["bench", "m.onnx", "--onn", "x"])
    assert mistake(["explain", "sm8550"])
    assert mistake(["device", "pull", "NAME"])
    assert mistake(["device", "adopt", "x", "y", "z"])
    assert mistake(["top", "--sort", "size"])
    assert mistake(["device", "pull"], complete=True)
    assert not mistake(["device", "pull"])
    assert not mistake(["bench", "m.onnx", "--on=x", "--repeat", "5"])


def test_pages_show_commands_at_all() -> None:
    assert sum(1 for page in PAGES for _ in typed(page)) > 60


def test_every_command_and_option_is_in_the_reference_with_words() -> None:
    page = generate.cli()
    assert len(COMMANDS) > 60
    for name, command in COMMANDS.items():
        assert f"## `{name}`" in page or name == "farm", name
        assert command.help, name
        for written, what in generate.options_of(name, command):
            assert f"`{written}`" in page, (name, written)
            assert what or not written.startswith("-"), (name, written)


def test_nobody_is_told_to_install_the_farm_of_pypi() -> None:
    """That name is somebody else's package there: only a path installs this one."""
    told = [*PAGES, *(ROOT / "farm").rglob("*.py")]
    by_name = re.compile(r"pip install (?:-\S+ )*['\"]?farm(?:\b|\[)")
    assert [str(path) for path in told if by_name.search(path.read_text("utf-8"))] == []
    assert by_name.search("pip install --upgrade 'farm[tvm]'")


# --- configuration ----------------------------------------------------------------------------------------------------


def configurations() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for text in blocks(page, "toml"):
            keys = set(tomllib.loads(text))
            if not keys & (SPEC_KEYS | BUNDLE_KEYS | {"command"}):  # "command": a program's description
                yield page.name, text


@pytest.mark.parametrize(("page", "text"), list(configurations()))
def test_every_configuration_in_a_block_is_one(page: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(text if "[toolchain.default]" in text else text + "\n[toolchain.default]\n")
    load(file, environ={})


def test_a_key_that_is_none_is_found(tmp_path: Path) -> None:
    (tmp_path / "farm.toml").write_text("[tvm]\nprot = 1\n")
    with pytest.raises(UserError, match="unknown key"):
        load(tmp_path / "farm.toml", environ={})


def test_every_key_is_in_the_reference_with_words() -> None:
    found = list(generate.config_keys())
    assert len(found) > 80
    assert [each.path for each in found if not each.meaning] == []
    page = generate.config()
    assert all(f"| `{each.name}` |" in page for each in found)


def test_every_field_of_every_kind_of_job_is_in_the_reference_with_its_bounds_and_words() -> None:
    page = generate.specs()
    for kind, spec in SPECS.items():
        own = page.partition(f"## `{kind}`")[2].partition("\n## ")[0]
        for name, field in fields_of(spec).items():
            assert field.help.text, (kind, name)
            shared = name in fields_of(ModelSpec if issubclass(spec, ModelSpec) else JobSpec)
            assert f"| `{name}` |" in (page if shared else own), (kind, name)
    assert "| `trials` | whole number 1 to 1,000,000 | `1000` | Candidates to measure. |" in page
    assert page.count("| `priority` |") == 1
    assert "| `devices` | whole number 1 to 1,000 or `all` | `1` |" in page
    assert "| `prior` | file | none |" in page


# --- verbs, events, errors --------------------------------------------------------------------------------------------


def test_every_verb_is_in_the_reference_with_words(tmp_path: Path) -> None:
    found = {each.kind: each for each in generate.verbs()}
    assert set(found) == set(every_verb(tmp_path))
    assert [kind for kind, each in found.items() if not each.meaning] == []
    assert {each.role for each in found.values()} == {"viewer", "user", "operator"}


PACKAGES = (
    "adb", "builders", "control", "daemon", "devices", "head", "jobs", "kinds", "leasing", "metrics", "store",
    "tvm_server", "web",
)  # fmt: skip


def published() -> Iterator[tuple[str, str]]:
    """Each kind of event that the sources publish or draft, and where."""
    for path, module in generate.sources(*PACKAGES):
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                first = node.args[0] if node.args else None
                if name in ("publish", "_publish", "lease_event") and first is not None:
                    yield from ((kind, path.name) for kind in _texts(first))
                if name == "drafted":
                    for told in node.args:
                        if isinstance(told, ast.Tuple):
                            yield from ((kind, path.name) for kind in _texts(told.elts[0]))


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may be: `a if x else b` is two; a text with `{...}` in it has a *."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)


def test_every_event_that_is_published_is_in_the_list() -> None:
    found = set(published())
    assert len(found) > 35
    unknown = [each for each in found if "*" not in each[0] and each[0] not in KINDS]
    assert unknown == []
    assert {kind for kind, _ in found if "*" in kind} <= {"device.*", "job.*", "hub.*", "host.usb_*"}
    assert {kind for kind, each in KINDS.items() if not each.kept} == TRANSIENT
    assert {f"device.{life.value}" for life in Life} | {f"job.{state.value}" for state in JobState} <= set(KINDS)


def test_every_event_error_and_exit_code_is_in_the_reference() -> None:
    page = generate.events()
    assert all(f"| `{kind}` |" in page for kind in KINDS)
    listed = section(ROOT / "docs" / "reference-cli.md", "Exit status")
    exits = {value for name, value in vars(ExitCode).items() if name.isupper()}
    assert {int(each) for each in re.findall(r"^(\d+)$", listed, re.MULTILINE)} == exits
    codes = [code for code, *_ in generate.errors()]
    assert len(set(codes)) == len(codes) > 60
    assert all(meaning for *_, meaning in generate.errors())


def test_every_metric_and_measured_fault_is_in_the_reference() -> None:
    page = generate.metrics()
    assert all(f"| `{each.shown}` |" in page for each in METRICS.values())
    measured = generate.faults()
    assert all(f"| {fault.name} |" in measured for fault in FAULTS)


# --- drawings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", diagrams.DRAWINGS)
def test_a_drawing_is_what_the_code_says_now(name: str) -> None:
    kept = (ROOT / "docs" / "diagrams" / f"{name}.svg").read_text("utf-8")
    assert kept == diagrams.DRAWINGS[name]().svg(), "python docs/_ext/diagrams.py draws them again"


@pytest.mark.parametrize("name", diagrams.DRAWINGS)
def test_a_drawing_has_every_state_and_every_step(name: str) -> None:
    drawing = diagrams.DRAWINGS[name]()
    assert {state for edge in drawing.steps for state in edge} <= set(drawing.places)
    assert drawing.drawn() == drawing.steps
