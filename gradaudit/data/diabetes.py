"""scikit-learn's diabetes table, with the patient's sex as the private attribute."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from sklearn.datasets import load_diabetes

from gradaudit.data.base import DataAdapter
from gradaudit.data.common.table_columns import numeric_features, standardise
from gradaudit.data.records import Attribute, Records


@dataclass(frozen=True, kw_only=True)
class Diabetes(DataAdapter):
    """442 patients with ten measurements; the label is "progression above the median".

    The measurements are as scikit-learn gives them: centred, each with the sum of squares 1
    (deviation 0.048). ``scale=standard`` gives them the deviation 1. The attribute ``sex`` has the
    two codes of the original table, 1 and 2, and stays among the inputs.
    """

    name: ClassVar[str] = "diabetes"
    summary: ClassVar[str] = "diabetes patients of scikit-learn; attribute sex"
    example: ClassVar[str] = "diabetes"
    needs_source: ClassVar[bool] = False

    scale: Literal["none", "standard"] = "none"

    def load(self) -> Records:
        """Read the table that comes with scikit-learn."""
        table = load_diabetes()
        measurements, names = table.data, table.feature_names
        sex = measurements[:, names.index("sex")]
        standard = self.scale == "standard"
        inputs = standardise(measurements) if standard else measurements.astype(np.float32)
        progressed = table.target > np.median(table.target)
        return Records(
            inputs=torch.from_numpy(inputs),
            labels=torch.from_numpy(progressed.astype(np.int64)),
            classes=("below", "above"),
            attributes={"sex": Attribute((sex > 0).astype(np.int64), ("1", "2"))},
            features=numeric_features(inputs, names),
            notes={"scale": self.scale},
        )
