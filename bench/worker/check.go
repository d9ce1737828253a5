package worker

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"fisub/device"
)

// canary fills the guards of tensors. It differs from Poison, which a kernel may copy from an output it did not
// write.
const canary = 0xa5

func (s *server) check(req *Check) (r reply, err error) {
	found := &Checked{}
	before := req.Move || req.Back
	if before {
		if err := s.findWrites(found); err != nil {
			return r, err
		}
	}
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
	if req.Out != nil || !before {
		err = s.findWrites(found)
	}
	return reply{Checked: found}, err
}

// findWrites adds writes to inputs and outside of tensors to found.
func (s *server) findWrites(found *Checked) error {
	for i, v := range s.loaded.Inputs {
		inPlace := func(o output) bool { return o.inPlace && o.arg == i }
		if v.Tensor == nil || slices.ContainsFunc(s.outputs, inPlace) {
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
	for i, o := range s.outputs {
		inOrder[i] = make([]byte, o.Bytes)
		if o.inPlace {
			kept = append(kept, device.Kept{Arg: o.arg, Into: inOrder[i]})
		} else {
			own = append(own, inOrder[i])
		}
	}
	if err := s.kernel.Probe(s.ctx, s.args, Poison, own, kept...); err != nil {
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

// firstChange returns the first byte of b that differs from t's contents, or -1.
func (s *server) firstChange(b device.Buffer, t *FileTensor) (first int, err error) {
	first = -1
	err = t.mapped(os.O_RDONLY, func(want []byte) error {
		got := make([]byte, min(t.Bytes, 1<<20)) // a multiple of 256, as slices of buffers require
		for from := 0; from < t.Bytes && first < 0; from += len(got) {
			part := got[:min(len(got), t.Bytes-from)]
			if err := b.Slice(from, len(part)).Read(part); err != nil {
				return err
			}
			if at := firstDifference(part, want[from:from+len(part)]); at >= 0 {
				first = from + at
			}
		}
		return nil
	})
	return first, err
}

// outside checks the guards of argument i. It returns at most one change on each side, the one nearest the tensor.
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
	// The end of the tensor may be unaligned, so the slice starts before it.
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
