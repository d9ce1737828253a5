"""The GPU that solutions see."""

CAPABILITY = (10, 0)
SHARED = 232448  # per block of a B200, in bytes
MULTIPROCESSORS, L2_BYTES, MEMORY = 148, 126 << 20, 192 << 30
