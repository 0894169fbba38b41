"""The plugin's messages, in vLLM's own log."""

from __future__ import annotations

import logging

#: vLLM configures level and format of loggers whose names start like its own.
log = logging.getLogger("vllm.plugins.tuner")
