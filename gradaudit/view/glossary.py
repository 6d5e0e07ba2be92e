"""The words of a report, for somebody who has not read the papers."""

from gradaudit.judging.policy import known_metrics
from gradaudit.view.model import View

_WORDS = {
    "high, medium": "a whole interval lies beyond the limit of an error rule, of a warning rule",
    "high?, medium?": "the limit lies inside an interval: neither shown nor excluded",
    "low": "no limit is exceeded, and what could exceed one was measured; no proof of privacy",
    "unknown": "something that a rule asks for could not be measured",
    "not tested": "nothing tried to learn anything from the layer's gradient",
    "[low, high]": "the interval that holds the true value at the stated confidence",
    "permuted": "the same number for the attribute shuffled among the records: what nothing is",
    "chance": "what the number is where nothing is given away",
    "game": "how many records are in the update that is attacked",
    "hidden": "a layer whose gradient is never shared",
}


def glossary(shown: View) -> dict[str, str]:
    """The words that every report has, and the metrics that this one shows."""
    known = known_metrics()
    shown_metrics = [x.metric for x in shown.layers.columns] + [x.metric for x in shown.model]
    metrics = {
        name: f"{known[name].title}{f' ({unit})' if (unit := known[name].unit) else ''}"
        for name in dict.fromkeys(shown_metrics)
        if name in known
    }
    return {**_WORDS, **metrics}
