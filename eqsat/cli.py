"""The command ``eqsat``: explanations, machine model, cache, tuning records, rules, extraction, doctor.

Exit codes: 0 done, 1 failed (the reason on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsat.discovery import command as discovery
from eqsat.verify import fuzz_command

if TYPE_CHECKING:
    from rich.table import Table

    from eqsat.cost.machine import Machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: the process's own); the exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except KeyboardInterrupt:
        print("eqsat: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has left; say nothing at exit either
        return 1
    except (OSError, RuntimeError, ValueError, ImportError, MemoryError) as error:
        # what goes wrong outside this program's hands; anything else is a fault of it and shows its traceback
        print(f"eqsat: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eqsat", description="Equality-saturation superoptimizer for tensor programs: machine model, cache, rules."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    explain = commands.add_parser(
        "explain", help="compile a function and show what was chosen, why, and how fast it is"
    )
    explain.add_argument("function", metavar="MODULE:FUNCTION", help="such as package.model:layer or model.py:layer")
    explain.add_argument(
        "arguments", metavar="ARGUMENT", nargs="*", type=_argument,
        help="float32[32,64], a Python literal, or name=… of these; none: those of the last call that the module makes",
    )  # fmt: skip
    shown = explain.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="as JSON")
    shown.add_argument("--source", action="store_true", help="the generated kernels instead")
    shown.add_argument("--why", metavar="RULE", help="what became of one rule instead")
    explain.set_defaults(run=_explain)

    machine = commands.add_parser("machine", help="show the machine model (measured on first use)")
    machine.add_argument("--remeasure", action="store_true", help="measure again and store the result")
    machine.add_argument("--json", action="store_true", help="as JSON, fit for EQSAT_MACHINE")
    machine.set_defaults(run=_machine)

    cache = commands.add_parser("cache", help="show or clear what is kept between processes")
    actions = cache.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("ls", help="list the entries")
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(run=_cache_list)
    actions.add_parser("clear", help="remove every entry").set_defaults(run=_cache_clear)
    limit = actions.add_parser("limit", help="show or set how much is kept")
    limit.add_argument(
        "size", metavar="SIZE", type=_bytes, nargs="?", help="such as 500M or 2G; what is above goes now"
    )
    limit.set_defaults(run=_cache_limit)
    actions.add_parser("path", help="print the cache directory").set_defaults(run=_cache_path)

    records = commands.add_parser("records", help="show, move or remove what tuning measured")
    actions = records.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("ls", help="list the records")
    listing.add_argument("--json", action="store_true", help="as JSON, the document that export writes")
    listing.set_defaults(run=_records_list)
    export = actions.add_parser("export", help="write all records to a JSON document")
    export.add_argument("file", metavar="FILE", type=Path)
    export.set_defaults(run=_records_export)
    imports = actions.add_parser("import", help="take the records of a document that were measured on this processor")
    imports.add_argument("file", metavar="FILE", type=Path)
    imports.set_defaults(run=_records_import)
    actions.add_parser("clear", help="remove every record").set_defaults(run=_records_clear)

    extract = commands.add_parser("extract", help="extract the cheapest terms of an e-graph in egraph-serialize JSON")
    extract.add_argument("file", type=Path, help="the document")
    extract.add_argument("--seconds", type=float, default=10.0, help="time limit (default: 10)")
    extract.add_argument("--json", action="store_true", help="as JSON: the node chosen for each e-class, and the costs")
    extract.set_defaults(run=_extract)

    rules = commands.add_parser(
        "rules",
        help="list the rewrite rules; rules check [ID | MODULE …] checks some, rules discover --ops OP … finds more",
    )
    rules.add_argument("text", metavar="TEXT", nargs="*", help="only those with all of these in id, rule or doc")
    rules.add_argument(
        "--seconds", type=float, help="of a check, for each rule (default: 4), or of the search for new ones (60)"
    )
    rules.add_argument("--json", action="store_true", help="as JSON")
    discovery.add_arguments(rules, _argument)
    rules.set_defaults(run=_rules)

    fuzz = commands.add_parser("fuzz", help="optimize random programs and compare them with NumPy")
    fuzz_command.add_arguments(fuzz)
    fuzz.set_defaults(run=fuzz_command.run)

    doctor = commands.add_parser("doctor", help="show versions, machine, threads and caches; 1 if something is amiss")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from importlib.metadata import version

        print(f"eqsat {version('eqsat')}")
        parser.exit()


def _table(title: str, *columns: str, numbers: Sequence[str] = ()) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    return table


def _show(*tables: Table) -> None:
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(table)


def _argument(text: str) -> tuple[str, Any]:
    """A name, empty for a positional argument, and a value."""
    import ast
    import re

    from eqsat.errors import EqsatError
    from eqsat.frontends.shapes_only import spec

    named = re.fullmatch(r"([^\W\d]\w*)=(.*)", text, re.DOTALL)
    name, value = (named[1], named[2]) if named else ("", text)
    array = re.fullmatch(r"([a-z]\w*)\[([\d,\s]*)\]", value)
    try:
        if array:
            return name, spec([int(n) for n in array[2].split(",") if n.strip()], array[1])
        return name, ast.literal_eval(value)
    except EqsatError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    except (SyntaxError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{value!r} is neither an array's type, such as float32[32,64], nor a Python literal"
        ) from None


def _explain(options: argparse.Namespace) -> int:
    from eqsat.api import optimize
    from eqsat.errors import EqsatError
    from eqsat.function import OptimizedFunction

    found = _found(options.function)
    function = found if isinstance(found, OptimizedFunction) else optimize(found)
    args = [value for name, value in options.arguments if not name]
    kwargs = {name: value for name, value in options.arguments if name}
    try:
        if options.source:
            print(function.source(*args, **kwargs))
            return 0
        report = function.explain(*args, **kwargs)
        if options.why:
            print(report.why(options.why))
        elif options.json:
            print(report.to_json())
        else:
            from rich.console import Console

            Console(highlight=False).print(report)
    except EqsatError as error:
        raise ValueError(str(error)) from error
    except TypeError as error:  # the call does not fit the function
        raise ValueError(
            f"{error}. As arguments give types of arrays and literals, such as float32[32,64] 0.5"
        ) from error
    return 0


def _imported(module: str) -> Any:
    """A module by its dotted name, seen from the working directory, or by the path of its file."""
    import importlib.util

    path = Path(module)
    sys.path.insert(0, str(path.resolve().parent if path.suffix == ".py" else Path.cwd()))
    if path.suffix != ".py":
        return importlib.import_module(module)
    if not path.is_file():
        raise ValueError(f"there is no file {module}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _found(text: str) -> Any:
    """The function that ``module:function`` names; the module may be a file's path.

    Raises:
        ValueError: there is none. What importing the module raises.
    """

    module, colon, name = text.rpartition(":")
    if not (colon and module and name):
        raise ValueError(f"{text!r} is not MODULE:FUNCTION, such as package.model:layer or model.py:layer")
    value = _imported(module)
    made = value
    for part in name.split("."):
        if not hasattr(value, part):
            has = [n for n, v in vars(made).items() if callable(v) and getattr(v, "__module__", "") == made.__name__]
            raise ValueError(f"{module} has no {name}; its functions: {', '.join(has) or 'none'}")
        value = getattr(value, part)
    if not callable(value):
        raise ValueError(f"{text} is a {type(value).__name__}, not a function")
    return value


def _machine(options: argparse.Namespace) -> int:
    from eqsat.cost import machine

    model = machine.remeasure() if options.remeasure else machine.load()
    if options.json:
        print(model.to_json())
    else:
        _show(*_machine_tables(model))
    return 0


def _machine_tables(model: Machine) -> list[Table]:
    units = _table("Machine", "figure", "value", numbers=("value",))
    for figure, value in (
        ("processor", model.cpu),
        ("cores", str(model.cores)),
        ("vector registers", f"{model.registers} x {8 * model.vector_bytes} bits"),
        *((f"FMA peak, {dtype}, one core", f"{peak:.0f} GFLOP/s") for dtype, peak in model.fma_gflops),
        ("multiply-add latency", f"{model.fma_latency_ns:.2f} ns" if model.fma_latency_ns else "not measured"),
        ("broadcasts from L1", f"{model.broadcast_gs:.1f} G/s" if model.broadcast_gs else "not measured"),
        *((f"16 × 16 products, {element}", f"{cost:.2f} ns") for element, cost in model.matrix_ns),
        ("call from Python, 3 arrays", f"{model.call_us:.2f} us"),
        ("kernel step", f"{model.step_us:.3f} us"),
        ("parallel launch", f"{model.launch_us:.2f} us"),
        ("the same, threads asleep", f"{model.wake_us:.1f} us"),
        ("barrier", f"{model.barrier_us:.2f} us"),
    ):
        units.add_row(figure, value)
    numbers = ("size", "read", "copy", "read, all cores", "copy, all cores", "scattered line, ns")
    memory = _table("Memory, GB/s", "level", *numbers, numbers=numbers)
    for level in model.levels:
        rates = (level.read_gbs, level.copy_gbs, level.read_gbs_all, level.copy_gbs_all)
        scattered = f"{level.scattered_ns:.1f}" if level.scattered_ns else ""
        size = _size(level.nbytes) if level.nbytes else ""
        memory.add_row(level.name, size, *(f"{rate:.0f}" for rate in rates), scattered)
    functions = _table("Functions, float32, one core", "function", "ns per element", numbers=("ns per element",))
    for name, cost in model.function_ns:
        functions.add_row(name, f"{cost:.2f}")
    ways = ("rows", "bytes ahead", "GB/s")
    panels = _table("Register tiles that read panels from memory, one core", *ways, numbers=ways)
    for rows, ahead, rate in model.panels_gbs:
        panels.add_row(str(rows), str(ahead) if ahead else "not asked for", f"{rate:.1f}")
    return [units, memory, functions, *([panels] if model.panels_gbs else [])]


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1024 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 10 else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError("unreachable")


def _cache_list(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from eqsat import cache

    found = cache.entries()
    if options.json:
        print(json.dumps([asdict(entry) for entry in found], indent=1))
        return 0
    import time

    from rich.text import Text

    total, now = sum(entry.nbytes for entry in found), time.time()
    title = f"{len(found)} entries, {_size(total)} of at most {_size(cache.limit())}, in {cache.cache_root()}"
    table = _table(title, "kind", "name", "arguments", "size", "made", "last used", numbers=("size",))
    for entry in found:
        made = _ago(now - entry.made) if entry.made else ""
        name, arguments = (Text(text, overflow="fold") for text in (entry.name or entry.key, entry.arguments))
        table.add_row(entry.kind, name, arguments, _size(entry.nbytes), made, _ago(now - entry.used))
    _show(table)
    return 0


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


def _cache_limit(options: argparse.Namespace) -> int:
    from eqsat import cache

    if options.size is not None:
        cache.set_limit(options.size)
    print(f"{_size(cache.size())} of at most {_size(cache.limit())} in {cache.cache_root()}")
    if os.environ.get(cache.LIMIT_VARIABLE):
        print(f"the limit is that of the environment variable {cache.LIMIT_VARIABLE}", file=sys.stderr)
    return 0


def _bytes(text: str) -> int:
    from eqsat.cache.limits import parse

    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _cache_clear(_: argparse.Namespace) -> int:
    from eqsat import cache

    print(f"removed {_size(cache.clear())} from {cache.cache_root()}")
    return 0


def _cache_path(_: argparse.Namespace) -> int:
    from eqsat.cache import cache_root

    print(cache_root())
    return 0


def _records_list(options: argparse.Namespace) -> int:
    from eqsat import records

    found = records.all_records()
    if options.json:
        print(records.document(found))
        return 0
    import time

    from rich.text import Text

    now = time.time()
    numbers = ("threads", "nests", "fastest")
    columns = ("kernel", "threads", "nests", "fastest", "processor", "eqsat", "measured")
    table = _table(f"{len(found)} tuning records", *columns, numbers=numbers)
    for record in found:
        name, cpu = (Text(text, overflow="fold") for text in (record.name, record.setup.processor.cpu))
        counts = (str(record.setup.threads), str(len(record.nests)), _time(record.nests[0][1]))
        table.add_row(name, *counts, cpu, Text(record.eqsat), _ago(now - record.made))
    _show(table)
    return 0


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError("unreachable")


def _records_export(options: argparse.Namespace) -> int:
    from eqsat import records

    found = records.all_records()
    options.file.write_text(records.document(found) + "\n")
    print(f"{len(found)} records written to {options.file}")
    return 0


def _records_import(options: argparse.Namespace) -> int:
    from eqsat import records
    from eqsat.cost import machine

    with options.file.open("rb") as file:
        data = file.read(records.MOST_BYTES + 1)
    if len(data) > records.MOST_BYTES:
        raise ValueError(f"{options.file} has more than {_size(records.MOST_BYTES)}: not a document of tuning records")
    done = records.import_json(data.decode(errors="replace"), machine.load())
    skipped = done.other_processor + done.other_version
    print(
        f"{done.taken} records taken ({done.replaced} replaced), {skipped} skipped "
        f"({done.other_processor} of another processor, {done.other_version} of another version)"
    )
    if done.failed:
        print(f"eqsat: {done.failed} records could not be written to the cache", file=sys.stderr)
    return 1 if done.failed else 0


def _records_clear(_: argparse.Namespace) -> int:
    from eqsat import cache, records

    print(f"removed {_size(cache.clear(records.KIND))} from {cache.cache_root()}")
    return 0


def _extract(options: argparse.Namespace) -> int:
    from eqsat.extract.serialized import extract_serialized, from_json

    egraph = from_json(options.file.read_text())
    found = extract_serialized(egraph, seconds=options.seconds)
    if options.json:
        fields = {"nodes": dict(found.nodes), "cost": found.cost, "bound": found.bound, "method": found.method}
        print(json.dumps(fields, indent=1))
        return 0
    from rich.text import Text

    table = _table(f"cost {found.cost:g}, at least {found.bound:g} ({found.method})", "e-class", "node", "operator")
    for eclass, name in found.nodes.items():
        row = (eclass, name, egraph.nodes[name].op)
        table.add_row(*(Text(text.encode(errors="replace").decode()) for text in row))
    _show(table)
    return 0


def _rules(options: argparse.Namespace) -> int:
    if options.text[:1] == ["check"]:
        from eqsat.checking import SECONDS, check_rules

        seconds = SECONDS if options.seconds is None else options.seconds
        return check_rules(options.text[1:], seconds, _imported, as_json=options.json)
    if options.text == ["discover"]:
        return discovery.run(options)
    from eqsat import rules
    from eqsat.schedule import installed_loop_rules

    found = [(rule.id, str(rule.numerics), str(rule).removeprefix(f"{rule.id}: "), rule.doc) for rule in rules.list()]
    found += [(rule.id, "exact", rule.doc, rule.doc) for rule in installed_loop_rules()]
    asked = [text.lower() for text in options.text]
    found = [row for row in found if all(any(text in part.lower() for part in row) for text in asked)]
    if options.json:
        names = ("id", "numerics", "rule", "doc")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in found], indent=1))
        return 0
    from rich.text import Text

    table = _table(f"{len(found)} rules", "id", "numerics", "rule")
    for identity, numerics, text, _ in found:
        table.add_row(identity, numerics, Text(text))
    _show(table)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from eqsat.doctor import examine

    found = examine()
    if options.json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        from rich.text import Text

        table = _table("eqsat doctor", "what", "found", "amiss")
        for finding in found:
            table.add_row(finding.what, Text(finding.found, overflow="fold"), Text(finding.amiss, style="bold"))
        _show(table)
    return 1 if any(finding.amiss for finding in found) else 0


if __name__ == "__main__":
    sys.exit(main())
