"""The statistics of evaluations, against values by hand, by enumeration, or by SciPy 1.17 and statsmodels 0.15."""

from __future__ import annotations

import math
from itertools import combinations
from random import Random
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.evaluate.estimates import (
    _binomial,
    bootstrap_interval,
    cohen_kappa,
    holm,
    mcnemar,
    mean_estimate,
    paired_estimate,
    pass_at_k,
    pass_hat_k,
    student_p,
    student_quantile,
    tasks_needed,
)


def test_the_error_of_single_trials_is_that_of_a_mean() -> None:
    scores = [1.0, 0.0, 1.0, 1.0, 0.5, 0.0, 1.0]
    found = mean_estimate([[score] for score in scores])
    assert found.mean == pytest.approx(sum(scores) / 7)
    assert found.error == pytest.approx(stdev(scores) / math.sqrt(7))
    assert (found.trials, found.clusters) == (7, 7)


def test_the_error_is_clustered_by_task() -> None:
    # Residual sums of the clusters: 1, -1, 0. Their squares, times 3/2, are 3; the root of that over six trials.
    found = mean_estimate([[1, 1], [0, 0], [1, 0]])
    assert found.error == pytest.approx(math.sqrt(3) / 6)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=30), st.integers(2, 5))
def test_repeating_every_trial_teaches_nothing(scores: list[float], times: int) -> None:
    once, often = mean_estimate([[score] for score in scores]), mean_estimate([[score] * times for score in scores])
    assert often.error == pytest.approx(once.error)
    assert often.low == pytest.approx(once.low, abs=1e-9)


def test_the_interval_is_wilsons() -> None:
    found = mean_estimate([[1.0]] * 8 + [[0.0]] * 2)
    assert (found.low, found.high) == pytest.approx((0.490162, 0.943318), abs=1e-6)  # scipy binomtest(8, 10)


def test_the_interval_of_all_right_is_not_a_point() -> None:
    found = mean_estimate([[1.0]] * 20)
    assert found.low == pytest.approx(0.838875, abs=1e-6)  # scipy binomtest(20, 20), method wilson
    assert found.high == pytest.approx(1.0)


def test_one_task_has_no_error() -> None:
    found = mean_estimate([[1.0, 0.0]])
    assert math.isnan(found.error)
    assert (found.low, found.high) == (0.0, 1.0)
    assert math.isnan(mean_estimate([]).mean)


@pytest.mark.parametrize(("trials", "correct"), [(5, 2), (6, 0), (6, 6), (4, 1)])
def test_pass_at_k_and_pass_hat_k_are_shares_of_all_draws(trials: int, correct: int) -> None:
    marks = [True] * correct + [False] * (trials - correct)
    for k in range(1, trials + 1):
        draws = list(combinations(marks, k))
        assert pass_at_k(trials, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))
        assert pass_hat_k(trials, correct, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_k_beyond_the_trials_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be from 1 to the number of trials, 3"):
        pass_at_k(3, 1, 4)


@pytest.mark.parametrize(("first", "second", "p"), [(10, 2, 0.03857421875), (0, 0, 1.0), (3, 3, 1.0), (0, 6, 0.03125)])
def test_mcnemars_exact_test(first: int, second: int, p: float) -> None:
    assert mcnemar(first, second) == pytest.approx(p)  # scipy binomtest(min, first + second).pvalue


def test_a_paired_comparison() -> None:
    first = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0, "only": 1.0}
    second = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}
    found = paired_estimate(first, second)
    assert (found.difference, found.tasks) == (0.25, 4)  # the differences are 0, 1, 1, -1
    assert found.error == pytest.approx(0.478714)  # scipy sem
    assert (found.low, found.high) == pytest.approx((-1.273480, 1.773480), abs=1e-3)  # scipy t.interval
    assert found.p_value == pytest.approx(0.6376180914)  # scipy ttest_rel
    assert (found.only_first, found.only_second) == (1, 2)
    assert found.mcnemar_p == pytest.approx(1.0)


FIRST = {"a1": 1.0, "a2": 0.0, "b1": 0.0, "b2": 1.0, "b3": 0.0, "c1": 1.0}
SECOND = {"a1": 1.0, "a2": 1.0, "b1": 1.0, "b2": 1.0, "b3": 0.5, "c1": 0.0}


def test_a_paired_comparison_is_clustered() -> None:
    found = paired_estimate(FIRST, SECOND, {task: task[0] for task in FIRST})
    assert (found.difference, found.tasks, found.clusters) == (0.25, 6, 3)
    # statsmodels OLS on a constant, cov_type="cluster", use_t=True
    assert found.error == pytest.approx(0.31457643)
    assert found.p_value == pytest.approx(0.51010205)
    assert (found.low, found.high) == pytest.approx((-1.10351316, 1.60351316))


def test_clusters_of_one_task_change_nothing() -> None:
    alone = paired_estimate(FIRST, SECOND)
    assert alone.clusters == 6
    assert paired_estimate(FIRST, SECOND, {task: task for task in FIRST}) == alone


@given(st.dictionaries(st.integers(0, 40).map(str), st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2), min_size=2))
def test_the_interval_excludes_no_difference_just_when_p_is_below_5_percent(scores: dict[str, Any]) -> None:
    found = paired_estimate(
        {task: first for task, (first, _) in scores.items()}, {task: second for task, (_, second) in scores.items()}
    )
    if found.error > 1e-9 and abs(found.p_value - 0.05) > 1e-9:
        assert (found.low <= 0 <= found.high) == (found.p_value > 0.05)


def test_evaluations_that_score_alike_may_differ_elsewhere() -> None:
    scores = {str(number): float(number % 2) for number in range(10)}
    found = paired_estimate(scores, scores)
    assert (found.difference, found.error, found.p_value) == (0.0, 0.0, 1.0)
    assert found.high == pytest.approx(0.3084971)  # scipy binomtest(0, 10).proportion_ci().high
    assert found.low == -found.high
    assert math.isnan(found.detectable)
    assert math.isnan(found.tasks_to_see(0.03))


@pytest.mark.parametrize("tasks", [1, 5, 6, 20])
def test_evaluations_that_differ_in_every_task_are_not_certain(tasks: int) -> None:
    found = paired_estimate(dict.fromkeys(map(str, range(tasks)), 0.0), dict.fromkeys(map(str, range(tasks)), 1.0))
    assert found.difference == found.high == 1.0
    assert found.low == pytest.approx(1 - 2 * (1 - 0.025 ** (1 / tasks)))
    assert found.p_value == found.mcnemar_p == pytest.approx(2 * 0.5**tasks)
    assert (found.low > 0) == (found.p_value < 0.05)


def test_one_cluster_knows_no_error() -> None:
    found = paired_estimate(FIRST, SECOND, dict.fromkeys(FIRST, "all"))
    assert math.isnan(found.error)
    assert (found.p_value, found.clusters) == (1.0, 1)
    assert found.low < -0.9 < 0.9 < found.high


def test_holms_adjustment_of_several_comparisons() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # statsmodels multipletests
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_the_tasks_that_a_difference_needs() -> None:
    assert tasks_needed(0.355, 0.03) == pytest.approx(1099.0611872)  # statsmodels normal_sample_size_one_tail, 0.025
    found = paired_estimate(FIRST, SECOND)
    assert found.tasks_to_see(found.detectable) == pytest.approx(found.tasks)


def test_the_power_is_80_percent() -> None:
    # A quarter of the tasks ends differently, some better and fewer worse.
    random, seen, share, difference = Random(3), 0, 0.25, 0.09716
    assert tasks_needed(math.sqrt(share - difference**2), difference) == pytest.approx(200, abs=1)
    for _ in range(600):
        drawn = [random.random() for _ in range(200)]
        won = {str(i): float(x < (share + difference) / 2) for i, x in enumerate(drawn)}
        lost = {str(i): float(x > 1 - (share - difference) / 2) for i, x in enumerate(drawn)}
        seen += paired_estimate(lost, won).p_value < 0.05
    assert seen / 600 == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062047362), (2, 4.30265272975), (4, 2.7764451052), (9, 2.26215716285), (200, 1.97189622363)],
)
def test_students_quantile(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, rel=1e-9)  # scipy t.ppf(0.975)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(0.5, 1, 0.704832765), (-2.5, 7, 0.0409922186), (8.0, 200, 9.87920091e-14), (30.0, 5000, 5.691658118e-182)],
)
def test_students_p(t: float, freedom: int, p: float) -> None:
    assert student_p(t, freedom) == pytest.approx(p, rel=1e-8)  # 2 * scipy t.sf(abs(t))


def test_the_bootstrap_draws_whole_tasks_and_can_be_repeated() -> None:
    clusters = [[1.0, 1.0]] * 30 + [[0.0, 0.0]] * 10
    found = bootstrap_interval(clusters)
    assert found == bootstrap_interval(clusters)
    estimate = mean_estimate(clusters)
    assert found[0] == pytest.approx(0.75 - 1.96 * estimate.error, abs=0.04)
    assert found[1] == pytest.approx(0.75 + 1.96 * estimate.error, abs=0.04)
    assert bootstrap_interval([[0.5]] * 5) == (0.5, 0.5)


@pytest.mark.parametrize(("number", "share"), [(1, 0.5), (20, 0.1), (20, 0.9), (400, 0.3), (5_000, 0.5)])
def test_the_draws_of_the_bootstrap_are_binomial(number: int, share: float) -> None:
    random = Random(1)
    drawn = [_binomial(random, number, share) for _ in range(4_000)]
    deviation = math.sqrt(number * share * (1 - share))
    assert sum(drawn) / 4_000 == pytest.approx(number * share, abs=4 * deviation / math.sqrt(4_000))
    assert stdev(drawn) == pytest.approx(deviation, rel=0.06)
    assert 0 <= min(drawn) <= max(drawn) <= number


def test_kappa_is_agreement_beyond_chance() -> None:
    first = [True] * 20 + [True] * 5 + [False] * 10 + [False] * 15
    second = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)
    assert cohen_kappa([True, False], [True, False]) == 1
    assert cohen_kappa([True, True], [True, True]) == 1
    assert math.isnan(cohen_kappa([], []))


def test_scores_beyond_the_range_that_older_versions_stored_can_be_shown() -> None:
    assert mean_estimate([[2.0], [2.0]]).high == 1.0
    assert mean_estimate([[-1.0], [-1.0]]).low == 0.0
