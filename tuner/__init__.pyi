from tuner.python import CudaSource as CudaSource
from tuner.python import KernelLaunch as KernelLaunch
from tuner.python import Result as Result
from tuner.python import connect as connect
from tuner.python import tune as tune

__version__: str
