package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"fisub/internal/safetensors"
	"fisub/internal/trace"
	"fisub/runs"
)

// Dumped is a safetensors file with the tensors of a workload that did not pass.
type Dumped struct {
	Path   string
	Bytes  int64
	Actual bool // includes outputs of the solution
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
			facts[name] = fmt.Sprint(map[trace.ScalarKind]any{trace.IntScalar: s.Int, trace.FloatScalar: s.Float,
				trace.BoolScalar: s.Bool}[s.Kind])
		}
	}
	for i, name := range a.shared.Definition.Outputs.Keys() {
		if i < len(in.want) {
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
	a.result.Dumped = &Dumped{Path: path, Bytes: st.Size(), Actual: len(got) > 0}
	return nil
}
