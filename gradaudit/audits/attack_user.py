"""User inference from gradients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from gradaudit.audits._attack_inference import InferenceAttack
from gradaudit.audits._attack_options import InferenceOptions
from gradaudit.errors import NotApplicable

if TYPE_CHECKING:
    from gradaudit.attacks.inference.game import InferenceGame
    from gradaudit.models.target import Subject


class UserOptions(InferenceOptions):
    """Options of user inference."""

    candidates: int = Field(5, ge=2, le=1000, description="Users to choose from.")


class AttackUser(InferenceAttack[UserOptions]):
    """Guess which of some candidate users a batch is of, given other records of each of them.

    An encoder f is trained on gradients of other users; a candidate's probability is
    exp(−‖f(g_a) − f(g̃)‖₂) / Σ_i exp(−‖f(g_i) − f(g̃)‖₂). No user is both trained on and attacked.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack user"
    summary = "Guess which of some users a batch is of from its gradients."
    Options = UserOptions

    def games(self, subject: "Subject") -> Sequence["InferenceGame"]:
        """The one game."""
        from gradaudit.attacks.inference.user import UserGame

        if subject.records.users is None:
            raise NotApplicable("the records name no users; name their column with user=COL")
        return [UserGame()]

    def _of_the_game(self) -> dict[str, int]:
        return {"candidates": self.options.candidates}
