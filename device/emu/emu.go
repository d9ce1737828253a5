// Package emu runs CUDA submissions on the CPU: it compiles the same source with a C++ compiler against its own headers
// and runs each call in a process of its own. It is for correctness, never for timing.
//
// A block runs on one worker thread; its threads are fibers that switch where CUDA threads wait for each other, always
// in the same order. Blocks spread over the cores, except in programs that use atomics, so results do not depend on the
// number of cores. __CUDA_ARCH__ is not defined, so code guarded by it takes its portable path; __FISUB_EMU__ is.
package emu

import (
	"bytes"
	"cmp"
	"context"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// Opener opens the emulator. Open fails with ErrNoCompiler where there is no C++ compiler.
func Opener() device.Opener {
	return device.Opener{Kind: "emu", Open: func(ctx context.Context, opts device.Options) (device.Device, error) {
		return open(ctx, opts)
	}}
}

type emulator struct {
	opts    device.Options
	root    string
	cxx     *compiler
	workers int
}

func open(ctx context.Context, opts device.Options) (*emulator, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return nil, fmt.Errorf("emu: runs on Linux on x86-64 and arm64 only, not on %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if opts.Ordinal != 0 {
		return nil, fmt.Errorf("emu: there is no device %d", opts.Ordinal)
	}
	e := &emulator{opts: opts, root: opts.CacheDir, workers: runtime.GOMAXPROCS(0)}
	if e.opts.Stdout == nil {
		e.opts.Stdout = os.Stdout
	}
	if e.opts.Stderr == nil {
		e.opts.Stderr = os.Stderr
	}
	var err error
	if e.root == "" {
		if e.root, err = cache.Root(); err != nil {
			return nil, err
		}
	}
	if e.cxx, err = findCompiler(ctx); err != nil {
		return nil, fmt.Errorf("emu: %w", err)
	}
	return e, nil
}

func (e *emulator) Info() device.Info {
	name := plain.Field("/proc/cpuinfo", "model name")
	return device.Info{Name: cmp.Or(name, runtime.GOARCH), Emulated: true, Toolchain: e.cxx.version}
}

func (e *emulator) Measure(context.Context, func() error, device.Plan) (*device.Samples, error) {
	return nil, fmt.Errorf("emu: %w", device.ErrNoTiming)
}

func (e *emulator) Close() error { return nil }

// Build compiles sol; with Options.Sanitize two programs, of which Call runs first the sanitizers, then the race check.
func (e *emulator) Build(ctx context.Context, def *trace.Definition, sol *trace.Solution) (device.Kernel, error) {
	_, symbol, ok := strings.Cut(sol.Spec.EntryPoint, "::")
	if !ok || symbol == "" {
		return nil, &device.BuildError{Text: fmt.Sprintf("entry point %q is not file::symbol", sol.Spec.EntryPoint)}
	}
	k := &kernel{emu: e, entry: symbol}
	if def != nil {
		k.names = append(slices.Clone(def.Inputs.Keys()), def.Outputs.Keys()...)
	}
	modes := []mode{bare}
	if e.opts.Sanitize {
		modes = []mode{sanitize, race}
	}
	for _, m := range modes {
		p, err := e.cxx.build(ctx, e.root, sol, m)
		if err != nil {
			return nil, err
		}
		symbols, err := readSymbols(p.path)
		if err != nil {
			return nil, err
		}
		if !symbols.entries[symbol] {
			return nil, &device.BuildError{Text: fmt.Sprintf("Entry point '%s' not found in module", symbol)}
		}
		k.programs = append(k.programs, loaded{p, m, symbols.shared})
	}
	return k, nil
}

// A buffer is an anonymous file, mapped here and in the process of each call. The data ends at the end of the mapping,
// up to its alignment, so that an access past the end soon meets the guard behind it.
type buffer struct {
	file    *os.File
	mapping []byte
	offset  int
	n       int
	base    *buffer // of a slice: the buffer that it is part of
}

func (e *emulator) Alloc(n int) (device.Buffer, error) {
	if n < 0 || n > math.MaxInt-1<<20 {
		return nil, fmt.Errorf("emu: allocating %d bytes", n)
	}
	page := os.Getpagesize()
	used := (n + 255) / 256 * 256
	size := max(page, (used+page-1)/page*page)
	f, err := anonymousFile("fisub-buffer")
	if err != nil {
		return nil, fmt.Errorf("emu: allocating %d bytes: %w", n, err)
	}
	if err := f.Truncate(int64(size)); err != nil {
		f.Close()
		return nil, fmt.Errorf("emu: allocating %d bytes: %w", n, err)
	}
	m, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("emu: allocating %d bytes: %w", n, err)
	}
	return &buffer{file: f, mapping: m, offset: size - used, n: n}, nil
}

func (b *buffer) Len() int { return b.n }

func (b *buffer) Slice(offset, n int) device.Buffer {
	if offset < 0 || offset%256 != 0 || n < 0 || n > b.n-offset {
		panic(fmt.Sprintf("emu: %d bytes at %d of a buffer of %d", n, offset, b.n))
	}
	return &buffer{offset: b.offset + offset, n: n, base: b.whole()}
}

// whole is the buffer that b is part of, or b.
func (b *buffer) whole() *buffer {
	if b.base != nil {
		return b.base
	}
	return b
}

func (b *buffer) data(n int) ([]byte, error) {
	mapping := b.whole().mapping
	if mapping == nil {
		return nil, errors.New("emu: the buffer is closed")
	}
	if n > b.n {
		return nil, fmt.Errorf("emu: %d bytes exceed the buffer's %d", n, b.n)
	}
	return mapping[b.offset : b.offset+n], nil
}

func (b *buffer) Write(p []byte) error {
	d, err := b.data(len(p))
	copy(d, p)
	return err
}

func (b *buffer) Read(p []byte) error {
	d, err := b.data(len(p))
	copy(p, d)
	return err
}

func (b *buffer) Fill(c byte) error {
	d, err := b.data(b.n)
	for i := range d {
		d[i] = c
	}
	return err
}

func (b *buffer) Close() error {
	if b.mapping == nil {
		return nil
	}
	err := syscall.Munmap(b.mapping)
	b.mapping = nil
	return errors.Join(err, b.file.Close())
}

type loaded struct {
	*program
	mode   mode
	shared []sharedVariable
}

type kernel struct {
	emu      *emulator
	entry    string
	names    []string // of the arguments, as far as the definition names them
	programs []loaded
	fault    error // the first one
}

func (k *kernel) Close() error { return nil }

func (k *kernel) Sync(context.Context) error { return k.fault }

// Probe has nothing to look for: a call has ended when Call returns.
func (k *kernel) Probe(ctx context.Context, args []device.Arg, fill byte, into [][]byte) error {
	outputs := args[len(args)-len(into):]
	for _, out := range outputs {
		if err := out.Tensor.Buffer.Fill(fill); err != nil {
			return err
		}
	}
	if err := k.Call(ctx, args); err != nil {
		return err
	}
	for i, out := range outputs {
		if err := out.Tensor.Buffer.Read(into[i]); err != nil {
			return err
		}
	}
	return nil
}

// Call runs the entry point to its end. A crash, an access outside of the arguments, a deadlock, a trap or a failed
// assertion is a *device.CallError of kind DeviceFault, a finding of Options.Sanitize one of kind Race or
// SanitizerError.
func (k *kernel) Call(ctx context.Context, args []device.Arg) error {
	for i, p := range k.programs {
		err := k.call(ctx, p, args, i < len(k.programs)-1)
		if err != nil {
			return err
		}
	}
	return nil
}

// Type indices and dtype codes of the ABI (spec section 4.4).
const (
	typeNone, typeInt, typeBool, typeFloat, typeTensor = 0, 1, 2, 3, 70

	codeInt, codeFloat, codeBFloat, codeBool, codeE4M3FN, codeE5M2, codeE2M1 = 0, 2, 4, 6, 10, 12, 17
)

func dtypeCode(d tensor.DType) uint8 {
	switch d {
	case tensor.Float32, tensor.Float16:
		return codeFloat
	case tensor.BFloat16:
		return codeBFloat
	case tensor.Float8E4M3FN:
		return codeE4M3FN
	case tensor.Float8E5M2:
		return codeE5M2
	case tensor.Float4E2M1:
		return codeE2M1
	case tensor.Bool:
		return codeBool
	}
	return codeInt
}

// description writes the call for the program, in the order in which main of runtime/emu.cc reads it, and returns the
// buffers' files beside it.
func (k *kernel) description(p loaded, args []device.Arg, private bool) (desc []byte, open []*os.File, err error) {
	var out, mapped []byte
	u32 := func(v int) { out = binary.LittleEndian.AppendUint32(out, uint32(v)) }
	u64 := func(v uint64) { out = binary.LittleEndian.AppendUint64(out, v) }
	buffers := map[*buffer]int{}
	u32(len(args))
	for i, a := range args {
		switch {
		case a.Tensor != nil:
			b, ok := a.Tensor.Buffer.(*buffer)
			if !ok || b.whole().mapping == nil {
				return nil, nil, fmt.Errorf("emu: argument %d is not in the emulator's memory", i)
			}
			n, ok := tensor.Elements(a.Tensor.Shape)
			if ok {
				n, ok = a.Tensor.DType.Bytes(n)
			}
			if !ok || n > b.n {
				return nil, nil, fmt.Errorf("emu: argument %d: shape %v of %v exceeds the buffer's %d bytes", i, a.Tensor.Shape,
					a.Tensor.DType, b.n)
			}
			whole, size := b.whole(), n
			if whole != b { // what lies beside a slice may be another argument
				size = whole.n
			}
			index, ok := buffers[whole]
			if !ok {
				index = len(buffers)
				buffers[whole] = index
				open = append(open, whole.file)
				name := fmt.Sprintf("argument %d", i)
				if i < len(k.names) {
					name += " (" + k.names[i] + ")"
				}
				for _, v := range []int{len(whole.mapping), whole.offset, size} {
					mapped = binary.LittleEndian.AppendUint64(mapped, uint64(v))
				}
				mapped = appendText(mapped, name)
			}
			u32(typeTensor)
			u32(index)
			u64(uint64(b.offset - whole.offset))
			out = append(out, dtypeCode(a.Tensor.DType), uint8(a.Tensor.DType.Bits()), 1, 0)
			u32(len(a.Tensor.Shape))
			for _, s := range a.Tensor.Shape {
				u64(uint64(s))
			}
		case a.Scalar == nil:
			u32(typeNone)
			u64(0)
		case a.Scalar.Kind == trace.FloatScalar:
			u32(typeFloat)
			u64(math.Float64bits(a.Scalar.Float))
		case a.Scalar.Kind == trace.BoolScalar:
			u32(typeBool)
			if a.Scalar.Bool {
				u64(1)
			} else {
				u64(0)
			}
		default:
			u32(typeInt)
			u64(uint64(a.Scalar.Int))
		}
	}
	workers := k.emu.workers
	if p.serial {
		workers = 1
	}
	head := appendText(nil, k.entry)
	head = binary.LittleEndian.AppendUint32(head, uint32(workers))
	flag := uint32(0)
	if private {
		flag = 1
	}
	head = binary.LittleEndian.AppendUint32(head, flag)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(p.shared)))
	for _, v := range p.shared {
		head = binary.LittleEndian.AppendUint64(head, v.offset)
		head = binary.LittleEndian.AppendUint64(head, v.size)
	}
	head = binary.LittleEndian.AppendUint32(head, uint32(len(buffers)))
	return slices.Concat(head, mapped, out), open, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

// maxLog bounds the part of a call's error output that an error carries.
const maxLog = 64 << 10

// A locked writer takes turns with others that hold the same lock, so that they may share a destination.
type locked struct {
	*sync.Mutex
	to io.Writer
}

func (l locked) Write(p []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.to.Write(p)
}

// A tail keeps the last maxLog bytes of what is written to it.
type tail struct {
	to  io.Writer
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*maxLog {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-maxLog:]...)
	}
	return t.to.Write(p)
}

func (t *tail) String() string { return string(t.buf[max(0, len(t.buf)-maxLog):]) }

// Exit statuses that the sanitizers are told to use.
const asanExit, ubsanExit = 66, 67

// call runs one program. With private memory its writes to the arguments are discarded.
func (k *kernel) call(ctx context.Context, p loaded, args []device.Arg, private bool) error {
	desc, open, err := k.description(p, args, private)
	if err != nil {
		return err
	}
	result, resultWriter, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("emu: %w", err)
	}
	defer result.Close()
	lock := &sync.Mutex{}
	stderr := &tail{to: locked{lock, k.emu.opts.Stderr}}
	cmd := device.Command(ctx, p.path)
	cmd.Stdin = bytes.NewReader(desc)
	cmd.Stdout, cmd.Stderr = locked{lock, k.emu.opts.Stdout}, stderr
	cmd.ExtraFiles = append([]*os.File{resultWriter}, open...)
	cmd.Env = append(os.Environ(),
		fmt.Sprintf(
			"ASAN_OPTIONS=exitcode=%d:detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:"+
				"detect_stack_use_after_return=0:allocator_may_return_null=1", asanExit),
		fmt.Sprintf("UBSAN_OPTIONS=exitcode=%d:halt_on_error=1", ubsanExit))
	if err := cmd.Start(); err != nil {
		resultWriter.Close()
		return fmt.Errorf("emu: starting %s: %w", p.path, err)
	}
	resultWriter.Close()
	var answer []byte
	var reading sync.WaitGroup
	reading.Go(func() { answer, _ = io.ReadAll(io.LimitReader(result, 1<<20)) })
	err = cmd.Wait()
	reading.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("emu: %w", err)
	}
	if parts := strings.SplitN(string(answer), "\n", 4); len(parts) == 4 && exit == nil {
		var pc, other uint64
		fmt.Sscanf(parts[2], "%x %x", &pc, &other) //nolint:errcheck // 0 where there is none
		switch parts[0] {
		case "ok":
			return nil
		case "error":
			return &device.CallError{Kind: parts[1], Text: parts[3], Log: stderr.String()}
		}
		text := p.locate(pc) + parts[3]
		if other != 0 {
			text += " (at " + strings.TrimSuffix(p.locate(other), ": ") + ")"
		}
		return k.faulted(parts[1], text, stderr)
	}
	if exit == nil {
		return k.faulted("DeviceFault", "the submission ended the process", stderr)
	}
	switch log := stderr.String(); exit.ExitCode() {
	case asanExit, ubsanExit:
		return k.faulted("SanitizerError", sanitizerText(log), stderr)
	default:
		if i := strings.Index(log, "runtime error: "); i >= 0 && p.mode == sanitize {
			return k.faulted("SanitizerError", sanitizerText(log), stderr)
		}
		return k.faulted("DeviceFault", "the submission's process ended: "+exit.Error(), stderr)
	}
}

func (k *kernel) faulted(kind, text string, stderr *tail) error {
	log := stderr.String()
	if log != "" && !strings.HasSuffix(log, "\n") {
		log += "\n"
	}
	err := &device.CallError{Kind: kind, Text: text, Log: log + text + "\n"}
	if k.fault == nil {
		k.fault = err
	}
	return err
}

var (
	asanReport = regexp.MustCompile(`ERROR: AddressSanitizer: (\S+)`)
	// in the submission: a relative path
	asanFrame = regexp.MustCompile(`^\s*#\d+ .* (?:\./)*([^/(\s][^\s:]*:\d+)(?::\d+)?$`)
	asanWhere = regexp.MustCompile(`(?m)^kernel .*: invalid .*$`) // from on_sanitizer_death in runtime/emu.cc
)

// sanitizerText is the finding in a sanitizer's report, as one line.
func sanitizerText(log string) string {
	report := asanReport.FindStringSubmatch(log)
	text, frame := "the sanitizer ended the process", ""
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		if report == nil && strings.Contains(line, "runtime error: ") {
			return strings.TrimPrefix(line, "./")
		}
		if m := asanFrame.FindStringSubmatch(line); m != nil && frame == "" {
			frame = m[1] + ": "
		}
	}
	if report != nil {
		text = report[1]
	}
	switch where := asanWhere.FindString(log); {
	case where == "":
	case text == "unknown-crash" || text == "use-after-poison": // its names for the edge of an argument
		text = where
	default:
		text += ": " + where
	}
	return frame + text
}

// locate is "file:line: " of the submission's code at the address pc, "" where that is not known. Of code that came
// from inlining a function of the emulator's headers it is the place of the call.
func (p *program) locate(pc uint64) string {
	if pc == 0 {
		return ""
	}
	f, err := elf.Open(p.path)
	if err != nil {
		return ""
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		return ""
	}
	r := d.Reader()
	unit, err := r.SeekPC(pc)
	if err != nil {
		return ""
	}
	lines, err := d.LineReader(unit)
	if err != nil || lines == nil {
		return ""
	}
	var at, next dwarf.LineEntry // LineReader.SeekPC needs a sorted table, which g++ does not write
	for found := false; !found; {
		if lines.Next(&next) != nil {
			return ""
		}
		if found = at.File != nil && !at.EndSequence && at.Address <= pc && pc < next.Address; !found {
			at = next
		}
	}
	type site struct {
		file string
		line int64
	}
	sites := []site{{at.File.Name, int64(at.Line)}}
	var calls []site // of the inlined functions around pc, outermost first
	names := lines.Files()
	for {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == dwarf.TagCompileUnit {
			break
		}
		if e.Tag != dwarf.TagInlinedSubroutine {
			continue
		}
		ranges, err := d.Ranges(e)
		if err != nil || !slices.ContainsFunc(ranges, func(r [2]uint64) bool { return r[0] <= pc && pc < r[1] }) {
			continue
		}
		file, _ := e.Val(dwarf.AttrCallFile).(int64)
		line, _ := e.Val(dwarf.AttrCallLine).(int64)
		if file >= 0 && int(file) < len(names) && names[file] != nil {
			calls = append(calls, site{names[file].Name, line})
		}
	}
	slices.Reverse(calls)
	for _, s := range append(sites, calls...) {
		if name := path.Clean(s.file); !path.IsAbs(name) {
			return name + ":" + strconv.FormatInt(s.line, 10) + ": "
		}
	}
	return ""
}
