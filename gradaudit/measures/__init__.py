"""The mathematics of the audits, as functions of arrays.

Arrays of NumPy or torch in, numbers or small named tuples out, without a model or a report. Each
function's docstring begins with its equation and source; the audits call these functions.
"""

from gradaudit.attacks.layerwise.fully_connected import inversion_bound
from gradaudit.attacks.layerwise.layer_chain import invert_linear
from gradaudit.attacks.layerwise.systems import r_gap
from gradaudit.attacks.reconstruction.closeness import psnr, ssim
from gradaudit.audits.attack_inference.fano import fano_bound
from gradaudit.audits.attack_text.span import span_check
from gradaudit.audits.dp_audit.law.bounds import epsilon_lower, epsilon_two_tailed
from gradaudit.audits.dp_audit.law.decision import pilot_threshold
from gradaudit.audits.dp_audit.law.one_run_bounds import epsilon_one_run
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian, mu_gaussian
from gradaudit.audits.floor.van_trees import van_trees
from gradaudit.audits.forward.measure import activation_information
from gradaudit.audits.sensitivity.jacobian_sensitivity import input_sensitivity, label_sensitivity
from gradaudit.audits.subspace.comparing import subspace_distances
from gradaudit.audits.tradeoff.attacking import cap
from gradaudit.audits.vinfo.original import reconstruction_information
from gradaudit.audits.vinfo.v_information import v_information
from gradaudit.core.statistics.intervals import clopper_pearson, nadeau_bengio
from gradaudit.core.statistics.laws import permutation_p_value
from gradaudit.games.scores import advantage, auroc, tpr_at_fpr
from gradaudit.ranks.copa_metric import copa_metric, rank_deficiency

__all__ = [
    "activation_information",
    "advantage",
    "auroc",
    "cap",
    "clopper_pearson",
    "copa_metric",
    "epsilon_gaussian",
    "epsilon_lower",
    "epsilon_one_run",
    "epsilon_two_tailed",
    "fano_bound",
    "input_sensitivity",
    "inversion_bound",
    "invert_linear",
    "label_sensitivity",
    "mu_gaussian",
    "nadeau_bengio",
    "permutation_p_value",
    "pilot_threshold",
    "psnr",
    "r_gap",
    "rank_deficiency",
    "reconstruction_information",
    "span_check",
    "ssim",
    "subspace_distances",
    "tpr_at_fpr",
    "v_information",
    "van_trees",
]
