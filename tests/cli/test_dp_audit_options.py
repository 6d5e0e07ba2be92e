"""What ``dp-audit`` is asked for wrongly ends like any other wrong request."""

from pathlib import Path

import pytest
from command_line import run

SUBJECT = ("-m", "zoo:mlp?inputs=10&hidden=3&classes=2", "-d", "diabetes", "-a", "sex")
QUICK = ("--trials", 200, "--restarts", 1, "--iterations", 2)
HONEST = "dp:clip=1,sigma=1"
MECHANISMS = {
    "nonsense": "no mechanism",
    "": "no mechanism",
    "dp": "no clip",
    "dp:clip=1": "no sigma",
    "dp:clip=1,sigma": "key=value",
    "dp:clip=one,sigma=1": "not a number",
    "dp:clip=nan,sigma=1": "finite number",
    "dp:clip=0,sigma=1": "not positive",
    "dp:clip=1,sigma=-1": "negative",
    "dp:clip=1,sigma=1,clip=2": "twice",
    "dp:clip=1,sigma=1,per=batch": "record, sum, mean, release",
    "dp:clip=1,sigma=1,noise=pink": "gaussian, laplace",
    "dp:clip=1,sigma=1,colour=2": "it takes",
    "missing.py:mechanism": "cannot be read",
    "missing.py": "name a function",
}
OPTIONS = {
    ("--record", "bogus"): "index of a record",
    ("--record", "442"): "442 records is 441",
    ("--record", "-1"): "index of a record",
    ("--companions", "442"): "at most 441",
    ("--companions", "-1"): "greater than or equal to 0",
    ("--restarts", "0"): "--record random",
    ("--trials", "99"): "greater than or equal to 100",
    ("--delta", "0"): "greater than 0",
    ("--confidence", "0.5"): "greater than 0.5",
    ("--claimed-epsilon", "-1"): "greater than or equal to 0",
    ("--clip", "1"): "leave --clip out",
    ("--noise", "gaussian"): "leave --noise out",
    ("--mechanism", f"{HONEST},noise=laplace", "--mode", "exact"): "--mode implementation",
    ("--mechanism", f"{HONEST},noise=laplace,per=record", "--companions", "1"): "per=sum",
}


@pytest.mark.parametrize(("mechanism", "says"), MECHANISMS.items())
def test_a_wrong_mechanism_is_wrong_usage(mechanism: str, says: str) -> None:
    _refused("--mechanism", mechanism, says=says)


@pytest.mark.parametrize(("arguments", "says"), OPTIONS.items(), ids=" ".join)
def test_a_wrong_option_is_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    chosen = () if "--mechanism" in arguments else ("--mechanism", HONEST)
    _refused(*chosen, *arguments, says=says)


def _refused(*arguments: str, says: str) -> None:
    done = run("dp-audit", *SUBJECT, *arguments)
    assert done.status == 2
    assert done.out == ""
    assert says in done.err
    assert done.err.count("\n") == 1


def test_without_crafting_a_named_record_plays() -> None:
    options = ("--mechanism", HONEST, "--record", "0", "--trials", 200, "--restarts", 0)
    done = run("dp-audit", *SUBJECT, *options, "-f", "json", "-q")
    assert done.status == 0, done.err


@pytest.mark.slow
def test_a_claim_that_nothing_tests_is_no_pass(tmp_path: Path) -> None:
    """A mechanism that carries its noise on has no bound; without a claim its other rows stand."""
    file = tmp_path / "carried.py"
    file.write_text(
        "import torch\n"
        "class Carried:\n"
        "    last = 0\n"
        "    def __call__(self, gradients, generator):\n"
        "        self.last = self.last + torch.randn(gradients.shape[1], generator=generator)\n"
        "        return gradients.mean(0) + self.last\n"
        "carried = Carried()\n"
    )
    options = (*SUBJECT, *QUICK, "--mechanism", f"{file}:carried", "-f", "json", "-q")
    done = run("dp-audit", *options, "--claimed-epsilon", 3)
    assert done.status == 3
    assert "the claim was not tested: the releases depend on each other" in done.err
    assert run("dp-audit", *options).status == 0
