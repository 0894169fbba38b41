"""The job loop, and the facade through which all callers submit jobs and read results."""

from tuner.service.facade import Service

__all__ = ["Service"]
