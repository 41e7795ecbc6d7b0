"""Statistics of evaluations: means with clustered errors, intervals, pass@k, paired comparisons. No dependencies.

Trials of one task are not independent, so a task is a cluster: errors are computed over tasks, never over trials.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean
from typing import TypeVar

__all__ = [
    "BOOTSTRAP_ROUNDS",
    "BOOTSTRAP_SEED",
    "Estimate",
    "PairedEstimate",
    "bootstrap_interval",
    "cohen_kappa",
    "holm",
    "mcnemar",
    "mean_estimate",
    "mean_of_sums",
    "paired_estimate",
    "pass_at_k",
    "pass_hat_k",
    "student_p",
    "student_quantile",
    "tasks_needed",
]

T = TypeVar("T")

Z95 = NormalDist().inv_cdf(0.975)
Z80 = NormalDist().inv_cdf(0.8)
_ZERO = 1e-12  # Below it, a standard error is the rounding of floats.
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
    """Estimate as `mean_estimate` does, from the sum and the number of each cluster's scores."""
    number = sum(count for _, count in sums)
    if not number:
        return Estimate(mean=math.nan, error=math.nan, low=math.nan, high=math.nan, trials=0, clusters=0)
    mean = sum(total for total, _ in sums) / number
    groups = len(sums)
    if groups < 2:
        return Estimate(mean=mean, error=math.nan, low=0.0, high=1.0, trials=number, clusters=groups)
    squares = sum((total - count * mean) ** 2 for total, count in sums)
    error = math.sqrt(squares * groups / (groups - 1)) / number
    effective = mean * (1 - mean) / error**2 * groups / (groups - 1) if error > _ZERO and 0 < mean < 1 else groups
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
        error: Its standard error over clusters of tasks; NaN with fewer than two.
        low: The lower end of the 95 % interval.
        high: The upper end.
        p_value: Of the paired test, two-sided: would evaluations that score alike differ this much?
        tasks: The number of tasks that both have.
        clusters: The number of clusters of tasks; without a field to cluster by, each task is one.
        only_first: Tasks that only the first solves.
        only_second: Tasks that only the second solves.
        mcnemar_p: The p value of McNemar's exact test of those two numbers. It sees less than the paired test.
    """

    difference: float
    error: float
    low: float
    high: float
    p_value: float
    tasks: int
    clusters: int
    only_first: int
    only_second: int
    mcnemar_p: float

    @property
    def detectable(self) -> float:
        """The smallest difference that evaluations of so many tasks see with a chance of 80 %; NaN if unknown."""
        return (Z95 + Z80) * self.error if self.error > _ZERO else math.nan

    def tasks_to_see(self, difference: float) -> float:
        """Return the number of tasks like these that see a difference with a chance of 80 %; NaN if unknown."""
        return tasks_needed(self.error * math.sqrt(self.tasks), difference) if self.error > _ZERO else math.nan


def paired_estimate(
    first: Mapping[str, float], second: Mapping[str, float], clusters: Mapping[str, str] | None = None
) -> PairedEstimate:
    """Compare mean scores from 0 to 1 by task. A task counts as solved if its mean score is above one half.

    The interval and the p value are Student's, with the cluster-robust error and the factor G/(G-1) for G clusters, and
    G-1 degrees of freedom; with clusters of one task they are those of the usual paired test. If all tasks differ by
    the same amount, as in two evaluations with equal scores, that error is 0. The interval then is how far the mean
    would move if tasks differed otherwise in the largest share that G clusters can miss: 1 - 0.025^(1/G) (Clopper and
    Pearson 1934). The p value is that of the sign test.

    Args:
        first: The mean score of each task in the first evaluation.
        second: In the second.
        clusters: The cluster of each task: tasks of one document, or of one site. By default each task is its own.
    """
    shared = [task for task in first if task in second]
    if not shared:
        raise ValueError("The evaluations share no task")
    differences = {task: second[task] - first[task] for task in shared}
    number, mean = len(shared), fmean(differences.values())
    residuals: dict[str, float] = {}
    for task, each in differences.items():
        cluster = task if clusters is None else clusters[task]
        residuals[cluster] = residuals.get(cluster, 0.0) + each - mean
    groups, squares = len(residuals), sum(each**2 for each in residuals.values())
    error = math.sqrt(groups / (groups - 1) * squares) / number if groups > 1 else math.nan
    if error > _ZERO:
        reach = student_quantile(groups - 1) * error
        low, high, p_value = mean - reach, mean + reach, student_p(mean / error, groups - 1)
    else:
        hidden = 1 - 0.025 ** (1 / groups)
        low, high = mean - hidden * (1 + mean), mean + hidden * (1 - mean)
        p_value = mcnemar(0, groups if abs(mean) > _ZERO else 0)
    only_first = sum(first[task] > 0.5 >= second[task] for task in shared)
    only_second = sum(second[task] > 0.5 >= first[task] for task in shared)
    return PairedEstimate(
        difference=mean,
        error=error,
        low=low,
        high=high,
        p_value=p_value,
        tasks=number,
        clusters=groups,
        only_first=only_first,
        only_second=only_second,
        mcnemar_p=mcnemar(only_first, only_second),
    )


def tasks_needed(deviation: float, difference: float) -> float:
    """Return how many tasks see a difference with a chance of 80 %, at p < 0.05 (Miller 2024, section 5).

    Args:
        deviation: The standard deviation over tasks of the paired differences.
        difference: The difference to see.
    """
    return ((Z95 + Z80) * deviation / difference) ** 2


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number (Holm 1979), in the same order."""
    number, least = len(p_values), 0.0
    adjusted = [0.0] * number
    for rank, position in enumerate(sorted(range(number), key=p_values.__getitem__)):
        least = max(least, min(1.0, (number - rank) * p_values[position]))
        adjusted[position] = least
    return adjusted


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p value of McNemar's exact test: are these two numbers of disagreements alike?"""
    number = only_first + only_second
    if number == 0:
        return 1.0
    tail: float = sum(math.comb(number, i) for i in range(min(only_first, only_second) + 1)) / 2**number
    return min(1.0, 2 * tail)


def student_p(t: float, freedom: int) -> float:
    """Return the two-sided p value of Student's t."""
    square = t * t
    # Beyond the mean of the beta distribution the other tail converges faster.
    if square * (freedom + 2) > 3 * freedom:
        return _beta_share(freedom / (freedom + square), freedom / 2, 0.5)
    return 1.0 - _beta_share(square / (freedom + square), 0.5, freedom / 2)


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    low, high = 0.0, 13.0  # It is 12.71 for one degree of freedom, and less for more.
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, freedom) > 0.05 else (low, middle)
    return high


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function by its continued fraction (DLMF 8.17.22), Lentz's method."""
    if x <= 0:
        return 0.0
    scale = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    numerator, denominator, found = 1.0, 0.0, 1.0
    for i in range(10_000):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / (1 + term * denominator)
        numerator = 1 + term / numerator
        found *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-14:
            break
    return scale * (found - 1)


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
