// What the fake driver tells the fake CUPTI.
#include <stddef.h>
#include <stdint.h>

struct fake_record {
  uint32_t kind; // CUPTI's number of the activity kind
  uint32_t correlation, thread;
  uint64_t start, end, bytes; // ns of CLOCK_MONOTONIC
  uint32_t value;             // of a memset; the kind of a copy; the number of the function
  const char *name;
};

size_t fake_records(struct fake_record **records);
