// Package counters describes what the virtual GPU counted in launches of kernels, with the names and the rules of
// NVIDIA's Nsight Compute (ncu).
package counters

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"fisub/internal/plain"
)

// A Launch is a launch of a kernel, or several launches of it with the same configuration, whose counts are added up.
type Launch struct {
	Workload string `json:"workload,omitempty"` // uuid
	Kernel   string `json:"kernel"`             // without parameters and template arguments
	Instance string `json:"instance,omitempty"` // with template arguments, if it has any
	Launches int    `json:"launches"`
	Grid     [3]int `json:"grid"`
	Block    [3]int `json:"block"`
	Cluster  [3]int `json:"cluster"` // 1, 1, 1 without clusters
	// Blocks is the number of blocks that were executed, less than Launches times the grid if blocks were sampled.
	Blocks        int    `json:"blocks"`
	StaticShared  int    `json:"static_shared_bytes"`
	DynamicShared int    `json:"dynamic_shared_bytes"`
	Registers     int    `json:"registers,omitempty"`    // per thread, by ptxas; 0: unknown
	Local         int    `json:"local_bytes,omitempty"`  // per thread, by ptxas, with spills
	Read          uint64 `json:"read_sectors"`           // different sectors of global memory that a launch reads
	Cold          uint64 `json:"cold_sectors"`           // those of them that it had not written before
	Written       uint64 `json:"written_sectors"`        // different sectors that it writes
	AtomicChain   uint64 `json:"atomic_chain,omitempty"` // the most atomic operations of a launch on one address
	Rows          []Row  `json:"rows"`
	// Proved is set if the kernel's machine code was compared with its PTX. Then Differences lists where its memory and
	// tensor-core instructions differ; everywhere else, the counts of memory are those of a GPU.
	Proved      bool         `json:"machine_code_compared,omitempty"`
	Differences []Difference `json:"differences,omitempty"`
}

// A Difference is a source line whose machine code does not have the PTX's instructions of some class.
type Difference struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Text string `json:"text"` // "ptxas merged 4 32-bit loads into 1 of 128 bits"
}

// A Row has the counts of the instructions of one source line with the same opcode. File is "" without line
// information.
type Row struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	Op   string `json:"op"` // of the PTX, such as "ld.global.v4.f32"
	Counts
}

// Counts are the counts of some instructions. A warp's access to memory is one request, however many lanes take part. A
// sector has 32 bytes, a line four sectors. A wavefront is what shared memory does in a cycle: one word of 4 bytes for
// each of its 32 banks.
type Counts struct {
	Warps     uint64 `json:"inst_executed"`                  // executions by a warp
	Threads   uint64 `json:"thread_inst_executed"`           // lanes of them
	Active    uint64 `json:"thread_inst_executed_true"`      // lanes whose predicate is true
	Divergent uint64 `json:"divergent_branches,omitempty"`   // branches whose lanes part
	Requests  uint64 `json:"global_requests,omitempty"`      // to global memory, also by bulk and tensor copies
	Sectors   uint64 `json:"global_sectors,omitempty"`       // of all requests; not of bulk and tensor copies
	Least     uint64 `json:"global_sectors_ideal,omitempty"` // the least sectors that have the bytes of each request
	Lines     uint64 `json:"global_lines,omitempty"`         // of 128 bytes
	Bytes     uint64 `json:"global_bytes,omitempty"`         // of all lanes
	Partial   uint64 `json:"partial_boxes,omitempty"`        // of tensor copies, partly outside of the tensor
	Shared    uint64 `json:"shared_requests,omitempty"`      // to the block's own shared memory
	Waves     uint64 `json:"shared_wavefronts,omitempty"`
	Ideal     uint64 `json:"shared_wavefronts_ideal,omitempty"` // the least that have the bytes of each request
	Conflicts uint64 `json:"shared_conflicts,omitempty"`        // wavefronts that bank conflicts add
	Remote    uint64 `json:"cluster_requests,omitempty"`        // to the shared memory of other blocks
	// GlobalStride and SharedStride are the distances in bytes between neighbouring lanes, if they are always the same, 0
	// for one address, or Varies.
	GlobalStride Stride `json:"global_stride_bytes,omitempty"`
	SharedStride Stride `json:"shared_stride_bytes,omitempty"`
	// Operations of floating-point arithmetic, or of tensor cores, by active lanes; a fused multiply-add is two.
	Operations uint64 `json:"operations,omitempty"`
}

// A Stride is a distance in bytes.
type Stride int64

// Varies is a stride that is not always the same.
const Varies Stride = math.MinInt64

// with returns the stride that accesses of both strides have in common.
func (s Stride) with(o Stride) Stride {
	switch {
	case s == 0:
		return o
	case o == 0 || s == o:
		return s
	}
	return Varies
}

// Add adds other counts.
func (c *Counts) Add(o Counts) {
	c.Warps += o.Warps
	c.Threads += o.Threads
	c.Active += o.Active
	c.Divergent += o.Divergent
	c.Requests += o.Requests
	c.Sectors += o.Sectors
	c.Least += o.Least
	c.Lines += o.Lines
	c.Bytes += o.Bytes
	c.Partial += o.Partial
	c.Shared += o.Shared
	c.Waves += o.Waves
	c.Ideal += o.Ideal
	c.Conflicts += o.Conflicts
	c.Remote += o.Remote
	c.Operations += o.Operations
	c.GlobalStride = c.GlobalStride.with(o.GlobalStride)
	c.SharedStride = c.SharedStride.with(o.SharedStride)
}

// Correct turns the counts of operations that the virtual GPU executes in several steps into those of a GPU: a
// reduction of a vector is one access, and compare-and-swap moves two values.
func (r *Row) Correct() {
	parts := strings.Split(r.Op, ".")
	if parts[0] != "red" && parts[0] != "atom" {
		return
	}
	for n, v := range map[uint64]string{2: "v2", 4: "v4", 8: "v8"} {
		if slices.Contains(parts, v) {
			r.Requests, r.Sectors, r.Lines = r.Requests/n, r.Sectors/n, r.Lines/n
		}
	}
	if slices.Contains(parts, "cas") {
		r.Waves, r.Ideal = 2*r.Waves, 2*r.Ideal
	}
}

// Check returns an error if a launch, which may come from a submission or another host, has impossible sizes.
func (l *Launch) Check() error {
	within := func(from, to int, all ...int) bool {
		return !slices.ContainsFunc(all, func(n int) bool { return n < from || n > to })
	}
	const most = 1 << 31 // blocks of a grid's axis
	ok := within(1, most, l.Grid[:]...) && within(1, 1024, l.Block[:]...) && within(1, 1024, l.Threads()) &&
		within(1, 16, l.Cluster[:]...) && within(1, 1<<30, l.Launches) && within(1, 1<<53, l.Blocks) &&
		within(0, 1<<20, l.StaticShared, l.DynamicShared, l.Local, l.Registers)
	if grid := float64(l.Grid[0]) * float64(l.Grid[1]) * float64(l.Grid[2]); !ok || grid > 1<<53 {
		return fmt.Errorf("counters of a launch with impossible sizes: grid %v, block %v", l.Grid, l.Block)
	}
	return nil
}

// Clean makes the texts of a launch safe to print.
func (l *Launch) Clean() {
	l.Workload, l.Kernel, l.Instance = plain.Line(l.Workload), plain.Line(l.Kernel), plain.Line(l.Instance)
	for i := range l.Rows {
		r := &l.Rows[i]
		r.File, r.Op = plain.Line(r.File), plain.Line(r.Op)
	}
	for i := range l.Differences {
		d := &l.Differences[i]
		d.File, d.Text = plain.Line(d.File), plain.Line(d.Text)
	}
}

// Lines returns launches as JSON lines.
func Lines(launches []Launch) (lines []byte, err error) {
	for i := range launches {
		line, err := json.Marshal(&launches[i])
		if err != nil {
			return nil, err
		}
		lines = append(append(lines, line...), '\n')
	}
	return lines, nil
}

// Parse reads JSON lines, such as those of Lines. It skips incomplete lines and impossible launches, makes texts safe
// to print and adds up launches with the same configuration.
func Parse(lines []byte) (launches []Launch) {
	for line := range bytes.Lines(lines) {
		var l Launch
		if json.Unmarshal(line, &l) == nil && l.Check() == nil {
			l.Clean()
			launches = Merge(launches, l)
		}
	}
	return launches
}

// Sampled reports whether some blocks were not executed.
func (l *Launch) Sampled() bool { return l.Blocks < l.Launches*l.GridBlocks() }

// scale returns the number of blocks of all launches over that of the executed ones.
func (l *Launch) scale() float64 {
	if !l.Sampled() {
		return 1
	}
	return float64(l.Launches*l.GridBlocks()) / float64(l.Blocks)
}

// GridBlocks returns the number of blocks of a launch.
func (l *Launch) GridBlocks() int { return l.Grid[0] * l.Grid[1] * l.Grid[2] }

// Threads returns the number of threads of a block.
func (l *Launch) Threads() int { return l.Block[0] * l.Block[1] * l.Block[2] }

// same reports whether two launches differ in their counts only.
func (l *Launch) same(o *Launch) bool {
	return l.Workload == o.Workload && l.Kernel == o.Kernel && l.Instance == o.Instance && l.Grid == o.Grid &&
		l.Block == o.Block && l.Cluster == o.Cluster && l.DynamicShared == o.DynamicShared &&
		l.StaticShared == o.StaticShared && l.Registers == o.Registers
}

// Merge adds l to the launch of all that has the same kernel and configuration, or appends it.
func Merge(all []Launch, l Launch) []Launch {
	i := slices.IndexFunc(all, func(o Launch) bool { return o.same(&l) })
	if i < 0 {
		return append(all, l)
	}
	to := &all[i]
	to.Launches += l.Launches
	to.Blocks += l.Blocks
	to.Read += l.Read
	to.Cold += l.Cold
	to.Written += l.Written
	to.AtomicChain = max(to.AtomicChain, l.AtomicChain)
	to.Rows = AddRows(to.Rows, l.Rows)
	return all
}

// AddRows adds the counts of more to rows with the same line and opcode, and returns the rows sorted by line.
func AddRows(rows, more []Row) []Row {
	type key struct {
		file string
		line int
		op   string
	}
	at := make(map[key]int, len(rows))
	for i, r := range rows {
		at[key{r.File, r.Line, r.Op}] = i
	}
	for _, r := range more {
		k := key{r.File, r.Line, r.Op}
		if i, ok := at[k]; ok {
			rows[i].Add(r.Counts)
		} else {
			at[k] = len(rows)
			rows = append(rows, r)
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return rows
}
