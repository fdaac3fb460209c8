"""Other people's e-graphs: the egraph-serialize format, read, written and extracted from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eqsat import cli
from eqsat.extract import hypergraph
from eqsat.extract.serialized import (
    SerializedEGraph,
    SerializedError,
    SerializedNode,
    extract_serialized,
    from_json,
    to_json,
)

DOCUMENT = {
    "nodes": {
        "root": {"op": "+", "cost": 1.0, "eclass": "r", "children": ["a1", "b1"]},
        "a1": {"op": "f", "cost": 4.0, "eclass": "a", "children": ["s"]},
        "a2": {"op": "leaf", "cost": 6.0, "eclass": "a", "children": []},
        "b1": {"op": "g", "cost": 1.0, "eclass": "b", "children": ["s"]},
        "b2": {"op": "id", "cost": 0.0, "eclass": "b", "children": ["b1"]},
        "s": {"op": "x", "cost": 3.0, "eclass": "s"},
    },
    "root_eclasses": ["r"],
    "comment": "by hand",
}


@pytest.mark.parametrize("ilp", [True, False])
def test_serialized_egraphs(ilp: bool) -> None:
    egraph = from_json(json.dumps(DOCUMENT))
    assert from_json(to_json(egraph)) == egraph
    found = extract_serialized(egraph, ilp=ilp)
    assert dict(found.nodes) == {"s": "s", "a": "a1", "b": "b1", "r": "root"}
    assert (found.cost, found.bound) == (9.0, 9.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": []}, "an object"),
        ({"nodes": {"a": {"op": "f"}}}, "node 'a'"),
        ({"nodes": {"a": {"op": "f", "eclass": "r", "children": ["b"]}}}, "child 'b'"),
        ({"nodes": {"a": {"op": "f", "eclass": "r", "cost": -1}}}, "cost -1"),
        ({"nodes": {"a": {"op": "f"}}}, "node 'a' has no 'eclass'"),
        ({"nodes": {"a": "f"}}, "node 'a': 'str' object"),
        ({"nodes": {"a": {"op": "f", "eclass": "r", "children": "a"}}}, "node 'a': its children are a list"),
        ({"nodes": {"a": {"op": "f", "eclass": "r", "children": 5}}}, "node 'a': its children are a list"),
        ({"nodes": {"a": {"op": "f", "eclass": "r", "cost": "dear"}}}, "node 'a': .*'dear'"),
        ({"nodes": {"a": {"op": "f", "eclass": "r", "cost": None}}}, "node 'a': "),
        ({"nodes": {"a": {"op": "f", "eclass": "r", "cost": 10**400}}}, "node 'a': int too large"),
        ({"nodes": {n: {"op": "f", "eclass": "r", "cost": 1e308} for n in "ab"}}, "too large to be added"),
        ({"nodes": {"a": {"op": None, "eclass": "r"}}}, "node 'a': its operator, e-class and children are names"),
        ({"nodes": {"a": {"op": "f", "eclass": ["r"]}}}, "node 'a': its operator, e-class and children are names"),
        ({"nodes": {"a": {"op": "f", "eclass": "r", "cost": float("nan")}}}, "node 'a': cost nan"),
        ({"root_eclasses": ["z"]}, "root e-class 'z'"),
        ({"root_eclasses": 5}, "is a list of e-classes, not 5"),
    ],
)
def test_broken_documents_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(SerializedError, match=message):
        from_json(json.dumps({**DOCUMENT, **change}))


def test_text_that_is_no_json_and_roots_without_terms_are_refused() -> None:
    for text in ("{", "", "[" * 100_000):
        with pytest.raises(SerializedError, match="not JSON"):
            from_json(text)
    nodes = {"a": {"op": "f", "eclass": "r", "cost": 1, "children": ["a"]}}
    with pytest.raises(SerializedError, match="no finite term"):
        extract_serialized(from_json(json.dumps({"nodes": nodes, "root_eclasses": ["r"]})))


def test_documents_are_extracted_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "egraph.json"
    path.write_text(json.dumps(DOCUMENT))
    assert cli.main(["extract", "--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cost"] == 9.0 and found["nodes"]["a"] == "a1"
    assert cli.main(["extract", str(path)]) == 0
    assert "cost 9" in capsys.readouterr().out
    path.write_text("{}")
    assert cli.main(["extract", str(path)]) == 1
    assert 'an object with "nodes"' in capsys.readouterr().err


def test_a_node_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SerializedError, match="'a' is there twice"):
        from_json(
            '{"nodes": {"a": {"op": "f", "eclass": "r"}, "a": {"op": "g", "eclass": "r"}}, "root_eclasses": ["r"]}'
        )


def test_names_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what a terminal would take for markup, and what has no encoding."""
    file = tmp_path / "egraph.json"
    file.write_text('{"nodes": {"a": {"op": "[/red]", "eclass": "\\ud800"}}, "root_eclasses": ["\\ud800"]}')
    assert cli.main(["extract", str(file)]) == 0
    assert "[/red]" in capsys.readouterr().out


def test_a_long_chain_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each node of it needs is not written down, for that is half its square."""
    monkeypatch.setattr(hypergraph, "MOST_HELD", 1000)
    n = 200
    nodes = {f"n{i}": SerializedNode("f", f"c{i}", (f"n{i + 1}",) if i < n - 1 else ()) for i in range(n)}
    assert extract_serialized(SerializedEGraph(nodes, ("c0",)), seconds=1).cost == n
