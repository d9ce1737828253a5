// Package stamp reads the state of a GPU through NVML while a process is timed on it, and reports reasons to doubt the
// timings. It needs the build tag cuda, else Open fails. NVML is loaded at the first use.
package stamp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fisub/device"
)

// A GPU is an entry of NVML's list.
type GPU struct {
	UUID      string // "GPU-..."
	Name      string // "NVIDIA B200"
	Processes []device.GPUProcess
}

// reasons are the bits of NVML's clocks event reasons for which the GPU was slower than possible, so not idleness (1),
// the user's clock settings (2) or the display's (256).
var reasons = []struct {
	bit  uint64
	name string
}{
	{4, "power cap"},
	{8, "hardware slowdown"},
	{16, "sync boost"},
	{32, "software thermal slowdown"},
	{64, "hardware thermal slowdown"},
	{128, "hardware power brake"},
}

func throttles(bits uint64) (names []string) {
	for _, r := range reasons {
		if bits&r.bit != 0 {
			names = append(names, r.name)
		}
	}
	return names
}

// sumUp returns minimum, median and maximum of each field.
func sumUp(readings []device.Reading) device.During {
	d := device.During{N: len(readings)}
	if len(readings) == 0 {
		return d
	}
	fields := func(r *device.Reading) []*int { return []*int{&r.SMClockMHz, &r.MemoryClockMHz, &r.TemperatureC} }
	for i := range 3 {
		values := make([]int, len(readings))
		for j := range readings {
			values[j] = *fields(&readings[j])[i]
		}
		slices.Sort(values)
		*fields(&d.Min)[i], *fields(&d.Max)[i] = values[0], values[len(values)-1]
		*fields(&d.Median)[i] = values[len(values)/2]
	}
	power := make([]float64, len(readings))
	for j, r := range readings {
		power[j] = r.PowerW
	}
	slices.Sort(power)
	d.Min.PowerW, d.Median.PowerW, d.Max.PowerW = power[0], power[len(power)/2], power[len(power)-1]
	return d
}

// clockSpread is the largest harmless variation of the SM clock, as a fraction of its maximum.
const clockSpread = 0.02

// disturbed returns reasons to doubt timings with stamp s; eccNew counts the uncorrected errors during them.
func disturbed(s *device.Stamp, eccNew int64) (why []string) {
	if len(s.ThrottleReasons) > 0 {
		why = append(why, "the GPU was throttled: "+strings.Join(s.ThrottleReasons, ", "))
	}
	for _, p := range s.OtherProcesses {
		who := fmt.Sprintf("process %d", p.PID)
		if p.Name != "" {
			who += " (" + p.Name + ")"
		}
		switch {
		case p.SMPercent > 0:
			why = append(why, "another process computed on the GPU: "+who)
		case p.SMPercent < 0:
			why = append(why, "another process may have computed on the GPU: "+who)
		}
	}
	if low, high := s.During.Min.SMClockMHz, s.During.Max.SMClockMHz; float64(high-low) > clockSpread*float64(high) {
		why = append(why, fmt.Sprintf("the SM clock varied from %d to %d MHz", low, high))
	}
	if eccNew > 0 {
		why = append(why, fmt.Sprintf("%d uncorrected ECC errors while timing", eccNew))
	}
	return why
}

// without returns the processes other than own. If the driver counts PIDs in another namespace, none of own is found.
// Then it drops as many of the busiest (the last of equals), and the others' names, which belong to this namespace.
func without(processes []device.GPUProcess, own []int) []device.GPUProcess {
	mine := func(p device.GPUProcess) bool { return slices.Contains(own, p.PID) }
	others := slices.Clone(processes)
	if slices.ContainsFunc(others, mine) {
		others = slices.DeleteFunc(others, mine)
	} else if len(own) > 0 {
		slices.SortStableFunc(others, func(a, b device.GPUProcess) int { return cmp.Compare(a.SMPercent, b.SMPercent) })
		others = others[:max(0, len(others)-len(own))]
		for i := range others {
			others[i].Name = ""
		}
	}
	slices.SortFunc(others, func(a, b device.GPUProcess) int { return cmp.Compare(a.PID, b.PID) })
	others = slices.CompactFunc(others, func(a, b device.GPUProcess) bool { return a.PID == b.PID })
	if len(others) == 0 {
		return nil
	}
	return others
}

// noteOf returns a stamp's note; missing maps unreadable values to reasons.
func noteOf(missing map[string]string) string {
	if len(missing) == 0 {
		return ""
	}
	var parts []string
	for what, why := range missing {
		parts = append(parts, fmt.Sprintf("no %s (%s)", what, why))
	}
	slices.Sort(parts)
	return "nvml: " + strings.Join(parts, ", ")
}
