"""The smallest program that still fails: parts are left out one at a time while the same kind of failure stays."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from tests.numpy_net.program import Program

TRIES = 150


def minimise(program: Program, fails: Callable[[Program], bool], tries: int = TRIES) -> Program:
    """``program`` with as much left out as ``fails`` allows, within a number of tries."""
    seen: set[str] = set()
    going = True
    while going:
        going = False
        for smaller in candidates(program):
            key = smaller.to_json()
            if key in seen:
                continue
            seen.add(key)
            if tries <= 0:
                return program
            tries -= 1
            if fails(smaller):
                program, going = smaller, True
                break
    return program


def candidates(program: Program) -> Iterator[Program]:
    """Smaller programs, the much smaller ones first."""
    names = [n.id for n in ast.walk(ast.parse(program.result)) if isinstance(n, ast.Name)]
    if program.result not in names:
        for name in dict.fromkeys(names):
            yield program.but(result=name)
    if program.other_sizes:
        yield program.but(other_sizes={})
    for number in range(len(program.body)):
        head = program.body[: number + 1]
        stored = [
            n.id for n in ast.walk(ast.parse(head[-1])) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
        if stored and number + 1 < len(program.body):
            yield program.but(body=head, result=stored[-1])
    for number in range(len(program.body)):
        yield program.but(body=program.body[:number] + program.body[number + 1 :])
    for name in program.options:
        yield program.but(options={k: v for k, v in program.options.items() if k != name})
    yield from _fewer_arguments(program)
    for number in range(len(program.captured)):
        yield program.but(captured=program.captured[:number] + program.captured[number + 1 :])
    for number, block in enumerate(program.body):
        for simpler in _simpler(block):
            yield program.but(body=(*program.body[:number], simpler, *program.body[number + 1 :]))
    for number, block in enumerate(program.body):
        alias = re.fullmatch(r"(\w+) = (\w+)", block)
        if alias:
            later = (*program.body[number + 1 :], program.result)
            renamed = [re.sub(rf"\b{alias[1]}\b", alias[2], text) for text in later]
            yield program.but(body=(*program.body[:number], *renamed[:-1]), result=renamed[-1])
    for name, size in program.sizes.items():
        for smaller in (1, 2, 3):
            if smaller < size:
                yield program.but(sizes={**program.sizes, name: smaller})
    yield from _plain_inputs(program)


def _fewer_arguments(program: Program) -> Iterator[Program]:
    text = "\n".join((*program.body, program.result))
    if program.unpack:
        names = [n for n, _ in program.inputs]
        held = [n for n in names if all(n != a for a, _ in program.arguments)]
        flat = tuple((n, e) for n, e in program.arguments if n != "packed") + tuple((n, n) for n in held)
        yield program.but(unpack=(), arguments=flat)
        return
    for name, _ in program.arguments:
        if not re.search(rf"\b{name}\b", text):
            rest = tuple((n, e) for n, e in program.arguments if n != name)
            used = " ".join(e for _, e in rest)
            inputs = tuple((n, e) for n, e in program.inputs if re.search(rf"\b{n}\b", used))
            keywords = tuple(k for k in program.keywords if k != name)
            const = tuple(c for c in program.options.get("const", ()) if c != name)
            options = {k: v for k, v in program.options.items() if k != "const"} | ({"const": const} if const else {})
            yield program.but(arguments=rest, inputs=inputs, keywords=keywords, options=options)
    if program.keywords:
        yield program.but(keywords=())


def _simpler(block: str) -> Iterator[str]:
    """The statement with one of its calls or operators replaced by an operand."""
    lines = block.splitlines()
    if len(lines) > 1:
        for number in range(len(lines)):
            rest = "\n".join(lines[:number] + lines[number + 1 :])
            if _parses(rest):
                yield rest
        return
    tree = ast.parse(block)
    spots = [n for n in ast.walk(tree) if isinstance(n, ast.BinOp | ast.Call | ast.Subscript | ast.UnaryOp)]
    for spot in spots:
        operands: list[ast.expr] = []
        match spot:
            case ast.BinOp(left=left, right=right):
                operands = [left, right]
            case ast.UnaryOp(operand=operand):
                operands = [operand]
            case ast.Subscript(value=value):
                operands = [value]
            case ast.Call(func=func, args=args):
                operands = [a for a in args if not isinstance(a, ast.Starred | ast.Lambda)]
                if isinstance(func, ast.Attribute) and not isinstance(func.value, ast.Name):
                    operands.append(func.value)
        for operand in operands:
            text = ast.get_source_segment(block, spot)
            inner = ast.get_source_segment(block, operand)
            if text and inner and block.count(text) == 1:
                changed = block.replace(text, f"({inner})" if isinstance(operand, ast.BinOp) else inner)
                if _parses(changed):
                    yield changed


def _parses(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False


def _plain_inputs(program: Program) -> Iterator[Program]:
    """Inputs without their layout, or of plain random numbers."""
    for number, (name, expression) in enumerate(program.inputs):
        inner = re.match(r"^(?:frozen|misaligned|np\.asfortranarray)\((.*)\)$", expression)
        simpler = [inner.group(1)] if inner else []
        for ending in (".astype(np.dtype(np.float32).newbyteorder())", ".astype(np.dtype(np.float64).newbyteorder())"):
            if expression.endswith(ending):
                simpler.append(expression.removesuffix(ending))
        for text in simpler:
            inputs = (*program.inputs[:number], (name, text), *program.inputs[number + 1 :])
            yield program.but(inputs=inputs)
