package pyworker

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fisub/bench/worker"
	"fisub/internal/trace"
)

// A tensorFile holds float32 values after 12 other bytes.
func tensorFile(t *testing.T, values ...float32) *worker.FileTensor {
	t.Helper()
	data := []byte("xxxxxxxxxxxx")
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	name := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return &worker.FileTensor{DType: "float32", Shape: []int{len(values)}, Path: name, Offset: 12, Bytes: 4 * len(values)}
}

// guarded loads x = 1, -2, 30 and c = 5 with guards; out takes the outputs.
func guarded(t *testing.T, client *worker.Client) (out *os.File) {
	t.Helper()
	out = outputs(t)
	five := trace.Scalar{Kind: trace.IntScalar, Int: 5}
	err := client.Load(t.Context(), &worker.Tensors{Guard: 512,
		Inputs: []worker.Value{{Tensor: tensorFile(t, 1, -2, 30)}, {Scalar: &five}},
		Outputs: []worker.Value{{Tensor: &worker.FileTensor{DType: "float32", Shape: []int{3}, Bytes: 12}},
			{Tensor: &worker.FileTensor{DType: "float32", Shape: []int{}, Offset: 256, Bytes: 4}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// at returns n floats near a tensor, at an offset in bytes, as a kernel reaches them.
const at = `
import ctypes, torch
def at(t, offset, n):
    if t.device.type == "cpu":
        return torch.frombuffer((ctypes.c_float * n).from_address(t.data_ptr() + offset), dtype=torch.float32)
    class There:
        __cuda_array_interface__ = {"shape": (n,), "typestr": "<f4", "data": (t.data_ptr() + offset, False), "version": 3}
    return torch.as_tensor(There(), device=t.device)
`

func TestCheck(t *testing.T) { testCheck(t, open(t, command(t))) }

// testCheck runs on any device.
func testCheck(t *testing.T, client *worker.Client) {
	const (
		passed = "def run(x, c, y, total):\n    y.copy_(x * c)\n    total.fill_(x.sum())\n"
		gave   = "import torch\nkept = {}\ndef run(x, c):\n"
	)
	two := []worker.FileTensor{{DType: "float32", Shape: []int{3}, Bytes: 12},
		{DType: "float32", Shape: []int{}, Offset: 256, Bytes: 4}}
	for _, tc := range []struct {
		name, source string
		passing      bool
		changed      []worker.Change
		outside      []worker.Change
		y            []float32 // on x = 1, -2, 30, then on 1, -2, 4, then on 7, 8, 9 at other addresses
	}{
		{"honest", passed, true, nil, nil, []float32{5, -10, 150, 5, -10, 20, 35, 40, 45}},
		{"honest, with values", gave + "    return x * c, x.sum()\n", false, nil, nil,
			[]float32{5, -10, 150, 5, -10, 20, 35, 40, 45}},
		{"writes an input", passed + "    x[1] = -2.5\n", true, []worker.Change{{Arg: 0, Offset: 6}}, nil, nil},
		{"computes in an input's memory", gave + "    x[1:] *= c\n    return x, x.sum()\n", false,
			[]worker.Change{{Arg: 0, Offset: 6}}, nil, nil},
		{"behind and before",
			passed +
				"    at(y, -8, 2).fill_(1)\n    at(x, 16, 1).fill_(1)\n    at(total, 512, 1).fill_(1)\n" + at, true, nil,
			[]worker.Change{{Arg: 0, Offset: 16}, {Arg: 2, Offset: -1}, {Arg: 3, Offset: 512}}, nil},
		{"by pointer", gave + "    return kept.setdefault(x.data_ptr(), (x * c, x.sum()))\n", false, nil, nil,
			[]float32{5, -10, 150, 5, -10, 150, 35, 40, 45}},
		{"by content", gave + "    return kept.setdefault(x[0].item(), (x * c, x.sum()))\n", false, nil, nil,
			[]float32{5, -10, 150, 5, -10, 150, 35, 40, 45}},
		{"the first call's tensors",
			"first = []\ndef run(*args):\n    first.append(args)\n    x, c, y, total = first[0]\n    y.copy_(x * c)\n    " +
				"total.fill_(x.sum())\n", true,
			nil, nil, []float32{5, -10, 150, 5, -10, 20}},
	} {
		if err := build(t, client, tc.source, tc.passing); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		out := guarded(t, client)
		look, err := client.Check(t.Context(), worker.Check{})
		if err != nil || len(look.Changed)+len(look.Outside)+len(look.Late) > 0 || look.Outputs != nil {
			t.Errorf("%s: before any call: got %+v, %v, want nothing", tc.name, look, err)
		}
		var got []float32
		for i, check := range []worker.Check{{}, {Inputs: []*worker.FileTensor{tensorFile(t, 1, -2, 4)}},
			{Move: true, Gap: 1 << 20, Inputs: []*worker.FileTensor{tensorFile(t, 7, 8, 9), nil}}} {
			check.Out = out
			found, err := client.Check(t.Context(), check)
			if err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			if want := two; tc.passing == (found.Outputs != nil) || !tc.passing && !reflect.DeepEqual(found.Outputs, want) {
				t.Errorf("%s: got outputs %+v", tc.name, found.Outputs)
			}
			if i == 0 && (!slices.Equal(found.Changed, tc.changed) || !slices.Equal(found.Outside, tc.outside)) ||
				len(found.Late) > 0 {
				t.Errorf("%s: got %+v, want changed %v, outside %v", tc.name, found, tc.changed, tc.outside)
			}
			got = append(got, floats(t, out, 0, 3)...)
		}
		if tc.name == "the first call's tensors" {
			if got[6] == got[6] {
				t.Errorf("%s: got %v, want the poison's NaN after the move", tc.name, got)
			}
			got = got[:6]
			back, err := client.Check(t.Context(), worker.Check{Back: true, Out: out})
			if y := floats(t, out, 0, 3); err != nil || !slices.Equal(y, got[3:]) || len(back.Changed) == 0 {
				t.Errorf("%s: back: got %v, %+v, %v, want %v on the contents from before the move", tc.name, y, back, err, got[3:])
			}
		}
		if tc.y != nil && !slices.Equal(got, tc.y) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.y)
		}
	}

	// Contents of another type or for too many inputs are rejected. Exceptions of a call are its own errors.
	short := tensorFile(t, 1, 2)
	var we *worker.Error
	for name, check := range map[string]worker.Check{
		"the new contents have a different type": {Inputs: []*worker.FileTensor{short}},
		"contents of 3 inputs, want 2":           {Inputs: make([]*worker.FileTensor, 3)}} {
		if _, err := client.Check(t.Context(), check); !errors.As(err, &we) || we.Kind != worker.Machine ||
			!strings.Contains(we.Text, name) {
			t.Errorf("got %v, want %s", err, name)
		}
	}
	if err := build(t, client, "def run(x, c, y, total):\n    raise ValueError('odd')\n", true); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Check(t.Context(), worker.Check{Out: guarded(t, client)}); !errors.As(err, &we) ||
		we.Kind != worker.Call || we.Text != "ValueError: odd" {
		t.Errorf("got %v, want the call's error", err)
	}
}

// A request's descriptors are closed when no input refers to them, however many requests follow a load.
func TestManyRequests(t *testing.T) {
	client := open(t, command(t))
	if err := build(t, client, "def run(x, c, y, total):\n    y.copy_(x * c)\n    total.fill_(x.sum())\n", true); err != nil {
		t.Fatal(err)
	}
	out := guarded(t, client)
	values := tensorFile(t, 7, 8, 9)
	var err error
	if values.File, err = os.Open(values.Path); err != nil {
		t.Fatal(err)
	}
	defer values.File.Close()
	values.Path = ""
	// A soft limit of 1024 is usual, and the worker's own descriptors are close to it.
	limit := unix.Rlimit{Cur: 1024, Max: 1024}
	if err := unix.Prlimit(client.PID(), unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		inputs := []*worker.FileTensor{values}
		if i%2 == 1 { // the same contents, of the last request's file
			inputs = nil
		}
		_, err := client.Check(t.Context(), worker.Check{Move: i%8 == 1, Inputs: inputs, Out: out})
		if y := floats(t, out, 0, 3); err != nil || !slices.Equal(y, []float32{35, 40, 45}) {
			t.Fatalf("request %d: got %v, %v", i, y, err)
		}
	}
}
