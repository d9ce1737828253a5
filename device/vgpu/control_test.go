//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/device"
)

// runKernel runs kernel k of PTX without a header. Its only parameter points to the words of memory.
func runKernel(t *testing.T, text string, l Launch, memory ...uint32) ([]uint32, error) {
	t.Helper()
	m := &Machine{Workers: 1, Strict: UnwrittenShared | UnwrittenRegister | OutsideMask}
	t.Cleanup(m.drop)
	mod, err := m.Load(".version 9.0\n.target sm_100\n.address_size 64\n" + text)
	if err != nil {
		t.Fatal(err)
	}
	mod.Undefined = true
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatal(err)
	}
	p, s := words(m, "x", memory...)
	l.Params = binary.LittleEndian.AppendUint64(nil, uint64(p))
	for i := range 3 {
		l.Grid[i], l.Block[i] = max(1, l.Grid[i]), max(1, l.Block[i])
	}
	timer := time.AfterFunc(time.Minute, m.Stop)
	defer timer.Stop()
	return s, m.Run(k, l)
}

func threads(grid, block int) Launch { return Launch{Grid: [3]int{grid}, Block: [3]int{block}} }

// TestCallsWithEqualNames calls functions whose parameters of the same name have different sizes, as nvcc names them.
func TestCallsWithEqualNames(t *testing.T) {
	got, err := runKernel(t, `
.func wide(.param .b64 p0, .param .b64 p1)
{
	.reg .b64 %rd<3>;
	ld.param.b64 %rd1, [p0];
	ld.param.b64 %rd2, [p1];
	st.global.b64 [%rd1], %rd2;
	ret;
}
.func (.param .b32 r0) narrow(.param .b32 p0, .param .b32 p1)
{
	.reg .b32 %r<4>;
	ld.param.b32 %r1, [p0];
	ld.param.b32 %r2, [p1];
	sub.s32 %r3, %r1, %r2;
	st.param.b32 [r0], %r3;
	ret;
}
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>;
	ld.param.u64 %rd1, [x];
	{
	.param .b64 p0; .param .b64 p1;
	st.param.b64 [p0], %rd1;
	st.param.b64 [p1], 0x1234567890;
	call.uni wide, (p0, p1);
	}
	{
	.param .b32 p0; .param .b32 p1; .param .b32 r0;
	st.param.b32 [p0], 9;
	st.param.b32 [p1], 2;
	call.uni (r0), narrow, (p0, p1);
	ld.param.b32 %r1, [r0];
	}
	st.global.b32 [%rd1+8], %r1;
	ret;
}`, threads(1, 1), 0, 0, 0)
	if err != nil || got[0] != 0x34567890 || got[1] != 0x12 || got[2] != 7 {
		t.Errorf("got %#x, %v, want the 64-bit value and 7", got, err)
	}
}

// TestCalls recurses to different depths in the threads.
func TestCalls(t *testing.T) {
	got, err := runKernel(t, `
.func (.param .b32 ret) fib(.param .b32 n)
{
	.reg .pred %p; .reg .b32 %r<9>;
	ld.param.b32 %r1, [n];
	setp.lt.s32 %p, %r1, 2;
	@%p bra $small;
	sub.s32 %r2, %r1, 1;
	{
	.param .b32 a; .param .b32 b;
	st.param.b32 [a], %r2;
	call (b), fib, (a);
	ld.param.b32 %r3, [b];
	}
	sub.s32 %r2, %r1, 2;
	{
	.param .b32 a; .param .b32 b;
	st.param.b32 [a], %r2;
	call (b), fib, (a);
	ld.param.b32 %r4, [b];
	}
	add.s32 %r1, %r3, %r4;
$small:
	st.param.b32 [ret], %r1;
	ret;
}
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p;
	.param .b32 a; .param .b32 b;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	and.b32 %r2, %r1, 7;
	mov.b64 %rd3, fib;
	st.param.b32 [a], %r2;
	setp.lt.u32 %p, %r1, 16;
	proto: .callprototype (.param .b32 _) _ (.param .b32 _);
	call (b), %rd3, (a), proto;
	ld.param.b32 %r3, [b];
	mad.wide.u32 %rd2, %r1, 4, %rd1;
	st.global.u32 [%rd2], %r3;
	ret;
}`, threads(1, 40), make([]uint32, 40)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if want := []uint32{0, 1, 1, 2, 3, 5, 8, 13}[i%8]; v != want {
			t.Errorf("thread %d: got %d, want %d", i, v, want)
		}
	}
}

// TestLock has all threads of all blocks take one lock. A warp that always ran the same lanes would never finish.
func TestLock(t *testing.T) {
	got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p;
	ld.param.u64 %rd1, [x];
$try:
	atom.global.cas.b32 %r1, [%rd1], 0, 1;
	setp.ne.u32 %p, %r1, 0;
	@%p bra $try;
	ld.volatile.global.u32 %r2, [%rd1+4];
	add.u32 %r2, %r2, 1;
	st.volatile.global.u32 [%rd1+4], %r2;
	membar.gl;
	atom.global.exch.b32 %r1, [%rd1], 0;
	ret;
}`, threads(6, 64), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got[1] != 6*64 {
		t.Errorf("got %d, want %d", got[1], 6*64)
	}
}

// TestGridBarrier has each block wait for all others.
func TestGridBarrier(t *testing.T) {
	const blocks = 100
	got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %nctaid.x;
	setp.ne.u32 %p1, %r1, 0;
	@%p1 bra $wait;
	red.global.add.u32 [%rd1], 1;
$spin:
	ld.acquire.gpu.global.u32 %r4, [%rd1];
	setp.lt.u32 %p2, %r4, %r3;
	@%p2 bra $spin;
$wait:
	bar.sync 0;
	@%p1 ret;
	ld.global.u32 %r4, [%rd1];
	mad.wide.u32 %rd2, %r2, 4, %rd1;
	st.global.u32 [%rd2+4], %r4;
	ret;
}`, threads(blocks, 64), make([]uint32, blocks+1)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got[1:] {
		if v != blocks {
			t.Fatalf("block %d: got %d, want %d", i, v, blocks)
		}
	}
}

// TestBranchTable branches differently in each lane and reconverges for a shuffle.
func TestBranchTable(t *testing.T) {
	got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	and.b32 %r2, %r1, 3;
	ts: .branchtargets $a, $b, $c, $d;
	brx.idx %r2, ts;
$a:	mov.u32 %r3, 10; bra.uni $end;
$b:	mov.u32 %r3, 20; bra.uni $end;
$c:	mov.u32 %r3, 30; bra.uni $end;
$d:	mov.u32 %r3, 40;
$end:
	shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;
	mad.wide.u32 %rd2, %r1, 4, %rd1;
	st.global.u32 [%rd2], %r4;
	ret;
}`, threads(1, 32), make([]uint32, 32)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if want := uint32(10 + 10*((i^1)&3)); v != want {
			t.Errorf("lane %d: got %d, want %d", i, v, want)
		}
	}
}

// TestMbarrier has the threads wait for a bulk copy by one warp; TestCluster has a block read another block's memory.
func TestMbarrier(t *testing.T) {
	memory := make([]uint32, 256)
	for i := range 128 {
		memory[i] = uint32(i * i)
	}
	got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
	.shared .align 16 .b8 data[512];
	.shared .align 8 .b64 full;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, data;
	mov.u32 %r3, full;
	setp.ne.u32 %p1, %r1, 0;
	@%p1 bra $ready;
	mbarrier.init.shared::cta.b64 [%r3], 1;
	fence.mbarrier_init.release.cluster;
$ready:
	bar.sync 0;
	@%p1 bra $wait;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 512, [%r3];
$wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
	@!%p2 bra $wait;
	mad.lo.u32 %r4, %r1, 4, %r2;
	ld.shared.u32 %r5, [%r4];
	mad.wide.u32 %rd2, %r1, 4, %rd1;
	st.global.u32 [%rd2+512], %r5;
	ret;
}`, threads(1, 128), memory...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 128 {
		if got[128+i] != uint32(i*i) {
			t.Fatalf("at %d got %d, want %d", i, got[128+i], i*i)
		}
	}
}

func TestCluster(t *testing.T) {
	l := threads(8, 32)
	l.Cluster = [3]int{4, 1, 1}
	got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<12>; .reg .b64 %rd<9>;
	.shared .align 4 .b8 s[128];
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %cluster_ctarank;
	mov.u32 %r4, s;
	mad.lo.u32 %r5, %r1, 4, %r4;
	mad.lo.u32 %r6, %r2, 100, %r1;
	st.shared.u32 [%r5], %r6;
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;
	add.u32 %r7, %r3, 1;
	and.b32 %r7, %r7, 3;
	mapa.shared::cluster.u32 %r8, %r5, %r7;
	ld.shared::cluster.u32 %r9, [%r8];
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;
	mad.lo.u32 %r10, %r2, 32, %r1;
	mad.wide.u32 %rd2, %r10, 4, %rd1;
	st.global.u32 [%rd2], %r9;
	ret;
}`, l, make([]uint32, 256)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		block, thread := i/32, i%32
		if want := uint32((block&^3|(block+1)&3)*100 + thread); v != want {
			t.Fatalf("block %d, thread %d: got %d, want %d", block, thread, v, want)
		}
	}
}

// TestAtomics combines the values of 96 threads and checks the old values returned.
func TestAtomics(t *testing.T) {
	const n = 96
	for _, c := range []struct {
		op, value   string
		first, want uint32
	}{
		{"add.u32", "%r1", 5, 5 + n*(n-1)/2}, {"add.f32", "%r2", 0x3f800000, math.Float32bits(1 + n*(n-1)/2)},
		{"min.s32", "%r3", 7, ^uint32(0) - (n - 3)}, {"max.s32", "%r1", 3, n - 1}, {"or.b32", "%r1", 0, 127}, {"and.b32", "%r3", ^uint32(0), 0},
		{"xor.b32", "%r1", 1, 1}, {"inc.u32", "%r4", 0, n % 11}, {"dec.u32", "%r4", 3, (10 - (n-4)%11 + 11) % 11},
		{"add.noftz.f16x2", "%r5", 0, 0x56005600}, {"add.noftz.bf16x2", "%r6", 0, 0x42c042c0},
	} {
		got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<12>; .reg .b64 %rd<9>;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	cvt.rn.f32.u32 %r2, %r1;
	mov.u32 %r3, 1;
	sub.s32 %r3, %r3, %r1;
	mov.u32 %r4, 10;
	mov.b32 %r5, 0x3c003c00;
	mov.b32 %r6, 0x3f803f80;
	atom.global.`+c.op+` %r9, [%rd1], `+c.value+`;
	mad.wide.u32 %rd2, %r1, 4, %rd1;
	st.global.u32 [%rd2+4], %r9;
	ret;
}`, threads(1, n), append([]uint32{c.first}, make([]uint32, n)...)...)
		if err != nil {
			t.Fatal(err)
		}
		if got[0] != c.want {
			t.Errorf("%s: got %#x, want %#x", c.op, got[0], c.want)
		}
		if got[1] != c.first {
			t.Errorf("%s: the first thread found %#x, want %#x", c.op, got[1], c.first)
		}
	}
	got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>;
	ld.param.u64 %rd1, [x];
	mov.b32 %r1, 0f3F800000;
	mov.b32 %r2, 0f40000000;
	red.global.add.v4.f32 [%rd1], {%r1, %r2, %r1, %r2};
	ret;
}`, threads(1, n), make([]uint32, 4)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if want := math.Float32bits(float32(n * (1 + i%2))); v != want {
			t.Errorf("red.v4, at %d: got %#x, want %#x", i, v, want)
		}
	}
}

// printed returns what f prints to file descriptor 1, as kernels do.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	all := make(chan []byte)
	go func() {
		out, _ := io.ReadAll(r)
		all <- out
	}()
	saved, err := syscall.Dup(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Dup3(int(w.Fd()), 1, 0); err != nil {
		t.Fatal(err)
	}
	f()
	if err := errors.Join(syscall.Dup3(saved, 1, 0), syscall.Close(saved), w.Close()); err != nil {
		t.Fatal(err)
	}
	out := <-all
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Strings of a kernel in other memory than global variables, and one without an end.
type (
	localText  string
	sharedText string
	unended    string
)

// printfKernel returns a kernel that stores the result of printf in the first word of its memory.
func printfKernel(format string, args []any) string {
	var globals, locals, body strings.Builder
	texts := 0
	global := func(s string) string {
		texts++
		fmt.Fprintf(&globals, ".global .align 1 .b8 text%d[%d] = {%s};\n", texts, len(s),
			strings.Trim(strings.ReplaceAll(fmt.Sprint([]byte(s)), " ", ", "), "[]"))
		fmt.Fprintf(&body, "mov.u64 %%rd1, text%d; cvta.global.u64 %%rd1, %%rd1;\n", texts)
		return "%rd1"
	}
	written := func(space, s string) string {
		texts++
		fmt.Fprintf(&locals, ".%s .align 1 .b8 text%d[%d];\n", space, texts, len(s)+1)
		fmt.Fprintf(&body, "mov.u64 %%rd1, text%d;\n", texts)
		for i, c := range []byte(s + "\x00") {
			fmt.Fprintf(&body, "mov.u32 %%r1, %d; st.%s.u8 [%%rd1+%d], %%r1;\n", c, space, i)
		}
		fmt.Fprintf(&body, "cvta.%s.u64 %%rd1, %%rd1;\n", space)
		return "%rd1"
	}
	offset := 0
	store := func(size int, value string) {
		offset = (offset + size - 1) / size * size
		fmt.Fprintf(&body, "mov.b%d %%%s2, %s; st.local.b%[1]d [depot+%[4]d], %%%[2]s2;\n", 8*size,
			map[int]string{4: "r", 8: "rd"}[size], value, offset)
		offset += size
	}
	for _, a := range args {
		switch a := a.(type) {
		case int:
			store(4, strconv.Itoa(a))
		case rune:
			store(4, strconv.Itoa(int(a)))
		case int64:
			store(8, strconv.FormatInt(a, 10))
		case float64:
			store(8, fmt.Sprintf("0x%x", math.Float64bits(a)))
		case string:
			store(8, global(a+"\x00"))
		case unended:
			store(8, global(string(a)))
		case localText:
			store(8, written("local", string(a)))
		case sharedText:
			store(8, written("shared", string(a)))
		}
	}
	fmt.Fprintf(&body, "mov.b64 %%rd3, %s;\n", global(format+"\x00"))
	return globals.String() + `
.extern .func (.param .b32 ret) vprintf(.param .b64 format, .param .b64 args);
.visible .entry k(.param .u64 x)
{
	.local .align 8 .b8 depot[` + strconv.Itoa(max(offset, 8)) + `];
	.reg .b32 %r<9>; .reg .b64 %rd<9>;
	` + locals.String() + body.String() + `
	mov.u64 %rd4, depot;
	cvta.local.u64 %rd4, %rd4;
	{
	.param .b64 a; .param .b64 b; .param .b32 c;
	st.param.b64 [a], %rd3;
	st.param.b64 [b], %rd4;
	call.uni (c), vprintf, (a, b);
	ld.param.b32 %r3, [c];
	}
	ld.param.u64 %rd7, [x];
	st.global.u32 [%rd7], %r3;
	ret;
}`
}

// TestPrintf compares output and result with an H100's.
func TestPrintf(t *testing.T) {
	long := strings.Repeat("abcdefghij", 1000)
	forty := make([]any, 40)
	for i := range forty {
		forty[i] = i % 10
	}
	for _, tc := range []struct {
		format string
		args   []any
		want   string
		count  int
	}{
		{"i %d, f %.2f, l %llu %%\n", []any{-7, 2.5, int64(12345678901)}, "i -7, f 2.50, l 12345678901 %\n", 3},
		{"[%i|%o|%X|%u|%lu|%lli]", []any{-1, 8, 255, -1, int64(1) << 40, int64(-1)}, "[-1|10|FF|4294967295|1099511627776|-1]", 6},
		{"[%F|%G|%E|%A]", []any{1.5, 2.5, 1e10, 3.5}, "[1.500000|2.5|1.000000E+10|0X1.CP+1]", 4},
		{"[%-08.3lld|%+ld|% d|%#o|%#X]", []any{int64(3), int64(4), 5, 8, 255}, "[003     |+4| 5|010|0XFF]", 5},
		{"[%-+ #012.5d|%d]", []any{4, 5}, "[+00004      |5]", 2},
		{"[%hd|%hu|%ho|%hx]", []any{70000, -1, -1, 70000}, "[4464|65535|177777|1170]", 4},
		{"[%p|%p|%c|%lc]", []any{int64(0), int64(16), 'q', 'A'}, "[(nil)|0x10|q|A]", 4},
		{"[%lf|%hs|%ls]", []any{2.5, "ab", "cd"}, "[2.500000|ab|cd]", 3},
		{"%0000000000000000000000000000000000000000000012d", []any{7}, "000000000007", 1},
		{"%300d", []any{1}, strings.Repeat(" ", 299) + "1", 1},
		{"%.400f", []any{0.5}, "0.5" + strings.Repeat("0", 399), 1},
		{long, nil, long, 0},
		{"<%s>", []any{long}, "<" + long + ">", 1},
		{"<%10.3s|%-5s|%s>", []any{unended("abcdef"), "ab", int64(0)}, "<       abc|ab   |(null)>", 3},
		{"<%s|%s>", []any{localText("local"), sharedText("shared")}, "<local|shared>", 2},

		// The width may be an argument, the precision may not.
		{"[%*d|%d]", []any{6, 1, 2}, "[     1|2]", 3},
		{"[%-*d|%0*d|%*s|%*c|%*.2f]", []any{-6, 1, 5, 2, 4, "ab", 3, 'c', 8, 1.5}, "[1     |00002|  ab|  c|    1.50]", 10},
		{"[%.*f|%.*s]", []any{2, 2.5}, "[%.*f|%.*s]", 0},

		// Conversions that CUDA does not have take no argument.
		{"[%n|%y|%m|%q|%Lf|%'d|%1$d]", []any{int64(1)}, "[%n|%y|%m|%q|%Lf|%'d|%1$d]", 0},
		{"[%zu|%jd|%td|%hhd|%hld]", []any{int64(1)}, "[%zu|%jd|%td|%hhd|%hld]", 0},
		{"[%y|%d]", []any{1, 2}, "[%y|1]", 1},
		{"[%5%|% %|%d]", []any{4}, "[%|%|4]", 1},
		{"end%", nil, "end%", 0},
		{strings.Repeat("%d", 32), forty, "01234567890123456789012345678901", 32},
	} {
		var got []uint32
		var err error
		out := printed(t, func() { got, err = runKernel(t, printfKernel(tc.format, tc.args), threads(1, 1), 99) })
		if err != nil {
			t.Errorf("printf(%.40q): %v", tc.format, err)
		} else if out != tc.want || int(int32(got[0])) != tc.count {
			t.Errorf("printf(%.40q): got %q and %d, want %q and %d", tc.format, out, got[0], tc.want, tc.count)
		}
	}
	for _, tc := range []struct {
		name, format string
		args         []any
		want         string
	}{
		{"an unterminated string", "<%s>", []any{unended("abc")}, "printf reads a string at 0x[0-9a-f]+, 0 bytes past the end of text1$"},
		{"no string", "<%s>", []any{int64(16)}, "printf reads a string at 0x10, a null pointer$"},
		{"a number for a string", "%.*s|%s", []any{2, 3, 4}, "printf reads a string at 0x300000002, .*; conversions that CUDA does not have, such as %zu and %\\.\\*f, take no argument$"},
		{"33 arguments", strings.Repeat("%d", 33), forty, "printf with more than 32 arguments"},
	} {
		var err error
		out := printed(t, func() { _, err = runKernel(t, printfKernel(tc.format, tc.args), threads(1, 1), 99) })
		if err == nil || !regexp.MustCompile(tc.want).MatchString(err.Error()) || out != "" {
			t.Errorf("%s: printed %.60q, got %v, want %s", tc.name, out, err, tc.want)
		}
	}
}

// TestTakeHazards reads unwritten memory when that is not a fault. Nothing uses the first of its two values.
func TestTakeHazards(t *testing.T) {
	m := &Machine{Workers: 1}
	t.Cleanup(m.drop)
	mod, err := m.Load(`.version 9.0
.target sm_100
.address_size 64
.visible .entry k()
{
	.reg .b32 %r<4>;
	.reg .pred %p;
	.shared .align 4 .b8 s[128];
	.loc 1 6 9
	ld.shared.u32 %r2, [s+4];
	.loc 1 7 9
	.loc 1 0 9
	ld.shared.u32 %r1, [s+8];
	.loc 1 8 9
	setp.eq.u32 %p, %r1, 0;
	@%p ret;
	ret;
}
.file 1 "kernel.cu"
`)
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatal(err)
	}
	want := []device.Hazard{{Kind: "unwritten-memory", Place: "kernel.cu:7:9", Text: "kernel.cu:7:9: kernel k, block " +
		"(0,0,0), thread (0,0,0): read of unwritten shared memory"}}
	m.written(0, 0)
	if m.Launched() || !m.Worked() || m.Worked() {
		t.Error("a copy: want work without a launch")
	}
	for range 2 { // reported again after each call of TakeHazards
		for range 2 {
			if err := m.Run(k, Launch{Grid: [3]int{2, 1, 1}, Block: [3]int{1, 1, 1}}); err != nil {
				t.Error(err)
			}
		}
		if got := m.TakeHazards(); !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v once", got, want)
		}
	}
	if got := m.TakeHazards(); got != nil {
		t.Errorf("got %+v without a launch", got)
	}
	if !m.Launched() || m.Launched() || !m.Worked() || m.Worked() {
		t.Error("a launch: want it reported once")
	}
}

// TestFaults checks the text of each fault. The strings are parts of it.
func TestFaults(t *testing.T) {
	head := `
.const .align 4 .b32 table[4];
.func deep()
{
	.loc 1 42 3
	call deep, ();
	ret;
}
.visible .entry k(.param .u64 x)
{
	.reg .b16 %h<9>; .reg .b32 %r<12>; .reg .b64 %rd<9>; .reg .pred %p<4>;
	.shared .align 16 .b8 s[256];
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, s;
	setp.eq.u32 %p1, %r1, 7;
	.loc 1 42 3
`
	for _, c := range []struct{ name, body, want string }{
		{"past the end", "mad.wide.u32 %rd2, %r1, 4, %rd1; st.global.u32 [%rd2+60], %r1;",
			"thread (1,0,0): invalid write of 4 bytes at 0x"},
		{"past the end of what", "mad.wide.u32 %rd2, %r1, 4, %rd1; st.global.u32 [%rd2+64], %r1;", ", 0 bytes past the end of x"},
		{"in front", "ld.global.u32 %r3, [%rd1+-8];", "8 bytes before x"},
		{"null", "mov.u64 %rd2, 0; @%p1 ld.global.u32 %r3, [%rd2+8];", "thread (7,0,0): invalid read of 4 bytes at 0x8, a null pointer"},
		{"misaligned", "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1+4];", "misaligned read"},
		{"shared", "mad.lo.u32 %r3, %r1, 16, %r2; st.shared.u32 [%r3], %r1;",
			"thread (16,0,0): invalid write of 4 bytes of shared memory at 256, which has 256"},
		{"shared, in front", "mov.u32 %r3, 1020; ld.shared.u32 %r4, [%r3];", "4 bytes before it"},
		{"shared, misaligned", "ld.shared.u64 %rd3, [%r2+4];", "misaligned read"},
		{"outside the window of shared memory", "mov.u64 %rd2, 0x100000000; ld.shared.u32 %r3, [%rd2];",
			"invalid shared-memory address 0x100000000"},
		{"constant", "mov.u64 %rd2, table; cvta.const.u64 %rd2, %rd2; st.global.u32 [%rd2+4], %r1;",
			"thread (0,0,0): invalid write of 4 bytes to constant memory, byte 4 of table"},
		{"size of a copy", "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 24, [%r2+64];",
			"thread (0,0,0): a copy of 24 bytes, not a multiple of 16"},
		{"shape of a descriptor", "fisub.descriptor.use 4, -4, 64, 3, 16; fisub.descriptor.use 4, 4, 64, %r1, 16;",
			"thread (0,0,0): use of a descriptor with shape[1] = 0"},
		{"misaligned coordinate of a descriptor", "fisub.descriptor.use 4, 4, 64; fisub.descriptor.use 4, -5, 64;",
			"thread (0,0,0): the innermost coordinate of a tensor copy, -5, is -20 bytes, not a multiple of 16"},
		{"stride of a descriptor", "cvt.u64.u32 %rd2, %r1; fisub.descriptor.use 2, 8, 1, 9, 5; fisub.descriptor.use 2, 8, 2, 9, %rd2;",
			"thread (1,0,0): use of a descriptor with strides[0] = 1: 2 bytes, not a multiple of 16"},
		{"long stride of a descriptor", "fisub.descriptor.use 2, 8, 2, 9, 0x7ffffffff8; fisub.descriptor.use 2, 8, 2, 9, 0x8000000000;",
			"use of a descriptor with strides[0] = 549755813888, not between 0 and 2^40 bytes"},
		{"negative stride of a descriptor", "fisub.descriptor.use 2, 8, 2, 9, -8;",
			"use of a descriptor with strides[0] = -8, not between 0 and 2^40 bytes"},
		{"address of a descriptor", "fisub.descriptor.base %rd1; add.u64 %rd2, %rd1, 8; fisub.descriptor.base %rd2;",
			"thread (0,0,0): the address of a descriptor's tensor, 0x"},
		{"tensor memory that no block has", "mov.u32 %r3, 48; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], %r3;",
			"48 columns of tensor memory cannot be allocated"},
		{"stack", "call deep, ();", "thread (0,0,0): the stack overflows"},
		{"never written", "ld.shared.u32 %r4, [%r2]; setp.eq.u32 %p2, %r4, 5; @%p2 trap;", "unwritten"},
		{"trap", "@%p1 trap;", "thread (7,0,0): trap"},
		{"lanes that never come", "@%p1 bra $out; shfl.sync.idx.b32 %r3, %r1, 0, 31, -1; $stay: bra.uni $stay2; $out: bar.sync 1, 64; $stay2:",
			"for lanes that never come (mask "},
		{"a barrier in a branch", "setp.lt.u32 %p2, %r1, 16; @%p2 bra $low; bar.sync 0; bra.uni $both; $low: bar.sync 1; $both:",
			"for lanes that never come (mask "},
		{"deadlock", "bar.sync 3, 64;", "deadlock: 32 threads of the block wait forever, this one in bar.sync, barrier 3, where 32 of 64 threads have arrived"},
		{"lanes at two places", "setp.lt.u32 %p2, %r1, 16; @!%p2 bra $high; bar.sync 0; $high: .loc 1 43 1 shfl.sync.idx.b32 %r3, %r1, 0, 31, -1;",
			"for lanes that never come (mask 0xffff waits for 0xffff0000); also 16 threads at kernel.cu:43:1 in shfl.sync"},
		{"two barriers", "setp.lt.u32 %p2, %r1, 32; @!%p2 bra $high; bar.sync 1, 64; bra $done; .loc 1 43 1 $high: bar.sync 2, 64; $done:",
			"64 threads of the block wait forever, this one in bar.sync, barrier 1, where 32 of 64 threads have arrived; " +
				"also 32 threads at kernel.cu:43:1 in bar.sync, barrier 2, where 32 of 64 threads have arrived"},
		{"barrier with two counts", "setp.lt.u32 %p2, %r1, 32; @%p2 bra $low; bar.sync 1, 96; bra $done; $low: bar.arrive 1, 64; $done:",
			"barrier 1: bar.sync waits for 96 threads, but kernel.cu:42:3 waits for 64: " +
				"a GPU reports an illegal instruction"},
		{"mbarrier that lacks bytes", "@!%p1 bra $wait; mbarrier.init.shared.b64 [%r2+16], 1; " +
			"mbarrier.arrive.expect_tx.shared.b64 _, [%r2+16], 64; $wait: bar.sync 0; " +
			"$again: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+16], 0; @!%p2 bra $again;",
			"64 threads of the block wait forever, this one for phase 0 of the mbarrier at byte 16 of shared memory (s+16); " +
				"still missing: 0 of 1 arrivals and 64 bytes"},
		{"mbarrier with too many bytes", "@!%p1 bra $wait; mbarrier.init.shared.b64 [%r2+16], 1; " +
			"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2+16], 64; $wait: bar.sync 0; " +
			"$again: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+16], 0; @!%p2 bra $again;",
			"64 threads of the block wait forever, this one for phase 0 of the mbarrier at byte 16 of shared memory (s+16); " +
				"still missing: 1 of 1 arrivals, and 64 more bytes have arrived than expected"},
		{"mbarrier that nobody arrives at", "@!%p1 bra $wait; mbarrier.init.shared.b64 [%r2+16], 2; " +
			"mbarrier.arrive.shared.b64 %rd2, [%r2+16]; $wait: bar.sync 0; " +
			"$again: mbarrier.test_wait.parity.shared.b64 %p2, [%r2+16], 0; nanosleep.u32 20; @!%p2 bra $again;",
			"still missing: 1 of 2 arrivals"},
		{"word that nobody writes", "@%p1 st.shared.u32 [%r2+8], 5; bar.sync 0; $again: ld.volatile.shared.u32 %r3, [%r2+8]; " +
			"setp.eq.u32 %p2, %r3, 5; @%p2 bra $again;",
			"64 threads of the block wait forever, this one for a change of 0x5, which it reads from byte 8 of shared memory (s+8)"},
		{"undefined register", "add.u32 %r3, %r4, %r1; mul.lo.u32 %r3, %r3, 3; mad.wide.u32 %rd2, %r1, 4, %rd1; .loc 1 43 1 st.global.u32 [%rd1], %r3;",
			"add.u32 reads an unwritten register"},
		{"register that some lanes write", "@%p1 mov.u32 %r4, 1; mov.u32 %r5, %r4; .loc 1 42 3 st.global.u32 [%rd1], %r5;",
			"thread (0,0,0): st.global.u32 reads an unwritten register"},
		{"lane outside its mask", "mov.u32 %r3, 0xffff; setp.le.u32 %p2, %r1, 16; @!%p2 bra $skip; bar.warp.sync %r3; $skip:",
			"thread (16,0,0): bar.warp.sync with member mask 0xffff, which excludes the executing lane"},
		{"free of what was not allocated", ".param .b64 a; st.param.b64 [a], %rd1; call free, (a);", "which malloc did not return"},
		{"mbarrier", "mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.shared.b64 _, [%r2], 5;", "5 arrivals at an mbarrier that expects 1 more"},
		{"no function", "p: .callprototype _ _; mov.u64 %rd2, 64; call %rd2, p;", "call of 0x40, which is not a function"},
		{"lacking with a reason", "call nothing;", "the virtual GPU does not " +
			"support the function nothing (kernel.cu:42:3)"},
		{"operands of no form", "mbarrier.init.shared.b64 [%r2];", "the virtual GPU does not support " +
			"mbarrier.init.shared.b64 with such operands"},
		{"a depth that no type has", "mma.sync.aligned.m16n8k256.row.col.f32.e4m3.e4m3.f32;", "the virtual GPU does not " +
			"support mma.sync.aligned.m16n8k256.row.col.f32.e4m3.e4m3.f32 (kernel.cu:42:3)"},
		{"lacking", "multimem.red.relaxed.sys.global.add.u32;", "the virtual GPU does not support " +
			"multimem.red.relaxed.sys.global.add.u32 (kernel.cu:42:3)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 32
			if strings.Contains(c.want, "64 threads of the block wait") || strings.Contains(c.body, "bar.arrive") {
				n = 64
			}
			_, err := runKernel(t, head+c.body+"\n\tret;\n}\n.file 1 \"kernel.cu\"\n", threads(1, n), make([]uint32, 16)...)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "kernel.cu:42:3") {
				t.Errorf("got %v, want %s, at kernel.cu:42:3", err, c.want)
			}
			t.Log(err)
		})
	}
}

// TestLackingWithoutLine names a missing feature in PTX without line numbers.
func TestLackingWithoutLine(t *testing.T) {
	_, err := runKernel(t, ".visible .entry k(.param .u64 x)\n{\n\tcall nothing;\n\tret;\n}\n", threads(1, 1), 0)
	if want := "the virtual GPU does not support the function nothing"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestUnusedValues computes a value from an unwritten register, as compilers do: only its use is a fault.
func TestUnusedValues(t *testing.T) {
	for _, body := range []string{
		"add.u32 %r3, %r4, %r1;", "mad.lo.u32 %r3, %r1, %r4, %r1;", "shl.b32 %r3, %r4, 3;", "lop3.b32 %r3, %r4, %r1, %r1, 0x96;",
		"bfe.u32 %r3, %r1, %r4, 3;", "szext.wrap.s32 %r3, %r4, 5;", "bmsk.clamp.b32 %r3, %r4, 5;", "fns.b32 %r3, %r1, %r4, 1;",
		"setp.eq.u32 %p1, %r4, 0; selp.b32 %r3, %r1, %r2, %p1;", "cvt.s32.s8 %r3, %r4;", "sad.u32 %r3, %r1, %r1, %r4;",
		"vadd.s32.s32.s32 %r3, %r4, %r1;", "vsub.u32.u32.u32 %r3, %r1, %r4.b1;", "vabsdiff.u32.s32.s32.add %r3, %r1, %r1, %r4;",
		"vmin.s32.s32.s32 %r3, %r4, %r1;", "vmax.s32.s32.s32 %r3.h1, %r4, %r1, %r1;", "vshl.u32.u32.u32.wrap %r3, %r4, %r1;",
		"vshr.s32.s32.u32.clamp %r3, %r4, %r1;", "vset.s32.u32.lt %r3, %r4, %r1;",
	} {
		const head = `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<4>;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, 7;
	st.global.u32 [%rd1], %r2;
	`
		got, err := runKernel(t, head+body+"\n\tret;\n}\n", threads(1, 1), 0)
		if err != nil || got[0] != 7 {
			t.Errorf("%s unused: got %d (%v), want 7", body, got[0], err)
		}
		_, err = runKernel(t, head+body+"\n\tst.global.u32 [%rd1], %r3;\n\tret;\n}\n", threads(1, 1), 0)
		if err == nil || !strings.Contains(err.Error(), "reads an unwritten register") {
			t.Errorf("%s stored: got %v, want a fault", body, err)
		}
	}
}

// TestDecidedValues combines an unwritten register (%r4, %rd4, %h4) with a value that decides the result, as compilers do
// for "i < n && x > 0". %r5 is 0 in lane 0 and 1 in lane 1; %q is set in lane 0.
func TestDecidedValues(t *testing.T) {
	for _, c := range []struct {
		body    string
		lane    int  // the lane that stores 7
		decided bool // in that lane
	}{
		{"setp.lt.s32 %p1, %r4, 1;\nor.pred %p1, %q, %p1;\n@%p1 st.global.u32 [%rd2], %r2;", 0, true},
		{"setp.lt.s32 %p1, %r4, 1;\nor.pred %p1, %p1, %q;\n@%p1 st.global.u32 [%rd2], %r2;", 0, true},
		{"setp.lt.s32 %p1, %r4, 1;\nor.pred %p2, %p1, !%q;\n@%p2 st.global.u32 [%rd2], %r2;", 1, true},
		{"setp.lt.s32 %p1, %r4, 1;\nand.pred %p2, !%q, %p1;\n@!%p2 st.global.u32 [%rd2], %r2;", 0, true},
		{"setp.lt.or.s32 %p2, %r4, 1, %q;\n@%p2 st.global.u32 [%rd2], %r2;", 0, true},
		{"setp.lt.and.s32 %p2, %r4, 1, %q;\n@!%p2 st.global.u32 [%rd2], %r2;", 1, true},
		{"and.b32 %r6, %r4, %r5;\nsetp.eq.u32 %p2, %r6, 0;\n@%p2 st.global.u32 [%rd2], %r2;", 0, true},
		{"mul.wide.u32 %rd3, %r5, %r4;\nadd.u64 %rd3, %rd3, %rd2;\nst.global.u32 [%rd3], %r2;", 0, true},
		{"cvt.u64.u32 %rd3, %r5;\nand.b64 %rd3, %rd3, %rd4;\nadd.u64 %rd3, %rd3, %rd2;\nst.global.u32 [%rd3], %r2;", 0, true},
		{"cvt.u16.u32 %h1, %r5;\nand.b16 %h2, %h1, %h4;\nsetp.eq.u16 %p2, %h2, 0;\n@%p2 st.global.u32 [%rd2], %r2;", 0, true},
		{"setp.gt.u32 %p1, %r4, 1;\nor.pred %p2, !%q, %p1;\n@%p2 st.global.u32 [%rd2], %r2;", 0, false},
		{"setp.gt.u32 %p1, %r4, 1;\nand.pred %p2, %q, %p1;\n@%p2 st.global.u32 [%rd2], %r2;", 0, false},
		{"setp.gt.u32 %p1, %r4, 1;\nor.pred %p2, %p1, %p1;\n@%p2 st.global.u32 [%rd2], %r2;", 0, false},
		{"and.b32 %r6, %r4, %r5;\nsetp.ne.u32 %p2, %r6, 0;\n@%p2 st.global.u32 [%rd2], %r2;", 1, false},
	} {
		text := fmt.Sprintf(`
.visible .entry k(.param .u64 x)
{
	.reg .b16 %%h<9>; .reg .b32 %%r<9>; .reg .b64 %%rd<9>; .reg .pred %%p<4>; .reg .pred %%q;
	ld.param.u64 %%rd1, [x];
	mov.u32 %%r5, %%tid.x;
	mov.u32 %%r2, 7;
	setp.eq.u32 %%q, %%r5, 0;
	mad.wide.u32 %%rd2, %%r5, 4, %%rd1;
	setp.ne.u32 %%p3, %%r5, %d;
	@%%p3 bra $end;
	%s
$end:
	ret;
}
`, c.lane, c.body)
		got, err := runKernel(t, text, threads(1, 2), 0, 0)
		if c.decided && (err != nil || got[c.lane] != 7) {
			t.Errorf("%s: got %d (%v), want 7", c.body, got, err)
		}
		if !c.decided && (err == nil || !strings.Contains(err.Error(), "reads an unwritten register")) {
			t.Errorf("%s: got %v, want a fault", c.body, err)
		}
	}
}

// TestWaits runs kernels that wait for a long time but not forever, or compute for a long time without a store.
func TestWaits(t *testing.T) {
	for name, body := range map[string]string{
		"a long computation": `
	mov.u32 %r3, 0;
$again:
	add.u32 %r3, %r3, 1;
	setp.lt.u32 %p1, %r3, 1500000;
	@%p1 bra $again;
	st.global.u32 [%rd1], %r3;`,
		"a spin that gives up": `
	mov.u32 %r3, 0;
$again:
	ld.volatile.global.u32 %r4, [%rd1+4];
	setp.ne.u32 %p2, %r4, 0;
	@%p2 bra $out;
	add.u32 %r3, %r3, 1;
	setp.lt.u32 %p1, %r3, 500000;
	@%p1 bra $again;
$out:
	st.global.u32 [%rd1], 1500000;`,
		"one warp waits for another's long computation": `
	mov.u32 %r3, 0;
	setp.lt.u32 %p2, %r1, 32;
	@%p2 bra $wait;
$again:
	add.u32 %r3, %r3, 1;
	setp.lt.u32 %p1, %r3, 700000;
	@%p1 bra $again;
	st.volatile.global.u32 [%rd1+4], %r3;
$wait:
	ld.volatile.global.u32 %r4, [%rd1+4];
	setp.eq.u32 %p1, %r4, 0;
	@%p1 bra $wait;
	st.global.u32 [%rd1], 1500000;`,
	} {
		got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<4>;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;`+body+"\n\tret;\n}\n", threads(1, 64), 0, 0)
		if err != nil || got[0] != 1500000 {
			t.Errorf("%s: got %d (%v), want 1500000", name, got[0], err)
		}
	}
}

// TestDeviceMalloc has each thread build and free a list.
func TestDeviceMalloc(t *testing.T) {
	got, err := runKernel(t, `
.extern .func (.param .b64 p) malloc (.param .b64 n);
.extern .func free (.param .b64 p);
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
	.param .b64 size; .param .b64 pointer;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	mov.u64 %rd3, 0;
	mov.u32 %r2, 0;
$more:
	add.u32 %r3, %r1, 16;
	cvt.u64.u32 %rd4, %r3;
	st.param.b64 [size], %rd4;
	call.uni (pointer), malloc, (size);
	ld.param.b64 %rd5, [pointer];
	st.u64 [%rd5], %rd3;
	st.u32 [%rd5+8], %r1;
	mov.u64 %rd3, %rd5;
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, 5;
	@%p1 bra $more;
	mov.u32 %r4, 0;
$less:
	ld.u32 %r5, [%rd3+8];
	add.u32 %r4, %r4, %r5;
	ld.u64 %rd5, [%rd3];
	st.param.b64 [pointer], %rd3;
	call.uni free, (pointer);
	mov.u64 %rd3, %rd5;
	setp.ne.u64 %p1, %rd3, 0;
	@%p1 bra $less;
	mad.wide.u32 %rd2, %r1, 4, %rd1;
	st.global.u32 [%rd2], %r4;
	ret;
}`, threads(1, 64), make([]uint32, 64)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != uint32(5*i) {
			t.Errorf("thread %d: got %d, want %d", i, v, 5*i)
		}
	}
}

// TestFunctionTable calls through pointers in an initialized variable. The functions are declared before they are
// defined.
func TestFunctionTable(t *testing.T) {
	got, err := runKernel(t, `
.func (.param .b32 r) double(.param .b32 n);
.func (.param .b32 r) square(.param .b32 n);
.global .align 8 .u64 table[2] = {double, generic(square)};
.func (.param .b32 r) double(.param .b32 n)
{
	.reg.b32 %r1;
	ld.param.b32 %r1, [n];
	add.u32 %r1, %r1, %r1;
	st.param.b32 [r], %r1;
	ret;
}
.func (.param .b32 r) square(.param .b32 n)
{
	.reg.b32 %r1;
	ld.param.b32 %r1, [n];
	mul.lo.u32 %r1, %r1, %r1;
	st.param.b32 [r], %r1;
	ret;
}
.visible .entry k(.param.u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>;
	.param.b32 a; .param.b32 b;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	and.b32 %r2, %r1, 1;
	mov.u64 %rd2, table;
	mad.wide.u32 %rd2, %r2, 8, %rd2;
	ld.global.u64 %rd3, [%rd2];
	st.param.b32 [a], %r1;
	proto: .callprototype (.param .b32 _) _ (.param .b32 _);
	call (b), %rd3, (a), proto;
	ld.param.b32 %r3, [b];
	mad.wide.u32 %rd4, %r1, 4, %rd1;
	st.global.u32 [%rd4], %r3;
	ret;
}`, threads(1, 32), make([]uint32, 32)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if want := []int{2 * i, i * i}[i&1]; v != uint32(want) {
			t.Errorf("thread %d: got %d, want %d", i, v, want)
		}
	}
}

// TestForms tests PTX that people write but nvcc does not: functions with parameters and results in registers, vector
// registers, generic accesses to named variables, and a function's variables that all its calls share.
func TestForms(t *testing.T) {
	got, err := runKernel(t, `
.func (.reg .b32 sum, .reg .pred odd) both(.reg .v2 .b32 a, .param .b32 b)
{
	.reg .b32 c; .reg .v2 .b16 unused<2>;
	ld.param.b32 c, [b];
	add.u32 sum, a.x, c;
	add.u32 sum, sum, a.y;
	and.b32 c, sum, 1;
	setp.ne.u32 odd, c, 0;
	ret;
}
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>; .reg .v4 .b32 v; .reg .v2 .b32 pair;
	.shared .align 8 .b32 s[2];
	.local .align 8 .b32 l[2];
	.global .align 4 .u32 calls = 40;
	ld.param.u64 %rd1, [x];
	mov.v2.b32 pair, {13, 7};
	call (%r1, %p1), both, (pair, 3);
	selp.u32 v.x, %r1, 0, %p1;
	st.shared.u32 [s+4], 5;
	ld.u32 v.y, [s+4];
	st.u32 [l], 6;
	ld.local.u32 v.b, [l];
	ld.u32 v.w, [calls];
	st.global.v4.b32 [%rd1], v;
	mov.u32 %r2, 7;
	st.global.u32 [%rd1+16], %r2 + 2;
	ret;
}`, threads(1, 1), make([]uint32, 5)...)
	if want := [5]uint32{23, 5, 6, 40, 9}; err != nil || [5]uint32(got) != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

// TestPairOfBlocks has both blocks of a pair arrive at the mbarrier of the even one, whose address has bit 24 cleared.
func TestPairOfBlocks(t *testing.T) {
	got, err := runKernel(t, `
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<4>;
	.shared .align 8 .b64 bar;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %cluster_ctarank;
	mov.u32 %r2, bar;
	setp.eq.u32 %p1, %r1, 0;
	@%p1 mbarrier.init.shared.b64 [%r2], 2;
	barrier.cluster.arrive;
	barrier.cluster.wait;
	and.b32 %r3, %r2, -16777224;
	mbarrier.arrive.shared::cluster.b64 _, [%r3];
	@!%p1 bra $done;
$wait:
	mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
	@!%p2 bra $wait;
	st.global.u32 [%rd1], 7;
$done:
	barrier.cluster.arrive;
	barrier.cluster.wait;
	ret;
}`, Launch{Grid: [3]int{2}, Block: [3]int{1}, Cluster: [3]int{2, 1, 1}}, 0)
	if err != nil || got[0] != 7 {
		t.Errorf("got %d (%v), want 7", got[0], err)
	}
}
