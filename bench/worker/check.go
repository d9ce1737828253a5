package worker

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"fisub/device"
)

// canary fills the guards of tensors. It is not poison, which a kernel may copy from an output that it did not write.
const canary = 0xa5

func (s *server) check(req *Check) reply {
	found := &Checked{}
	before := req.Move || req.Back
	if before {
		if err := s.findWrites(found); err != nil {
			return reply{Error: s.asError(err, Machine)}
		}
	}
	if req.Move {
		if err := s.allocate(s.loaded); err != nil {
			return reply{Error: s.asError(err, Machine)}
		}
	}
	if req.Back {
		s.args, s.bands = s.home.args, s.home.bands
	}
	if err := s.change(req.Inputs); err != nil {
		return reply{Error: s.asError(err, Machine)}
	}
	if req.Out != "" {
		late, err := s.probe(req.Out)
		if err != nil {
			return reply{Error: err}
		}
		found.Late = late
	}
	if req.Out != "" || !before {
		if err := s.findWrites(found); err != nil {
			return reply{Error: s.asError(err, Machine)}
		}
	}
	return reply{Checked: found}
}

// findWrites adds what was written where nothing may be.
func (s *server) findWrites(found *Checked) error {
	for i, v := range s.loaded.Inputs {
		if v.Tensor == nil {
			continue
		}
		at, err := s.firstChange(s.args[i].Tensor.Buffer, v.Tensor)
		if err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
		if at >= 0 {
			found.Changed = append(found.Changed, Change{i, at})
		}
	}
	for i, band := range s.bands {
		if band == nil {
			continue
		}
		outside, err := s.outside(i, band)
		if err != nil {
			return err
		}
		found.Outside = append(found.Outside, outside...)
	}
	return nil
}

// change gives inputs new contents, where they are.
func (s *server) change(inputs []*FileTensor) error {
	if len(inputs) > len(s.loaded.Inputs) {
		return fmt.Errorf("contents for %d inputs of %d", len(inputs), len(s.loaded.Inputs))
	}
	for i, t := range inputs {
		if t == nil {
			continue
		}
		old := s.loaded.Inputs[i].Tensor
		if old == nil || t.Bytes != old.Bytes || t.DType != old.DType || !slices.Equal(t.Shape, old.Shape) {
			return fmt.Errorf("input %d: the new contents have another type", i)
		}
		if err := copyIn(s.args[i].Tensor.Buffer, t); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
		s.loaded.Inputs[i].Tensor = t
	}
	return nil
}

// probe makes one call and returns the outputs that were not complete at its end.
func (s *server) probe(out string) (late []Change, e *Error) {
	f, err := os.OpenFile(out, os.O_RDWR, 0)
	if err != nil {
		return nil, s.asError(err, Machine)
	}
	defer f.Close()
	files := make([][]byte, len(s.outputs))
	inOrder := make([][]byte, len(s.outputs))
	for i, t := range s.outputs {
		if t.Bytes == 0 {
			continue
		}
		data, unmap, err := mapRange(f, t.Offset, t.Bytes, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			return nil, s.asError(err, Machine)
		}
		defer unmap()
		files[i], inOrder[i] = data, make([]byte, t.Bytes)
	}
	if err := s.kernel.Probe(s.ctx, s.args, Poison, inOrder); err != nil {
		return nil, s.asError(err, Call)
	}
	if err := s.kernel.Sync(s.ctx); err != nil {
		return nil, s.asError(err, Fault)
	}
	for i, arg := range s.args[len(s.loaded.Inputs):] {
		if err := arg.Tensor.Buffer.Read(files[i]); err != nil {
			return nil, s.asError(err, Fault)
		}
		if at := firstDifference(inOrder[i], files[i]); at >= 0 {
			late = append(late, Change{len(s.loaded.Inputs) + i, at})
		}
	}
	return late, nil
}

// firstChange compares a buffer with the file of its contents; -1 where they are the same.
func (s *server) firstChange(b device.Buffer, t *FileTensor) (int, error) {
	if t.Bytes == 0 {
		return -1, nil
	}
	f, err := os.Open(t.Path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	want, unmap, err := mapRange(f, t.Offset, t.Bytes, unix.PROT_READ)
	if err != nil {
		return 0, err
	}
	defer unmap()
	got := make([]byte, min(t.Bytes, 64<<20)) // a multiple of 256, as slices of buffers want it
	for from := 0; from < t.Bytes; from += len(got) {
		part := got[:min(len(got), t.Bytes-from)]
		if err := b.Slice(from, len(part)).Read(part); err != nil {
			return 0, err
		}
		if at := firstDifference(part, want[from:from+len(part)]); at >= 0 {
			return from + at, nil
		}
	}
	return -1, nil
}

// outside looks at the guards of argument i: at most one change before the tensor, the one next to it, and one behind
// it.
func (s *server) outside(i int, band device.Buffer) (found []Change, err error) {
	guard := make([]byte, s.loaded.Guard)
	if err := band.Slice(0, len(guard)).Read(guard); err != nil {
		return nil, err
	}
	untouched := bytes.Repeat([]byte{canary}, len(guard))
	for at := len(guard) - 1; at >= 0; at-- {
		if guard[at] != canary {
			found = append(found, Change{i, at - len(guard)})
			break
		}
	}
	// The end of the tensor need not be aligned, so a slice begins before it.
	size := s.args[i].Tensor.Buffer.Len()
	tail := (len(guard) + size) &^ 255
	end := make([]byte, band.Len()-tail)
	if err := band.Slice(tail, len(end)).Read(end); err != nil {
		return nil, err
	}
	if at := firstDifference(end[len(end)-len(guard):], untouched); at >= 0 {
		found = append(found, Change{i, size + at})
	}
	return found, nil
}

// firstDifference is the index of the first byte in which a and b, of equal length, differ, or -1.
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
