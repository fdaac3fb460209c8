"""Rules over loop nests: the ways in which a kernel may be blocked, ordered, fused, packed and shared out.

Each keeps the set of points that a nest covers. What is legal for one kernel is stated in facts
(``factor``, ``permutable``, ``shared``, …) that the scheduler derives from the kernel's index notation; a rule
without its fact does not fire.
"""

from __future__ import annotations

from eqsat.schedule.rule import LoopRule

LOOP_RULES = (
    LoopRule(
        "loop.tile",
        "loop(a, n, s, x) = loop(a, n, t, loop(a, t, s, x)) where t is a step for n and s one for t",
        """(rule ((= e (Loop a n s x)) (factor a n t) (factor a t s))
      ((union e (Loop a n t (Loop a t s x)))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.interchange",
        "loop(a, …, loop(b, …, x)) = loop(b, …, loop(a, …, x)) for permutable a, b; loops over a contraction's points "
        "stay inside",
        """(rule ((= e (Loop a n s y)) (= y (Loop b m t x)) (permutable a b) (> t 1))
      ((union e (Loop b m t (Loop a n s x)))) :ruleset {ruleset})
(rule ((= e (Loop a n s y)) (= y (Loop b m t x)) (points a b))
      ((union e (Loop b m t (Loop a n s x)))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.fuse",
        "seq(loop(a, n, s, x), loop(a, n, s, y)) = loop(a, n, s, seq(x, y)) if y reads x at the same a only",
        """(rule ((= e (Seq p q)) (= p (Loop a n s x)) (= q (Loop a n s y)) (shared a))
      ((union e (Loop a n s (Seq x y)))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.flatten",
        "loop(rows, r, 1, stage) = that stage's own nest over r rows, the rows merged into its axes",
        """(rule ((= e (Loop a n 1 (Block i))) (flat a n i x))
      ((union e x)) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.tensorize",
        "loop(m, r, 1, loop(n, c, 1, loop(k, d, 1, multiply-add))) = the r × c register tile run over d, and "
        "a loop over single rows or columns one around tiles of one; loops over points = the tile operation that "
        "computes them by its semantics",
        """(rule ((= e (Loop m r 1 y)) (= y (Loop n c 1 z)) (= z (Loop k d 1 (Point i)))
       (contracts i m n k) (register i r c) (depth i d) (layout i a b))
      ((union e (Tile i r c d a b))) :ruleset {ruleset})
(rule ((= e (Loop m n 1 y)) (> n 1) (= y (Loop o c 1 z)) (= z (Loop k d 1 (Point i)))
       (contracts i m o k) (register i 1 c) (depth i d) (layout i a b))
      ((union e (Loop m n 1 (Tile i 1 c d a b)))) :ruleset {ruleset})
(rule ((= e (Loop m r 1 y)) (= y (Loop o n 1 z)) (> n 1) (= z (Loop k d 1 (Point i)))
       (contracts i m o k) (register i r 1) (depth i d) (layout i a b))
      ((union e (Loop o n 1 (Tile i r 1 d a b)))) :ruleset {ruleset})
(rule ((computes i op sizes e)) ((union e (Op i op sizes))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.stream",
        "loop(m, M, 1, loop(n, N, 1, loop(k, d, 1, multiply-add))) = a rank-d update by d rows of the second factor",
        """(rule ((= e (Loop m r 1 y)) (= y (Loop n c 1 z)) (= z (Loop k d 1 (Point i)))
       (contracts i m n k) (updates i r d) (layout i a false))
      ((union e (Update i r c d a))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.vectorize",
        "loop(a, l, 1, point) = vectors along a, one after the other or several at once; a point without axes is one",
        """(rule ((= e (Loop a l 1 (Point i))) (lanes i a l))
      ((union e (Vector i "" 1 a l false false))) :ruleset {ruleset})
(rule ((= e (Point i)) (scalar i))
      ((union e (Vector i "" 1 "" 1 false false))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.jam",
        "loop(b, c, 1, vectors along a) = vectors along a at c positions of b at once",
        """(rule ((= e (Loop b c 1 (Vector i "" 1 a l false false))) (jams i b c a l))
      ((union e (Vector i b c a l false false))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.transpose",
        "loop(a, l, 1, loop(b, l, 1, point)) = a block loaded by vectors along a and transposed into vectors along b",
        """(rule ((= e (Loop a l 1 (Loop b l 1 (Point i)))) (transposes i a b l))
      ((union e (Transpose i a b l false))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.bypass",
        "vectors that are stored = vectors that are stored past the caches",
        """(rule ((= e (Vector i b c a l false p)) (streams i a))
      ((union e (Vector i b c a l true p))) :ruleset {ruleset})
(rule ((= e (Transpose i a b l false)) (streams i b))
      ((union e (Transpose i a b l true))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.prefetch",
        "vectors of a row that an earlier sweep waited for = vectors that ask for the same places of a later row; "
        "a loop over rows = one that asks for what contractions read at the next position outside of it; "
        "register tiles side by side = tiles that also ask, a share each, for the next panel of their second factor",
        """(rule ((= e (Vector i "" 1 a l s false)) (prefetches i a))
      ((union e (Vector i "" 1 a l s true))) :ruleset {ruleset})
(rule ((= e (Loop a n s x)) (asks a n))
      ((union e (Ahead a n s x))) :ruleset {ruleset})
(rule ((= e (Loop m n r y)) (= y (Tile i r c d a b)) (panels i m c))
      ((union e (Ask m n i r c d a b))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.split",
        "the outermost loop over a reduced axis may give each step results of its own, combined in a second pass",
        """(rule ((inner e) (= e (Loop a n s x)) (divides a s)) ((union e (Split a n s x))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.peel",
        "loop(a, n, s, x) = loops over runs of a between which guards that move along a alone change",
        """(rule ((= e (Loop a n s x)) (peels a n s)) ((union e (Peel a n s x))) :ruleset {ruleset})
(rule ((= e (Par a n s x)) (peels a n s)) ((union e (PeelPar a n s x))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.pack",
        "a tile that reads a factor where it lies = copy the factor's block, then the tile that reads the copy",
        """(rule ((= e (Tile i m n k false b)) (packable i "a"))
      ((union e (Pack i "a" (Tile i m n k true b)))) :ruleset {ruleset})
(rule ((= e (Update i m n k false)) (packable i "a"))
      ((union e (Pack i "a" (Update i m n k true)))) :ruleset {ruleset})
(rule ((= e (Tile i m n k a false)) (packable i "b"))
      ((union e (Pack i "b" (Tile i m n k a true)))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.hoist",
        "loop(a, n, s, pack(x)) = pack(loop(a, n, s, x)): copied once for all, if nothing inside writes the factor",
        """(rule ((= e (Loop a n s y)) (= y (Pack i o x)) (hoists i o a))
      ((union e (Pack i o (Loop a n s x)))) :ruleset {ruleset})
(rule ((= e (Seq y z)) (= y (Pack i o x)) (external i o))
      ((union e (Pack i o (Seq x z)))) :ruleset {ruleset})
(rule ((= e (Seq z y)) (= y (Pack i o x)) (external i o))
      ((union e (Pack i o (Seq z x)))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.parallel",
        "the steps of the outermost loop over an axis with independent steps may be shared out between threads",
        """(rule ((spmd e) (= e (Pack i o x))) ((spmd x)) :ruleset {ruleset})
(rule ((spmd e)) ((inner e)) :ruleset {ruleset})
(rule ((inner e) (= e (Loop a n s x)) (outermost a)) ((inner x)) :ruleset {ruleset})
(rule ((inner e) (= e (Loop a n s x)) (splits a)) ((union e (Par a n s x))) :ruleset {ruleset})""",
    ),
    LoopRule(
        "loop.cyclic",
        "contiguous runs of steps for each thread = threads take steps in turns, where some steps take longer",
        """(rule ((= e (Par a n s x)) (unlike a)) ((union e (Cyclic a n s x))) :ruleset {ruleset})""",
    ),
)
