package counters

import (
	"cmp"
	"slices"
	"strings"

	"fisub/internal/usage"
)

// A GPU has the limits of a GPU that follow from published figures.
type GPU struct {
	Name       string
	Processors int     // streaming multiprocessors
	Clock      float64 // maximum, in Hz
	DRAM       float64 // bytes per second, of the pins
	L2         int64   // bytes
	// Per multiprocessor:
	Warps, Blocks, Registers, Shared int // Shared in bytes
	// Operations per cycle and multiprocessor, by the type of a matrix product's factors; a multiply-add is two.
	Tensor map[string]float64
	// An empty kernel takes this many seconds, by CUPTI. Zero: not known.
	Empty float64
}

// Limits that the supported GPUs have in common.
const (
	partitions     = 4    // of a multiprocessor, each with its own registers
	registerUnit   = 256  // a warp's registers are rounded up to this
	reservedShared = 1024 // bytes of a block's shared memory that the system reserves
	sharedUnit     = 128
)

var hopper = map[string]float64{"f16": 4096, "tf32": 2048, "f8": 8192, "i8": 8192, "f64": 256, "b1": 65536}

// GPUs lists the GPUs, the default first. Sources: NVIDIA's datasheets and white papers of H100 and H200 (SXM5), at
// their maximum clock; for the B200 the bus (7680 bit at 3996 MHz, twice per cycle) and the rates of tcgen05.mma
// measured by SemiAnalysisAI/microbench-blackwell at 1965 MHz. Empty kernels: measured by fisub with CUPTI.
var GPUs = []GPU{
	{Name: "B200", Processors: 148, Clock: 1.965e9, DRAM: 7.672e12, L2: 126 << 20, Warps: 64, Blocks: 32,
		Registers: 64 << 10, Shared: 228 << 10, Tensor: map[string]float64{"f16": 8192, "tf32": 4096, "f8": 16384,
			"i8": 16384, "f4": 32768, "f64": 256, "b1": 65536}},
	{Name: "H200", Empty: 0.58e-6, Processors: 132, Clock: 1.98e9, DRAM: 4.917e12, L2: 50 << 20, Warps: 64, Blocks: 32,
		Registers: 64 << 10, Shared: 228 << 10, Tensor: hopper},
	{Name: "H100", Empty: 0.86e-6, Processors: 132, Clock: 1.98e9, DRAM: 3.352e12, L2: 50 << 20, Warps: 64, Blocks: 32,
		Registers: 64 << 10, Shared: 228 << 10, Tensor: hopper},
}

// Named returns the GPU with the given name. Case does not matter.
func Named(name string) (*GPU, error) {
	var names []string
	for i := range GPUs {
		if strings.EqualFold(GPUs[i].Name, name) {
			return &GPUs[i], nil
		}
		names = append(names, GPUs[i].Name)
	}
	return nil, usage.Unknown("GPU", name, names)
}

// withArticle returns "a B200" or "an H200".
func (g *GPU) withArticle() string {
	if strings.HasPrefix(g.Name, "H") {
		return "an " + g.Name
	}
	return "a " + g.Name
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// An Occupancy says how many blocks of a launch fit on a multiprocessor. Each limit is the number of blocks that one
// resource allows; a resource that the kernel does not use allows Blocks.
type Occupancy struct {
	Blocks                                   int
	ByBlocks, ByWarps, ByRegisters, ByShared int
	Warps                                    float64 // share of the multiprocessor's warps, from 0 to 1
	Waves                                    float64 // the grid in units of the blocks that fit on all multiprocessors
}

// Occupancy returns the occupancy of a launch. If its registers are unknown, they do not count.
func (g *GPU) Occupancy(l *Launch) Occupancy {
	o := Occupancy{ByBlocks: g.Blocks}
	warps := roundUp(l.Threads(), 32) / 32
	if warps == 0 {
		return o
	}
	o.ByWarps = g.Warps / warps
	o.ByShared = min(g.Shared/roundUp(reservedShared+l.StaticShared+l.DynamicShared, sharedUnit), g.Blocks)
	if o.ByRegisters = g.Blocks; l.Registers > 0 {
		warp := roundUp(l.Registers*32, registerUnit)
		o.ByRegisters = g.Registers / partitions / warp * partitions / warps
	}
	o.Blocks = min(o.ByBlocks, o.ByWarps, o.ByRegisters, o.ByShared)
	o.Warps = float64(o.Blocks*warps) / float64(g.Warps)
	if o.Blocks > 0 {
		o.Waves = float64(l.GridBlocks()) / float64(o.Blocks*g.Processors)
	}
	return o
}

// Limiter returns the resource that limits the number of blocks on a multiprocessor.
func (o *Occupancy) Limiter() string {
	switch o.Blocks {
	case o.ByBlocks:
		return "blocks"
	case o.ByShared:
		return "shared memory"
	case o.ByRegisters:
		return "registers"
	}
	return "threads"
}

// A Bound is a lower limit of a launch's time, by one of its parts.
type Bound struct {
	What     string  // "DRAM"
	Seconds  float64 // more than 0
	Estimate bool    // no limit: the machine code may differ from the PTX, or blocks were sampled
}

// instructions is the number of instructions of the machine code for one of the PTX, the median of 163 kernels.
const instructions = 1.26

// Bounds returns the lower limits of the time of one launch, the largest first, then the estimates. The launch takes at
// least the sum of the largest limit and an empty kernel's time, if the L2 is full of other data that was written, as
// after a zero-fill. Then the DRAM delivers all sectors that are read before they are written, and takes as many as the
// launch reads and writes. If the L2 has no such data, only reads need the DRAM.
func (g *GPU) Bounds(l *Launch) (parts []Bound, least float64) {
	scale := l.scale() / float64(max(1, l.Launches))
	sampled := l.Sampled()
	used := float64(min(g.Processors, max(1, l.GridBlocks())))
	var waves, tensor, issued float64
	for i := range l.Rows {
		r := &l.Rows[i]
		waves += float64(r.Waves)
		issued += float64(r.Warps)
		if rate := g.Tensor[TensorType(r.Op)]; rate > 0 && ClassOf(r.Op) == Tensor {
			tensor += float64(r.Operations) / rate
		}
	}
	add := func(what string, seconds float64, estimate bool) {
		if seconds > 0 {
			parts = append(parts, Bound{what, seconds, estimate || sampled})
		}
	}
	add("DRAM", float64(l.Cold+l.Written)*32*scale/g.DRAM, false)
	add("tensor cores", tensor*scale/used/g.Clock, false)
	add("shared memory", waves*scale/used/g.Clock, !l.Proved || len(l.Differences) > 0)
	add("instruction issue", issued*instructions*scale/used/partitions/g.Clock, true)
	slices.SortStableFunc(parts, func(a, b Bound) int {
		switch {
		case a.Estimate && !b.Estimate:
			return 1
		case b.Estimate && !a.Estimate:
			return -1
		}
		return cmp.Compare(b.Seconds, a.Seconds)
	})
	least = g.Empty
	for _, b := range parts {
		if !b.Estimate || sampled && b.What == "DRAM" {
			return parts, least + b.Seconds
		}
	}
	return parts, least
}
