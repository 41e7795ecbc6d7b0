"""Statistics of evaluations: means with clustered errors, intervals, pass@k, paired comparisons. No dependencies.

Trials of one task are not independent, so a task is a cluster: errors are computed over tasks, never over trials.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from typing import TypeVar

__all__ = [
    "BOOTSTRAP_ROUNDS",
    "BOOTSTRAP_SEED",
    "Estimate",
    "PairedEstimate",
    "bootstrap_interval",
    "cohen_kappa",
    "mcnemar",
    "mean_estimate",
    "mean_of_sums",
    "paired_estimate",
    "pass_at_k",
    "pass_hat_k",
]

T = TypeVar("T")

Z95 = NormalDist().inv_cdf(0.975)
BOOTSTRAP_ROUNDS = 2_000
BOOTSTRAP_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over trials.

    Attributes:
        mean: The mean; NaN without trials.
        error: Its standard error, clustered by task; NaN with fewer than two tasks.
        low: The lower end of the 95 % interval.
        high: The upper end.
        trials: The number of trials, the denominator.
        clusters: The number of tasks.
    """

    mean: float
    error: float
    low: float
    high: float
    trials: int
    clusters: int


def mean_estimate(clusters: Sequence[Sequence[float]]) -> Estimate:
    """Estimate the mean of scores from 0 to 1 that come in clusters.

    The standard error is the cluster-robust one with the factor G/(G-1) for G clusters (Miller, "Adding Error Bars to
    Evals", 2024, equation 4, with that correction); with clusters of one it is the usual standard error of a mean. The
    interval is Wilson's for as many independent trials as would have this error, which does not shrink to a point where
    all trials are right.

    Args:
        clusters: The scores of each cluster.
    """
    return mean_of_sums([(sum(cluster), len(cluster)) for cluster in clusters if cluster])


def mean_of_sums(sums: Sequence[tuple[float, int]]) -> Estimate:
    """Do what `mean_estimate` does, from the sum of the scores of each cluster and their number."""
    number = sum(count for _, count in sums)
    if not number:
        return Estimate(mean=math.nan, error=math.nan, low=math.nan, high=math.nan, trials=0, clusters=0)
    mean = sum(total for total, _ in sums) / number
    groups = len(sums)
    if groups < 2:
        return Estimate(mean=mean, error=math.nan, low=0.0, high=1.0, trials=number, clusters=groups)
    squares = sum((total - count * mean) ** 2 for total, count in sums)
    error = math.sqrt(squares * groups / (groups - 1)) / number
    effective = mean * (1 - mean) / error**2 * groups / (groups - 1) if error > 1e-12 and 0 < mean < 1 else groups
    low, high = _wilson(min(max(mean, 0.0), 1.0), effective)  # Evaluations of older versions hold scores beyond.
    return Estimate(mean=mean, error=error, low=low, high=high, trials=number, clusters=groups)


def _wilson(share: float, number: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (Wilson 1927)."""
    square = Z95**2
    middle = (share + square / (2 * number)) / (1 + square / number)
    half = Z95 / (1 + square / number) * math.sqrt(share * (1 - share) / number + square / (4 * number**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def bootstrap_interval(
    clusters: Sequence[Sequence[float]], *, rounds: int = BOOTSTRAP_ROUNDS, seed: int = BOOTSTRAP_SEED
) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean when clusters are drawn again, with replacement.

    Args:
        clusters: The scores of each cluster.
        rounds: How often they are drawn.
        seed: Of the random numbers, so that a report can be repeated.
    """
    classes = Counter((sum(cluster), len(cluster)) for cluster in clusters if cluster)
    if not classes:
        return math.nan, math.nan
    random = Random(seed)  # noqa: S311 - statistics
    means = []
    for _ in range(rounds):
        total, number = 0.0, 0
        for (score, trials), drawn in _multinomial(random, classes):
            total += drawn * score
            number += drawn * trials
        means.append(total / number)
    means.sort()
    return means[int(0.025 * rounds)], means[min(int(0.975 * rounds), rounds - 1)]


def _multinomial(random: Random, classes: Mapping[T, int]) -> Iterator[tuple[T, int]]:
    """Draw as many items as there are, with replacement, and yield how often each class is drawn.

    Clusters with the same scores are one class, so that the work does not grow with the number of tasks.
    """
    left_items = left = sum(classes.values())
    for each, count in classes.items():
        drawn = left if count == left_items else _binomial(random, left, count / left_items)
        yield each, drawn
        left -= drawn
        left_items -= count


def _binomial(random: Random, number: int, share: float) -> int:
    """Draw from a binomial distribution: rounded from the normal one where its variance is large, else exactly."""
    if share > 0.5:
        return number - _binomial(random, number, 1 - share)
    variance = number * share * (1 - share)
    if variance > 100:
        return min(max(round(random.gauss(number * share, math.sqrt(variance))), 0), number)
    found, position, scale = 0, 0, math.log1p(-share)
    while True:  # jump from one success to the next: the gaps are geometric
        position += int(math.log(1.0 - random.random()) / scale) + 1
        if position > number:
            return found
        found += 1


def pass_at_k(trials: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of k trials is right (Chen et al. 2021).

    Args:
        trials: The number of trials of a task, at least k.
        correct: How many of them are right.
        k: How many are drawn.
    """
    return 1.0 - _share_of_draws(trials, trials - correct, k)


def pass_hat_k(trials: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that all of k trials are right (pass^k, Yao et al. 2024)."""
    return _share_of_draws(trials, correct, k)


def _share_of_draws(trials: int, marked: int, k: int) -> float:
    """Return the share of draws of k from the trials that hold only marked ones."""
    if not 1 <= k <= trials:
        raise ValueError(f"k must be from 1 to the number of trials, {trials}; got {k}")
    return math.comb(marked, k) / math.comb(trials, k)


# ------------------------------------------------------------------------------------------------ comparisons


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEstimate:
    """The difference of two evaluations of the same tasks: the second minus the first.

    Attributes:
        difference: The mean over tasks of the difference of their mean scores.
        error: Its standard error over tasks.
        low: The lower end of the 95 % interval, Student's.
        high: The upper end.
        tasks: The number of tasks that both have.
        only_first: Tasks that only the first solves.
        only_second: Tasks that only the second solves.
        p_value: Of McNemar's exact test of those two numbers.
    """

    difference: float
    error: float
    low: float
    high: float
    tasks: int
    only_first: int
    only_second: int
    p_value: float


def paired_estimate(first: Mapping[str, float], second: Mapping[str, float]) -> PairedEstimate:
    """Compare mean scores by task. A task counts as solved if its mean score is above one half.

    Args:
        first: The mean score of each task in the first evaluation.
        second: In the second.
    """
    shared = [task for task in first if task in second]
    differences = [second[task] - first[task] for task in shared]
    number = len(shared)
    mean = sum(differences) / number if number else math.nan
    error, low, high = math.nan, math.nan, math.nan
    if number > 1:
        error = math.sqrt(sum((each - mean) ** 2 for each in differences) / (number - 1) / number)
        reach = student_quantile(number - 1) * error
        low, high = mean - reach, mean + reach
    only_first = sum(first[task] > 0.5 >= second[task] for task in shared)
    only_second = sum(second[task] > 0.5 >= first[task] for task in shared)
    return PairedEstimate(
        difference=mean,
        error=error,
        low=low,
        high=high,
        tasks=number,
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar(only_first, only_second),
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p value of McNemar's exact test: are these two numbers of disagreements alike?"""
    number = only_first + only_second
    if number == 0:
        return 1.0
    tail: float = sum(math.comb(number, i) for i in range(min(only_first, only_second) + 1)) / 2**number
    return min(1.0, 2 * tail)


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t (Cornish-Fisher expansion; off by less than 0.1 % from 4 on)."""
    exact = {1: 12.706, 2: 4.303, 3: 3.182}
    if freedom in exact:
        return exact[freedom]
    z = Z95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum([z, *(term / freedom**power for power, term in enumerate(terms, 1))])


def cohen_kappa(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Return Cohen's kappa, the agreement of two judges beyond chance: 1 for full agreement; NaN without verdicts.

    If both judges give the same verdict everywhere, chance cannot be told from agreement, and kappa is 1.
    """
    number = len(first)
    if not number:
        return math.nan
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / number
    yes_first, yes_second = sum(first) / number, sum(second) / number
    chance = yes_first * yes_second + (1 - yes_first) * (1 - yes_second)
    return 1.0 if chance == 1 else (agreed - chance) / (1 - chance)
