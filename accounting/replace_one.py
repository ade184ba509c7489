"""Replacing one record under sampling at rate q: the symmetric pair that dominates, and what it is bounded by.

Let N_0 be the law of the release when the record is left out, N_1 and N_1' when it takes part, as itself or replaced:
M = (1−q)·N_0 + q·N_1 and M' = (1−q)·N_0 + q·N_1'. For γ >= 1 and γ' = 1 + q(γ−1), advanced joint convexity (Balle,
Barthe and Gaboardi 2018, arXiv 1807.01647, Theorem 2) gives, with β = γ'/γ,

    H_γ'(M‖M') <= q·[(1−β)·H_γ(N_1‖N_0) + β·H_γ(N_1‖N_1')] <= q·H_γ(P‖Q),

(P, Q) the unsampled pair at the largest shift. Poisson sampling: N_1 and N_0 differ by a shift of at most 1, N_1 and
N_1' by at most 2. Fixed-size batches: N_0 is the batch in which another record stands in the place of this one (the
coupling of their Theorem 11), so both differ by at most 2. In both cases q·H_γ(P‖Q) at shift 2 is *remove*'s curve,
h(γ') = H_γ'((1−q)Q + qP ‖ Q), for γ' >= 1. The relation is symmetric, so for γ' < 1 it is bounded by
1 − γ' + γ'·h(1/γ'). The pair with this curve composes (Zhu, Dong and Wang 2022, arXiv 2106.08567, Theorem 10). Its
privacy loss has the positive part of *remove*, its mirror image (mass times e^−loss), and the rest of the mass at 0.

Rényi: with F = e^{(α−1)R} and the integral representation in `poisson`, F_symmetric − 1 <= (F_remove − 1) + (F_add − 1)
<= 2·(F_remove − 1): each of the two bounds one half of the integral, and adds the other, which is not negative.

From below: with fixed-size batches let this record contribute +1, or −1 when replaced, and all others −1: the released
sum is shifted by 2 with probability q, or never. These are the *remove* and *add* pairs at shift 2 (`Event.attained` =
1). Under Poisson sampling the other records' number is random, so only replacing the record by a zero contribution
is used: the same pairs at shift 1 (`attained` = 1/2).
"""
