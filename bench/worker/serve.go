package worker

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"fisub/device"
	"fisub/internal/ledger"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// marker is set in a worker's environment. In any other process, descriptors 3 and 4 may be anything.
const marker = "FISUB_WORKER"

// Pipes returns the requests and replies of a process started by Start, and an error in any other process.
func Pipes() (requests *Requests, replies *os.File, err error) {
	if os.Getenv(marker) != "1" {
		return nil, nil, errors.New("worker: fisub starts this command itself")
	}
	f := os.NewFile(3, "requests")
	defer f.Close()
	conn, err := connection(f)
	if err != nil {
		return nil, nil, err
	}
	syscall.CloseOnExec(4) // child processes must not answer for the worker
	return &Requests{conn: conn}, os.NewFile(4, "replies"), nil
}

// Serve answers requests from r on w until r or ctx ends. After the end of ctx it sends no reply, because that would be
// about ctx and not about the solution, and returns ctx's error. It must run in a process of its own; openers are the
// devices it may open. The solution's output goes to the process's stdout and stderr.
func Serve(ctx context.Context, r *Requests, w io.Writer, openers []device.Opener) error {
	runtime.LockOSThread()
	s := &server{ctx: ctx, openers: openers}
	defer s.close()
	stop := context.AfterFunc(ctx, func() { r.conn.Close() }) // no further request
	defer stop()
	dec, enc := json.NewDecoder(bufio.NewReaderSize(r, 1<<16)), json.NewEncoder(w)
	for {
		var req request
		if err := dec.Decode(&req); ctx.Err() != nil {
			return ctx.Err()
		} else if err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("worker: reading a request: %w", err)
		}
		files := r.take()
		if req.Measure != nil {
			// If this write fails, so does the reply.
			req.Measure.Timing = func(on bool) { _ = enc.Encode(reply{Timing: &on}) }
		}
		err := req.detach(files)
		answer := reply{}
		if err == nil {
			answer = s.answer(&req)
		} else {
			answer.Error = AsError(err, Machine)
		}
		s.held = append(s.held, files...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := enc.Encode(answer); err != nil {
			return fmt.Errorf("worker: writing a reply: %w", err)
		}
	}
}

// An output is an argument, or an input changed in place, and its destination in a file.
type output struct {
	FileTensor
	arg     int
	inPlace bool // arg is an input
}

type server struct {
	ctx     context.Context
	openers []device.Opener
	dev     device.Device
	kernel  device.Kernel
	held    []*os.File // files received since the last load
	loaded  *Tensors   // its Inputs are the last contents given to the buffers
	args    []device.Arg
	outputs []output
	bands   []device.Buffer // by argument: its memory with the guards; nil if it is not a tensor
	buffers []device.Buffer // all allocations
	home    struct {        // args and bands of the last load
		args  []device.Arg
		bands []device.Buffer
	}
}

func (s *server) answer(req *request) reply {
	r, err := s.do(req)
	if err != nil {
		r = reply{Error: AsError(err, Machine)}
	}
	if observer, ok := s.dev.(device.Observer); ok {
		observer.Forget()
		if req.Run != nil || req.Check != nil && req.Check.Out != nil {
			launched, worked := observer.Launched(), observer.Worked()
			r.Idle, r.Hosted = !worked, worked && !launched
		}
	}
	return r
}

func (s *server) do(req *request) (reply, error) {
	switch {
	case req.Open != nil:
		return s.open(req.Open)
	case s.dev == nil:
		return reply{}, errOrder
	case req.Build != nil:
		return s.build(req.Build)
	case req.Load != nil:
		err := s.load(req.Load)
		return reply{Addresses: s.addresses()}, err
	case s.kernel == nil || s.args == nil:
		return reply{}, errOrder
	case req.Run != nil:
		return reply{}, s.run(req.Run.Out)
	case req.Measure != nil:
		return s.measure(req.Measure)
	case req.Check != nil:
		return s.check(req.Check)
	case req.Look != nil:
		return reply{}, s.look(req.Look)
	}
	return reply{}, errOrder
}

func (s *server) open(req *openRequest) (r reply, err error) {
	i := slices.IndexFunc(s.openers, func(o device.Opener) bool { return o.Kind == req.Kind })
	if i < 0 {
		return r, fmt.Errorf("worker: no device of kind %q", req.Kind)
	}
	dev, err := s.openers[i].Open(s.ctx, req.Options)
	if err != nil {
		return r, err
	}
	s.dev = dev
	if observer, ok := dev.(device.Observer); ok && req.Ledger != nil {
		shared, err := ledger.Open(req.Ledger) // never unmapped: the device may add lines at any time
		if err != nil {
			return r, err
		}
		observer.Record(func(h device.Hazard) {
			if line, err := json.Marshal(h); err == nil {
				shared.Add(line)
			}
		})
	}
	return reply{Info: new(dev.Info())}, nil
}

func (s *server) build(req *buildRequest) (r reply, err error) {
	def, _, err := trace.DecodeDefinition(req.Definition)
	if err != nil {
		return r, err
	}
	sol, _, err := trace.DecodeSolution(req.Solution)
	if err != nil {
		return r, err
	}
	if s.kernel, err = s.dev.Build(s.ctx, def, sol); err != nil {
		return r, err
	}
	k, ok := s.kernel.(interface{ Cached() bool })
	return reply{Cached: ok && k.Cached()}, nil
}

// load replaces the buffers of the previous workload.
func (s *server) load(w *Tensors) error {
	if err := s.free(); err != nil {
		return err
	}
	if err := s.allocate(w); err != nil {
		return err
	}
	s.home.args, s.home.bands = s.args, s.bands
	if observer, ok := s.dev.(device.Observer); ok {
		observer.Look(w.Fully)
		observer.Count(w.Count)
	}
	return nil
}

// allocate allocates the tensors of w and fills the inputs and the guards.
func (s *server) allocate(w *Tensors) error {
	if w.Guard < 0 || w.Guard%256 != 0 || w.Guard > mostGuard-256 {
		return fmt.Errorf("guard of %d bytes", w.Guard)
	}
	s.args, s.outputs, s.bands = nil, nil, nil
	args := []device.Arg{} // never nil, even for a solution without arguments
	for i, v := range w.Inputs {
		arg, err := s.arg(v, w.Guard)
		if err == nil && v.Tensor != nil {
			err = v.Tensor.fill(arg.Tensor.Buffer)
		}
		if err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
		args = append(args, arg)
	}
	for i, v := range w.Outputs {
		if v.Tensor == nil {
			return fmt.Errorf("output %d: not a tensor", i)
		}
		if at := v.InPlace; at != nil {
			if *at < 0 || *at >= len(w.Inputs) || w.Inputs[*at].Tensor == nil || w.Inputs[*at].Tensor.Bytes != v.Tensor.Bytes {
				return fmt.Errorf("output %d: no input tensor of %d bytes", i, v.Tensor.Bytes)
			}
			s.outputs = append(s.outputs, output{*v.Tensor, *at, true})
			continue
		}
		arg, err := s.arg(v, w.Guard)
		if err != nil {
			return fmt.Errorf("output %d: %w", i, err)
		}
		s.outputs = append(s.outputs, output{*v.Tensor, len(args), false})
		args = append(args, arg)
	}
	s.loaded, s.args = w, args
	return nil
}

func (s *server) arg(v Value, guard int) (device.Arg, error) {
	s.bands = append(s.bands, nil)
	if v.Tensor == nil {
		return device.Arg{Scalar: v.Scalar}, nil
	}
	dtype, ok := tensor.ParseDType(v.Tensor.DType)
	if !ok {
		return device.Arg{}, fmt.Errorf("unknown dtype %q", v.Tensor.DType)
	}
	if v.Tensor.Bytes < 0 || v.Tensor.Bytes > 1<<40 {
		return device.Arg{}, fmt.Errorf("tensor of %d bytes", v.Tensor.Bytes)
	}
	buf, err := s.dev.Alloc(guard + v.Tensor.Bytes + guard)
	if err != nil {
		return device.Arg{}, err
	}
	s.buffers = append(s.buffers, buf)
	if guard > 0 {
		if err := buf.Fill(canary); err != nil {
			return device.Arg{}, err
		}
		s.bands[len(s.bands)-1] = buf
		buf = buf.Slice(guard, v.Tensor.Bytes)
	}
	return device.Arg{Tensor: &device.TensorArg{Buffer: buf, DType: dtype, Shape: v.Tensor.Shape}}, nil
}

// Poison is the byte that fills outputs before a call. It reads as NaN in bfloat16, float16 and float32, so an
// element that the kernel leaves out cannot pass.
const Poison = 0xff

// PoisonOf returns the poison of a dtype. For integers it is another byte: Poison reads as -1, a common result.
func PoisonOf(dtype tensor.DType) byte {
	if dtype.IsFloat() {
		return Poison
	}
	return 0x7f
}

// run calls the kernel once and writes the outputs to their places in out.
func (s *server) run(out *os.File) error {
	if err := s.renew(); err != nil {
		return err
	}
	for _, o := range s.outputs {
		if o.inPlace {
			continue
		}
		if err := s.args[o.arg].Tensor.Buffer.Fill(PoisonOf(s.args[o.arg].Tensor.DType)); err != nil {
			return AsError(err, Fault)
		}
	}
	if err := s.kernel.Call(s.ctx, s.args); err != nil {
		return AsError(err, Call)
	}
	if err := s.kernel.Sync(s.ctx); err != nil {
		return AsError(err, Fault)
	}
	return s.store(out, 0)
}

// store writes the outputs to their places in out, relative to base.
func (s *server) store(out *os.File, base int64) error {
	for _, o := range s.outputs {
		o.File = out
		o.Offset += base
		if err := o.mapped(os.O_RDWR, s.args[o.arg].Tensor.Buffer.Read); err != nil {
			return err
		}
	}
	return nil
}

// renew restores the contents of inputs that are changed in place.
func (s *server) renew() error {
	for _, o := range s.outputs {
		if !o.inPlace {
			continue
		}
		t := s.loaded.Inputs[o.arg].Tensor
		if err := t.fill(s.args[o.arg].Tensor.Buffer); err != nil {
			return fmt.Errorf("input %d: %w", o.arg, err)
		}
	}
	return nil
}

// renewing makes copies on the device of the contents that outputs must have before a call: poison or, for an input
// changed in place, its last contents. before copies them to the outputs in stream order. The caller must call free
// even after an error.
func (s *server) renewing() (before func() error, free func(), err error) {
	if err := s.renew(); err != nil {
		return nil, func() {}, err
	}
	var to, from []device.Buffer
	free = func() {
		for _, b := range from {
			_ = b.Close()
		}
	}
	for _, o := range s.outputs {
		b := s.args[o.arg].Tensor.Buffer
		kept, err := s.dev.Alloc(b.Len())
		if err != nil {
			return nil, free, err
		}
		to, from = append(to, b), append(from, kept)
		if o.inPlace {
			err = kept.Copy(b)
		} else {
			err = kept.Fill(PoisonOf(s.args[o.arg].Tensor.DType))
		}
		if err != nil {
			return nil, free, err
		}
	}
	return func() error {
		for i, b := range to {
			if err := b.Copy(from[i]); err != nil {
				return err
			}
		}
		return nil
	}, free, nil
}

func (s *server) measure(plan *JudgedPlan) (r reply, err error) {
	before, free, err := s.renewing()
	defer free()
	if err != nil {
		return reply{}, AsError(err, Fault)
	}
	patched := func(call int) bool { return plan.Patch != nil && plan.Apart != nil && call == *plan.Apart }
	plan.Before = func(call int) error {
		if err := before(); err != nil || !patched(call) {
			return err
		}
		return s.patch(plan.Patch, plan.Patch.New)
	}
	plan.After = func(call int) (err error) {
		if patched(call) {
			defer func() {
				if err == nil {
					err = s.patch(plan.Patch, plan.Patch.Old)
				}
			}()
		}
		k, ok := slices.BinarySearch(plan.Judged, call)
		if !ok || plan.Out == nil {
			return nil
		}
		r.Judged = append(r.Judged, Judged{Call: call})
		return s.store(plan.Out, int64(k)*plan.Stride)
	}
	if r.Samples, err = s.dev.Measure(s.ctx, func() error { return s.kernel.Call(s.ctx, s.args) }, plan.Plan); err != nil {
		return reply{}, AsError(err, Fault)
	}
	return r, nil
}

// patch writes data to the input of p.
func (s *server) patch(p *Patch, data []byte) error {
	if p.Arg < 0 || p.Arg >= len(s.loaded.Inputs) || s.args[p.Arg].Tensor == nil {
		return fmt.Errorf("patch of input %d", p.Arg)
	}
	b := s.args[p.Arg].Tensor.Buffer
	if p.Offset < 0 || p.Offset%256 != 0 || p.Offset > b.Len() || len(data) > b.Len()-p.Offset {
		return fmt.Errorf("patch of %d bytes at %d in %d", len(data), p.Offset, b.Len())
	}
	return b.Slice(p.Offset, len(data)).Write(data)
}

func (s *server) free() error {
	var first error
	for _, b := range s.buffers {
		first = cmp.Or(first, b.Close())
	}
	for _, f := range s.held {
		f.Close()
	}
	s.held = nil
	s.buffers, s.args, s.outputs, s.bands, s.loaded = nil, nil, nil, nil, nil
	s.home.args, s.home.bands = nil, nil
	return first
}

func (s *server) close() {
	_ = s.free()
	if s.kernel != nil {
		_ = s.kernel.Close()
	}
	if s.dev != nil {
		_ = s.dev.Close()
	}
}

func (t *FileTensor) fill(b device.Buffer) error {
	direct, ok := b.(device.FileBuffer)
	if !ok || t.Bytes == 0 {
		return t.mapped(os.O_RDONLY, b.Write)
	}
	f, done, err := t.open()
	if err != nil {
		return err
	}
	defer done()
	return direct.WriteFile(f, t.Offset, t.Bytes)
}

// open returns the file, after checking that it contains the whole tensor. The caller must call done.
func (t *FileTensor) open() (f *os.File, done func(), err error) {
	f, done = t.File, func() {}
	if f == nil {
		if f, err = plain.Open(t.Path); err != nil {
			return nil, nil, err
		}
		done = func() { f.Close() }
	}
	st, err := f.Stat()
	if err == nil && (t.Offset < 0 || t.Bytes < 0 || t.Offset > st.Size()-int64(t.Bytes)) {
		err = fmt.Errorf("%s: bytes %d to %d are outside the file of %d bytes", f.Name(), t.Offset,
			t.Offset+int64(t.Bytes), st.Size())
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return f, done, nil
}

// mapped calls do with the tensor's bytes, mapped rather than read so that a state of 33 MB needs no heap. flag is
// os.O_RDONLY or os.O_RDWR. It returns an error if the tensor exceeds its file, and does not call do if it is empty.
func (t *FileTensor) mapped(flag int, do func(data []byte) error) error {
	if t.Bytes == 0 {
		return nil
	}
	data, done, err := t.view(flag)
	if err != nil {
		return err
	}
	defer done()
	return do(data)
}

// view maps the bytes of a tensor that is not empty, like mapped. The caller must call done if err is nil.
func (t *FileTensor) view(flag int) (data []byte, done func(), err error) {
	f, closed, err := t.open()
	if err != nil {
		return nil, nil, err
	}
	defer closed()
	prot := unix.PROT_READ
	if flag == os.O_RDWR {
		prot |= unix.PROT_WRITE
	}
	skip := int(t.Offset % int64(os.Getpagesize())) // a mapping must start at a page
	m, err := unix.Mmap(int(f.Fd()), t.Offset-int64(skip), t.Bytes+skip, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %s: %w", f.Name(), err)
	}
	return m[skip:], func() { _ = unix.Munmap(m) }, nil
}

// canary fills the guards of tensors. It differs from Poison, which a kernel may copy from an output it did not
// write.
const canary = 0xa5

func (s *server) check(req *Check) (r reply, err error) {
	found := &Checked{}
	if req.Move {
		if req.Gap > 0 {
			gap, err := s.dev.Alloc(int(req.Gap))
			if err != nil {
				return r, err
			}
			s.buffers = append(s.buffers, gap)
		}
		if err := s.allocate(s.loaded); err != nil {
			return r, err
		}
	}
	if req.Back {
		s.args, s.bands = s.home.args, s.home.bands
	}
	if err := s.change(req.Inputs); err != nil {
		return r, err
	}
	if req.Out != nil {
		if found.Late, err = s.probe(req.Out); err != nil {
			return r, err
		}
	}
	return reply{Checked: found, Addresses: s.addresses()}, nil
}

// addresses returns the places of the arguments' tensors in this process's memory, or nil if they are elsewhere.
func (s *server) addresses() []uint64 {
	all := make([]uint64, len(s.args))
	for i, a := range s.args {
		if a.Tensor == nil {
			continue
		}
		b, ok := a.Tensor.Buffer.(device.HostBuffer)
		if !ok {
			return nil
		}
		all[i] = uint64(b.Address())
	}
	return all
}

// look copies memory of arguments to a file.
func (s *server) look(req *lookRequest) error {
	for _, p := range req.Parts {
		if p.Arg < 0 || p.Arg >= len(s.args) || s.args[p.Arg].Tensor == nil {
			return errOrder
		}
		memory, from := s.args[p.Arg].Tensor.Buffer, p.Offset
		if band := s.bands[p.Arg]; band != nil {
			memory, from = band, from+s.loaded.Guard
		}
		if from < 0 || from%256 != 0 || p.Bytes < 0 || p.Bytes > memory.Len()-from {
			return errOrder
		}
		t := FileTensor{File: req.Out, Offset: p.At, Bytes: p.Bytes}
		if err := t.mapped(os.O_RDWR, memory.Slice(from, p.Bytes).Read); err != nil {
			return AsError(err, Fault)
		}
	}
	return nil
}

// change replaces the contents of inputs at their present addresses.
func (s *server) change(inputs []*FileTensor) error {
	if len(inputs) > len(s.loaded.Inputs) {
		return fmt.Errorf("contents of %d inputs, want %d", len(inputs), len(s.loaded.Inputs))
	}
	for i, t := range inputs {
		if t == nil {
			continue
		}
		old := s.loaded.Inputs[i].Tensor
		if old == nil || t.Bytes != old.Bytes || t.DType != old.DType || !slices.Equal(t.Shape, old.Shape) {
			return fmt.Errorf("input %d: the new contents have a different type", i)
		}
		if err := t.fill(s.args[i].Tensor.Buffer); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
		s.loaded.Inputs[i].Tensor = t
	}
	return nil
}

// probe makes one call and returns the outputs that were incomplete at its end.
func (s *server) probe(out *os.File) (late []Change, err error) {
	if err := s.renew(); err != nil {
		return nil, err
	}
	inOrder := make([][]byte, len(s.outputs))
	var own [][]byte
	var kept []device.Kept
	fill := byte(0) // of all outputs: NaN if one of them can be
	for i, o := range s.outputs {
		inOrder[i] = make([]byte, o.Bytes)
		if o.inPlace {
			kept = append(kept, device.Kept{Arg: o.arg, Into: inOrder[i]})
		} else {
			own = append(own, inOrder[i])
			fill = max(fill, PoisonOf(s.args[o.arg].Tensor.DType))
		}
	}
	if err := s.kernel.Probe(s.ctx, s.args, fill, own, kept...); err != nil {
		return nil, AsError(err, Call)
	}
	if err := s.kernel.Sync(s.ctx); err != nil {
		return nil, AsError(err, Fault)
	}
	for i, o := range s.outputs {
		o.File = out
		err := o.mapped(os.O_RDWR, func(data []byte) error {
			if err := s.args[o.arg].Tensor.Buffer.Read(data); err != nil {
				return AsError(err, Fault)
			}
			if at := firstDifference(inOrder[i], data); at >= 0 {
				late = append(late, Change{o.arg, at})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return late, nil
}

// firstDifference returns the index of the first differing byte of a and b, which have equal lengths, or -1.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
