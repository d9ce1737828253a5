package workloads

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/safetensors"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads/random"
)

// toy is a definition with one tensor of each interesting kind.
const toy = `{"name":"toy","op_type":"toy","axes":{"n":{"type":"var"},"w":{"type":"const","value":2}},
	"inputs":{"x":{"shape":["n","w"],"dtype":"float32"},"y":{"shape":["n"],"dtype":"int8"},"s":{"shape":null,"dtype":"float32"}},
	"outputs":{"z":{"shape":["n"],"dtype":"float32"}},"reference":"def run(x, y, s): pass"}`

func root(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "\n\t", "")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func line(uuid, inputs string) string {
	return fmt.Sprintf(`{"definition":"toy","workload":{"axes":{"n":3},"inputs":{%s},"uuid":%q}}`, inputs, uuid)
}

func toyRoot(t *testing.T, inputs string) (*Dataset, *trace.Definition, *trace.Workload) {
	t.Helper()
	d, err := Open(root(t, map[string]string{"definitions/any/toy.json": toy, "workloads/w.jsonl": line("u", inputs)}),
		t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	def, err := d.Definition("toy")
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Workloads("toy", "")
	if err != nil {
		t.Fatal(err)
	}
	return d, def, ws[0]
}

func TestDefinition(t *testing.T) {
	d, _ := open(t)
	for _, c := range []struct {
		name        string
		near, track string // a name that the error must contain
		text        string
	}{
		{"gdn_decode_qk4_v8_d128_k_lst", decode, "", `definition "gdn_decode_qk4_v8_d128_k_lst": not found`},
		{"GDN_decode", decode, "", `definition "GDN_decode": not found`},
		{"gdn", "", decode, `"gdn" is a track of the contest, not a definition`},
		{"Gated-Delta-Net", "", "gdn_prefill_qk4_v8_d128_k_last", `"Gated-Delta-Net" is a track`},
		{"fused_moe", "", "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048", `"fused_moe" is a track`},
		{"sparse_attention", "", "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64", `"sparse_attention" is a track`},
		{"Gated-DeltaNet", "", "gdn_decode_qk4_v8_d128_k_last", `"Gated-DeltaNet" is a track`},
		{"nothing like it", "", "", `definition "nothing like it": not found`},
	} {
		_, err := d.Definition(c.name)
		var got *NotFoundError
		if !errors.As(err, &got) || !strings.HasPrefix(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.text)
			continue
		}
		if slices.Contains(got.Near, c.near) != (c.near != "") || slices.Contains(got.Track, c.track) != (c.track != "") {
			t.Errorf("%s: near %v, track %v; want %q and %q", c.name, got.Near, got.Track, c.near, c.track)
		}
	}
}

// A pipe in a dataset would block forever.
func TestOpenPipe(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "definitions"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(root, "definitions", "d.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(root, t.TempDir()); err == nil || !strings.HasSuffix(err.Error(), "d.json: is a FIFO, not a regular file") {
		t.Errorf("got %v, want a FIFO", err)
	}
}

func TestOpenRoot(t *testing.T) {
	other := strings.Replace(toy, `"name":"toy"`, `"name":"other"`, 1)
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string // part of the error of Open or of Workloads; "" for none
	}{
		{"two definitions", map[string]string{"definitions/a.json": toy, "definitions/x/y/b.json": other,
			"workloads/z/w.jsonl": line("u", "")}, ""},
		{"workload of an unknown definition", map[string]string{"definitions/a.json": toy,
			"workloads/w.jsonl": line("u", "") + "\n\n" + strings.Replace(line("u", ""), "toy", "gone", 1)}, ""},
		{"duplicate name", map[string]string{"definitions/a.json": toy, "definitions/b.json": toy},
			"b.json: Duplicate definition name: toy; the first is in "},
		{"two faulty definitions", map[string]string{"definitions/a.json": "{", "definitions/b.json": "[]"}, "b.json"},
		{"faulty workload", map[string]string{"definitions/a.json": toy, "workloads/w.jsonl": line("u", "") + "\n{}"},
			"w.jsonl:2"},
		{"a solution's trace", map[string]string{"definitions/a.json": toy,
			"workloads/w.jsonl": strings.Replace(line("u", ""), `"workload"`, `"solution":"s","workload"`, 1)},
			"w.jsonl: workload u: the line is a trace of a solution"},
		{"no workloads", map[string]string{"definitions/a.json": toy}, "definition toy: no workloads in the dataset"},
		{"only another set", map[string]string{"definitions/a.json": toy, "workloads/toy.big.ndjson": line("u", "")},
			`no workload set "default"; it has big`},
	} {
		dir := root(t, c.files)
		d, err := Open(dir, t.TempDir())
		if err == nil {
			_, err = d.Workloads("toy", "")
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: got %v", err)
	}
}

func TestSets(t *testing.T) {
	d, err := Open(root(t, map[string]string{"definitions/a.json": toy, "workloads/b.jsonl": line("2", ""),
		"workloads/a.jsonl":        line("1", ""),
		"workloads/toy.big.ndjson": line("3", ""), "workloads/x/toy.all.ndjson": line("4", "") + "\n" + line("5", "")}),
		t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if sets, err := d.Sets("toy"); err != nil || !slices.Equal(sets, []string{"default", "all", "big"}) {
		t.Errorf("sets: got %v, %v", sets, err)
	}
	for set, want := range map[string]string{"": "1 2", "default": "1 2", "big": "3", "all": "4 5"} {
		ws, err := d.Workloads("toy", set)
		var got []string
		for _, w := range ws {
			got = append(got, w.UUID)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("set %q: got %v, %v, want %s", set, got, err, want)
		}
	}
}

func TestLoadEmbedded(t *testing.T) {
	d, def := open(t)
	ws, err := d.Workloads(decode, "contest54")
	if err != nil {
		t.Fatal(err)
	}
	in, err := d.Load(t.Context(), def, ws[10], 0)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var names []string
	for _, v := range in.Values {
		names = append(names, v.Name)
		spec, _ := def.Inputs.Get(v.Name)
		if v.Name == "scale" {
			if v.Scalar == nil || v.Scalar.Kind != trace.FloatScalar || v.Scalar.Float != 1/math.Sqrt(128) || v.Tensor != nil {
				t.Errorf("scale: got %+v", v)
			}
			continue
		}
		want, _ := def.Shape(spec, map[string]int{"batch_size": 4})
		if v.Tensor == nil || !slices.Equal(v.Tensor.Shape, want) || v.Tensor.DType != spec.DType {
			t.Errorf("%s: got %+v, want shape %v", v.Name, v.Tensor, want)
			continue
		}
		data := make([]byte, len(v.Tensor.Data))
		f, err := os.Open(v.Path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(data, v.Offset); err != nil || !slices.Equal(data, v.Tensor.Data) {
			t.Errorf("%s: the file at %d has other bytes, %v", v.Name, v.Offset, err)
		}
		f.Close()
	}
	if !slices.Equal(names, def.Inputs.Keys()) {
		t.Errorf("order: got %v, want %v", names, def.Inputs.Keys())
	}
	if want := filepath.Join(d.Root(), "blob", "workloads", "gdn", decode,
		decode+"_"+ws[10].UUID+".safetensors"); in.Values[0].Path != want {
		t.Errorf("path: got %s, want %s", in.Values[0].Path, want)
	}
}

// The bytes of a generated file are the same on every machine and with any number of cores. An intended change needs a
// new generator version, so that files in caches are regenerated.
func TestSynthBytes(t *testing.T) {
	for _, procs := range []int{1, 8} {
		t.Run(fmt.Sprint(procs), func(t *testing.T) {
			setProcs(t, procs)
			d, def := open(t)
			ws, err := d.Workloads(decode, "")
			if err != nil {
				t.Fatal(err)
			}
			in, err := d.Load(t.Context(), def, ws[0], 0)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			data, err := os.ReadFile(in.Values[0].Path)
			if err != nil {
				t.Fatal(err)
			}
			const want = "cf6b2056f20976b87a697a7aa7d46edfc7c6f76ee2594ecda92555c266dc2b94"
			if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != want {
				t.Errorf("%d bytes: got sha256 %s, want %s", len(data), got, want)
			}
		})
	}
}

func TestSynthRanges(t *testing.T) {
	d, def := open(t)
	ws, err := d.Workloads(decode, "contest54")
	if err != nil {
		t.Fatal(err)
	}
	in, err := d.Load(t.Context(), def, ws[20], 0)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, v := range in.Values {
		if v.Tensor == nil {
			continue
		}
		xs := float32s(v.Tensor)
		var squares float64
		lo, hi := math.Inf(1), math.Inf(-1)
		for _, x := range xs {
			squares += float64(x) * float64(x)
			lo, hi = min(lo, float64(x)), max(hi, float64(x))
		}
		sd, slack := math.Sqrt(squares/float64(len(xs))), 5/math.Sqrt(2*float64(len(xs)))
		switch v.Name {
		case "q", "v", "a", "b":
			if math.Abs(sd-1) > slack {
				t.Errorf("%s: deviation %v, want 1", v.Name, sd)
			}
		case "state":
			if math.Abs(sd-0.25) > slack/4 {
				t.Errorf("state: deviation %v, want 0.25", sd)
			}
		case "A_log":
			if lo < 0 || hi > math.Log(16)+1e-6 || hi-lo < 0.5 {
				t.Errorf("A_log: from %v to %v, want 0 to log 16", lo, hi)
			}
		case "dt_bias": // softplus gives the time step back
			if lo, hi := math.Log1p(math.Exp(lo)), math.Log1p(math.Exp(hi)); lo < 0.0009999 || hi > 0.1000001 || hi < 2*lo {
				t.Errorf("dt_bias: time steps from %v to %v, want 0.001 to 0.1", lo, hi)
			}
		case "k":
			for i := 0; i < len(xs); i += 128 {
				length := 0.0
				for _, x := range xs[i : i+128] {
					length += float64(x) * float64(x)
				}
				if math.Abs(length-1) > 0.01 {
					t.Fatalf("k: row %d has squared length %v, want 1", i/128, length)
				}
			}
		}
	}
	if ws2, err := d.Load(t.Context(), def, ws[21], 0); err != nil {
		t.Error(err)
	} else {
		if slices.Equal(ws2.Values[0].Tensor.Data, in.Values[0].Tensor.Data) {
			t.Error("two workloads have the same q")
		}
		ws2.Close()
	}
}

func TestCuts(t *testing.T) {
	for _, c := range []struct{ n, tokens int }{{2, 6}, {39, 8192}, {5, 4}, {5, 3}, {3, 0}, {1, 0}} {
		points := make([]float32, c.n)
		cuts(c.n, c.tokens)(random.New("cuts"), points, 0)
		if points[0] != 0 || points[c.n-1] != float32(c.tokens) || !slices.IsSorted(points) {
			t.Errorf("%d points over %d tokens: got %v", c.n, c.tokens, points)
		}
		for i := 1; i < c.n && c.tokens >= c.n-1; i++ {
			if points[i] == points[i-1] {
				t.Errorf("%d points over %d tokens: an empty sequence in %v", c.n, c.tokens, points)
			}
		}
	}
}

func TestRandomInputs(t *testing.T) {
	d, def, w := toyRoot(t, `"x":{"type":"random"}`) // y and s are missing, which means random
	first, err := d.Load(t.Context(), def, w, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := d.Load(t.Context(), def, w, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	x, y, s := first.Values[0], first.Values[1], first.Values[2]
	if x.Tensor == nil || !slices.Equal(x.Tensor.Shape, []int{3, 2}) || x.Path != "" {
		t.Errorf("x: got %+v at %s, want a tensor in memory", x.Tensor, x.Path)
	}
	if y.Tensor == nil || y.Tensor.DType != tensor.Int8 || s.Scalar == nil || s.Scalar.Kind != trace.FloatScalar ||
		s.Scalar.Float == 0 {
		t.Errorf("y and s: got %+v and %+v", y, s)
	}
	if !slices.Equal(x.Tensor.Data, second.Values[0].Tensor.Data) || *s.Scalar != *second.Values[2].Scalar {
		t.Error("the second time the inputs are others")
	}
}

func TestRandomDistributions(t *testing.T) {
	def := &trace.Definition{Name: "d", OpType: "o"}
	for _, c := range []struct {
		dtype        tensor.DType
		lo, hi, mean float64
	}{
		{tensor.Float32, -6.4, 6.4, 0}, {tensor.BFloat16, -6.4, 6.4, 0}, {tensor.Float16, -6.4, 6.4, 0},
		{tensor.Float8E4M3FN, -2, 2, 0},
		{tensor.Float8E5M2, -2, 2, 0}, {tensor.Float4E2M1, -2, 2, 0}, {tensor.Bool, 0, 1, 0.5},
		{tensor.Int8, -128, 127, -0.5},
		{tensor.Int16, -1024, 1023, -0.5}, {tensor.Int32, -1024, 1023, -0.5}, {tensor.Int64, -1024, 1023, -0.5},
	} {
		shape := []int{1 << 10, 101}
		s := synthetic{dtype: c.dtype, shape: shape, stream: random.New("x")}
		s.distributeRandom(def, "x")
		x, err := s.make(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.codes = nil; c.dtype.Bits() == 8 && c.dtype.IsFloat() {
			if plain, err := s.make(t.Context()); err != nil || !slices.Equal(plain.Data, x.Data) {
				t.Errorf("%v: bytes at once are others than those of the values, %v", c.dtype, err)
			}
		}
		sum, lo, hi := 0.0, math.Inf(1), math.Inf(-1)
		for _, v := range float32s(x) {
			sum, lo, hi = sum+float64(v), min(lo, float64(v)), max(hi, float64(v))
		}
		reach := 0.6 // normals do not come near their bounds
		if mean := sum / float64(x.Len()); lo < c.lo || hi > c.hi || hi < c.hi*reach || lo > c.lo*reach ||
			math.Abs(mean-c.mean) > 0.02*c.hi {
			t.Errorf("%v: from %v to %v, mean %v; want from %v to %v, mean %v", c.dtype, lo, hi, mean, c.lo, c.hi, c.mean)
		}
	}
}

// Every number must give the byte of its value: numbers near each change of the byte, and many others.
func TestCodes(t *testing.T) {
	for name, c := range map[string]*codes{"e4m3fn": codesE4M3FN(), "e5m2": codesE5M2()} {
		check := func(u uint32) {
			if got, want := c.code(u), c.exact(u); got != want {
				t.Fatalf("%s: %#x: got byte %#x, want %#x", name, u, got, want)
			}
		}
		changes := 0
		const width = 1 << (32 - codeBits)
		for i, code := range c.all {
			first, last := uint32(i*width), uint32(i*width+width-1)
			check(first)
			check(last)
			for u := uint64(first); u < uint64(last); u += 4099 {
				check(uint32(u))
			}
			if code != hard {
				continue
			}
			// find each change by bisection
			for u, v := first, last; u < last && c.exact(u) != c.exact(last); u, v = v, last {
				for below := u; v-below > 1; {
					if middle := below + (v-below)/2; c.exact(middle) == c.exact(u) {
						below = middle
					} else {
						v = middle
					}
				}
				changes++
				check(v - 1)
				check(v)
			}
		}
		if changes < 50 {
			t.Errorf("%s: only %d changes of the byte were seen", name, changes)
		}
	}
}

// Random inputs are the same each time, and nobody can change them.
func TestRandomInputsAreSealed(t *testing.T) {
	d, def, w := toyRoot(t, `"x":{"type":"random"},"y":{"type":"random"},"s":{"value":1}`)
	var sums [2][sha256.Size]byte
	for i := range sums {
		in, err := d.Load(t.Context(), def, w, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		sums[i] = sha256.Sum256(in.Values[0].Tensor.Data)
		checkSealed(t, in)
	}
	if sums[0] != sums[1] {
		t.Error("x: other values the second time")
	}
}

// checkSealed checks that the inputs are in memory, and that a process with access to the memory cannot change it.
func checkSealed(t *testing.T, in *Inputs) {
	t.Helper()
	if in.memory == nil {
		t.Fatal("no memory")
	}
	for _, v := range in.Values {
		if v.Tensor == nil || v.Path != "" {
			continue
		}
		data := make([]byte, len(v.Tensor.Data))
		if _, err := in.memory.ReadAt(data, v.Offset); err != nil || !slices.Equal(data, v.Tensor.Data) {
			t.Errorf("%s: the memory at %d has other bytes, %v", v.Name, v.Offset, err)
		}
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", in.memory.Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1}, 0); !errors.Is(err, os.ErrPermission) {
		t.Errorf("writing: got %v, want a refusal", err)
	}
	if err := f.Truncate(0); !errors.Is(err, os.ErrPermission) {
		t.Errorf("truncating: got %v, want a refusal", err)
	}
}

// A submission that can change files may have left zeros in the cache; they are not used as inputs. While it can change
// files, nothing is read from the cache.
func TestInputsChangedInTheCache(t *testing.T) {
	was := protected
	defer func() { protected = was }()
	d, def := open(t)
	ws, err := d.Workloads(decode, "")
	if err != nil {
		t.Fatal(err)
	}
	read := func() (data [][]byte, path string) {
		t.Helper()
		in, err := d.Load(t.Context(), def, ws[0], 0)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if !protected() {
			checkSealed(t, in)
		}
		for _, v := range in.Values {
			if v.Tensor != nil {
				data = append(data, slices.Clone(v.Tensor.Data))
			}
		}
		return data, in.Values[0].Path
	}
	protected = func() bool { return true }
	want, path := read()
	for _, safe := range []bool{true, false} {
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := f.Offset("state")
		x, err := f.Tensor("state")
		if err != nil {
			t.Fatal(err)
		}
		zeros := make([]byte, len(x.Data))
		f.Close()
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteAt(zeros, at); err != nil {
			t.Fatal(err)
		}
		w.Close()
		protected = func() bool { return safe }
		got, path := read()
		if !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("safe %t: other inputs than before", safe)
		}
		if safe == (path == "") {
			t.Errorf("safe %t: the path is %q", safe, path)
		}
	}
}

// Goroutines must not share the byte of two float4 elements: with rows this long and odd, each would begin inside one.
func TestHalfBytes(t *testing.T) {
	s := synthetic{dtype: tensor.Float4E2M1, shape: []int{32, chunk + 1}, stream: random.New("x")}
	s.fill = func(_ random.Stream, dst []float32, first int) {
		if first%2 != 0 {
			t.Errorf("a part begins at element %d", first)
		}
		for i := range dst {
			dst[i] = 3
		}
	}
	x, err := s.make(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range float32s(x) {
		if v != 3 {
			t.Fatalf("element %d: got %v, want 3", i, v)
		}
	}
}

func TestSpecialDistributions(t *testing.T) {
	made := func(op, name, input string, d tensor.DType, shape ...int) *tensor.Tensor {
		s := synthetic{dtype: d, shape: shape, stream: random.New("x"),
			fill: randomFill(&trace.Definition{Name: name, OpType: op}, input, d, shape)}
		x, err := s.make(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	const pages, tokens = 40, 64
	packed := made("dsa_paged", "dsa_topk_indexer_x", "k_index_cache_fp8", tensor.Int8, pages, tokens, 1, 132).Data
	var squares float64
	for p := range pages {
		page := packed[p*tokens*132:]
		for tok := range tokens {
			scale := floatAt(page[tokens*128+4*tok:])
			largest := 0.0
			for _, b := range page[tok*128 : (tok+1)*128] {
				x := float64(tensor.Float32FromFloat8E4M3FN(b))
				largest = max(largest, math.Abs(x))
				squares += x * x * scale * scale
			}
			if largest != 448 {
				t.Fatalf("index cache: page %d, token %d: largest value %v of scale %v, want 448", p, tok, largest, scale)
			}
		}
	}
	if sd := math.Sqrt(squares / (pages * tokens * 128)); math.Abs(sd-1) > 0.01 {
		t.Errorf("index cache: deviation %v, want 1", sd)
	}
}

func floatAt(b []byte) float64 {
	x := tensor.Tensor{DType: tensor.Float32, Shape: []int{1}, Data: b[:4]}
	return float64(float32s(&x)[0])
}

func write(t *testing.T, path string, tensors ...safetensors.Named) {
	t.Helper()
	if err := safetensors.Write(path, tensors, nil); err != nil {
		t.Fatal(err)
	}
}

// file is the JSON of an input in a file.
func file(path, key string) string {
	return fmt.Sprintf(`{"type":"safetensors","path":%q,"tensor_key":%q}`, path, key)
}

func TestLoadFaults(t *testing.T) {
	x, y := tensor.New(tensor.Float32, 3, 2), tensor.New(tensor.Int8, 3)
	outside := filepath.Join(t.TempDir(), "outside.safetensors")
	write(t, outside, safetensors.Named{Name: "x", Tensor: x}, safetensors.Named{Name: "y", Tensor: y})
	for _, c := range []struct {
		name, inputs string
		want         []string // parts of the error; none for success
	}{
		{"good", `"x":` + file("./b.safetensors", "x") + `,"y":` + file("b.safetensors", "y") + `,"s":{"value":1}`, nil},
		{"absolute", `"x":` + file(outside, "x") + `,"s":{"value":1}`, nil},
		{"missing file", `"x":` + file("none.safetensors", "x") + `,"s":{"value":1}`,
			[]string{"workload u: ", "none.safetensors: no such file"}},
		{"missing key", `"x":` + file("b.safetensors", "w") + `,"s":{"value":1}`,
			[]string{"Missing key 'w' in '", "b.safetensors'"}},
		{"wrong shape", `"x":` + file("b.safetensors", "y") + `,"s":{"value":1}`, []string{"'x' expected [3, 2], got [3]"}},
		{"wrong dtype", `"x":` + file("b.safetensors", "h") + `,"s":{"value":1}`,
			[]string{"'x' expected torch.float32, got torch.float16"}},
		{"not finite", `"x":` + file("b.safetensors", "x") + `,"s":{"value":NaN}`,
			[]string{"'s' is NaN: traces can contain only finite numbers"}},
		{"too large to be finite", `"x":` + file("b.safetensors", "x") + `,"s":{"value":-1e400}`, []string{"'s' is -Inf: "}},
		{"all faults", `"x":` + file("b.safetensors", "y") + `,"y":{"value":1},"s":` + file("b.safetensors", "x"),
			[]string{"'x' expected", "'y' is a tensor, the workload gives a scalar",
				"'s' is a scalar, the workload gives a tensor"}},
		{"both files", `"x":` + file("n1.safetensors", "x") + `,"y":` + file("n2.safetensors", "x"),
			[]string{"n1.safetensors", "n2.safetensors"}},
		{"leaves the root", `"x":` + file("../outside.safetensors", "x"),
			[]string{`path "../outside.safetensors" is outside the dataset`}},
		{"leaves the root later", `"x":` + file("a/../../outside.safetensors", "x"), []string{"is outside the dataset"}},
		{"corrupt", `"x":` + file("c.safetensors", "x"), []string{"c.safetensors: header of"}},
		{"pointer", `"x":` + file("p.safetensors", "x") + `,"y":` + file("p.safetensors", "y"),
			[]string{"p.safetensors: is a Git LFS pointer"}},
	} {
		d, def, w := toyRoot(t, c.inputs)
		write(t, filepath.Join(d.Root(), "b.safetensors"), safetensors.Named{Name: "x", Tensor: x},
			safetensors.Named{Name: "y", Tensor: y},
			safetensors.Named{Name: "h", Tensor: tensor.New(tensor.Float16, 3, 2)})
		for name, text := range map[string]string{"c.safetensors": "\xff\xff\x00\x00\x00\x00\x00\x00{}",
			"p.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"} {
			if err := os.WriteFile(filepath.Join(d.Root(), name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		in, err := d.Load(t.Context(), def, w, 0)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: got error %v, want %v", c.name, err, c.want)
		}
		for _, want := range c.want {
			if err != nil && strings.Count(err.Error(), want) != 1 {
				t.Errorf("%s: got error %v, want %q once", c.name, err, want)
			}
		}
		var pointer *safetensors.LFSPointerError
		if errors.As(err, &pointer) != (c.name == "pointer") {
			t.Errorf("%s: got error %v", c.name, err)
		}
		if err == nil {
			in.Close()
		}
		reports, verr := d.Verify(t.Context(), def, []*trace.Workload{w})
		if verr != nil {
			t.Fatal(verr)
		}
		all := errors.Join(reports[0].Faults...)
		for _, want := range c.want {
			if want = strings.TrimPrefix(want, "workload u: "); all == nil || !strings.Contains(all.Error(), want) {
				t.Errorf("%s: verify says %v, want %q", c.name, all, want)
			}
		}
	}
}

func TestVerifyNames(t *testing.T) {
	d, def, _ := toyRoot(t, "")
	var ws []*trace.Workload
	for _, text := range []string{
		`{"axes":{"n":0,"w":2,"q":1},"inputs":{"x":{},"s":{},"extra":{}},"uuid":"1"}`,
		`{"axes":{},"inputs":{"x":{},"y":{},"s":{"value":1}},"uuid":"2"}`,
		`{"axes":{"n":1},"inputs":{"x":{},"y":{},"s":{"value":1}},"uuid":"2"}`,
		`{"axes":{"n":1},"inputs":{"x":{},"y":{},"s":{"value":1}},"uuid":"3"}`,
	} {
		w, _, err := trace.DecodeWorkload([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		ws = append(ws, w)
	}
	reports, err := d.Verify(t.Context(), def, ws)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"axis 'n' is 0", "extra axis 'w'", "extra axis 'q'", "missing input 'y'",
			"'s' is a scalar, the workload gives a random tensor", "extra input 'extra'"},
		{"missing axis 'n'"},
		{"duplicate uuid"},
		nil,
	} {
		var got []string
		for _, f := range reports[i].Faults {
			got = append(got, f.Error())
		}
		if !slices.Equal(got, want) {
			t.Errorf("workload %d: got %q, want %q", i, got, want)
		}
	}
}

// Workloads that name the same file share one opening of it: opened for each workload, this file's header would keep
// the test busy for longer than go test allows.
func TestVerifyOpensFilesOnce(t *testing.T) {
	d, def, w := toyRoot(t, `"x":`+file("b.safetensors", "x")+`,"y":{},"s":{"value":1}`)
	tensors := []safetensors.Named{{Name: "x", Tensor: tensor.New(tensor.Float32, 3, 2)}}
	for i := range 20_000 {
		tensors = append(tensors, safetensors.Named{Name: fmt.Sprint(i), Tensor: tensor.New(tensor.Float32, 0)})
	}
	write(t, filepath.Join(d.Root(), "b.safetensors"), tensors...)
	reports, err := d.Verify(t.Context(), def, slices.Repeat([]*trace.Workload{w}, 30_000))
	if err != nil {
		t.Fatal(err)
	}
	if len(reports) != 30_000 || reports[0].Faults != nil || reports[0].Files != 1 {
		t.Errorf("got %d reports, the first with %d files and %v", len(reports), reports[0].Files, reports[0].Faults)
	}
	for _, r := range reports[1:] {
		if len(r.Faults) != 1 || r.Faults[0].Error() != "duplicate uuid" {
			t.Fatalf("got %v, want one duplicate uuid", r.Faults)
		}
	}
}

// More files than are kept open at once are all verified.
func TestVerifyManyFiles(t *testing.T) {
	d, def, _ := toyRoot(t, "")
	var ws []*trace.Workload
	for i := range 2*maxOpened + 2 {
		name := fmt.Sprintf("%d.safetensors", i/2%(maxOpened+1))
		write(t, filepath.Join(d.Root(), name), safetensors.Named{Name: "x", Tensor: tensor.New(tensor.Float32, 3, 2)})
		got, _, err := trace.DecodeTrace([]byte(line(fmt.Sprint(i), `"x":`+file(name, "x")+`,"y":{},"s":{"value":1}`)))
		if err != nil {
			t.Fatal(err)
		}
		ws = append(ws, &got.Workload)
	}
	reports, err := d.Verify(t.Context(), def, ws)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range reports {
		if len(r.Faults) > 0 || r.Files != 1 {
			t.Errorf("workload %d: got %d files, %v", i, r.Files, r.Faults)
		}
	}
}

func TestSynth(t *testing.T) {
	inputs := `"x":{"path":"b/1.safetensors","tensor_key":"k"},"y":{"path":"b/1.safetensors","tensor_key":"y"},"s":{"value":1}`
	d, def, w := toyRoot(t, inputs)
	ws := []*trace.Workload{w}
	if _, err := d.Load(t.Context(), def, w, 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("loading before: got %v, want a missing file", err)
	}
	var calls []string
	if err := d.Synth(t.Context(), def, ws, "",
		func(done, total int) { calls = append(calls, fmt.Sprint(done, "/", total)) }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"0/1", "1/1"}; !slices.Equal(calls, want) {
		t.Errorf("progress: got %q, want %q", calls, want)
	}
	in, err := d.Load(t.Context(), def, w, 0)
	if err != nil {
		t.Fatal(err)
	}
	path := in.Values[0].Path
	in.Close()

	// An existing user file stays, even an invalid one, which is an error.
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Synth(t.Context(), def, ws, "", nil); err != nil {
		t.Error(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was made again: %v", err)
	}
	if err := os.WriteFile(path, []byte("garbage, garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.Synth(t.Context(), def, ws, "", nil); err == nil {
		t.Error("over an invalid file: no error")
	}
	if text, _ := os.ReadFile(path); string(text) != "garbage, garbage" {
		t.Errorf("the invalid file is now %q", text)
	}

	// An older recipe's file is replaced.
	old := safetensors.Named{Name: "k", Tensor: tensor.New(tensor.Int8, 1)}
	if err := safetensors.Write(path, []safetensors.Named{old},
		map[string]string{"generator": "fisub.synth/0"}); err != nil {
		t.Fatal(err)
	}
	if err := d.Synth(t.Context(), def, ws, "", nil); err != nil {
		t.Error(err)
	}
	if in, err := d.Load(t.Context(), def, w, 0); err != nil {
		t.Error(err)
	} else {
		in.Close()
	}

	dest := t.TempDir()
	if err := d.Synth(t.Context(), def, ws, dest, nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dest, "b", "1.safetensors")); err != nil {
		t.Error(err)
	}
}

func TestSynthRejects(t *testing.T) {
	for inputs, want := range map[string]string{
		`"x":{"path":"/abs.safetensors","tensor_key":"k"}`:                                            `path "/abs.safetensors" is outside`,
		`"x":{"path":"../up.safetensors","tensor_key":"k"}`:                                           `path "../up.safetensors" is outside`,
		`"x":{"path":"a.safetensors","tensor_key":"k"},"y":{"path":"a.safetensors","tensor_key":"k"}`: `conflicting uses of tensor "k" of a.safetensors: float32 [3 2] and int8 [3]`,
		`"x":{"path":"a\u0000.safetensors","tensor_key":"k"}`:                                         "is outside",
		`"x":{"path":"a.safetensors","tensor_key":"__metadata__"}`:                                    "is taken",
	} {
		d, def, w := toyRoot(t, inputs)
		if err := d.Synth(t.Context(), def, []*trace.Workload{w}, "", nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", inputs, err, want)
		}
	}
	d, def, w := toyRoot(t, `"x":{"path":"a.safetensors","tensor_key":"k"}`)
	w.Axes.Set("n", 1<<31)
	if err := d.Synth(t.Context(), def, []*trace.Workload{w}, "", nil); err == nil ||
		!strings.Contains(err.Error(), "too large to generate") {
		t.Errorf("a huge axis: got error %v", err)
	}
	w.Axes.Set("n", 3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Synth(ctx, def, []*trace.Workload{w}, "", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got error %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.Root(), "a.safetensors")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("cancelled: a file was written, %v", err)
	}
}

// A damaged file in the cache, or one of other shapes, is regenerated, since it belongs to fisub.
func TestEmbeddedHeals(t *testing.T) {
	d, def := open(t)
	ws, err := d.Workloads(decode, "")
	if err != nil {
		t.Fatal(err)
	}
	other := safetensors.Named{Name: "q", Tensor: tensor.New(tensor.BFloat16, 2, 1, 4, 128)}
	for _, spoil := range []func(path string) error{
		func(path string) error { return os.Truncate(path, 1000) },
		func(path string) error {
			return safetensors.Write(path, []safetensors.Named{other}, map[string]string{"generator": generator})
		},
		func(string) error { return nil },
	} {
		in, err := d.Load(t.Context(), def, ws[0], 0)
		if err != nil {
			t.Fatal(err)
		}
		path := in.Values[0].Path
		in.Close()
		if err := spoil(path); err != nil {
			t.Fatal(err)
		}
	}
}

// Generated files that were not used for a month are removed when another one is made; those in use are kept.
func TestOldInputsAreRemoved(t *testing.T) {
	d, def := open(t)
	ws, err := d.Workloads(decode, "")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, w := range ws[:2] {
		in, err := d.Load(t.Context(), def, w, 0)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, in.Values[0].Path)
		in.Close()
	}
	if !protected() {
		t.Skip("no files are kept")
	}
	long := time.Now().Add(-keptAge - time.Hour)
	for _, path := range paths {
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range ws[1:3] {
		in, err := d.Load(t.Context(), def, w, 0)
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
	}
	if _, err := os.Stat(paths[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an old file: got %v, want it removed", err)
	}
	if _, err := os.Stat(paths[1]); err != nil {
		t.Errorf("a file used again: %v", err)
	}
}

// The contest's own workloads must be loadable from generated files.
func TestContestDataset(t *testing.T) {
	d, err := Open(officialDataset(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, count := range map[string]int{decode: 54, "gdn_prefill_qk4_v8_d128_k_last": 100} {
		def, err := d.Definition(name)
		if err != nil {
			t.Fatal(err)
		}
		ws, err := d.Workloads(name, "")
		if err != nil || len(ws) != count {
			t.Fatalf("%s: got %d workloads, %v, want %d", name, len(ws), err, count)
		}
		if err := d.Synth(t.Context(), def, ws[:2], "", nil); err != nil {
			t.Fatal(err)
		}
		reports, err := d.Verify(t.Context(), def, ws)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range reports {
			if want := i >= 2; (len(r.Faults) > 0) != want {
				t.Errorf("%s: workload %d: got %v, want faults: %v", name, i, r.Faults, want)
			}
		}
		in, err := d.Load(t.Context(), def, ws[0], 0)
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
	}
}

func BenchmarkSynthBatch64(b *testing.B) {
	d, def := open(b)
	ws, err := d.Workloads(decode, "contest54")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := d.Synth(b.Context(), def, ws[len(ws)-1:], b.TempDir(), nil); err != nil {
			b.Fatal(err)
		}
	}
}

// A failed copy leaves no file, which the next import would take for a complete one.
func TestCopyFile(t *testing.T) {
	to := filepath.Join(t.TempDir(), "blob", "x.safetensors")
	if err := copyFile(t.TempDir(), to); err == nil { // opening a folder works, reading it fails
		t.Error("a folder was copied as a file")
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want no file", err)
	}
}
