package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"fisub/bench/worker"
	"fisub/internal/memfile"
	"fisub/internal/safetensors"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/runs"
)

// An output is a tensor that a solution wrote or returned. A value-returning solution may return any shape and dtype.
type output struct {
	dtype  string // may be a dtype that the format does not have, such as float64
	shape  []int
	tensor *tensor.Tensor // nil for such a dtype
}

// An outFile receives the outputs of one worker. The zero value is ready for use.
type outFile struct{ f *os.File }

// room makes the file at least size bytes long.
func (o *outFile) room(size int64) (err error) {
	if o.f == nil {
		if o.f, err = memfile.New("fisub-outputs", size); err == nil {
			err = memfile.Settle(o.f)
		}
		if err != nil {
			o.close()
		}
		return err
	}
	st, err := o.f.Stat()
	if err == nil && size > st.Size() {
		err = o.f.Truncate(size)
	}
	return err
}

func (o *outFile) close() {
	if o.f != nil {
		o.f.Close()
		o.f = nil
	}
}

// read maps the outputs that the worker describes. If an unverified description does not fit the file, the error is a
// *worker.Error of kind Call.
func (o *outFile) read(written []worker.FileTensor) (outs []output, unmap func(), err error) {
	st, err := o.f.Stat()
	if err != nil {
		return nil, nil, err
	}
	end := int64(0)
	for i, w := range written {
		out := output{dtype: w.DType, shape: w.Shape}
		n, ok := tensor.Elements(w.Shape)
		if !ok {
			return nil, nil, lie("output %d: the worker's shape %v is out of range", i, w.Shape)
		}
		if dtype, known := tensor.ParseDType(w.DType); known {
			size, fits := dtype.Bytes(n)
			if !fits || size != w.Bytes || w.Offset < 0 || size > 0 && w.Offset > st.Size()-int64(size) {
				return nil, nil, lie("output %d: the worker's %s%v of %d bytes at %d is not in its file", i, w.DType, w.Shape,
					w.Bytes, w.Offset)
			}
			if out.tensor = (&tensor.Tensor{DType: dtype, Shape: w.Shape}); size > 0 {
				end = max(end, w.Offset+int64(size))
			}
		}
		outs = append(outs, out)
	}
	if end == 0 {
		return outs, func() {}, nil
	}
	data, err := unix.Mmap(int(o.f.Fd()), 0, int(end), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes of outputs: %w", end, err)
	}
	for i, w := range written {
		if t := outs[i].tensor; t != nil && w.Bytes > 0 {
			t.Data = data[w.Offset : w.Offset+int64(w.Bytes) : w.Offset+int64(w.Bytes)]
		}
	}
	return outs, func() { _ = unix.Munmap(data) }, nil
}

func lie(format string, args ...any) error {
	return &worker.Error{Kind: worker.Call, Text: fmt.Sprintf(format, args...)}
}

// Dumped is a safetensors file with the tensors of a workload that did not pass.
type Dumped struct {
	Path   string
	Bytes  int64
	Actual bool // includes outputs of the solution
	Inputs bool // has inputs alone, because functions judge the outputs
}

// kept copies the outputs, so that they outlive the mapping of their file.
func kept(outs []output) []output {
	outs = slices.Clone(outs)
	for i, o := range outs {
		if o.tensor != nil {
			t := *o.tensor
			t.Data = slices.Clone(t.Data)
			outs[i].tensor = &t
		}
	}
	return outs
}

// dump writes the inputs, the expected outputs and, if present, the actual outputs of the first workload that does
// not pass. Metadata holds scalars, and the dtype of an output if the format does not have it.
func (a *attempt) dump() error {
	in, got := a.wrong, a.made
	if in == nil {
		in = a.loaded // after a fault or a timeout
	}
	if a.entry.Dump == "" || a.result.Dumped != nil || a.verdict.status == trace.Passed || in == nil {
		return nil
	}
	facts := map[string]string{"definition": a.shared.Definition.Name, "workload": a.workload.UUID,
		"solution": a.entry.Solution.Name, "status": string(a.verdict.status)}
	var all []safetensors.Named
	for _, v := range in.Values {
		if name := "input." + v.Name; v.Tensor != nil {
			all = append(all, safetensors.Named{Name: name, Tensor: v.Tensor})
		} else if s := v.Scalar; s != nil {
			facts[name] = fmt.Sprint(s.Any())
		}
	}
	for i, name := range a.shared.Definition.Outputs.Keys() {
		if i < len(in.want) && in.made == nil {
			all = append(all, safetensors.Named{Name: "expected." + name, Tensor: in.want[i].Tensor})
		}
		switch {
		case i >= len(got):
		case got[i].tensor == nil:
			facts["actual."+name] = fmt.Sprintf("%s%v", got[i].dtype, got[i].shape)
		default:
			all = append(all, safetensors.Named{Name: "actual." + name, Tensor: got[i].tensor})
		}
	}
	path := filepath.Join(a.entry.Dump, runs.FileName(a.workload.UUID)+".safetensors")
	if err := safetensors.Write(path, all, facts); err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	a.result.Dumped = &Dumped{Path: path, Bytes: st.Size(), Actual: len(got) > 0, Inputs: in.made != nil}
	return nil
}
