"""A program in the making: each statement is run by NumPy when it is written, and kept if it makes sense there.

Templates are text with slots: ``{f}`` a float array, ``{i}`` an integer one, ``{b}`` a bool one, ``{x}`` any,
``{m}`` a float matrix or a stack of such, ``{v}`` a float vector; ``{f:A}`` also names what was drawn, ``{=A}``
repeats it. The array drawn last but for operands is the *anchor*: ``{y}`` broadcasts with it, ``{ax}``, ``{axs}`` and
``{perm}`` are axes of it, ``{shape}`` a shape of as many elements, ``{idx}`` an index into it. ``{t}`` is a new name.
"""

from __future__ import annotations

import random
import re
import warnings
from typing import Any

import numpy as np

from tests.numpy_net import arrays
from tests.numpy_net.program import HELPERS, IMPORTS, Program

SLOT = re.compile(r"\{(=?)(\w+)(?::(\w+))?\}")
MOST = 5000
"""Elements of an array that statements may make."""
DTYPES = {np.dtype(t) for t in (np.float32, np.float64, np.int32, np.int64, np.bool_)}


class Unfit(Exception):
    """A template found nothing that fits it here."""


def scope() -> dict[str, Any]:
    """Names that programs may use."""
    names: dict[str, Any] = {"np": np}
    exec("\n".join(IMPORTS.values()), names)
    exec("\n".join(HELPERS.values()), names)
    return names


class Draft:
    """A program being written, with NumPy's values of all its names."""

    def __init__(self, seed: int, *, special: bool = False) -> None:
        self.rng = random.Random(seed)
        self.special = special
        self.sizes = {n: self.rng.choice(arrays.SIZES) for n in "pqr"}
        self.inputs: list[tuple[str, str]] = []
        self.captured: list[str] = []
        self.body: list[str] = []
        self.names: list[str] = []
        self.indices: set[str] = set()
        self.values: dict[str, Any] = {}
        self.scope = scope() | {"rng": np.random.default_rng(0), "seed": 0} | self.sizes
        self.count = 0
        self.anchor: np.ndarray = np.zeros(())
        self.anchor_text = "0"
        self.drawn: dict[str, str] = {}

    # --- names and values

    def fresh(self, letter: str = "v") -> str:
        """A name not used so far."""
        self.count += 1
        return f"{letter}{self.count}"

    def evaluate(self, text: str) -> Any:
        """NumPy's value of an expression."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(text, {**self.scope, **self.values})

    def add_input(self, expression: str, letter: str = "a") -> str:
        """A new input, or sometimes a captured constant."""
        name = self.fresh(letter)
        value = self.evaluate(expression)
        fixed = "rng" not in expression and "seed" not in expression and not re.search(r"\b[pqr]\b", expression)
        if fixed and self.rng.random() < 0.5:
            self.captured.append(f"{name} = {expression}")
        elif self.rng.random() < 0.12 and isinstance(value, np.ndarray) and value.nbytes < 10**6:
            sizes = "".join(f", {n}={v}" for n, v in self.sizes.items())
            self.captured.append(f"{name} = (lambda rng, seed=0{sizes}: {expression})(np.random.default_rng(5))")
            value = eval(self.captured[-1].split(" = ", 1)[1], {**self.scope, **self.values})
        else:
            self.inputs.append((name, expression))
        self.values[name] = value
        return name

    def new_array(self, kind: str, ndim: int | None = None, shape: str | None = None) -> str:
        """A new input of a kind (f, i, b)."""
        if shape is None and kind == "f" and ndim is None and self.rng.random() < 0.08:
            made, _ = arrays.strided(self.rng)
        else:
            shape = shape or arrays.shape(self.rng, ndim)
            made, dtype = arrays.values(self.rng, kind, shape, special=self.special and self.rng.random() < 0.7)
            if self.rng.random() < 0.25:
                made = arrays.layout(self.rng, made, shape, dtype)
        if np.size(self.evaluate(made)) > MOST:
            raise Unfit("too large")
        name = self.add_input(made)
        self.names.append(name)
        return name

    def fitting(self, kind: str) -> list[str]:
        """Names of arrays of a kind, oldest first."""
        found = []
        for name in self.names:
            value = self.values[name]
            if not isinstance(value, np.ndarray | np.generic) or value.size > MOST or value.dtype not in DTYPES:
                continue
            letter = {"f": "f", "i": "i", "b": "b"}[value.dtype.kind]
            if kind in ("m", "v", "sq"):
                if letter != "f" or (value.ndim != 1 and kind == "v") or (value.ndim < 2 and kind != "v"):
                    continue
                if kind == "sq" and value.shape[-1] != value.shape[-2]:
                    continue
            elif (kind == "n" and letter == "b") or (kind not in ("x", "n") and kind != letter):
                continue
            found.append(name)
        return found

    def array(self, kind: str) -> str:
        """An expression for an array of a kind."""
        names = self.fitting(kind)
        if names and (self.rng.random() < 0.8 or len(self.inputs) > 5):
            back = min(int(self.rng.expovariate(0.5)), len(names) - 1)
            return self.varied(names[-1 - back])
        letter = {"m": "f", "v": "f", "sq": "f", "x": "f", "n": self.rng.choice("ffi")}.get(kind, kind)
        ndim = {"m": self.rng.choice((2, 2, 2, 3)), "v": 1}.get(kind)
        return self.varied(self.new_array(letter, ndim, "(q, q)" if kind == "sq" else None))

    def varied(self, name: str) -> str:
        """The name, or seldom a view of it or the like."""
        if self.rng.random() < 0.85:
            return name
        value = self.values[name]
        forms = [f"{name}[...]", f"{name}.copy()", f"(+{name})" if value.dtype.kind != "b" else name]
        if value.ndim >= 1:
            forms += [f"{name}[::-1]", f"{name}[..., ::-1]", f"{name}[..., ::2]", f"{name}[-3:]"]
        if value.ndim >= 2:
            forms += [f"{name}.T", f"{name}.swapaxes(0, -1)", f"{name}[:, :1]", f"{name}[:, ::-1]"]
        return self.rng.choice(forms)

    # --- slots

    def expand(self, template: str) -> str:
        """The template with its slots filled in."""
        self.drawn = {}
        return SLOT.sub(self._slot, template)

    def _slot(self, match: re.Match[str]) -> str:
        again, kind, label = match.groups()
        if again:
            return self.drawn[kind]
        text = getattr(self, f"slot_{kind}")() if hasattr(self, f"slot_{kind}") else self._array_slot(kind)
        if label:
            self.drawn[label] = text
        return str(text)

    def _array_slot(self, kind: str) -> str:
        text = self.array(kind)
        self.anchor = np.asarray(self.evaluate(text))
        self.anchor_text = text
        return text

    def slot_y(self) -> str:
        """An operand that broadcasts with the anchor."""
        r = self.rng.random()
        if r < 0.3:
            return self.slot_s()
        fits = [n for n in self.fitting("x") if _broadcast(self.values[n].shape, self.anchor.shape)]
        if fits and r < 0.75:
            return self.varied(self.rng.choice(fits)) if self.rng.random() < 0.2 else self.rng.choice(fits)
        if len(self.inputs) > 7:
            return self.slot_s()
        shape = list(self.anchor.shape)
        if shape and self.rng.random() < 0.5:
            shape[self.rng.randrange(len(shape))] = 1
        if self.rng.random() < 0.3:
            shape = shape[self.rng.randrange(len(shape) + 1) :]
        if self.rng.random() < 0.08:
            shape = [self.rng.choice((1, 2)), *shape]
        return self.new_array(self.rng.choice("fffiib"), shape=self.over_sizes(shape))

    def over_sizes(self, shape: list[int]) -> str:
        """A shape as text, with sizes by name where they are the same number."""
        named = {v: n for n, v in self.sizes.items() if v > 3}
        text = ", ".join(str(named.get(n, n)) for n in shape)
        return f"({text},)" if len(shape) == 1 else f"({text})"

    def slot_s(self) -> str:
        """A scalar: Python's or NumPy's."""
        python = ("2", "3", "-1", "0", "1", "7", "2.0", "0.5", "-1.5", "3.25", "1e-3", "True", "1e3", "-0.0")
        numpy = ("np.float32(0.3)", "np.float64(1.1)", "np.int32(3)", "np.int64(-2)", "np.bool_(True)", "np.pi")
        extreme = ("np.inf", "np.nan", "-np.inf", "1e38", "1e-40")
        if self.special and self.rng.random() < 0.3:
            return self.rng.choice(extreme)
        return self.rng.choice(python if self.rng.random() < 0.75 else numpy)

    def slot_c(self) -> str:
        """A positive Python float, or an integer."""
        return self.rng.choice(("0.5", "2.0", "3", "1", "0.1", "10", "1.5"))

    def slot_k(self) -> str:
        """A small integer of either sign."""
        return str(self.rng.choice((0, 1, 1, 2, 3, -1, -1, -2)))

    def slot_n1(self) -> str:
        """A small count."""
        return str(self.rng.choice((1, 2, 2, 3, 4, 5)))

    def slot_tf(self) -> str:
        return self.rng.choice(("True", "False"))

    def slot_dt(self) -> str:
        return self.rng.choice(
            ("np.float32", "np.float64", "np.int32", "np.int64", "'float32'", "'f8'", "float", "int", "'i4'", "bool")
        )

    def slot_fdt(self) -> str:
        return self.rng.choice(("np.float32", "np.float64", "'float32'", "float", "np.dtype('f4')", "'d'"))

    def slot_ax(self) -> str:
        if not self.anchor.ndim:
            raise Unfit("no axis")
        return str(self.rng.randrange(-self.anchor.ndim, self.anchor.ndim))

    def slot_axs(self) -> str:
        """An axis, several, none or all."""
        n = self.anchor.ndim
        r = self.rng.random()
        if r < 0.25 or not n:
            return self.rng.choice(("None", "None", "()")) if not n or r < 0.04 else "None"
        if r < 0.7:
            return self.slot_ax()
        axes = self.rng.sample(range(n), self.rng.randint(1, n))
        return str(tuple(a - n if self.rng.random() < 0.4 else a for a in axes))

    def slot_perm(self) -> str:
        n = self.anchor.ndim
        return str(tuple(a - n if self.rng.random() < 0.2 else a for a in self.rng.sample(range(n), n)))

    def slot_shape(self) -> str:
        size, shape = self.anchor.size, []
        while size > 1 and len(shape) < 3 and self.rng.random() < 0.75:
            factor = self.rng.choice([d for d in range(1, size + 1) if size % d == 0][:12])
            shape.append(factor)
            size //= factor
        shape.append(size)
        if self.rng.random() < 0.4 and 0 not in shape:
            shape[self.rng.randrange(len(shape))] = -1
        if self.rng.random() < 0.2:
            shape.insert(self.rng.randrange(len(shape) + 1), 1)
        return str(tuple(shape))

    def slot_len(self) -> str:
        """The size of the anchor's first axis; it has one and is not empty."""
        if not self.anchor.ndim or not len(self.anchor):
            raise Unfit("nothing to index")
        return str(len(self.anchor))

    def slot_slice(self) -> str:
        """A slice of any signs and steps."""
        bound = ("", "", "1", "2", "-1", "-2", "-3", "0", "100", "-100", "5")
        step = self.rng.choice(("", "", "", ":", ":2", ":-1", ":3", ":-2", ":-3", ":7"))
        return f"{self.rng.choice(bound)}:{self.rng.choice(bound)}{step}"

    def slot_ids(self) -> str:
        """Indices into the anchor's first axis: an input, a literal, or computed."""
        return self.index(int(self.slot_len()))

    def index(self, n: int) -> str:
        r = self.rng.random()
        low = self.rng.choice((0, 0, -n))
        if r < 0.5:
            shape = self.rng.choice(("(4,)", "(r,)", "(3, 2)", "()", "(1,)", "(0,)", "(2, r)"))
            dtype = self.rng.choice(arrays.INTS)
            made = f"rng.integers({low}, {n}, {shape}, dtype={dtype})"
            return self.add_input(f"np.asarray({made})" if shape == "()" else made, "i")
        if r < 0.7:
            few = [self.rng.randrange(low, n) for _ in range(self.rng.choice((1, 2, 3, 5)))]
            return self.rng.choice((f"np.array({few})", str(few), f"np.array([{few}, {few[::-1]}])"))
        held = self.fitting("i")
        if r < 0.9 and held:
            return self.rng.choice(
                (f"({self.rng.choice(held)} % {n})", f"(np.abs({self.rng.choice(held)} // 7) % {n})")
            )
        return str(self.rng.randrange(-n, n))

    def slot_idx(self) -> str:
        """An index into the anchor: integers, slices, ellipsis, new axes, arrays."""
        shape = self.anchor.shape
        items: list[str] = []
        axis = 0
        arrays_left = self.rng.choice((0, 0, 1, 1, 2))
        while axis < len(shape):
            r = self.rng.random()
            n = shape[axis]
            if r < 0.08:
                items.append(self.rng.choice(("None", "np.newaxis")))
                continue
            if r < 0.14 and "..." not in items:
                items.append("...")
                axis += self.rng.randint(0, len(shape) - axis)
                continue
            if r < 0.3 and n:
                items.append(str(self.rng.randrange(-n, n)))
            elif r < 0.55 and n and arrays_left:
                items.append(self.index(n))
                arrays_left -= 1
            elif r < 0.9:
                items.append(self.slot_slice())
            else:
                break
            axis += 1
        return ", ".join(items) or "..."

    def slot_t(self) -> str:
        return self.fresh("t")

    def slot_huge(self) -> str:
        """An array of ten thousand million elements."""
        text = self.rng.choice(arrays.HUGE)
        value = self.evaluate(text)
        if self.rng.random() < 0.5:
            text = self.add_input(text, "h")
        else:
            text = text.replace("rng.", "np.random.default_rng(3).")
            name = self.fresh("h")
            self.captured.append(f"{name} = {text}")
            self.values[name] = value
            text = name
        self.anchor, self.anchor_text = np.broadcast_to(np.zeros((), value.dtype), value.shape), text
        return text

    # --- statements

    def write(self, template: str) -> bool:
        """Add a statement made from a template; False where NumPy refuses it or nothing fits."""
        state = (len(self.inputs), len(self.captured), len(self.names), dict(self.values))
        try:
            text = self.expand(template)
            target = None
            if "\n" not in text and not re.match(r"\w+ [-+*/@|&^<>]*=[^=]", text):
                target = self.fresh()
                text = f"{target} = {text}"
            before = dict(self.values)
            after = self.run(text)
            made = [n for n in after if n not in before] + [
                n for n in after if n in before and after[n] is not before[n] and n in self.names
            ]
            self.accept([after[n] for n in made])
        except Exception:
            self.inputs, self.captured = self.inputs[: state[0]], self.captured[: state[1]]
            self.names, self.values = self.names[: state[2]], state[3]
            return False
        self.values = after
        self.body.append(text)
        kept = target or (made[-1] if made else None)
        if kept is not None:
            value = after[kept]
            if isinstance(value, tuple | list):
                self.unpack(kept, value)
            elif kept not in self.names:
                self.names.append(kept)
        return True

    def run(self, text: str) -> dict[str, Any]:
        """The names and values after a statement."""
        names = {**self.scope, **self.values}
        known = set(names)
        with np.errstate(all="ignore", invalid="warn"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(text, names)
        if any("invalid value encountered in cast" in str(w.message) for w in caught):
            raise Unfit("no defined value")
        if any(issubclass(w.category, DeprecationWarning | SyntaxWarning) for w in caught):
            raise Unfit("deprecated")
        own = set(self.values)
        return {n: v for n, v in names.items() if n in own or (n not in known and n != "__builtins__")}

    def accept(self, made: list[Any]) -> None:
        """Refuse what no program should go on with: too large, foreign types, hardly a finite value."""
        for value in made:
            if isinstance(value, tuple | list):
                self.accept(list(value))
                continue
            if not isinstance(value, np.ndarray | np.generic):
                continue
            if value.dtype not in DTYPES or value.size > MOST:
                raise Unfit("type or size")
            if value.dtype.kind == "f" and value.size and not self.special:
                finite = np.isfinite(value)
                if finite.mean() < 0.5 or np.abs(value[finite]).max() > 1e12:
                    raise Unfit("mostly not finite")
            if value.size == 0 and self.rng.random() < 0.5:
                raise Unfit("enough empty ones")

    def unpack(self, name: str, value: Any) -> None:
        """Names for some parts of a tuple or list."""
        for n in self.rng.sample(range(len(value)), min(2, len(value))):
            if isinstance(value[n], np.ndarray | np.generic):
                part = self.fresh()
                self.body.append(f"{part} = {name}[{n}]")
                self.values[part] = value[n]
                self.names.append(part)

    def done(self, name: str, **fields: Any) -> Program:
        """The program, with every input an argument."""
        return Program(
            name=name,
            sizes=self.sizes,
            captured=tuple(self.captured),
            inputs=tuple(self.inputs),
            body=tuple(self.body),
            **fields,
        )


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))
