//go:build linux && cgo

package vgpu

/*
#include <stdlib.h>
#include "exec/exec.h"
#include "glue.h"
*/
import "C"

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"fisub/device"
	"fisub/device/vgpu/exec"
	"fisub/internal/plain"
)

// Hazards is a set of errors that do not always make the result wrong.
type Hazards uint32

// UnwrittenShared, UnwrittenLocal, UnwrittenGlobal and UnwrittenRegister are reads of memory or registers that were
// never written; UnwrittenGlobal covers outputs and memory allocated by the submission. Races are unordered accesses,
// Divisions are integer divisions by zero. Refusals are refused launches and copies; the caller of a Machine reports
// them. Ended are barriers and warp instructions that wait for ended threads; a GPU permits them, so they are checked
// only if they are faults. OutsideMask are warp instructions executed by a lane outside their member mask. Asynchronous
// are accesses to memory that an asynchronous operation still reads or writes. Proxies are plain writes that such an
// operation reads without a fence.proxy.async. Mbarriers are uses of mbarriers that are not initialised, and
// initialisations of live ones. Clusters are accesses to shared memory of a block that may not have started or may have
// ended.
const (
	UnwrittenShared   Hazards = 1 << hazardShared
	Races             Hazards = 1 << hazardRace
	UnwrittenLocal    Hazards = 1 << hazardLocal
	Divisions         Hazards = 1 << hazardDivision
	Refusals          Hazards = 1 << hazardRefusal
	Ended             Hazards = 1 << hazardEnded
	UnwrittenGlobal   Hazards = 1 << hazardGlobal
	UnwrittenRegister Hazards = 1 << hazardRegister
	OutsideMask       Hazards = 1 << hazardOutsideMask
	Asynchronous      Hazards = 1 << hazardAsync
	Proxies           Hazards = 1 << hazardProxy
	Mbarriers         Hazards = 1 << hazardMbarrier
	Clusters          Hazards = 1 << hazardCluster
)

// A Launch is the configuration and the parameters of a launch.
type Launch struct {
	Grid, Block, Cluster [3]int
	Shared               int // dynamic shared memory in bytes
	Params               []byte
	Cooperative          bool // the kernel may use a grid-wide barrier
	anyCluster           bool // clusters may exceed portableCluster
}

// A form identifies similar launches: same kernel, same sizes.
type form struct {
	kernel               *Kernel
	grid, block, cluster [3]int
	shared               int
}

// A shape identifies launches that can differ in their behaviour most: same kernel, same block.
type shape struct {
	kernel *Kernel
	block  [3]int
}

func (l *Launch) form(k *Kernel) form   { return form{k, l.Grid, l.Block, l.Cluster, l.Shared} }
func (l *Launch) shape(k *Kernel) shape { return shape{k, l.Block} }

// laterRacesUntil replaces RacesUntil from the second workload on. There, launches of more than fewBlocks blocks are
// not checked unless their shape is new, because a check takes several times as long as the calls.
const laterRacesUntil, fewBlocks = 100_000, 128

// checks returns the hazards to check for in a launch.
func (m *Machine) checks(k *Kernel, l *Launch) Hazards {
	if m.fully || m.Workload == 0 || m.Check == 0 || m.checked[k] > 0 {
		return m.Check
	}
	f, s := l.form(k), l.shape(k)
	if first := m.checked[f]; first > 0 && first != m.Workload ||
		m.Workload > 1 && l.blocks() > fewBlocks && m.checked[s] > 0 {
		return 0
	}
	m.markChecked(f)
	m.markChecked(s)
	return m.Check
}

func (m *Machine) markChecked(what any) {
	if m.checked == nil {
		m.checked = map[any]int{}
	}
	m.checked[what] = m.Workload
}

func (l *Launch) blocks() int { return l.Grid[0] * l.Grid[1] * l.Grid[2] }

// clusterBlocks returns the number of blocks in a cluster.
func (l *Launch) clusterBlocks() int { return max(1, l.Cluster[0]*l.Cluster[1]*l.Cluster[2]) }

// slowLaunch is the time after which the progress of a launch is reported; further reports follow each half of it.
const slowLaunch = 2 * time.Second

// watch passes the progress of a launch to OnHazard until stop is called. ended is the number of clusters that have
// ended, each of the given number of blocks; total is the number of blocks that run.
func (m *Machine) watch(k *Kernel, ended *C.uint64_t, blocks, total int) (stop func()) {
	if m.OnHazard == nil {
		return func() {}
	}
	begun, after := time.Now(), cmp.Or(m.slow, slowLaunch)
	quit, over := make(chan struct{}), make(chan struct{})
	report := func(text string) { m.OnHazard(device.Hazard{Kind: device.Progress, Text: text}) }
	first := time.AfterFunc(after, func() {
		defer close(over)
		tick := time.NewTicker(after / 2)
		defer tick.Stop()
		for {
			done := int(atomic.LoadUint64((*uint64)(ended))) * blocks
			report(progress(Demangled(k.src.Name), done, total, time.Since(begun)))
			select {
			case <-tick.C:
			case <-quit:
				report("")
				return
			}
		}
	})
	return func() {
		if !first.Stop() {
			close(quit)
			<-over
		}
	}
}

// progress describes a launch of kernel that has run for a time.
func progress(kernel string, done, total int, ran time.Duration) string {
	text := fmt.Sprintf("kernel %s: %d of %s", plain.Cut(kernel, 40), done, plain.Count(total, "block"))
	rate := float64(done) / ran.Seconds()
	switch {
	case rate >= 10:
		text += fmt.Sprintf(", %.0f blocks/s", rate)
	case rate > 0:
		text += fmt.Sprintf(", %.2g blocks/s", rate)
	}
	return text
}

// A child is a launch by a kernel.
type child struct {
	kernel string // its name
	launch Launch
	tail   bool // after all other launches by the kernel, and theirs
}

// tailStream is cudaStreamTailLaunch.
const tailStream = 3

// children returns the launches by a kernel that has ended, in their order.
func (k *Kernel) children(s *C.vg_state) (all []child) {
	list := slices.Clone(unsafe.Slice(s.children, int(s.nchildren)))
	C.free(unsafe.Pointer(s.children))
	list = slices.DeleteFunc(list, func(c C.vg_child) bool { return c.order == 0 })
	slices.SortFunc(list, func(a, b C.vg_child) int { return cmp.Compare(a.order, b.order) })
	for _, c := range list {
		f := k.mod.ptx.Funcs[c._func]
		params := at(uintptr(c.params))
		l := Launch{Shared: int(c.shared), Params: bytes.Clone(unsafe.Slice((*byte)(params), paramBytes(f)))}
		for i := range 3 {
			l.Grid[i], l.Block[i], l.Cluster[i] = int(c.grid[i]), int(c.block[i]), max(1, f.ClusterDim[i])
		}
		all = append(all, child{f.Name, l, c.stream == tailStream})
		C.free(params)
	}
	return all
}

// Run runs a kernel to its end, without the kernels that it launches. An error of the kernel is a *Fault.
func (m *Machine) Run(k *Kernel, l Launch) error {
	_, err := m.run(k, l)
	return err
}

func (m *Machine) run(k *Kernel, l Launch) ([]child, error) {
	m.worked.Store(true)
	m.launched.Store(true)
	m.launch.Lock()
	defer m.launch.Unlock()
	c, s := &C.vg_launch{}, &C.vg_state{}
	var pinned runtime.Pinner // what c and s point to
	defer pinned.Unpin()
	k.launched = l
	c.funcs, c.nfuncs, c.entry = k.funcs, C.int32_t(k.n), C.int32_t(k.prog.entry)
	c.entries = k.entries
	for i := range 3 {
		c.grid[i], c.block[i] = C.uint32_t(l.Grid[i]), C.uint32_t(l.Block[i])
		c.cluster[i] = C.uint32_t(max(1, l.Cluster[i]))
	}
	c.shared_static, c.shared_dynamic, c.shared_base = C.uint32_t(k.prog.staticShared), C.uint32_t(l.Shared), sharedBase
	params := k.mod.args[k.src]
	copy(unsafe.Slice((*byte)(at(uintptr(params))), paramsSize), l.Params)
	c.params, c.params_size = (*C.uint8_t)(at(uintptr(params))), C.uint32_t(k.size)
	if l.Cooperative {
		workspace := m.alloc(8, allocation{name: "the grid's barrier", kind: C.FISUB_VGPU_HEAP}, C.VG_OPEN)
		defer m.Unmap(workspace)
		*(*[2]uint32)(at(workspace)) = [2]uint32{8, 0}
		c.workspace = C.uint64_t(workspace)
	}
	u, _ := k.usage()
	c.stack = C.uint32_t(max(cmp.Or(m.stackBytes, defaultStack), u.local))
	m.printed = m.printed || k.prog.prints
	if k.prog.heap {
		s.heap = m.deviceHeap()
	}
	m.mu.Lock()
	if m.stopped {
		m.mu.Unlock()
		return nil, &Fault{Text: "stopped", Stopped: true}
	}
	m.dropShadows()
	ranges := make([]C.vg_range, len(m.ranges)+1)
	for i, a := range m.ranges {
		ranges[i] = C.vg_range{base: C.uint64_t(a.base), size: C.uint64_t(a.size), readonly: C.bool(a.readonly),
			shadow: C.int64_t(a.shadow), element: C.int32_t(a.element)}
	}
	var t *tally
	if m.OnCounters != nil {
		t = m.count(k, &l, c, s, ranges[:len(m.ranges)], &pinned)
	}
	c.ranges, c.nranges = &ranges[0], C.int32_t(len(m.ranges))
	pinned.Pin(c.ranges)
	m.running = s
	m.mu.Unlock()
	workers := m.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	check := m.checks(k, &l)
	if m.Sample > 0 {
		check = 0 // blocks that do not run leave memory unwritten
	}
	if k.prog.atomics {
		workers = 1
	}
	if check&Races != 0 {
		s.races, s.serial, c.races_until = 1, 1, math.MaxUint64
		if m.RacesUntil != 0 && !m.fully {
			c.races_until = C.uint64_t(m.RacesUntil)
		}
		if m.Workload > 1 && !m.fully {
			c.races_until = min(c.races_until, laterRacesUntil)
		}
		if blocks := l.blocks(); blocks <= 1<<24 {
			s.released = &make([]C.uint64_t, blocks+1)[0]
			pinned.Pin(s.released)
			if spans := blocks * ((l.Block[0]*l.Block[1]*l.Block[2] + 31) / 32); spans <= 1<<22 {
				s.spans = &make([]C.vg_span, spans+1)[0]
				pinned.Pin(s.spans)
			}
		}
	}
	c.async = C.bool(k.prog.async)
	c.check_width = C.bool(m.fully)
	c.record = C.bool(m.order != nil && check&Races != 0)
	c.check_local = C.bool(check&UnwrittenLocal != 0)
	resident := k.resident(l)
	c.resident, c.worker_resident = C.int32_t(resident), C.int32_t(resident/workers)
	c.strict, c.workers = C.int32_t(m.Strict), C.int32_t(workers)
	var counts []C.uint64_t
	if m.Counts != nil {
		counts = make([]C.uint64_t, len(opNames))
		s.counts = &counts[0]
		pinned.Pin(s.counts)
	}
	progress := make([]C.vg_progress, workers)
	s.progress = &progress[0]
	pinned.Pin(s.progress)
	if s.serial != 0 {
		for i := range progress[1:] { // counts as ended, so that the first worker does not wait for it yet
			progress[1+i].waiting = math.MaxUint64
		}
	}
	total := l.blocks()
	if t != nil {
		total = t.blocks
	}
	stop := m.watch(k, &s.ended, l.clusterBlocks(), total)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { exec.Work(unsafe.Pointer(c), unsafe.Pointer(s)) })
	}
	group.Wait()
	stop()
	m.mu.Lock()
	m.running = nil
	m.mu.Unlock()
	m.Executed += uint64(s.executed)
	if c.record {
		m.order.launched(k, unsafe.Slice(s.accesses, int(s.naccesses)), bool(s.fenced))
		C.free(unsafe.Pointer(s.accesses))
	}
	if t != nil {
		if !s.fault.set && s.stop == 0 { // else counts are missing
			m.OnCounters(k.counted(&l, t, s))
		}
		C.free(t.sectors)
	}
	for i, n := range counts {
		if n > 0 {
			m.Counts[opNames[i]] += uint64(n)
		}
	}
	for i := range s.hazards {
		if h := &s.hazards[i].fault; s.hazards[i].set {
			if i == hazardNote {
				m.note(k.describe(h).Text)
				continue
			}
			m.markChecked(k)
			m.recordHazard(device.Hazard{Kind: kinds[i], Place: cmp.Or(k.place(locationOf(h)), Demangled(k.src.Name)),
				Text: k.describe(h).Text, Clue: i == hazardWidth})
		}
	}
	children := k.children(s)
	if s.fault.set {
		return nil, k.describe(&s.fault.fault, s.waits[:s.nwaits]...)
	}
	if s.stop != 0 {
		return nil, &Fault{Text: "kernel " + Demangled(k.src.Name) + " was stopped", Stopped: true}
	}
	return children, nil
}

// kinds maps the bits of Hazards to values of device.Hazard.Kind.
var kinds = [hazardCount]string{hazardShared: "unwritten-memory", hazardRace: "race", hazardLocal: "unwritten-memory",
	hazardDivision: "division-by-zero", hazardRefusal: "refused-launch", hazardEnded: "ended-threads",
	hazardGlobal: "unwritten-memory", hazardRegister: "unwritten-register", hazardOutsideMask: "member-mask",
	hazardAsync: "async-copy", hazardProxy: "proxy-fence", hazardMbarrier: "mbarrier", hazardCluster: "cluster",
	hazardWidth: "element-width"}

// note reports a note unless it was reported before.
func (m *Machine) note(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.OnNote == nil || m.notes[text] {
		return
	}
	if m.notes == nil {
		m.notes = map[string]bool{}
	}
	m.notes[text] = true
	m.OnNote(text)
}

// recordHazard records a hazard unless one of the same kind and place is known.
func (m *Machine) recordHazard(h device.Hazard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.ContainsFunc(m.hazards, h.Same) {
		m.hazards = append(m.hazards, h)
		if m.OnHazard != nil {
			m.OnHazard(h)
		}
	}
}

// TakeHazards returns the hazards recorded since the last call. Faults are not among them.
func (m *Machine) TakeHazards() []device.Hazard {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.hazards
	m.hazards = nil
	return all
}

// Worked reports whether a kernel was launched, or memory copied or set, since the last call.
func (m *Machine) Worked() bool { return m.worked.Swap(false) }

// Launched reports whether a kernel was launched since the last call.
func (m *Machine) Launched() bool { return m.launched.Swap(false) }

// Reset lets a stopped machine run again.
func (m *Machine) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = false
}

// Stop ends the running launch; later ones end at once.
func (m *Machine) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	if m.running != nil {
		m.running.stop = C.STOP_ASKED
	}
}
