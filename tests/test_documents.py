"""The documents are run: every command and every line of Python in them, and what they show is compared.

In a document, fenced blocks mean:

- ``python``: run, all of a document sharing one namespace; what it prints is shown in the ``output`` block after it.
- ``console``: each line that begins with ``$`` is run by bash; what it prints, errors included, is shown below it. A
  command may fail only where an ``error:`` is shown.
- any block that begins with a comment naming a file (``# train.py``, ``// step.mlir``): written to that file, not run.
- all else (``text``, ``toml``, ``mlir``, ...): for reading only.

White space does not count in what is shown, so long lines may be wrapped; ``...`` stands for anything left out.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hpir
from hpir.plan import Plan

ROOT = Path(hpir.__file__).parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

_FILE = re.compile(r"(?:#|//) ([\w./-]+\.(?:py|mlir|toml))")
_FENCE = re.compile(r"^( *)```(\w*) *\n(.*?)^\1``` *$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, its text and the document's line of its first line."""

    kind: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The file it is written to, or an empty string."""
        match = _FILE.fullmatch(self.text.partition("\n")[0])
        return match[1] if match else ""


def read_blocks(document: str) -> list[Block]:
    """Return the fenced blocks of a document."""
    return [
        Block(match[2], match[3], document[: match.start(3)].count("\n") + 1) for match in _FENCE.finditer(document)
    ]


def assert_shown(shown: str, printed: str, where: str) -> None:
    """Fail unless `printed` is what is `shown`, white space and what ``...`` stands for aside."""
    parts = ["".join(part.split()) for part in shown.split("...")]
    pattern = ".*?".join(map(re.escape, parts))
    found = "".join(printed.split())
    if not re.fullmatch(pattern, found, re.DOTALL):
        raise AssertionError(f"{where}: shown:\n{shown}\nprinted:\n{printed}")


class Runner:
    """Runs the blocks of one document in an empty folder, which is the working directory."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        self.folder = folder
        # A real module: torch looks up by name the one that a function was defined in.
        self._module = types.ModuleType(f"document_{name.partition('.')[0]}")

    def run(self, blocks: list[Block]) -> None:
        """Run blocks in order."""
        sys.modules[self._module.__name__] = self._module
        try:
            self._run(blocks)
        finally:
            del sys.modules[self._module.__name__]

    def _run(self, blocks: list[Block]) -> None:
        printed: str | None = None
        for block in blocks:
            where = f"{self.name}:{block.line}"
            if block.kind == "output":
                assert printed is not None, f"{where}: an output block, but nothing was run before it"
                assert_shown(block.text, printed, where)
                printed = None
                continue
            assert not printed, f"{where}: what the block before this printed is not shown:\n{printed}"
            printed = None
            if block.file:
                path = self.folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
            elif block.kind == "python":
                printed = self._python(block)
            elif block.kind == "console":
                self._console(block, where)
        assert not printed, f"{self.name}: what the last block printed is not shown:\n{printed}"

    def _python(self, block: Block) -> str:
        # Lines are numbered as in the document, which messages then name.
        code = compile("\n" * (block.line - 1) + block.text, str(self.folder / self.name), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, vars(self._module))
        return printed.getvalue()

    def _console(self, block: Block, where: str) -> None:
        text = block.text.replace("\\\n", " ")
        head, *commands = re.split(r"^\$ ", text, flags=re.MULTILINE)
        assert not head.strip(), f"{where}: a console block begins with a command, '$ ...'"
        for entry in commands:
            command, _, shown = entry.partition("\n")
            done = self._shell(command)
            assert_shown(shown, done.stdout, f"{where}: $ {command}")
            failed = done.returncode != 0
            assert not failed or "error:" in shown, f"{where}: $ {command}\nfailed:\n{done.stdout}"

    def _shell(self, command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory to import from; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


RUN = [
    document for document in DOCUMENTS if {"python", "console"} & {b.kind for b in read_blocks(document.read_text())}
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("document", RUN, ids=lambda document: document.name)
def test_what_it_shows_happens(document: Path, folder: Path) -> None:
    Runner(document.name, folder).run(read_blocks(document.read_text()))


def test_the_guides_are_among_those_run() -> None:
    names = {document.name for document in RUN}
    assert names >= {
        "README.md",
        "first_steps.md",
        "how_a_step_becomes_a_program.md",
        "debugging.md",
        "adding_a_pass.md",
    }


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("```python\nprint('a')\n```\n```output\nb\n```\n", "shown"),
        ("```python\nprint('a')\n```\n", "is not shown"),
        ("```output\na\n```\n", "nothing was run"),
        ("```console\n$ echo a\nb\n```\n", "shown"),
        ("```console\n$ echo a; false\na\n```\n", "failed"),
        ("```console\n$ true\n$ echo a b c\na ... d\n```\n", "shown"),
        ("```console\necho a\n```\n", "begins with a command"),
    ],
)
def test_a_wrong_document_is_found_out(document: str, complaint: str, folder: Path) -> None:
    with pytest.raises(AssertionError, match=complaint):
        Runner("wrong.md", folder).run(read_blocks(document))


def test_a_right_document_is_let_through(folder: Path) -> None:
    document = (
        "```python\n# named.py\nVALUE = 1\n```\n"
        "```python\nfrom named import VALUE\nprint(VALUE, 2, 3)\n```\n"
        "```output\n1 ... 3\n```\n"
        "```console\n$ echo a\\\n  b\na b\n$ echo 'error: c'; false\nerror: c\n```\n"
        "```text\n$ not run\n```\n"
    )
    Runner("right.md", folder).run(read_blocks(document))


def _anchors(document: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    prose = _FENCE.sub("", document)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document: Path) -> None:
    prose = _FENCE.sub("", document.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), f"{document.name}: no file {target}"
        if anchor:
            assert anchor in _anchors(linked.read_text()), f"{document.name}: no heading {target}"


def test_the_index_names_every_document() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for document in (ROOT / "docs").glob("*.md"):
        assert document.name == "index.md" or f"({document.name})" in index


def test_no_document_names_a_machine() -> None:
    for document in DOCUMENTS:
        assert not re.search(r"/(?:work|home|root|tmp|Users)/", document.read_text()), document.name


def _keys() -> set[str]:
    keys = set()
    for name, field in Plan.model_fields.items():
        section = field.alias or name
        model = next((arm for arm in _arms(field.annotation) if hasattr(arm, "model_fields")), None)
        keys |= {f"{section}.{key}" for key in model.model_fields} if model else {section}
    return keys


def _arms(annotation: Any) -> Iterator[Any]:
    yield annotation
    for arm in getattr(annotation, "__args__", ()):
        yield from _arms(arm)


def test_the_guide_to_plans_has_every_key() -> None:
    guide = (ROOT / "docs" / "plan.md").read_text()
    rows = set(re.findall(r"^\| `([\w.]+)` \|", guide, re.MULTILINE))
    assert rows == _keys()


@cache
def _texts() -> list[str]:
    """Return every text of the package, what is filled in at run time replaced by a null character."""
    texts = []
    for folder in ("", "dialect", "ir_passes", "lowering", "reporting", "runtime", "tools"):
        for file in (ROOT / folder).glob("**/*.py" if folder else "*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    parts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values]
                    texts.append("".join(parts))
    return texts


def _messages() -> list[str]:
    return re.findall(r"^### `(.+)`$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)


def test_the_errors_page_quotes_messages_that_exist() -> None:
    messages = _messages()
    assert len(messages) >= 40
    for message in messages:
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in message.split("...")), re.DOTALL)
        assert any(pattern.search(text) for text in _texts()), f"errors.md: no such message: {message}"
