package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"fisub/internal/memfile"
)

// A memory describes the loaded arguments and their places. On an emulated device the Client takes nothing but the
// addresses from the worker.
type memory struct {
	open    bool     // the judge can read the worker's memory: so it must name the places, and must not close it
	passing bool     // outputs are arguments
	loaded  *Tensors // its Inputs are the last contents given to the tensors
	places  []uint64 // addresses of the tensors in the worker's memory; nil if the worker must copy them
	home    []uint64 // places after the last load
	copies  *os.File // for copies by the worker; nil before the first one
	data    []byte   // of copies, mapped
	own     []byte   // for memory that was read
}

// mostCopied limits the bytes that a worker copies in one request, mostRead the bytes of a tensor in one part.
// mostGuard limits the guard and the end of a tensor in front of it.
const mostCopied, mostRead, mostGuard = 32 << 20, 1 << 20, 1 << 16

// readable reports whether this process may read the memory of process pid.
func readable(pid int) bool {
	p := []byte{0}
	local, remote := []unix.Iovec{{Base: &p[0]}}, []unix.RemoteIovec{{Len: 1}}
	local[0].SetLen(1)
	_, err := unix.ProcessVMReadv(pid, local, remote, 0)
	return errors.Is(err, unix.EFAULT) // nothing is at address 0
}

// load and change report whether the worker named the places, if it must.
func (m *memory) load(w *Tensors, places []uint64) bool {
	loaded := *w
	loaded.Inputs = slices.Clone(w.Inputs)
	m.loaded, m.places, m.home = &loaded, places, places
	if places != nil && len(places) != len(m.tensors()) {
		m.places, m.home = nil, nil
	}
	return m.places != nil || !m.open || len(m.tensors()) == 0
}

// change follows a successful check.
func (m *memory) change(req Check, places []uint64) bool {
	if m.loaded == nil {
		return true
	}
	for i, t := range req.Inputs {
		if t != nil && i < len(m.loaded.Inputs) {
			m.loaded.Inputs[i].Tensor = t
		}
	}
	switch {
	case m.places == nil: // the worker copies
	case req.Back:
		m.places = m.home
	case req.Move && len(places) == len(m.places):
		m.places = places
	case req.Move:
		m.places = nil
	}
	return m.places != nil || !m.open || len(m.tensors()) == 0
}

func (m *memory) close() {
	if m.copies != nil {
		_ = unix.Munmap(m.data)
		m.copies.Close()
		m.copies, m.data = nil, nil
	}
}

// tensors returns the tensor of each argument, nil for others: the inputs, and the outputs with their own memory.
func (m *memory) tensors() (all []*FileTensor) {
	for _, v := range m.loaded.Inputs {
		all = append(all, v.Tensor)
	}
	for _, v := range m.loaded.Outputs {
		if m.passing && v.InPlace == nil {
			all = append(all, v.Tensor)
		}
	}
	return all
}

// changeable reports whether a call may change argument i.
func (m *memory) changeable(i int) bool {
	return i >= len(m.loaded.Inputs) ||
		slices.ContainsFunc(m.loaded.Outputs, func(v Value) bool { return v.InPlace != nil && *v.InPlace == i })
}

// A look is a part of an argument's memory and the comparison of its contents.
type look struct {
	part
	compare func(got []byte)
}

// findWrites adds writes to inputs and outside of tensors to found.
func (c *Client) findWrites(ctx context.Context, found *Checked) error {
	m := &c.memory
	if m.loaded == nil {
		return errOrder
	}
	guard, tensors := m.loaded.Guard, m.tensors()
	untouched := bytes.Repeat([]byte{canary}, guard)
	changed, before, after := map[int]int{}, map[int]int{}, map[int]int{} // offsets by argument
	var looks []look
	for i, t := range tensors {
		if t == nil {
			continue
		}
		if !m.changeable(i) && t.Bytes > 0 {
			want, done, err := t.view(os.O_RDONLY)
			if err != nil {
				return fmt.Errorf("input %d: %w", i, err)
			}
			defer done()
			for from := 0; from < t.Bytes; from += mostRead {
				n := min(mostRead, t.Bytes-from)
				looks = append(looks, look{part{Arg: i, Offset: from, Bytes: n}, func(got []byte) {
					if _, known := changed[i]; !known && !bytes.Equal(got, want[from:from+n]) {
						changed[i] = from + firstDifference(got, want[from:from+n])
					}
				}})
			}
		}
		if guard == 0 {
			continue
		}
		tail := t.Bytes &^ 255 // a part begins at a multiple of 256
		looks = append(looks, look{part{Arg: i, Offset: -guard, Bytes: guard}, func(got []byte) {
			if !bytes.Equal(got, untouched) {
				slices.Reverse(got)
				before[i] = -1 - firstDifference(got, untouched)
			}
		}}, look{part{Arg: i, Offset: tail, Bytes: t.Bytes - tail + guard}, func(got []byte) {
			if got = got[t.Bytes-tail:]; !bytes.Equal(got, untouched) {
				after[i] = t.Bytes + firstDifference(got, untouched)
			}
		}})
	}
	if err := c.look(ctx, looks); err != nil {
		return err
	}
	for i := range tensors {
		if at, ok := changed[i]; ok {
			found.Changed = append(found.Changed, Change{i, at})
		}
		for _, side := range []map[int]int{before, after} {
			if at, ok := side[i]; ok {
				found.Outside = append(found.Outside, Change{i, at})
			}
		}
	}
	return nil
}

// look reads the parts and calls their comparisons, which may change the bytes.
func (c *Client) look(ctx context.Context, looks []look) error {
	m := &c.memory
	if m.places != nil {
		err := c.read(looks)
		if m.open || !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
			return err
		}
		m.places = nil // this system does not let the judge read
	}
	for len(looks) > 0 {
		n, size, req := 0, int64(0), &lookRequest{}
		for n < len(looks) && (n == 0 || size+int64(looks[n].Bytes) <= mostCopied) {
			p := looks[n].part
			p.At = size
			req.Parts = append(req.Parts, p)
			size += (int64(p.Bytes) + 255) &^ 255
			n++
		}
		if err := m.room(size); err != nil {
			return err
		}
		req.Out = m.copies
		if _, err := c.do(ctx, &request{Look: req}); err != nil {
			return err
		}
		for i, p := range req.Parts {
			looks[i].compare(m.data[p.At : p.At+int64(p.Bytes)])
		}
		looks = looks[n:]
	}
	return nil
}

// read reads the parts from the worker's memory.
func (c *Client) read(looks []look) error {
	m := &c.memory
	if m.own == nil {
		m.own = make([]byte, mostRead+mostGuard)
	}
	for _, l := range looks {
		p := m.own[:l.Bytes]
		local := []unix.Iovec{{Base: &p[0]}}
		local[0].SetLen(len(p))
		remote := []unix.RemoteIovec{{Base: uintptr(m.places[l.Arg] + uint64(l.Offset)), Len: len(p)}}
		switch n, err := unix.ProcessVMReadv(c.PID(), local, remote, 0); {
		case errors.Is(err, unix.ESRCH):
			return c.died()
		case err != nil:
			return fmt.Errorf("reading the memory of argument %d: %w", l.Arg, err)
		case n < len(p):
			return fmt.Errorf("reading the memory of argument %d: %d of %d bytes", l.Arg, n, len(p))
		}
		l.compare(p)
	}
	return nil
}

// room makes the file for copies at least size bytes long.
func (m *memory) room(size int64) (err error) {
	if size <= int64(len(m.data)) {
		return nil
	}
	m.close()
	size = max(size, 1<<20)
	if m.copies, err = memfile.New("fisub-copies", size); err != nil {
		return err
	}
	m.data, err = unix.Mmap(int(m.copies.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		m.copies.Close()
		m.copies = nil
	}
	return err
}
