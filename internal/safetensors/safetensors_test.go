package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fisub/internal/tensor"
)

func fileBytes(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func writeFile(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpen(t *testing.T) {
	const f32 = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	for _, c := range []struct {
		name    string
		content []byte
		want    string // part of the error; "" for none
	}{
		{"one tensor", fileBytes(f32, 8), ""},
		{"padded header", fileBytes(f32+"   \n", 8), ""},
		{"no tensors", fileBytes("{}", 0), ""},
		{"empty tensor beside another",
			fileBytes(
				`{"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 1),
			""},
		{"escaped name", fileBytes(`{"\u0061":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}`, 1), ""},
		{"half bytes", fileBytes(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}`, 2), ""},
		{"empty file", nil, "0 bytes are too few"},
		{"short file", []byte("1234567"), "7 bytes are too few"},
		{"header beyond the file", append(binary.LittleEndian.AppendUint64(nil, 9), "{}"...),
			"header of 9 bytes in a file of 10"},
		{"header beyond the cap", append(binary.LittleEndian.AppendUint64(nil, 100_000_001), "{}"...),
			"header of 100000001 bytes, more than 100000000"},
		{"header beyond everything", append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "{}"...),
			"more than 100000000"},
		{"empty header", fileBytes("", 0), "does not begin with {"},
		{"space first", fileBytes(" {}", 0), "does not begin with {"},
		{"array", fileBytes("[]", 0), "does not begin with {"},
		{"invalid UTF-8", fileBytes("{\"\xff\":{}}", 0), "not UTF-8"},
		{"unfinished", fileBytes(`{"a":`, 0), "unexpected EOF"},
		{"trailing text", fileBytes(`{}{}`, 0), "invalid character '{' after top-level value"},
		{"NUL padding", fileBytes("{}\x00", 0), "header"},
		{"duplicate name",
			fileBytes(
				`{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}}`, 2),
			`duplicate key "a"`},
		{"duplicate name, escaped",
			fileBytes(
				`{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}}`,
				2), `duplicate key "a"`},
		{"duplicate dtype", fileBytes(`{"a":{"dtype":"I8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
			`duplicate key "dtype"`},
		{"duplicate metadata", fileBytes(`{"__metadata__":{},"__metadata__":{}}`, 0), `duplicate key "__metadata__"`},
		{"metadata not text", fileBytes(`{"__metadata__":{"n":1}}`, 0), "not of the right type"},
		{"entry not an object", fileBytes(`{"a":[]}`, 0), `"a": [ is not of the right type`},
		{"null", fileBytes(`{"a":{"dtype":"I8","shape":[null],"data_offsets":[0,1]}}`, 1), "null is not of the right type"},
		{"unknown key", fileBytes(`{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1],"x":1}}`, 1),
			`"x": not a key of a tensor`},
		{"missing key", fileBytes(`{"a":{"dtype":"I8","data_offsets":[0,1]}}`, 1), "is missing"},
		{"unknown dtype", fileBytes(`{"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}}`, 1), `unknown dtype "F7"`},
		{"negative extent", fileBytes(`{"a":{"dtype":"I8","shape":[-1],"data_offsets":[0,1]}}`, 1),
			"shape [-1] is out of range"},
		{"negative offset", fileBytes(`{"a":{"dtype":"I8","shape":[1],"data_offsets":[-1,0]}}`, 1), "data_offsets [-1 0]"},
		{"fractional extent", fileBytes(`{"a":{"dtype":"I8","shape":[1.0],"data_offsets":[0,1]}}`, 1),
			"1.0 is not an integer in range"},
		{"huge extent", fileBytes(`{"a":{"dtype":"I8","shape":[9223372036854775808],"data_offsets":[0,1]}}`, 1),
			"not an integer in range"},
		{"overflowing shape", fileBytes(`{"a":{"dtype":"I8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0),
			"out of range"},
		{"overflowing size", fileBytes(`{"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}}`, 0),
			"out of range"},
		{"size is not the shape's", fileBytes(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4),
			"4 bytes of data for shape [2] of F32"},
		{"odd half bytes", fileBytes(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1),
			"1 bytes of data for shape [3] of F4"},
		{"offsets reversed", fileBytes(`{"a":{"dtype":"I8","shape":[1],"data_offsets":[1,0]}}`, 1), "data_offsets [1 0]"},
		{"three offsets", fileBytes(`{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1,2]}}`, 1), "data_offsets [0 1 2]"},
		{"truncated", fileBytes(f32, 7), "truncated: 7 bytes of data, the header describes 8"},
		{"trailing data", fileBytes(f32, 9), "1 bytes after the last tensor"},
		{"hole before", fileBytes(`{"a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}}`, 2), "1 unused bytes before"},
		{"hole between",
			fileBytes(
				`{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[1],"data_offsets":[2,3]}}`, 3),
			"1 unused bytes before"},
		{"overlap",
			fileBytes(
				`{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}}`, 3),
			`"b": data overlaps`},
		{"same data",
			fileBytes(
				`{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}`, 2),
			`"b": data overlaps`},
	} {
		f, err := Open(writeFile(t, c.content))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.want)
		}
		if f != nil {
			f.Close()
		}
	}
}

func TestOpenOtherFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: got %v", err)
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got %v, want one that is os.ErrNotExist", err)
	}
}

func TestLFSPointer(t *testing.T) {
	oid := "oid sha256:" + strings.Repeat("ab", 32)
	path := writeFile(t, []byte("version https://git-lfs.github.com/spec/v1\n"+oid+"\nsize 529752\n"))
	_, err := Open(path)
	var got *LFSPointerError
	if !errors.As(err, &got) {
		t.Fatalf("got %v, want an LFSPointerError", err)
	}
	if want := (LFSPointerError{Path: path, Size: 529752}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if n := strings.Count(err.Error(), path); n != 1 {
		t.Errorf("%q names the path %d times", err, n)
	}
}

func TestTensor(t *testing.T) {
	b := fileBytes(
		`{"z":{"dtype":"I16","shape":[2,1],"data_offsets":[0,4]},"u":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}`, 0)
	start := len(b)
	b = append(b, 1, 0, 0xff, 0xff, 9)
	f, err := Open(writeFile(t, b))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, want := slices.Sorted(maps.Keys(f.entries)), []string{"u", "z"}; !slices.Equal(got, want) {
		t.Errorf("names: got %v, want %v", got, want)
	}
	z, err := f.Tensor("z")
	if err != nil {
		t.Fatal(err)
	}
	if z.DType != tensor.Int16 || !slices.Equal(z.Shape, []int{2, 1}) || !slices.Equal(float32s(z), []float32{1, -1}) {
		t.Errorf("got %+v, want int16 [2 1] of 1 and -1", z)
	}
	if off, ok := f.Offset("u"); !ok || off != int64(start+4) {
		t.Errorf("offset of u: got %v %v, want %v", off, ok, start+4)
	}
	if _, ok := f.Offset("none"); ok {
		t.Error("offset of a missing tensor: got ok")
	}
	for name, want := range map[string]string{"u": "dtype U8", "none": `no tensor "none"`} {
		if _, err := f.Tensor(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("tensor %s: got error %v, want one with %q", name, err, want)
		}
	}
}

func TestWrite(t *testing.T) {
	var in []Named
	for i, d := range tensor.DTypes() {
		x := tensor.New(d, i, 2)
		for j := range x.Data {
			x.Data[j] = byte(i + j)
		}
		in = append(in, Named{"tensor \"" + d.String(), x})
	}
	path := filepath.Join(t.TempDir(), "w.safetensors")
	metadata := map[string]string{"format": "pt", "a": "<&>"}
	if err := Write(path, in, metadata); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.data%8 != 0 {
		t.Errorf("data begins at %d, want a multiple of 8", f.data)
	}
	if !reflect.DeepEqual(f.Metadata(), metadata) {
		t.Errorf("metadata: got %v, want %v", f.Metadata(), metadata)
	}
	for _, w := range in {
		got, err := f.Tensor(w.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got.DType != w.Tensor.DType || !slices.Equal(got.Shape, w.Tensor.Shape) || !bytes.Equal(got.Data, w.Tensor.Data) {
			t.Errorf("%s: got %+v, want %+v", w.Name, got, w.Tensor)
		}
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("folder after writing: got %v, %v, want one file", left, err)
	}
}

// The expected bytes were written by Python's safetensors for one tensor without metadata.
func TestWriteBytes(t *testing.T) {
	x := tensor.New(tensor.BFloat16, 2)
	x.WriteFloat32s([]float32{1, 2}, 0)
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := Write(path, []Named{{"q", x}}, nil); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := "\x38\x00\x00\x00\x00\x00\x00\x00" + `{"q":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}} ` +
		"\x80\x3f\x00\x40"
	if string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestWriteRejects(t *testing.T) {
	one := tensor.New(tensor.Int8, 1)
	for name, in := range map[string][]Named{
		"duplicate":     {{"a", one}, {"a", one}},
		"metadata name": {{"__metadata__", one}},
		"invalid UTF-8": {{"\xff", one}},
		"short data":    {{"a", &tensor.Tensor{DType: tensor.Int8, Shape: []int{2}, Data: []byte{1}}}},
		"half a byte":   {{"a", tensor.New(tensor.Float4E2M1, 3)}},
	} {
		dir := t.TempDir()
		if err := Write(filepath.Join(dir, "w"), in, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

func TestWriteFailureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(target, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(target, nil, nil); err == nil {
		t.Error("writing over a folder: no error")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left %v, want the folder only", left)
	}
}

func FuzzSafetensors(f *testing.F) {
	f.Add(
		fileBytes(
			`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BOOL","shape":[],"data_offsets":[8,9]}}`, 9))
	f.Add(fileBytes(`{"__metadata__":{"k":"v"},"e":{"dtype":"F8_E4M3","shape":[3,0],"data_offsets":[0,0]}}  `, 0))
	f.Add(
		fileBytes(`{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}}`,
			3))
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		if len(content) < 8 {
			return // Open stops before parsing
		}
		first := &File{path: "x", mapping: content}
		if err := first.parse(); err != nil {
			return
		}
		total := 0
		var all []Named
		for name := range first.entries {
			e := first.entries[name]
			total += e.end - e.begin
			if x, err := first.Tensor(name); err == nil {
				if size, ok := x.DType.Bytes(x.Len()); !ok || size != len(x.Data) {
					t.Fatalf("%q: %d bytes for shape %v of %v", name, len(x.Data), x.Shape, x.DType)
				}
				all = append(all, Named{name, x})
			}
		}
		if total != len(content)-first.data {
			t.Fatalf("tensors cover %d of %d bytes", total, len(content)-first.data)
		}
		head, err := header(all, first.metadata)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			head = append(head, n.Tensor.Data...)
		}
		second := &File{path: "x", mapping: head}
		if err := second.parse(); err != nil {
			t.Fatalf("written again: %v", err)
		}
		for _, n := range all {
			x, err := second.Tensor(n.Name)
			if err != nil || fmt.Sprint(x) != fmt.Sprint(n.Tensor) {
				t.Fatalf("%q: got %v, %v, want %v", n.Name, x, err, n.Tensor)
			}
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	x := tensor.New(tensor.Float32, 8<<20)
	path := filepath.Join(b.TempDir(), "w")
	b.SetBytes(int64(len(x.Data)))
	for b.Loop() {
		if err := Write(path, []Named{{"x", x}}, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// float32s returns all elements.
func float32s(t *tensor.Tensor) []float32 {
	dst := make([]float32, t.Len())
	t.ReadFloat32s(dst, 0)
	return dst
}
