//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// hazard runs body in two blocks of 64 threads and returns the fault, the note, or "". %rd1 is x, %r10 shared memory of 512
// bytes, %r11 the thread's word in it, %r1 the thread's number, %r9 the block's.
func hazard(t *testing.T, body string) string {
	return hazardOf(t, Races|UnwrittenShared|UnwrittenLocal|Divisions|Ended|Asynchronous|Proxies|Mbarriers, body)
}

func hazardOf(t *testing.T, strict Hazards, body string) string {
	t.Helper()
	m := &Machine{Strict: strict, Check: Races | UnwrittenLocal}
	t.Cleanup(m.drop)
	mod, err := m.Load(`.version 9.0
.target sm_100
.address_size 64
.visible .entry k(.param .u64 x)
{
	.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>;
	.shared .align 16 .b8 s[512];
	.local .align 8 .b8 a[64];
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	mov.u32 %r9, %ctaid.x;
	mov.u32 %r10, s;
	mad.lo.u32 %r11, %r1, 4, %r10;
	mov.u32 %r8, 0;
	setp.eq.u32 %p1, %r1, 0;
	setp.lt.u32 %p2, %r1, 32;
` + body + "\n$done:\n	ret;\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatal(err)
	}
	p, _ := words(m, "x", make([]uint32, 256)...)
	note := ""
	m.OnNote = func(text string) { note = text }
	err = m.Run(k, Launch{Grid: [3]int{2, 1, 1}, Block: [3]int{64, 1, 1}, Params: binary.LittleEndian.AppendUint64(nil, uint64(p))})
	if err == nil {
		return note
	}
	return err.Error()
}

// Threads that have ended count as having arrived at a barrier.
func TestEndedWriters(t *testing.T) {
	if got := hazardOf(t, Races, `
	st.shared.b32 [%r11], %r1;
	@%p2 bra $done;
	barrier.sync 0;
	xor.b32 %r2, %r11, 128;
	ld.shared.b32 %r3, [%r2];`); got != "" {
		t.Errorf("got %q, want none", got)
	}
}

// After the first workload, only new small launches and kernels with an earlier hazard are checked.
func TestLooks(t *testing.T) {
	m := &Machine{Check: Races, Workload: 1}
	k, bad, other := &Kernel{n: 1}, &Kernel{n: 2}, &Kernel{n: 3}
	grid := func(n int) *Launch { return &Launch{Grid: [3]int{n, 1, 1}, Block: [3]int{32, 1, 1}} }
	for i, step := range []struct {
		workload, blocks int
		kernel           *Kernel
		want             Hazards
	}{
		{1, 1000, k, Races}, {1, 1000, k, Races}, {2, 1000, k, 0}, {2, 128, k, Races}, {2, 128, k, Races}, {3, 128, k, 0},
		{3, 129, k, 0}, {3, 1000, bad, Races}, {0, 128, k, Races}, {3, 1000, other, Races}, {4, 1000, other, 0},
		{4, 1001, other, 0},
	} {
		if m.Workload = step.workload; step.kernel == bad {
			m.markChecked(bad)
		}
		if got := m.checks(step.kernel, grid(step.blocks)); got != step.want {
			t.Errorf("step %d: got %v, want %v", i, got, step.want)
		}
	}
}

// TestLaunchChecks launches kernels of a program with its own main in different sizes.
func TestLaunchChecks(t *testing.T) {
	var events []Event
	executed := host.machine.Executed
	attached.notify = func(e Event, _ string) { events = append(events, e) }
	attached.checked, attached.again, attached.inNew, attached.inOthers = map[any]bool{}, map[form]int{}, 0, 0
	t.Cleanup(func() { attached.notify, attached.checked, host.machine.Executed = nil, nil, executed })
	host.machine.Executed = 0
	k, other := &Kernel{n: 1}, &Kernel{n: 2}
	for i, step := range []struct {
		kernel              *Kernel
		block, grid, shared int
		executed            uint64 // by this launch, checked or not
		want                uint64
		event               Event
	}{
		{k, 32, 1, 0, 1000, FirstRacesUntil, 0},
		{k, 32, 1, 0, 1000, (50_000 + 1000/16) / 2, 0},
		{k, 64, 1, 0, 1000, FirstRacesUntil, 0},
		{k, 32, 2, 0, 30_000, 50_000 + 2000/16 + 1000/200 - 1000, 0},
		{k, 32, 2, 64, 17_000, 50_000 + 2000/16 + 31_000/200 - 31_000, 0},
		{k, 32, 3, 0, 1000, 0, Unchecked},
		{k, 32, 3, 0, 1000, 0, 0},
		{k, 128, 3, 0, 2_000_000, FirstRacesUntil, 0},
		{other, 32, 3, 0, 40_000_000, FirstRacesUntil, 0},
		{k, 32, 3, 0, 1000, laterRacesUntil, LaterChecked},
		{k, 32, 3, 0, 1000, laterRacesUntil, 0},
		{k, 32, 3, 0, 1000, laterRacesUntil, 0},
		{k, 32, 3, 0, 1000, 0, 0},
	} {
		events = nil
		l := &Launch{Grid: [3]int{step.grid, 1, 1}, Block: [3]int{step.block, 1, 1}, Shared: step.shared}
		until, isNew := launchChecks(step.kernel, l)
		if n := min(until, step.executed); isNew {
			attached.inNew += n
		} else {
			attached.inOthers += n
		}
		host.machine.Executed += step.executed
		if until != step.want || step.event == 0 && events != nil || step.event != 0 && !slices.Equal(events, []Event{step.event}) {
			t.Errorf("step %d: got %d, events %q, want %d, %q", i, until, events, step.want, step.event)
		}
	}
}

// TestLookAlone has kernels that continue on all workers after the check for races, or wait forever during it.
func TestLookAlone(t *testing.T) {
	const head = `.version 9.0
.target sm_100
.address_size 64
.visible .entry k(.param .u64 x)
{
	.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %rd<9>;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %ctaid.x;
	mul.wide.u32 %rd2, %r1, 4;
	add.u64 %rd2, %rd1, %rd2;
$again:
`
	for _, c := range []struct {
		name, body string
		blocks     int
		until      uint64
		want       string
	}{
		{"blocks that end", "ld.global.u32 %r2, [%rd2]; add.u32 %r2, %r2, %r1; st.global.u32 [%rd2], %r2;", 3000, 1000, ""},
		{"a word that nothing writes", "ld.volatile.global.u32 %r2, [%rd2]; setp.eq.u32 %p, %r2, 1; @%p bra $again;", 1, 0,
			"deadlock: 1 thread of the block waits forever, for a change"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &Machine{Workers: 4, Check: Races, RacesUntil: c.until}
			defer m.drop()
			mod, err := m.Load(head + c.body + "\n\tret;\n}\n")
			if err != nil {
				t.Fatal(err)
			}
			k, err := mod.Kernel("k")
			if err != nil {
				t.Fatal(err)
			}
			p, x := words(m, "x", slices.Repeat([]uint32{1}, c.blocks)...)
			err = m.Run(k, Launch{Grid: [3]int{c.blocks, 1, 1}, Block: [3]int{1, 1, 1}, Params: binary.LittleEndian.AppendUint64(nil, uint64(p))})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %s", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range x {
				if v != uint32(i)+1 {
					t.Fatalf("block %d: got %d, want %d", i, v, i+1)
				}
			}
		})
	}
}

// TestHazards has kernels with a race or a read of unwritten memory, and for each a similar kernel without.
func TestHazards(t *testing.T) {
	const branch = "setp.eq.u32 %p4, %r3, 99;\n@%p4 bra $done;" // of no thread
	const race = `race on shared memory: nothing orders this `
	const mbarrier = `
	@%p1 mbarrier.init.shared.b64 [%r10+256], 32;
	bar.sync 0;
	@%p2 bra $producer;
$wait:
	mbarrier.try_wait.parity.shared.b64 %p3, [%r10+256], 0;
	@!%p3 bra $wait;
	ld.shared.b32 %r2, [%r10];
	bra $done;
$producer:
`
	const elected = `
	@%p1 mbarrier.init.shared.b64 [%r10+256], 1;
	bar.sync 0;
	@%p2 bra $producer;
$wait:
	mbarrier.try_wait.parity.shared.b64 %p3, [%r10+256], 0;
	@!%p3 bra $wait;
	xor.b32 %r2, %r11, 128;
	ld.shared.b32 %r3, [%r2];
	bra $done;
$producer:
`
	const bulk = `
	st.shared.b32 [%r11], %r1;
	mul.wide.u32 %rd3, %r9, 256;
	add.u64 %rd3, %rd3, %rd1;
`
	const store = `
	@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r10], 256;
	@%p1 cp.async.bulk.commit_group;
`
	for _, c := range []struct{ name, body, want string }{
		{"a sum that all threads add to", `
	@%p1 st.shared.b32 [%r10], 0;
	bar.sync 0;
	ld.shared.b32 %r2, [%r10];
	add.u32 %r2, %r2, 1;
	st.shared.b32 [%r10], %r2;`, race + `write and the read at `},
		{"a sum that a warp adds to", `
	@!%p2 bra $done;
	@%p1 st.shared.b32 [%r10], 0;
	bar.warp.sync -1;
	ld.shared.b32 %r2, [%r10];
	add.u32 %r2, %r2, 1;
	st.shared.b32 [%r10], %r2;`, race + `write and the read at `},
		{"a sum of atomics", `
	@%p1 st.shared.b32 [%r10], 0;
	bar.sync 0;
	atom.shared.add.u32 %r2, [%r10], 1;
	bar.sync 0;
	ld.shared.b32 %r2, [%r10];`, ""},
		{"an atomic that sets a bit", `
	@%p1 st.shared.b32 [%r10], 4;
	bar.sync 0;
	@%p1 st.shared.b32 [%r10], 5;
	@!%p2 red.shared.or.b32 [%r10], 8;`, race},
		{"atomics that change no value at all", `
	@%p1 st.shared.b32 [%r10], 4;
	bar.sync 0;
	@%p1 st.shared.b32 [%r10], 5;
	@!%p2 red.shared.or.b32 [%r10], 0;
	@!%p2 atom.shared.and.b32 %r2, [%r10], -1;
	@!%p2 red.shared.add.u32 [%r10], 0;`, ""},
		{"atomics without a barrier behind them", `
	@%p1 st.shared.b32 [%r10], 0;
	bar.sync 0;
	@%p2 red.shared.add.u32 [%r10], 1;
	@!%p2 ld.shared.b32 %r2, [%r10];`, race},
		{"no barrier behind a write", `
	st.shared.b32 [%r11], %r1;
	xor.b32 %r2, %r11, 128;
	ld.shared.b32 %r3, [%r2];`, race + `(read and the write|write and the read) at .*thread \((0|32),0,0\)$`},
		{"a barrier behind a write", `
	st.shared.b32 [%r11], %r1;
	xor.b32 %r2, %r11, 128;
	bar.sync 0;
	ld.shared.b32 %r3, [%r2];
	bar.sync 0;
	st.shared.b32 [%r11], 5;`, ""},
		{"no barrier behind a read", `
	st.shared.b32 [%r11], %r1;
	xor.b32 %r2, %r11, 128;
	bar.sync 0;
	ld.shared.b32 %r3, [%r2];
	st.shared.b32 [%r11], 5;`, race},
		{"lanes without a barrier", `
	st.shared.b32 [%r11], %r1;
	xor.b32 %r2, %r11, 4;
	ld.shared.b32 %r3, [%r2];`, race},
		{"a word of one lane that all lanes read", `
	@!%p2 bra $done;
	@%p1 st.shared.b32 [%r10], 5;
	ld.shared.b32 %r2, [%r10];`, `thread \(1,0,0\): ` + race + `read and the write at .*thread \(0,0,0\)$`},
		{"a word that all lanes have read", `
	@!%p2 bra $done;
	@%p1 st.shared.b32 [%r10], 5;
	bar.warp.sync -1;
	ld.shared.b32 %r2, [%r10];
	@%p1 st.shared.b32 [%r10], 7;`, race + `write and the read at .*warp 0 `},
		{"words in a row of which one was not written", `
	setp.ne.u32 %p3, %r1, 31;
	@%p3 st.shared.b32 [%r11], %r1;
	bar.warp.sync -1;
	ld.shared.b32 %r3, [%r11];
` + branch, `thread \(31,0,0\): read of unwritten shared memory$`},
		{"lanes with one", `
	st.shared.b32 [%r11], %r1;
	xor.b32 %r2, %r11, 4;
	bar.warp.sync -1;
	ld.shared.b32 %r3, [%r2];`, ""},
		{"halves of a word", `
	mad.lo.u32 %r2, %r1, 2, %r10;
	cvt.u16.u32 %h1, %r1;
	st.shared.b16 [%r2], %h1;
	ld.shared.u16 %h2, [%r2];`, ""},
		{"all write the same", `
	st.shared.b32 [%r10], 7;
	ld.shared.b32 %r2, [%r10];`, ""},
		{"both warps store the same tile", bulk + `
	fence.proxy.async.shared::cta;
	bar.sync 0;
	and.b32 %r2, %r1, 31;
	setp.eq.u32 %p3, %r2, 0;
	mad.lo.u32 %r3, %r1, 0, %r10;
	@%p3 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r3], 128;
	@%p3 cp.async.bulk.commit_group;
	@%p3 cp.async.bulk.wait_group 0;`, ""},
		{"both warps store to the same tile", bulk + `
	fence.proxy.async.shared::cta;
	bar.sync 0;
	and.b32 %r2, %r1, 31;
	setp.eq.u32 %p3, %r2, 0;
	mad.lo.u32 %r3, %r1, 4, %r10;
	@%p3 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r3], 128;
	@%p3 cp.async.bulk.commit_group;
	@%p3 cp.async.bulk.wait_group 0;`,
			"race on global memory: nothing orders this write and the write at "},
		{"named barriers", `
	@%p2 bra $first;
	bar.sync 1, 64;
	ld.shared.b32 %r2, [%r10];
	bra $done;
$first:
	st.shared.b32 [%r11], %r1;
	bar.arrive 1, 64;`, ""},
		{"a named barrier too late", `
	@%p2 bra $first;
	bar.sync 1, 64;
	ld.shared.b32 %r2, [%r10];
	bra $done;
$first:
	st.shared.b32 [%r11], %r1;
	bar.arrive 1, 64;
	add.u32 %r2, %r1, 9;
	st.shared.b32 [%r11], %r2;`, race},
		{"an mbarrier", mbarrier + `
	st.shared.b32 [%r11], %r1;
	mbarrier.arrive.shared.b64 %rd2, [%r10+256];`, ""},
		{"an mbarrier too soon", mbarrier + `
	mbarrier.arrive.shared.b64 %rd2, [%r10+256];
	add.u32 %r2, %r1, 9;
	st.shared.b32 [%r11], %r2;`, race + "|unwritten"},
		{"a warp that waits for the first of many phases", `
	@%p1 mbarrier.init.shared.b64 [%r10+256], 1;
	bar.sync 0;
	mov.u32 %r2, 0;
	@!%p2 bra $wait;
$phase:
	@%p1 mbarrier.arrive.shared.b64 %rd2, [%r10+256];
$wait:
	and.b32 %r3, %r2, 1;
	mbarrier.try_wait.parity.shared.b64 %p3, [%r10+256], %r3;
	@!%p3 bra $wait;
	@!%p2 bra $done;
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p4, %r2, 4;
	@%p4 bra $phase;`, ""},
		{"a loop around compare-and-swap", `
	ld.global.b32 %r2, [%rd1+4];
$again:
	mov.b32 %r3, %r2;
	add.u32 %r4, %r3, 1;
	atom.global.cas.b32 %r2, [%rd1+4], %r3, %r4;
	setp.ne.u32 %p3, %r2, %r3;
	@%p3 bra $again;`, ""},
		{"a compare-and-swap elsewhere", `
	ld.global.b32 %r2, [%rd1+8];
	atom.global.cas.b32 %r3, [%rd1+4], %r2, %r1;
	st.global.b32 [%rd1+8], %r1;`, "race on global memory"},
		{"an mbarrier in global memory", "@%p1 mbarrier.init.b64 [%rd1+64], 1;", "invalid shared-memory address 0x"},
		{"an mbarrier whose initialisation is not awaited", `
	@%p1 mbarrier.init.shared.b64 [%r10+256], 64;
	mbarrier.arrive.shared.b64 %rd2, [%r10+256];`, race + `read and the write at `},
		{"an mbarrier that is initialised twice", `
	@!%p1 bra $done;
	mbarrier.init.shared.b64 [%r10+256], 1;
	mbarrier.init.shared.b64 [%r10+256], 1;`, "mbarrier.init.shared.b64 of an mbarrier that is in use: it needs mbarrier.inval first"},
		{"an mbarrier that is initialised again", `
	@!%p1 bra $done;
	mbarrier.init.shared.b64 [%r10+256], 1;
	mbarrier.inval.shared.b64 [%r10+256];
	mbarrier.init.shared.b64 [%r10+256], 1;`, ""},
		{"an mbarrier that was overwritten", `
	@!%p1 bra $done;
	mbarrier.init.shared.b64 [%r10+256], 1;
	st.shared.b32 [%r10+260], 0;
	mbarrier.arrive.shared.b64 %rd2, [%r10+256];`, "of an mbarrier that is not initialised"},
		{"one lane that arrives for all", elected + `
	st.shared.b32 [%r11], %r1;
	@%p1 mbarrier.arrive.shared.b64 %rd2, [%r10+256];`, race + `read and the write at `},
		{"one lane that arrives after the others", elected + `
	st.shared.b32 [%r11], %r1;
	bar.warp.sync -1;
	@%p1 mbarrier.arrive.shared.b64 %rd2, [%r10+256];`, ""},
		{"a vote instead of a barrier", elected + `
	st.shared.b32 [%r11], %r1;
	vote.sync.ballot.b32 %r2, %p1, -1;
	@%p1 mbarrier.arrive.shared.b64 %rd2, [%r10+256];`, race + `read and the write at `},
		{"one lane that waits for all", `
	st.shared.b32 [%r11], %r1;
	@%p1 mbarrier.init.shared.b64 [%r10+256], 32;
	bar.sync 0;
	@%p2 bra $read;
	st.shared.b32 [%r11], 7;
	mbarrier.arrive.shared.b64 %rd2, [%r10+256];
	bra $done;
$read:
	@!%p1 bra $all;
$wait:
	mbarrier.try_wait.parity.shared.b64 %p3, [%r10+256], 0;
	@!%p3 bra $wait;
$all:
	ld.shared.b32 %r2, [%r11+128];`, race},
		{"a bulk store", bulk + `
	fence.proxy.async.shared::cta;
	bar.sync 0;` + store + `
	@%p1 cp.async.bulk.wait_group.read 0;
	bar.sync 0;
	st.shared.b32 [%r11], 9;`, ""},
		{"a bulk store without a fence", bulk + "bar.sync 0;" + store + "@%p1 cp.async.bulk.wait_group 0;",
			"reads what thread (.*) wrote at .* with no fence.proxy.async in between"},
		{"a bulk store without a wait", bulk + `
	fence.proxy.async.shared::cta;
	bar.sync 0;` + store, "the block ends while cp.async.bulk.global.shared::cta.bulk_group still reads its shared memory"},
		{"a bulk store with the fence of its own thread", bulk + `
	bar.sync 0;
	@%p1 fence.proxy.async.shared::cta;` + store + "@%p1 cp.async.bulk.wait_group 0;", "only another thread executed fence.proxy.async"},
		{"a shuffle between reads and a write", `
	@!%p2 bra $done;
	st.shared.b32 [%r11], %r1;
	xor.b32 %r2, %r11, 4;
	bar.warp.sync -1;
	ld.shared.b32 %r3, [%r2];
	shfl.sync.idx.b32 %r4, %r3, 0, 31, -1;
	st.shared.b32 [%r11], %r4;`, ""},
		{"a shuffle between writes and a read", `
	@!%p2 bra $done;
	st.shared.b32 [%r11], %r1;
	xor.b32 %r2, %r11, 4;
	shfl.sync.idx.b32 %r4, %r1, 0, 31, -1;
	ld.shared.b32 %r3, [%r2];`, race},
		{"a bulk store whose source is overwritten", bulk + `
	fence.proxy.async.shared::cta;
	bar.sync 0;` + store + `
	@%p1 st.shared.b32 [%r10], 9;`, "write to shared memory that cp.async.bulk.global.shared::cta.bulk_group at .* still reads"},
		{"a bulk store that is read back", bulk + `
	fence.proxy.async.shared::cta;
	bar.sync 0;` + store + `
	@%p1 cp.async.bulk.wait_group.read 0;
	@%p1 ld.global.b32 %r2, [%rd3];`, "read of global memory that cp.async.bulk.global.shared::cta.bulk_group at .* still writes"},
		{"a bulk store that is read back later", bulk + `
	fence.proxy.async.shared::cta;
	bar.sync 0;` + store + `
	@%p1 cp.async.bulk.wait_group 0;
	@%p1 ld.global.b32 %r2, [%rd3];`, ""},
		{"blocks that write one word", "@%p1 st.global.b32 [%rd1], %r9;\n@%p1 st.global.b32 [%rd1], 9;",
			`race on global memory: nothing orders this write and the write at an unknown line, thread \(0,0,0\) of block \(.,0,0\), at byte 0 of x`},
		{"blocks that read what another writes", `
	setp.eq.u32 %p3, %r9, 0;
	@%p3 st.global.b32 [%rd1], 9;
	@!%p3 ld.global.b32 %r2, [%rd1];
	ld.global.b32 %r2, [%rd1+4];`, `race on global memory: nothing orders this (read and the write|write and the read)`},
		{"blocks that a flag orders", `
	setp.eq.u32 %p3, %r9, 0;
	@!%p1 bra $done;
	@%p3 bra $first;
$spin:
	ld.acquire.gpu.global.b32 %r2, [%rd1+4];
	setp.eq.u32 %p4, %r2, 0;
	@%p4 bra $spin;
	ld.global.b32 %r2, [%rd1];
	bra $done;
$first:
	st.global.b32 [%rd1], 9;
	st.release.gpu.global.b32 [%rd1+4], 1;`, ""},
		{"a flag that an atomic sets without a fence", `
	mul.wide.u32 %rd3, %r9, 64;
	add.u64 %rd2, %rd1, %rd3;
	@!%p2 bra $reader;
	@%p1 st.global.u32 [%rd2], 7;
	@%p1 atom.global.add.u32 %r3, [%rd2+4], 1;
	bra $done;
$reader:
	ld.relaxed.gpu.global.u32 %r3, [%rd2+4];
	setp.eq.u32 %p3, %r3, 0;
	@%p3 bra $reader;
	ld.global.u32 %r4, [%rd2];`, `race on global memory: nothing orders this read and the write`},
		{"a flag that an atomic sets behind a fence", `
	mul.wide.u32 %rd3, %r9, 64;
	add.u64 %rd2, %rd1, %rd3;
	@!%p2 bra $reader;
	@%p1 st.global.u32 [%rd2], 7;
	membar.gl;
	@%p1 atom.global.add.u32 %r3, [%rd2+4], 1;
	bra $done;
$reader:
	ld.relaxed.gpu.global.u32 %r3, [%rd2+4];
	setp.eq.u32 %p3, %r3, 0;
	@%p3 bra $reader;
	ld.global.u32 %r4, [%rd2];`, ""},
		{"a flag that an atomic sets with release", `
	mul.wide.u32 %rd3, %r9, 64;
	add.u64 %rd2, %rd1, %rd3;
	@!%p2 bra $reader;
	@%p1 st.global.u32 [%rd2], 7;
	@%p1 atom.release.gpu.global.add.u32 %r3, [%rd2+4], 1;
	bra $done;
$reader:
	ld.relaxed.gpu.global.u32 %r3, [%rd2+4];
	setp.eq.u32 %p3, %r3, 0;
	@%p3 bra $reader;
	ld.global.u32 %r4, [%rd2];`, ""},
		{"a flag that a relaxed store sets without a fence", `
	mul.wide.u32 %rd3, %r9, 64;
	add.u64 %rd2, %rd1, %rd3;
	@!%p2 bra $reader;
	@%p1 st.global.u32 [%rd2], 7;
	@%p1 st.relaxed.gpu.global.u32 [%rd2+4], 1;
	bra $done;
$reader:
	ld.relaxed.gpu.global.u32 %r3, [%rd2+4];
	setp.eq.u32 %p3, %r3, 0;
	@%p3 bra $reader;
	ld.global.u32 %r4, [%rd2];`, `race on global memory: nothing orders this read and the write`},
		{"a plain read of what a relaxed store writes", `
	@%p1 st.relaxed.cta.shared.u32 [%r10], 1;
	@!%p2 ld.shared.u32 %r2, [%r10];`, race + "read and the write at|unwritten"},
		{"an atomic of one's own behind a missing barrier", `
	mul.wide.u32 %rd3, %r9, 64;
	add.u64 %rd2, %rd1, %rd3;
	atom.global.add.u32 %r3, [%rd2], 1;
	@!%p2 ld.global.u32 %r2, [%rd2];`, `race on global memory: nothing orders this read and the write`},
		{"global memory within a block", `
	mad.wide.u32 %rd2, %r9, 512, %rd1;
	mad.wide.u32 %rd3, %r1, 4, %rd2;
	st.global.b32 [%rd3], %r1;
	bar.sync 0;
	ld.global.b32 %r2, [%rd2+128];`, ""},
		{"global memory within a block, without a barrier", `
	mad.wide.u32 %rd2, %r9, 512, %rd1;
	mad.wide.u32 %rd3, %r1, 4, %rd2;
	add.u32 %r2, %r1, 1;
	st.global.b32 [%rd3], %r2;
	ld.global.b32 %r2, [%rd2];`, `race on global memory: nothing orders this read and the write`},
		{"unwritten shared memory", "ld.shared.b32 %r3, [%r10];\n" + branch, "read of unwritten shared memory"},
		{"unwritten local memory", "st.local.b32 [a], %r1;\nld.local.b32 %r2, [a+4];\nadd.u32 %r3, %r2, 1;\n" + branch,
			"read of 4 unwritten bytes of local memory"},
		{"unwritten local memory in a copy of a struct", "st.local.b32 [a], %r1;\nld.local.v2.b32 {%r2, %r4}, [a];\n" +
			"st.local.v2.b32 [a+8], {%r2, %r4};\nld.local.b32 %r3, [a+12];\n" + branch,
			"read of 4 unwritten bytes of local memory"},
		{"unwritten local memory that nothing uses", "st.local.b32 [a], %r1;\nld.local.v2.b32 {%r3, %r4}, [a];\n" +
			"st.local.v2.b32 [a+8], {%r3, %r4};\nld.local.b32 %r3, [a+8];\n" + branch, ""},
		{"unwritten local memory that is not selected", "setp.lt.u32 %p3, %r1, 64;\nld.local.b32 %r2, [a+4];\n" +
			"selp.b32 %r3, %r1, %r2, %p3;\n" + branch, ""},
		{"local memory", "st.local.b32 [a], %r1;\nld.local.b32 %r2, [a];", ""},
		{"local memory by a generic address", `
	st.local.b64 [a], %rd1;
	cvta.local.u64 %rd2, a;
	ld.b32 %r2, [%rd2+4];
	ld.b32 %r3, [%rd2+8];
` + branch, "read of 4 unwritten bytes of local memory"},
		{"division by zero", "div.u32 %r2, %r1, %r8;", "integer division by zero"},
		{"division that no thread does", "setp.ne.u32 %p3, %r8, 0;\n@%p3 div.u32 %r2, %r1, %r8;", ""},
		{"a barrier that threads have ended before", "@%p2 ret;\nbar.sync 0;", "bar.sync waits for 32 threads of the block, which have ended"},
		{"a barrier that threads end after", "@%p2 bra $wait;\nmov.u32 %r2, 0;\n$some:\nadd.u32 %r2, %r2, 1;\n" +
			"setp.lt.u32 %p3, %r2, 9999;\n@%p3 bra $some;\nbra $done;\n$wait:\nbar.sync 0;",
			"bar.sync waits for 32 threads of the block, which have ended"},
		{"a barrier of those that are left", "@%p2 ret;\nbar.sync 0, 32;", ""},
		{"lanes that have ended", "@%p1 ret;\nbar.warp.sync -1;", "bar.warp.sync waits for lanes 0x1, which have ended"},
		{"lanes that are left", "@%p1 ret;\n@!%p2 bra $done;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, -2;", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := hazard(t, c.body)
			if (c.want == "") != (got == "") || !regexp.MustCompile(c.want).MatchString(got) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// Two warps wait for eight phases of two mbarriers on which only the first warp arrives, without another barrier and
// without a loop. Neither may run two phases ahead of the other, which would then wait for ever.
func TestPhasesInTurn(t *testing.T) {
	var body strings.Builder
	body.WriteString("@%p1 mbarrier.init.shared.b64 [%r10+256], 1;\n@%p1 mbarrier.init.shared.b64 [%r10+264], 1;\nbar.sync 0;\n")
	for i := range 16 {
		fmt.Fprintf(&body, "@%%p1 mbarrier.arrive.shared.b64 _, [%%r10+%[1]d];\n$wait%[2]d:\n"+
			"mbarrier.try_wait.parity.shared.b64 %%p3, [%%r10+%[1]d], %[3]d;\n@!%%p3 bra $wait%[2]d;\n", 256+i%2*8, i, i/2%2)
	}
	if got := hazard(t, body.String()); got != "" {
		t.Errorf("got %s, want no hazard", got)
	}
}
