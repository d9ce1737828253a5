"""The GPU that solutions see."""

CAPABILITY = (10, 0)
SHARED = 232448  # per block of a B200, in bytes
SHARED_PER_MULTIPROCESSOR, RESERVED = 233472, 1024  # bytes; RESERVED: by the system, of each block
THREADS, BLOCKS = 2048, 32  # per multiprocessor
CLUSTER = 16  # blocks
MULTIPROCESSORS, L2_BYTES, MEMORY = 148, 126 << 20, 192 << 30
