"""The tree as a whole: every module and page is used, no two modules import each other, no
two public classes share a name, and nothing public is there for tests alone.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.tree import (
    ROOT,
    Source,
    examples,
    imports_of,
    module_of,
    nodes_of,
    parsed,
    sources,
    starts_by_itself,
    tree_of,
)


@pytest.fixture(scope="module", autouse=True)
def _parsed() -> Iterator[None]:
    with parsed():
        yield


def test_every_module_is_used_by_another() -> None:
    """What only its own tests use is dead; the fakes are there for tests. What a user's script
    imports is used: docs/examples, whose every script is run by a test.
    """
    by_tests = set().union(*(_modules_named(source) for source in sources() if source.is_test))
    by_code = set().union(*(_modules_named(source) for source in sources() if not source.is_test))
    by_code |= set().union(*(_modules_named(example) for example in examples()))
    project = (ROOT / "pyproject.toml").read_text()
    by_code |= set(re.findall(r'"([\w.]+):\w+"', project))
    by_code |= {path.replace("/", ".") for path in re.findall(r'path = "([\w/]+)\.py"', project)}
    unused = [
        source.path
        for source in sources()
        if not starts_by_itself(source)
        and module_of(source) not in (by_code | by_tests if source.is_for_tests else by_code)
    ]
    assert not unused, f"nobody imports, starts or names these: {unused}"


def circle(sources: Iterable[Source]) -> list[str]:
    """Modules of which each imports the next one, and the last the first; none where none do. An
    import counts wherever it stands: for types alone, or in a function.

    That Python runs a package's `__init__` ahead of its modules counts for nothing.
    """
    by_module = {module_of(source): source for source in sources}
    imports = {name: imports_of(source, by_module.keys()) for name, source in by_module.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_modules_import_each_other() -> None:
    found = circle(sources())
    assert not found, f"move what they share below both: {' -> '.join(found)}"


THREE = {
    "a": "from tests import b",
    "b": "def f():\n    import tests.c",
    "c": "if TYPE_CHECKING:\n    from tests.a import A",
}
"""Each imports the next one, in another way."""


def test_a_circle_is_found() -> None:
    found = circle(Source(f"tests/{name}.py", text) for name, text in THREE.items())
    assert set(found) == {"tests.a", "tests.b", "tests.c"}
    assert found[0] == found[-1]
    assert "tests.a -> tests.b" in " -> ".join(found)


@pytest.mark.parametrize("mended", THREE)
def test_there_is_no_circle_without_one_of_its_imports(mended: str) -> None:
    texts = THREE | {mended: "import os"}
    assert circle(Source(f"tests/{name}.py", text) for name, text in texts.items()) == []


def test_a_public_class_name_means_one_thing() -> None:
    found = defined_twice(source for source in sources() if not source.is_for_tests)
    assert not found, f"rename the less central one; what `ckpt` exports keeps its name: {found}"


def defined_twice(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Public class name -> the modules that define it, where several do."""
    places: dict[str, list[str]] = {}
    for source in sources:
        for node in tree_of(source).body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                places.setdefault(node.name, []).append(module_of(source))
    return {name: modules for name, modules in places.items() if len(modules) > 1}


def test_a_class_that_is_defined_twice_is_found() -> None:
    one = Source("ckpt/one.py", "class A: ...\nclass B: ...\nclass _C: ...")
    two = Source("ckpt/two.py", "class A: ...\nclass _C: ...\ndef f():\n    class B: ...")
    assert defined_twice([one, two]) == {"A": ["ckpt.one", "ckpt.two"]}


MODULES_MAX = 20


def test_a_folder_holds_few_enough_modules_to_be_read_as_a_list() -> None:
    folders = Counter(
        folder
        for folder, _, name in (source.path.rpartition("/") for source in sources())
        if name != "__init__.py" and not folder.startswith("tests")
    )
    full = {folder: n for folder, n in folders.items() if n > MODULES_MAX}
    assert not full, "make rooms of what is told apart"


COLLABORATORS_MAX = 7
AS_ANOTHER_LIBRARY_HAS_IT = {"ReadFile", "CheckpointManager", "CkptManager"}
"""Constructors that a library of others calls (fsspec, torchtitan), or whose words are its own
(Orbax)."""


def test_a_constructor_takes_few_collaborators() -> None:
    found = {
        name: count
        for source in sources()
        if not source.is_for_tests
        for name, count in collaborators(source)
        if count > COLLABORATORS_MAX and name not in AS_ANOTHER_LIBRARY_HAS_IT
    }
    assert not found, "what several parts share is one object"


def collaborators(source: Source) -> Iterator[tuple[str, int]]:
    """(class, how many arguments its own constructor takes)."""
    for owner in nodes_of(source):
        if isinstance(owner, ast.ClassDef):
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    taken = method.args
                    yield owner.name, len(taken.args) - 1 + len(taken.kwonlyargs)


def test_collaborators_are_counted() -> None:
    text = "class A:\n    def __init__(self, a, b=1, *, c): ...\nclass B: ..."
    assert list(collaborators(Source("ckpt/a.py", text))) == [("A", 3)]


def test_every_page_is_linked_from_another() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    texts = {page: page.read_text() for page in [*pages, *ROOT.glob("*.md"), ROOT / "mkdocs.yml"]}
    texts |= {ROOT / source.path: source.text for source in sources()}
    lonely = [
        str(page.relative_to(ROOT))
        for page in pages
        # Decisions are a folder that is read as a list.
        if page.parent.name != "decisions"
        and not any(page.name in text for other, text in texts.items() if other != page)
    ]
    assert not lonely, f"no page or module names these: {lonely}"


@pytest.mark.parametrize("name", ["contributing.md", "ARCHITECTURE.md"])
def test_what_a_page_names_of_the_code_is_there(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    rooms = "ckpt|servers|clients|benchmarks|tests|docs"
    named = re.findall(rf"[ `]((?:{rooms})/[\w./]+\w)", page)
    assert len(named) > 20
    assert [one for one in named if not (ROOT / one).exists()] == []


CALLED_BY_FRAMEWORKS = {
    "should_synchronize_after_execute", "synchronize_staging",  # DCP: its AsyncStager's Protocol.
    "cp_file",  # fsspec: its AbstractFileSystem's.
    "put_file",  # fsspec likewise.
    "all_steps", "reload",  # Orbax: its CheckpointManager's.
}  # fmt: skip
"""What frameworks call by its name alone, without a base class that would say so."""


def test_nothing_public_is_there_for_tests_alone() -> None:
    product = [source for source in sources() if not source.is_for_tests]
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = set().union(*(_names_used(source) for source in (*product, *examples())))
    named |= {word for page in pages for word in re.findall(r"\w+", page.read_text())}
    alone = [
        f"{source.path}:{line}: {name}"
        for source in product
        if not starts_by_itself(source)
        for line, name in _public_functions(source)
        if name not in named | CALLED_BY_FRAMEWORKS
    ]
    assert not alone, "no product names these; move them to tests:\n" + "\n".join(alone)


A_CLASS_OF_OURS = """
import x
class C:
    def a(self): ...
    def b(self): self.a()
class D(C, x.Y):
    def called_by_x(self): ...
"""


def test_a_function_that_nobody_names_is_found() -> None:
    source = Source("ckpt/example.py", A_CLASS_OF_OURS)
    assert {name for _, name in _public_functions(source)} == {"a", "b"}
    assert _names_used(source) == {"a", "C", "x", "Y", "self"}


PLAIN_BASES = {"Struct", "Protocol", "Enum", "IntEnum", "NamedTuple", "Generic", "Exception"}
"""Bases that call no method of ours by its name."""


PACKAGES = r"(ckpt|ckptd|ckpt_\w+|ckptbench)(\.|$)"


def _public_functions(source: Source) -> Iterator[tuple[int, str]]:
    """Line and name of public functions and methods. Those of a class with a base that is not ours
    may be called by it.
    """
    own = set(PLAIN_BASES)
    for node in nodes_of(source):
        if isinstance(node, ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.ImportFrom) and re.match(PACKAGES, node.module or ""):
            own.update(alias.name for alias in node.names)
    for node in nodes_of(source):
        bases = node.bases if isinstance(node, ast.ClassDef) else []
        if any(ast.unparse(base).partition("[")[0] not in own for base in bases):
            continue
        for inner in node.body if isinstance(node, ast.Module | ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name[0] != "_":
                yield inner.lineno, inner.name


def _names_used(source: Source) -> set[str]:
    """Names that a file reads, and those in its short strings: some are looked up so."""
    used: set[str] = set()
    for node in nodes_of(source):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                used.add(name)
            case ast.MatchClass(kwd_attrs=names):
                used.update(names)
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.:]+", text):
                used.update(re.findall(r"\w+", text))
    return used


def _modules_named(source: Source) -> set[str]:
    """Modules that a file imports, or names in a string in order to start them."""
    named: set[str] = set()
    for node in nodes_of(source):
        match node:
            case ast.Import(names=names):
                named.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                named.add(module)
                named.update(f"{module}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)) if re.fullmatch(r"\w+(\.\w+)+(:\w+)?", text):
                named.add(text.partition(":")[0])
    return named - {module_of(source)}
