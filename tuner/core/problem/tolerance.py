"""How far from a float64 reference a result may be and still be called right."""

from __future__ import annotations

from tuner.core.problem.workload import Dtype

#: Largest ||out - reference|| / ||reference|| by dtype.
MAX_REL_ERROR = {Dtype.FP16: 2e-3, Dtype.BF16: 1.6e-2}
