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
