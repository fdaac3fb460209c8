"""One draw: which elements of a wrong result are found, and which are left to the order of evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
from eqsat.deadline import NEVER
from eqsat.errors import VerificationError
from eqsat.frontends.trace import trace
from eqsat.ir import stretches
from eqsat.ir.complexes import as_real
from eqsat.options import Numerics
from eqsat.verify import check, draws, rounding
from eqsat.verify.draws import Draws
from eqsat.verify.judge import Judge, PlainDiffers
from eqsat.verify.noise import GROSS_RUNS, TAME, Undetermined
from eqsat.verify.rounding import Moves
from eqsat.verify.shrinking import shrinks
from eqsat.verify.suspects import Seen

rng = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def examined(
    fn: Callable[..., Any],
    change: Callable[[Any], None],
    *args: Any,
    plain: Sequence[Any] | None = None,
    numerics: Numerics = "reassociates",
) -> Seen:
    """What is seen of a program that returns what the function does, changed, on these arguments."""
    graph = trace(fn, args).graph
    result = np.array(fn(*args))
    change(result)
    drawn = Draws(graph, graph.inputs, args)
    return Judge(graph, {}, lambda given: [result], drawn, numerics, "", 1 << 28, NEVER).examine(draws.OWN, plain)


@pytest.fixture(autouse=True)
def _silent() -> Any:
    with np.errstate(all="ignore"):
        yield


def joined(x: Any, y: Any) -> Any:
    return np.concatenate([np.exp(x), y * 2])


BLOCK = 1 << 17


def test_errors_are_found_behind_many_blocks_that_are_excused() -> None:
    x, y = normal(12 * BLOCK), normal(4 * BLOCK)
    x[:: BLOCK // 4] = 1000  # whose exp is infinite

    def excusable(result: Any) -> None:
        result[: len(x) : BLOCK // 4] = 3e38

    def wrong(result: Any) -> None:
        excusable(result)
        result[-5] += 0.1

    seen = examined(joined, excusable, x, y)
    assert seen.telling[0] > 0.99
    with pytest.raises(VerificationError, match=r"off by 0\.1"):
        examined(joined, wrong, x, y)


def test_the_error_of_an_output_is_that_of_its_worst_block() -> None:
    y = np.full(12 * BLOCK, 1e-3, np.float32)
    x = np.linspace(0, 4, 4 * BLOCK, dtype=np.float32)  # which makes the bound far greater than y alone would

    def change(result: Any) -> None:
        for block in range(12):
            result[len(x) + block * BLOCK] *= np.float32(1 + 7e-4 * (block + 1))

    seen = examined(joined, change, x, y)
    np.testing.assert_allclose(seen.errors[0].ours, 2e-3 * 7e-4 * 12, rtol=1e-3)


ESCAPES: dict[str, tuple[Callable[..., Any], Any]] = {
    "too large": (lambda x: np.exp(x) * 3, (100.0, 80.0)),
    "too small": (lambda x: np.log(np.exp(x)), (-100.0, -110.0)),
    "a quotient": (lambda x: 1 / (x * 1e-10) * 1e-10, (1e-30, -1e-30)),
    "a row": (lambda x: np.exp(x.reshape(-1, 2)).sum(axis=1), (100.0, 1.0)),
    "a product": (lambda x: np.exp(x.reshape(-1, 2)) @ np.ones((2, 3), np.float32), (100.0, 1.0)),
    "a part of a product": (lambda x: np.exp(np.tile(x.reshape(-1, 2), 2)).prod(axis=1), (80.0, -80.0)),
    "sorted": (lambda x: np.sort(np.exp(x.reshape(-1, 2)), axis=1), (100.0, 1.0)),
    "looked up": (lambda x: np.exp(x)[np.arange(20)], (100.0, 100.0)),
    "compared": (lambda x: np.exp(x) < np.exp(x + 1), (100.0, 101.0)),
    "cast": (lambda x: x.astype(np.int32), (3e9, -3e9)),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_only_elements_that_hang_on_what_escapes_are_excused(name: str) -> None:
    fn, special = ESCAPES[name]
    x = normal(20)
    x[:2] = special

    def other(at: int) -> Callable[[Any], None]:
        def change(result: Any) -> None:
            where = (at, *(0,) * (result.ndim - 1))
            value = result[where]
            result[where] = not value if value.dtype.kind == "b" else value / 2 + 7 if np.isfinite(value) else 7

        return change

    seen = examined(fn, other(0), x)
    assert seen.telling[0] < 1
    for at in (3, -1):
        with pytest.raises(VerificationError, match="off by"):
            examined(fn, other(at), x)


@pytest.mark.parametrize("shape", [(33, 33), (5000,), (3, 700), (2, 300_000)])
def test_products_of_many_factors_run_whatever_their_parts_come_to(shape: tuple[int, ...]) -> None:
    x = np.abs(normal(*shape)) + np.float32(0.1)
    got, want = eqsat.optimize(lambda x: x.prod(axis=-1))(x), x.prod(axis=-1)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-30)


def test_what_is_too_small_to_matter_excuses_nothing() -> None:
    x, y = normal(20), np.full(20, 60, np.float32)

    def change(result: Any) -> None:
        result[4] *= 1.5

    for fn in (lambda x, y: x + np.exp(-y), lambda x, y: x * np.tanh(y * y * y) + np.exp(-y).sum()):
        with pytest.raises(VerificationError, match="off by"):
            examined(fn, change, x, y)


def test_results_of_the_function_itself_are_kept_where_they_are_finite() -> None:
    def fn(x: Any) -> Any:
        return np.minimum(np.exp(x), 1), np.exp(x)

    x = np.array([100, -1, 2], np.float32)
    plain = [np.asarray(r) for r in fn(x)]
    graph = trace(fn, (x,)).graph

    def seen(ours: Sequence[Any], plain: Sequence[Any] | None) -> Seen:
        judge = Judge(
            graph, {}, lambda given: ours, Draws(graph, graph.inputs, [x]), "reassociates", "", 1 << 28, NEVER
        )
        return judge.examine(draws.OWN, plain)

    changed = [plain[0].copy(), plain[1].copy()]
    changed[1][0] = 3e38  # NumPy's is infinite
    seen(changed, plain)
    changed[0][0] = 0.5
    seen(changed, None)  # on other arguments the order of evaluation is free
    with pytest.raises(VerificationError, match=r"output 0 is off by 0\.5"):
        seen(changed, plain)


def test_what_the_function_itself_returned_is_finite_in_the_program_too() -> None:
    def fn(x: Any) -> Any:
        return x.prod()

    x = np.array([1e-30, 1e30, 1e30, 1e-20], np.float32)
    graph = trace(fn, (x,)).graph
    for value in (np.nan, np.inf, 0.0):
        run = lambda given, value=value: [np.array(value, np.float32)]  # noqa: E731
        judge = Judge(graph, {}, run, Draws(graph, graph.inputs, [x]), "reassociates", "", 1 << 28, NEVER)
        judge.examine(draws.OWN)
        with pytest.raises(VerificationError, match="numerics='exact'"):
            judge.examine(draws.OWN, [np.asarray(fn(x))])


def test_terms_that_cancel_may_be_added_in_any_order() -> None:
    def fn(a: Any, b: Any, i: Any) -> Any:
        return b - (a[i] - a[i])

    a, b, i = rng.standard_normal((6, 1)), rng.standard_normal((1, 1)), rng.integers(0, 6, (3, 2))
    for scale in (1, 1e3, 1e-3):
        np.testing.assert_allclose(eqsat.optimize(fn)(a * scale, b, i), fn(a * scale, b, i), rtol=1e-10)


def test_where_the_order_decides_what_overflows_the_error_names_the_way_out() -> None:
    def fn(x: Any) -> Any:
        return np.isinf(np.log(np.exp(x)))

    x = np.array([1, 1000, -1000, 2], np.float32)
    with pytest.raises(VerificationError, match="numerics='exact'"):
        eqsat.optimize(fn, strict=True)(x)
    np.testing.assert_array_equal(eqsat.optimize(fn, numerics="exact")(x), [False, True, True, False])


def test_a_program_that_approximates_may_lose_what_is_not_finite_and_nothing_else() -> None:
    x = normal(20)
    x[2] = np.nan

    def lost(result: Any) -> None:
        result[2] = not result[2]

    def wrong(result: Any) -> None:
        result[5] = not result[5]

    def fn(x: Any) -> Any:
        return np.isnan(x * 3)

    examined(fn, lost, x, numerics="approximates")
    for change, numerics in ((wrong, "approximates"), (lost, "reassociates")):
        with pytest.raises(VerificationError, match="off by"):
            examined(fn, change, x, numerics=numerics)


def apart(a: Any, x: Any, y: Any) -> Any:
    return a @ x + a @ y


@pytest.mark.parametrize("special", [0.0, np.nan])
def test_infinities_that_are_captured_meet_their_negatives_in_another_order(special: float) -> None:
    """``a @ (x + y)`` is infinite where ``a @ x + a @ y`` is NaN, on normal values too; and a NaN is one in both."""
    a, x, y = normal(16, 16), normal(16, 8), normal(16, 8)
    a[rng.random(a.shape) < 0.05] = np.inf
    y[3, 2] += special
    eqsat.optimize(lambda x, y: apart(a, x, y))(x, y)
    graph = trace(lambda x, y: apart(a, x, y), (x, y)).graph
    for kind in (draws.OWN, draws.NORMAL):
        for wrong in (False, True):

            def other(given: Sequence[Any], wrong: bool = wrong) -> list[Any]:
                result = a @ (given[0] + given[1])
                result[np.argmax(np.isfinite(a).all(axis=1)), 0] += wrong
                return [result]

            judge = Judge(graph, {}, other, Draws(graph, graph.inputs, (x, y)), "reassociates", "", 1 << 28, NEVER)
            if wrong:
                with pytest.raises(VerificationError, match="off by"):
                    judge.examine(kind)
            else:
                judge.examine(kind)


def test_what_overflows_beside_an_infinity_is_not_held_against_another_order() -> None:
    x, b, c = normal(2, 17), normal(17, 6), normal(6)
    x[0, 15], x[1, 14] = np.inf, np.inf
    result = x @ (b @ c)
    assert np.isinf(result).all() and np.isnan((x @ b) @ c).all()

    def infinite(given: Any) -> None:
        given[:] = result

    examined(lambda x: (x @ b) @ c, infinite, x)


@pytest.mark.parametrize("columns", [1, 3])
def test_long_sums_of_equal_terms_may_be_rounded_in_any_order(columns: int) -> None:
    """0.1 rounds the same way again and again."""
    x = np.full((200_000, columns), 0.1)

    def fn(x: Any) -> Any:
        return x.sum(axis=0)

    def change(order: Callable[[Any], Any]) -> Callable[[Any], None]:
        return lambda result: result.__setitem__(slice(None), order(x))

    examined(fn, change(lambda x: np.add.accumulate(x, axis=0)[-1]), x)
    examined(fn, change(lambda x: np.ascontiguousarray(x.T).sum(axis=1)), x)
    with pytest.raises(VerificationError, match="off by"):
        examined(fn, change(lambda x: x.sum(axis=0) * (1 + 1e-8)), x)


@pytest.fixture
def rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "LEAST_NODES", 1)


def expect_loop(fn: Callable[..., Any], *args: Any) -> None:
    assert any(node.op == "loop" for node in trace(fn, args).graph.nodes())


@pytest.mark.usefixtures("rolled")
def test_rounding_that_a_loop_amplifies_is_no_error_and_other_errors_are() -> None:
    def fn(x: Any) -> Any:
        for _ in range(25):
            x = 3.9 * x * (1 - x)
        return x

    x = np.linspace(0.1, 0.8, 50)
    expect_loop(fn, x)

    def off(by: float) -> Seen:
        return examined(fn, lambda result: result.__setitem__(3, result[3] + by), x)

    off(1e-10)
    with pytest.raises(VerificationError, match="off by"):
        off(1e-4)


@pytest.mark.usefixtures("rolled")
def test_a_loop_that_decides_by_values_decides_as_without_noise() -> None:
    def fn(x: Any, y: Any) -> Any:
        for _ in range(20):
            x = np.where(x > 0.5, x * 0.5, x + np.floor(2 * x) + y)
        return x

    x, y = np.full(6, 0.5), np.zeros(6)
    expect_loop(fn, x, y)
    examined(fn, lambda result: None, x, y)
    with pytest.raises(VerificationError, match="off by"):
        examined(fn, lambda result: result.__setitem__(2, 17.0), x, y)


@pytest.mark.usefixtures("rolled")
def test_what_overflows_on_a_trip_is_left_to_the_order_of_evaluation() -> None:
    def fn(x: Any) -> Any:
        for _ in range(12):
            x = x * x - x
        return np.minimum(x, 7.0)

    x = np.array([3.0, 0.25])
    expect_loop(fn, x)
    examined(fn, lambda result: result.__setitem__(0, np.nan), x)
    with pytest.raises(VerificationError, match="off by"):
        examined(fn, lambda result: result.__setitem__(1, 6.0), x)


def test_what_is_infinite_in_another_order_may_come_first_in_a_sorted_one() -> None:
    """Products in another order make infinities of what is NaN in NumPy's, and these sort to the other end."""
    rng = np.random.default_rng(4)
    u, w = (rng.uniform(-2, 2, shape).astype(np.float32) for shape in ((2, 9), (9, 5)))
    x = rng.uniform(-2, 2, (17, 2)).astype(np.float32)
    sorted_products = eqsat.optimize(lambda x: np.sort((x @ u) @ w, axis=-2), strict=True)
    np.testing.assert_allclose(sorted_products(x), np.sort((x @ u) @ w, axis=-2), rtol=1e-4, atol=1e-5)


def test_quotients_of_values_too_large_may_meet_others_first() -> None:
    """In (e b / (p - c e)) k / r the divisors may be multiplied first, and overflow where NumPy's quotient does not."""

    def fn(x: Any, r: Any) -> Any:
        e = np.exp(x)
        return 5 / (1 + e * 0.6 / (2 - 0.4 * e) * 1e3 / r)

    x, r = np.array([1.0, 703, 2, 705]), np.array([1e4, 1e4, 1e4, 1e4])

    def excusable(result: Any) -> None:
        result[1] = 5.0

    def wrong(result: Any) -> None:
        result[2] = 5.0

    assert examined(fn, excusable, x, r).telling[0] == 0.75
    with pytest.raises(VerificationError, match="off by"):
        examined(fn, wrong, x, r)


def _moves(change: Callable[[np.random.Generator], np.ndarray]) -> Moves:
    found = Moves(np.zeros(20_000), np.zeros(20_000))
    source = np.random.default_rng(5)
    for _ in range(GROSS_RUNS):
        found.add(np.abs(change(source)))
    return found


def test_only_noise_with_a_heavy_tail_outgrows_itself() -> None:
    exact, unit = np.linspace(1, 2, 20_000), 1e-16
    for tame in (lambda r: r.uniform(-1, 1, 20_000), lambda r: r.standard_normal(20_000) * 1e-9):
        assert _moves(tame).outgrown(exact, unit).max() < TAME
    heavy = _moves(lambda r: r.standard_cauchy(20_000) * 1e-3)
    assert heavy.outgrown(exact, unit).max() > 4 * TAME
    # Elements known well are not excused by what happens to others.
    both = _moves(lambda r: np.where(exact < 1.5, r.uniform(-1e-12, 1e-12, 20_000), r.standard_cauchy(20_000)))
    assert both.outgrown(exact, unit)[exact < 1.5].max() < TAME
    assert both.outgrown(exact, unit)[exact > 1.6].max() > TAME


def test_a_draw_of_which_rounding_leaves_no_digit_says_nothing() -> None:
    """But the caller's own arguments are held to the reference all the same, and so is what keeps its digits."""

    def chaos(x: Any) -> Any:
        for _ in range(8):
            x = np.sin(1000 * x)
        return x

    x = normal(50).astype(np.float64)
    judges = {}
    for name, fn in (("none", chaos), ("all", np.sin)):
        graph = trace(fn, (x,)).graph
        drawn = Draws(graph, graph.inputs, (x,))
        judges[name] = Judge(graph, {}, lambda given: [given[0] * 1e6], drawn, "exact", "", 1 << 28, NEVER)
    with pytest.raises(Undetermined):
        judges["none"].examine(draws.NORMAL)
    for name, kind in (("none", draws.OWN), ("all", draws.NORMAL)):
        with pytest.raises(VerificationError, match="off by"):
            judges[name].examine(kind)


@pytest.mark.parametrize("count", [1, 7, rounding.UNIFORM - 1, 2 * rounding.UNIFORM + 3])
def test_noise_is_the_same_for_the_same_seed_and_other_for_another(count: int) -> None:
    one, again, other = (rounding._noise((3, n, 0, count), count) for n in (5, 5, 6))
    assert one.shape == (count,)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert np.abs(one).max() <= 1
    if count > 1000:
        assert abs(one.mean()) < 0.01
        assert abs(np.var(one) - 1 / 3) < 0.01


def test_a_draw_that_was_begun_is_judged_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to tell what noise does there; no further one is begun."""
    seen: list[str] = []
    examine = Judge.examine
    monkeypatch.setattr(check, "NOISE_SECONDS", 0.0)
    monkeypatch.setattr(
        Judge, "examine", lambda self, kind, *rest: (seen.append(kind.text), examine(self, kind, *rest))[1]
    )

    def fn(x: Any) -> Any:
        return np.where(x > 1, np.exp(x - x.max()), np.log(np.abs(x)))

    x = normal(200)
    graph = trace(fn, (x,)).graph

    def off(by: float) -> Callable[[Sequence[Any]], list[Any]]:
        return lambda given: [fn(given[0]) * np.float32(1 + by * (np.abs(given[0]).max() > 1e3))]

    check.verify(graph, {}, off(2e-5), [x])
    assert seen == [draws.OWN.text, draws.NORMAL.text, draws.WIDE_KINDS[0].text]
    with pytest.raises(VerificationError, match="values up to"):
        check.verify(graph, {}, off(2e-2), [x])


def test_outputs_behind_one_without_digits_are_compared() -> None:
    def fn(x: Any) -> tuple[Any, Any]:
        y = x
        for _ in range(8):
            y = np.sin(1000 * y)
        return y, np.exp(x)

    x = normal(50).astype(np.float64)
    graph = trace(fn, (x,)).graph

    def run(factor: float) -> Judge:
        drawn = Draws(graph, graph.inputs, (x,))
        wrong = [fn(x)[0] * 1e6, np.exp(x)]
        results = lambda given: [wrong[0], np.exp(given[0]) * factor]  # noqa: E731
        return Judge(graph, {}, results, drawn, "exact", "", 1 << 28, NEVER)

    with pytest.raises(Undetermined):
        run(1.0).examine(draws.NORMAL)
    with pytest.raises(VerificationError, match="output 1 is off by"):
        run(1.01).examine(draws.NORMAL)


def test_dear_references_are_asked_for_their_error_before_noise_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences that nearly cancel are off by more than themselves, as NumPy's are: one evaluation more shows it."""

    def differences(x: Any, y: Any, z: Any, w: Any) -> Any:
        return x * y - z * w

    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("noise was measured")

    monkeypatch.setattr("eqsat.verify.judge.DEAR_SECONDS", -1.0)
    monkeypatch.setattr("eqsat.verify.noise.Noise.errors", measured)
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal((1000, 1000)).astype(np.float32) for _ in range(4)]
    optimized = eqsat.optimize(differences, cache=False, check_speed=False, strict=True)
    np.testing.assert_allclose(optimized(*arguments), differences(*arguments), atol=1e-5)


QUOTIENTS: dict[str, Callable[..., Any]] = {
    "half": lambda z: z / 2,
    "float": lambda z: z / np.float32(3),
    "complex": lambda z: z / (1 + 0j),
    "mean": lambda z: z.mean(axis=1),
    "sum": lambda z: z.sum(axis=1),  # which keeps the parts apart, as the trace does
}
NAN = complex(np.nan, np.nan)


def in_parts(fn: Callable[..., Any], z: Any) -> Any:
    """The function of either part by itself."""
    made = np.empty(np.shape(fn(z)), z.dtype)
    made.real, made.imag = fn(z.real), fn(z.imag)
    return made


def judged(fn: Callable[..., Any], z: Any, ours: Any, plain: Any = None) -> None:
    """Hold a compiled program's complex result against the reference, or what NumPy returned if there is none."""
    traced = trace(fn, (z,))
    given = as_real(z)
    drawn = Draws(traced.graph, traced.graph.inputs, [given])
    results = None if plain is None else [as_real(np.asarray(plain))]

    def run(_: Any) -> list[Any]:
        return [as_real(np.asarray(ours))]

    judge = Judge(traced.graph, {}, run, drawn, "reassociates", "", 1 << 28, NEVER, complex=traced.complex)
    if ours is None:
        assert results is not None
        judge.examine_plain([given], results)
    else:
        judge.examine(draws.OWN, results)


PARTS = st.sampled_from([0.0, -0.0, 0.5, -3.0, 1e-3, np.nan, np.inf, -np.inf])
NUMBERS = st.lists(st.builds(complex, PARTS, PARTS), min_size=1, max_size=6)


@pytest.mark.parametrize("name", QUOTIENTS)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@given(numbers=NUMBERS)
@settings(max_examples=20, deadline=None)
def test_complex_numbers_that_are_not_finite_are_so_in_any_part(name: str, dtype: type, numbers: list[complex]) -> None:
    """NumPy divides by a complex number, which mixes the parts; the trace and the program divide each part."""
    z, fn = np.array(numbers, dtype)[:, None], QUOTIENTS[name]
    with np.errstate(all="ignore"):
        plain, ours = fn(z), in_parts(fn, z) if name != "complex" else z.copy()
        judged(fn, z, None, plain)
        judged(fn, z, ours, plain)
        judged(fn, z, ours)
        judged(fn, z, np.where(np.isnan(ours), NAN, ours).astype(dtype), plain)


def test_a_wrong_part_beside_one_that_is_nan_is_found() -> None:
    """Also where no number has two parts that are not NaN."""
    z = np.full((4, 1), complex(1, np.nan), np.complex64)
    double = lambda z: z + z  # noqa: E731
    judged(double, z, z + z, z + z)
    for wrong in (complex(77, np.nan), complex(np.inf, np.nan)):
        with pytest.raises(VerificationError):
            judged(double, z, np.full_like(z, wrong))
        with pytest.raises(PlainDiffers):
            judged(double, z, None, np.full_like(z, wrong))


@pytest.mark.parametrize("name", QUOTIENTS)
@given(numbers=NUMBERS, at=st.integers(0, 6), wrong=st.sampled_from([0.25, np.nan, np.inf]), part=st.booleans())
@settings(max_examples=20, deadline=None)
def test_beside_them_wrong_parts_are_found(
    name: str, numbers: list[complex], at: int, wrong: float, part: bool
) -> None:
    """One that is finite, and is NaN, infinite or another number on one side, is another."""
    at = min(at, len(numbers))
    numbers.insert(at, 2 - 1j)
    z, fn = np.array(numbers, np.complex64)[:, None], QUOTIENTS[name]
    with np.errstate(all="ignore"):
        plain, ours = fn(z), in_parts(fn, z) if name != "complex" else z.copy()
        for values in (plain, ours):
            changed = values.copy()
            place = changed.real if part else changed.imag
            place[at] += wrong
            with pytest.raises(PlainDiffers):
                judged(fn, z, None, changed)
            with pytest.raises(VerificationError):
                judged(fn, z, changed, plain)
            with pytest.raises(VerificationError):
                judged(fn, z, changed)


@pytest.mark.parametrize(
    ("number", "plain", "ours"),
    [
        (complex(np.nan, 1), NAN, complex(1, 0.5)),  # NaN to NumPy only
        (2 + 1j, complex(1, 0.5), complex(np.nan, 0.5)),  # to the program only
        (complex(np.inf, 1), complex(np.inf, np.nan), complex(np.inf, 0.7)),  # a wrong part that NumPy has none for
        (complex(np.inf, 1), complex(np.inf, np.nan), complex(np.inf, np.nan)),  # none, where the trace has one
        (complex(1, np.inf), complex(np.nan, np.inf), complex(0.7, np.inf)),
    ],
)
def test_a_program_has_the_parts_of_the_trace_beside_an_infinity(
    number: complex, plain: complex, ours: complex
) -> None:
    z = np.array([number, 4 - 2j], np.complex64)
    want, got = (np.array([special, 2 - 1j], np.complex64) for special in (plain, ours))
    with pytest.raises(VerificationError):
        judged(lambda z: z / 2, z, got, want)


@pytest.mark.parametrize(
    ("fn", "number", "plain"),
    [
        (lambda z: z / 2, complex(np.inf, 1), complex(np.inf, 7)),  # a number, and a wrong one
        (lambda z: z / 2, complex(np.inf, 1), complex(np.nan, np.inf)),  # an infinity in another part
        (lambda z: z[::-1], complex(np.inf, 1), complex(np.inf, np.nan)),  # NaN that no quotient made
        (lambda z: z[::-1], complex(np.inf, 1), complex(-np.inf, 1)),
        (lambda z: z[::-1], complex(np.nan, 1), complex(np.inf, 1)),  # NaN for an infinity
    ],
)
def test_what_numpy_returned_beside_an_infinity_counts(fn: Callable[..., Any], number: complex, plain: complex) -> None:
    z = np.full(3, number, np.complex64)
    with pytest.raises(PlainDiffers):
        judged(fn, z, None, np.full(3, plain, np.complex64))


def test_a_program_is_not_as_far_off_as_numpy_where_that_adds_term_by_term() -> None:
    x, y = rng.random((2, 2500, 4), np.float32)

    def fn(x: Any, y: Any) -> Any:
        return np.einsum("ij,kj->j", x, y)

    def double() -> Sequence[np.ndarray]:
        return [fn(x.astype(np.float64), y.astype(np.float64))]

    exact, plain = double()[0], fn(x, y)
    off = np.abs(plain - exact).max()
    assert off > 1e-3 * exact.max()
    graph = trace(fn, (x, y)).graph
    drawn = Draws(graph, graph.inputs, (x, y))
    for change, finds in ((0.0, False), (1e-7, False), (0.25 * off / exact.max(), True)):
        result = (exact * (1 + change)).astype(np.float32)
        judge = Judge(graph, {}, lambda given, made=result: [made], drawn, "reassociates", "", 1 << 28, NEVER)
        with pytest.raises(PlainDiffers):
            judge.examine(draws.OWN, [plain])
        judge = replace(judge, in_double=double)
        if finds:
            with pytest.raises(VerificationError, match="output 0 is off"):
                judge.examine(draws.OWN, [plain])
        else:
            judge.examine(draws.OWN, [plain])


def test_only_what_gets_smaller_with_the_unit_is_rounding() -> None:
    exact = np.linspace(1, 2, 100)
    error = rng.uniform(-1, 1, 100) * 1e-3
    single, wrong = (exact + error).astype(np.float32), (exact + error).astype(np.float64)
    narrow, wide = np.dtype(np.float32), np.dtype(np.float64)
    assert shrinks([(exact, single, exact + error * 2**-29)], narrow)
    assert not shrinks([(exact, single, wrong)], narrow)
    assert not shrinks([(exact, single, exact + error * 2**-26)], narrow)
    assert not shrinks([(exact, wrong, wrong)], wide) and not shrinks([(exact, wrong, exact)], wide)
    for special in (np.nan, np.inf):
        holed = np.where(exact < 1.5, special, exact)
        assert shrinks([(holed, holed.astype(np.float32), holed)], narrow)
        assert not shrinks([(exact, holed.astype(np.float32), exact)], narrow)
        assert not shrinks([(exact, single, holed)], narrow)
        other = np.where(exact < 1.5, -special if special == np.inf else np.inf, exact)
        assert not shrinks([(holed, other.astype(np.float32), holed)], narrow)
        assert not shrinks([(holed, holed.astype(np.float32), other)], narrow)
    assert not shrinks([(exact, (1.02 * exact).astype(np.float32), exact)], narrow)  # more than sums are off by
    tiny = np.append(exact, 1e-16)
    assert not shrinks([(tiny, tiny.astype(np.float32), np.append(exact, 0))], narrow)


def test_real_numbers_on_a_last_axis_of_two_are_no_parts() -> None:
    x = np.array([[np.nan, 1], [2, 3]], np.float32)

    def both(x: Any) -> Any:
        return x / 2

    graph = trace(both, (x,)).graph
    judge = Judge(graph, {}, lambda given: given, Draws(graph, graph.inputs, [x]), "reassociates", "", 1 << 28, NEVER)
    judge.examine_plain([x], [both(x)])
    with pytest.raises(PlainDiffers):
        judge.examine_plain([x], [np.array([[np.nan, np.nan], [1, 1.5]], np.float32)])
