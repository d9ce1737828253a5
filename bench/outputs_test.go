package bench

import (
	"encoding/json"
	"errors"
	"testing"

	"fisub/bench/worker"
	"fisub/internal/tensor"
)

// A worker's description of its outputs is checked against its file.
func TestOutFile(t *testing.T) {
	var o outFile
	t.Cleanup(o.close)
	if err := o.room(100); err != nil {
		t.Fatal(err)
	}
	if _, err := o.f.WriteAt([]byte{1, 2, 3, 4}, 96); err != nil {
		t.Fatal(err)
	}
	ok := []worker.FileTensor{{DType: "int8", Shape: []int{4}, Offset: 96, Bytes: 4},
		{DType: "float64", Shape: []int{9}, Offset: 1 << 40, Bytes: 72},
		{DType: "int8", Shape: []int{3, 0}, Offset: 256}}
	outs, unmap, err := o.read(ok)
	if err != nil {
		t.Fatal(err)
	}
	if got := outs[0].tensor; got.DType != tensor.Int8 || string(got.Data) != "\x01\x02\x03\x04" {
		t.Errorf("got %v, want four int8", got)
	}
	if outs[1].tensor != nil || outs[1].dtype != "float64" || outs[2].tensor.Len() != 0 {
		t.Errorf("got %v and %v, want no tensor for float64, and an empty one", outs[1], outs[2])
	}
	unmap()
	for _, lie := range []worker.FileTensor{
		{DType: "int8", Shape: []int{4}, Offset: 97, Bytes: 4},
		{DType: "int8", Shape: []int{4}, Offset: -1, Bytes: 4},
		{DType: "int8", Shape: []int{4}, Offset: 0, Bytes: 3},
		{DType: "int8", Shape: []int{-4}, Offset: 0, Bytes: -4},
		{DType: "int64", Shape: []int{1 << 60}, Offset: 0, Bytes: 8},
		{DType: "float64", Shape: []int{1 << 40, 1 << 40}},
	} {
		_, _, err := o.read([]worker.FileTensor{lie})
		var we *worker.Error
		if !errors.As(err, &we) || we.Kind != worker.Call {
			t.Errorf("%+v: got %v, want an error of kind %s", lie, err, worker.Call)
		}
	}
}

// read stays within the file for any description of the outputs.
func FuzzOutputs(f *testing.F) {
	f.Add([]byte(`[{"dtype":"int8","shape":[4],"offset":96,"bytes":4},{"dtype":"float64","shape":[9],"bytes":72}]`))
	f.Add([]byte(`[{"dtype":"float4_e2m1","shape":[3,5],"offset":9223372036854775807,"bytes":8}]`))
	o := &outFile{}
	f.Cleanup(o.close)
	if err := o.room(100); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var written []worker.FileTensor
		if json.Unmarshal(text, &written) != nil {
			return
		}
		outs, unmap, err := o.read(written)
		if err != nil {
			return
		}
		defer unmap()
		sum := 0
		for _, out := range outs {
			if out.tensor == nil {
				continue
			}
			if len(out.tensor.Data) > 100 {
				t.Errorf("got %d bytes of a file of 100", len(out.tensor.Data))
			}
			for _, b := range out.tensor.Data {
				sum += int(b)
			}
		}
		if sum != 0 {
			t.Errorf("got a sum of %d in an empty file", sum)
		}
	})
}
