package bench

import (
	"slices"
	"time"

	"fisub/device"
)

// Latency is the official figure in nanoseconds: the median of each trial's timings, and the mean of those medians (spec
// section 6). It is 0 without samples.
func Latency(s *device.Samples) float64 {
	var sum float64
	n := 0
	for _, trial := range s.Trials {
		if len(trial) == 0 {
			continue
		}
		sum += median(trial)
		n++
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// median is in nanoseconds; it is the mean of the middle two of an even number of timings.
func median(trial []time.Duration) float64 {
	sorted := slices.Clone(trial)
	slices.Sort(sorted)
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return float64(sorted[mid])
	}
	return (float64(sorted[mid-1]) + float64(sorted[mid])) / 2
}
