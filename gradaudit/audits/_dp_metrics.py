"""What the dp-audit reports."""

from gradaudit.audits.base import Metric

METRICS = (
    Metric(
        id="epsilon_lower",
        title="Proven lower bound on epsilon",
        riskier="higher",
        per_layer=False,
        warning=1,
        error=5,
        why="the releases under two values of the attribute were told apart so surely that "
        "epsilon cannot be smaller",
    ),
    Metric(
        id="epsilon_lower_gaussian",
        title="Lower bound on epsilon if the noise is Gaussian",
        riskier="higher",
        per_layer=False,
    ),
    Metric(
        id="mu_lower",
        title="Lower bound on the gap over the noise, if that is Gaussian",
        riskier="higher",
        per_layer=False,
    ),
    Metric(
        id="epsilon_point",
        title="The paper's estimate of epsilon, which is no bound",
        counts="trials",
        riskier="higher",
        per_layer=False,
    ),
    Metric(
        id="epsilon_pair",
        title="Exact epsilon of the pair that was played",
        riskier="higher",
        per_layer=False,
    ),
    Metric(
        id="epsilon_theory",
        title="Epsilon that the mechanism promises for a replaced record",
        riskier="higher",
        per_layer=False,
    ),
    Metric(
        id="epsilon_classical",
        title="Epsilon by the classical formula, valid up to 1",
        riskier="higher",
        per_layer=False,
    ),
    Metric(
        id="epsilon_ceiling",
        title="The most that so many trials can prove",
        per_layer=False,
    ),
    Metric(
        id="canary_gap",
        title="Distance that replacing the value moves the noiseless release",
        unit="L2 norm",
        riskier="higher",
        per_layer=False,
    ),
)
