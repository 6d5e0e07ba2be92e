"""An NVFlare filter, run on what NVFlare's clients answer with."""

from typing import Any, ClassVar, Self

from gradaudit.audits.dp_audit.mechanisms import OPTION
from gradaudit.audits.dp_audit.middleware import (
    Middleware,
    instantiate,
    named_object,
    quiet,
)
from gradaudit.audits.dp_audit.middleware.payload import (
    Arrays,
    Exchange,
    Outgoing,
    Payload,
)
from gradaudit.core.noise_laws import Noise
from gradaudit.core.parts import library
from gradaudit.errors import AuditError, UsageError


class NvflareFilter(Middleware):
    """A ``Filter`` or ``DXOFilter`` on the results of a client's task.

    It gets a DXO of weight differences, or of weights where it filters only these, with one local
    step. Its instance lives through all releases, as in a client, and nothing signals to it that a
    run starts. ``TASK_DATA`` of its context is None: NVFlare's ``ClientRunner`` (2.9) clears the
    received weights before it runs result filters, so ``ConvertWeights`` converts nothing there.

    ``PercentilePrivacy``, ``ExcludeVars`` and ``ConvertWeights`` draw nothing: what they leave of
    two updates is the same or differs for certain. ``SVTPrivacy`` draws; what it accounts for is
    its own claim, and arrays without dimensions are not in it.

    Attributes:
        dxo_filter: what processes results.

    Source: H. R. Roth et al., "NVIDIA FLARE: Federated learning from simulation to real-world"
    (2022); M. Lyu, D. Su and N. Li, "Understanding the sparse vector technique for differential
    privacy" (2017), algorithm 1.
    """

    name = "nvflare"
    summary = "An NVFlare filter, nvflare:MODULE:CLASS?key=value."
    example: ClassVar[str] = (
        "nvflare:nvflare.app_common.filters.percentile_privacy:PercentilePrivacy?gamma=0.01"
    )

    exchanges: tuple[Exchange, ...] = ("numpy", "pytorch")

    def __init__(self, dxo_filter: Any, description: str, noise: Noise | None = None) -> None:
        super().__init__(description, noise)
        self.dxo_filter = dxo_filter
        library("nvflare.apis.dxo", "nvflare", f"{OPTION} nvflare")
        wanted = getattr(dxo_filter, "data_kinds", None) or ["WEIGHT_DIFF"]
        self.form = "differences" if "WEIGHT_DIFF" in wanted else "weights"

    @classmethod
    def parse(cls, text: str, noise: Noise | None = None) -> Self:
        """The filter that ``nvflare:MODULE:CLASS?key=value&…`` names.

        Raises:
            UsageError: NVFlare is missing, there is no such class, or it is no filter.
        """
        base = library("nvflare.apis.filter", "nvflare", f"{OPTION} nvflare").Filter
        found, spec = named_object(text)
        filter_ = instantiate(found, spec)
        if not isinstance(filter_, base):
            raise UsageError(
                f"{OPTION} {text}: makes a {type(filter_).__name__}, which is no filter; one is a "
                "subclass of nvflare.apis.filter.Filter"
            )
        return cls(filter_, text, noise)

    def deliver(self, received: Arrays, given: Payload) -> Payload:
        """Run the filter on the client's result, and return the result that leaves.

        Raises:
            AuditError: the filter blocks it, or leaves no arrays.
        """
        from gradaudit.audits.dp_audit.middleware import nvflare_messages as nvflare

        result = Outgoing(given.arrays, given.form, {}, self.exchange)
        with quiet():
            answer = self.dxo_filter.process(nvflare.shareable_of(result), nvflare.context_of())
        try:
            left = nvflare.outgoing(answer, result)
        except AuditError as error:
            raise AuditError(f"{OPTION} {self.description}: {error}") from error
        if not left.arrays:
            raise AuditError(f"{OPTION} {self.description}: leaves no arrays")
        return Payload(left.arrays, left.form)
