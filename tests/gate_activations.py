"""The activations that tests of the gate go through: the named ones, and formulas with every kind of part."""

from gpas_cli.spec.gate import ACTIVATIONS

SOFTSIGN = "alpha / (1 + abs(alpha))"
FORMULAS = (
    SOFTSIGN,
    "softplus(alpha) - softplus(0)",
    "min(exp(alpha), 1.5) - 1",
    "-max(-alpha ** 3 - alpha, 0.1 * sin(-alpha))",
    "atan(alpha) * cos(alpha / 2) + (sqrt(1 + alpha ** 2) - 1) / 4",
    "erf(alpha) + 0.1 * log(1 + relu(alpha)) + tanh(0.5) * (sigmoid(alpha) - 0.5)",
)
ALL_ACTIVATIONS = (*ACTIVATIONS, *FORMULAS)
