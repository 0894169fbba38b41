"""The job loop, and the facade through which everything outside asks for jobs and results."""

from tuner.service.facade import Service

__all__ = ["Service"]
