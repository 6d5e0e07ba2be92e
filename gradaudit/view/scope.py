"""The scope of a report in a few lines: attributes, game, shared updates, model and data."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from gradaudit.audits.gathering import audit_of, member_of
from gradaudit.core.text import listed
from gradaudit.measurement import dict_of, list_of, text_of, texts_of
from gradaudit.report import LEARNERS, Measurement, Report
from gradaudit.view.facts import (
    abridged,
    batch_size,
    checkpoint_notes,
    data_facts,
    joined,
    preparation,
    secret_of,
    title,
    warnings,
)

MOST_GAMES = 6
NOTHING = "no attribute was attacked"


@dataclass(frozen=True)
class Scope:
    """The subject of a report's numbers: attributes, game, shared updates, model and data.

    Attributes:
        private: the attributes that were attacked, and those that were not.
        game: how many records are in an attacked update, by audit.
        sizes: the same without the audits; empty where nothing was attacked.
        shared: algorithm, layers, defenses, hidden layers.
        varied: the settings of a sweep.
        setting: whether numbers are of the attacker's best case or of the described federation.
        families: the models that adversaries fit, with their sizes, and the number of batches they
            learn from.
        model: model, checkpoints and size; data and task accuracy.
        prepared: what the adapter did to the data: scaling, encoding, imputation, what is left.
        notes: what was done to make checkpoints fit the model.
        warnings: what casts doubt on all numbers.
    """

    private: str
    game: str
    shared: str
    model: str
    data: str
    sizes: str = ""
    prepared: str = ""
    setting: str = ""
    families: str = ""
    varied: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """A heading and a text for each line of details that has one."""
        lines = (("attacked", self.private), ("game", self.game), ("families", self.families))
        return tuple(line for line in lines if line[1])

    @property
    def changes(self) -> tuple[tuple[str, str], ...]:
        """What was varied, done to the data, and done to make checkpoints fit, if anything."""
        lines = (("varied", self.varied), ("data", self.prepared))
        fitted = (("fitted", note) for note in self.notes)
        return (*(line for line in lines if line[1]), *fitted)


def scope_of(report: Report) -> Scope:
    """Returns the scope of a report; unknown parts are left out."""
    names, offered = attacked(report), _offered(report)
    named = ", ".join(name + _values(offered.get(name)) for name in names)
    return Scope(
        private=named or NOTHING,
        game=_game(report),
        sizes=_sizes(report),
        shared=_shared(report),
        model=title(report),
        data=data_facts(report),
        prepared=preparation(report),
        setting=_setting(report),
        families=_families(report),
        varied=_varied(report),
        notes=checkpoint_notes(report),
        warnings=warnings(report),
    )


def attacked(report: Report) -> tuple[str, ...]:
    """Returns the attacked attributes: those asked for, and those that rows name."""
    offered = _offered(report)
    named = [secret_of(row) for row in report.rows if row.status == "measured"]
    asked = texts_of(report.provenance.get("attributes"))

    def names_no_other(secret: str) -> bool:
        """Tell whether a secret is an offered attribute, or mentions none of them."""
        return secret in offered or not any(name in secret for name in offered)

    return tuple(dict.fromkeys(filter(names_no_other, filter(None, (*asked, *named)))))


def not_attacked(report: Report) -> tuple[str, ...]:
    """Returns the attributes of the data that no audit attacked."""
    looked_for = attacked(report)
    return tuple(name for name in _offered(report) if name not in looked_for)


def _offered(report: Report) -> dict[str, JsonValue]:
    return dict_of(report.data.get("attributes"))


def _values(counts: JsonValue) -> str:
    """Formats an attribute's values, `` (left, right)``; empty where there are many or none."""
    values = dict_of(counts)
    return f" ({listed(values)})" if 0 < len(values) <= 4 else ""


def _by_size(report: Report) -> dict[int, dict[str, None]]:
    """Returns the audits that attacked updates, by how many records are in one."""
    sizes: dict[int, dict[str, None]] = {}
    for row in report.rows:
        if row.status == "measured" and (size := batch_size(row.details)):
            sizes.setdefault(size, {})[_named(row)] = None
    return sizes


def _sizes(report: Report) -> str:
    """``updates of 1, 7 and 16 records``; empty where none was."""
    sizes = sorted(_by_size(report))
    noun = "record" if sizes == [1] else "records"
    counts = abridged([f"{size:,}" for size in sizes], MOST_GAMES)
    return f"updates of {counts} {noun}" if sizes else ""


def _game(report: Report) -> str:
    """``batches of 7 (property), 16 (vinfo); single records (reconstruct)``."""
    sizes = _by_size(report)
    batches = [f"{n:,} ({_few(names)})" for n, names in sorted(sizes.items()) if n > 1]
    alone = [f"single records ({_few(names)})" for n, names in sizes.items() if n == 1]
    return "; ".join([*([f"batches of {', '.join(batches)}"] if batches else []), *alone])


def _few(names: Iterable[str]) -> str:
    return abridged(list(names), MOST_GAMES)


def _named(row: Measurement) -> str:
    """Returns ``property`` for ``attack property``; for a headline, the attack behind it."""
    return text_of(row.details.get(row.audit)) or member_of(row).removeprefix("attack ")


def _shared(report: Report) -> str:
    hidden = texts_of(report.provenance.get("hidden"))
    algorithms = dict.fromkeys(filter(None, map(_algorithm, _options(report))))
    layers = len(report.target.layers)
    count = "one layer" if layers == 1 else f"{layers:,} layers"
    sees = f"{' and '.join(algorithms) or 'gradients'} of {count}"
    if {row.audit for row in report.rows} == {"job"}:
        sees, defended = f"results of {count}", _chains(report)
    else:
        defended = _defended(report)
    return "; ".join(
        (
            sees,
            defended,
            *_one_round(report),
            f"never shared: {abridged(hidden)}" if hidden else "no layer hidden",
        )
    )


def _one_round(report: Report) -> list[str]:
    """Say that noise is met in one round alone, as it averages out over rounds of one batch."""
    noisy = any("sigma" in defense for defense in texts_of(report.provenance.get("defenses")))
    return ["one round, while noise averages out over several (-c)"] * (
        noisy and len(report.target.checkpoints) < 2
    )


def _chains(report: Report) -> str:
    """``train through LocalDpMod; evaluate through no filter or mod``."""
    passed = {
        text_of(row.variant.get("task")): listed(
            [text_of(dict_of(link).get("name")) for link in list_of(row.details.get("links"))]
        )
        for row in report.select("job.chain")
        if row.details.get("chosen")
    }
    return "; ".join(f"{task} through {x or 'no filter or mod'}" for task, x in passed.items())


def _varied(report: Report) -> str:
    """``batch-size (1, 4) and defense (sign, prune:0.9)``; empty for what is no sweep."""
    axes = dict_of(report.provenance.get("sweep"))
    return " and ".join(f"{name} ({abridged(texts_of(at))})" for name, at in axes.items())


BEST = "the attacker's best case (diagnostic)"


def _setting(report: Report) -> str:
    """Says whether attacks were diagnostic or deployed; empty where nothing was attacked."""
    settings = {row.details.get("setting") for row in report.rows if row.status == "measured"}
    known = settings & {"diagnostic", "deployed"}
    described = report.provenance.get("deployment") is not None
    if known == {"deployed"}:
        return "as your federation shares (deployed)"
    if known == {"diagnostic"} and not described:
        return f"{BEST}; --deployment FILE describes yours"
    if known == {"diagnostic"}:
        return "diagnostic: options differ from the federation that --deployment describes"
    return f"{BEST} and as your federation shares (deployed)" if known else ""


def _families(report: Report) -> str:
    """``logistic (linear), fitted on 64 batches (vinfo)``; empty where no adversary learns."""
    named: dict[str, dict[str, None]] = {}
    for row in report.rows:
        families = dict_of(row.details.get(LEARNERS))
        if families and not row.variant.keys() - {row.audit}:
            named.setdefault(_learning(families, row.details), {})[_named(row)] = None
    return "; ".join(f"{words} ({_few(names)})" for words, names in named.items())


def _learning(families: Mapping[str, JsonValue], details: Mapping[str, JsonValue]) -> str:
    """Formats the predictive families, their sizes, and the batches that they are fitted on."""
    batches, *_ = list_of(details.get("batches")) or [details.get("shadow_batches")]
    fitted = f", fitted on {batches:,} batches" if isinstance(batches, int) else ""
    return (
        ", ".join(f"{name} ({size})" if size else name for name, size in families.items()) + fitted
    )


def _algorithm(options: dict[str, JsonValue]) -> str:
    """Says what clients shared in an audit; empty where no option says it."""
    name, epochs = options.get("algorithm"), options.get("epochs")
    if name == "fedsgd":
        return "FedSGD gradients"
    if name == "fedavg":
        several = isinstance(epochs, int) and epochs > 1
        return joined("FedAvg differences", f"{epochs} local epochs" if several else "")
    return text_of(name)


def _options(report: Report) -> Iterator[dict[str, JsonValue]]:
    """Yields the options of the audits, but of attacks that measured nothing."""
    attacks = {row.variant.get("attack") for row in report.rows}
    idle = attacks - {row.variant.get("attack") for row in report.rows if row.status == "measured"}
    for name, options in report.options.items():
        if name.partition(" ")[2] not in idle:
            yield options


def _defended(report: Report) -> str:
    defenses = texts_of(report.provenance.get("defenses"))
    if not defenses and any(row.status == "measured" for row in report.select("job.chain")):
        return "no defense: the job's chains are not applied here (init --from JOB describes them)"
    if not defenses:
        return "no defense"
    without = dict.fromkeys(
        audit_of(row, report)
        for row in report.rows
        if row.status == "measured" and isinstance(row.details.get("defenses"), str)
    )
    exempt = f" (not applied by: {', '.join(without)})" if without else ""
    return f"defended by {' then '.join(defenses)}{exempt}"
