"""Why a plan may run: it covers its tiles, fits, ends, and reads nothing before it is written."""
