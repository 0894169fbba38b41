"""tuner from Python: `tuner.tune` and its results, in scripts and in notebooks."""

from tuner.core.trial.reports.baselines import CudaSource, KernelLaunch
from tuner.python.result import Result
from tuner.python.tuning import tune
from tuner.python.where import connect

__all__ = ["CudaSource", "KernelLaunch", "Result", "connect", "tune"]
