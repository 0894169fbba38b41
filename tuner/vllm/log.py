"""What the plugin says, in vLLM's own log."""

from __future__ import annotations

import logging

#: vLLM sets up what begins with its name, level and format.
log = logging.getLogger("vllm.plugins.tuner")
