package workloads

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fisub/internal/trace"
)

const (
	decode    = "gdn_decode_qk4_v8_d128_k_last"
	prefill   = "gdn_prefill_qk4_v8_d128_k_last"
	moe       = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
	attention = "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64"
	indexer   = "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64"
)

func TestEmbeddedDataset(t *testing.T) {
	d, _ := open(t)
	seen := map[string]bool{}
	for _, name := range d.Definitions() {
		def, err := d.Definition(name)
		if err != nil {
			t.Fatal(err)
		}
		sets, err := d.Sets(name)
		if err != nil || sets[0] != DefaultSet {
			t.Errorf("%s: got sets %v, %v, want %s first", name, sets, err, DefaultSet)
		}
		for _, set := range sets {
			ws, err := d.Workloads(name, set)
			if err != nil || len(ws) == 0 {
				t.Errorf("%s %s: got %d workloads, %v", name, set, len(ws), err)
			}
			for _, w := range ws {
				if seen[w.UUID] {
					t.Errorf("uuid %s comes twice", w.UUID)
				}
				seen[w.UUID] = true
			}
			if set == EdgeSet {
				continue
			}
			reports, err := d.Verify(t.Context(), def, ws)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range reports {
				if len(r.Faults) > 0 || r.Files != 1 || r.Absent != 1 {
					t.Errorf("%s %s %s: got %+v, want one absent file and no fault", name, set, r.UUID, r)
				}
			}
		}
	}
	for pattern, warnings := range map[string]func(string) []trace.Warning{
		"../definitions/*/*.json": func(file string) []trace.Warning { _, w, _ := trace.ReadDefinition(file); return w },
		"*/*json*":                func(file string) []trace.Warning { _, w, _ := trace.ReadTraces(file); return w },
	} {
		files, _ := filepath.Glob(pattern)
		if len(files) < 2 {
			t.Errorf("%s: got %d files", pattern, len(files))
		}
		for _, file := range files {
			if w := warnings(file); len(w) > 0 {
				t.Errorf("warnings: %v", w)
			}
		}
	}
}

// Indices are distinct slots of the pool, including the last one. Padding occurs only if the definition describes its
// result.
func TestSlots(t *testing.T) {
	d, _ := open(t)
	padded := 0
	for _, name := range []string{"gdn_mtp_verify_qk4_v8_d128_k_last", "gdn_mtp_output_qk4_v8_d128_k_last"} {
		def, err := d.Definition(name)
		if err != nil {
			t.Fatal(err)
		}
		ws, err := d.Workloads(name, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range ws {
			in, err := d.Load(t.Context(), def, w, 0)
			if err != nil {
				t.Fatal(err)
			}
			slots, pool := in.Values[4].Tensor.Ints(), in.Values[3].Tensor.Shape[0]
			in.Close()
			if slots[0] != pool-1 {
				t.Errorf("%s: first row reads slot %d of %d", name, slots[0], pool)
			}
			taken := map[int]bool{}
			for i, slot := range slots {
				switch {
				case slot == -1 && strings.Contains(name, "output"):
					padded++
				case slot < 0 || slot >= pool || taken[slot]:
					t.Errorf("%s %s: slot %d at index %d of %v", name, w.UUID, slot, i, slots)
				}
				taken[slot] = true
			}
		}
	}
	if padded == 0 {
		t.Error("no row is padding")
	}
}

// officialDataset creates a dataset of the contest's definitions, and workloads with the axes and inputs of the
// official ones.
func officialDataset(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const source = "testdata/contest"
	if err := os.CopyFS(filepath.Join(dir, "definitions"), os.DirFS(filepath.Join(source, "definitions"))); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(source, "workloads.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range strings.Split(strings.TrimSpace(string(table)), "\n")[1:] {
		cells := strings.Split(row, "\t")
		def, uuid := cells[0], cells[1]
		op, _, _ := strings.Cut(def, "_")
		line := trace.Trace{Definition: def, Workload: trace.Workload{UUID: uuid}}
		for _, axis := range strings.Fields(cells[2]) {
			name, size, _ := strings.Cut(axis, "=")
			n, err := strconv.Atoi(size)
			if err != nil {
				t.Fatal(err)
			}
			line.Workload.Axes.Set(name, n)
		}
		for _, input := range strings.Fields(cells[3]) {
			name, value, other := strings.Cut(input, "=")
			in := trace.InputSpec{Kind: trace.Safetensors, TensorKey: name,
				Path: fmt.Sprintf("./blob/workloads/%s/%s/%s_%s.safetensors", op, def, def, uuid)}
			if other {
				in = trace.InputSpec{}
			}
			if other && value != "random" {
				in = trace.InputSpec{Kind: trace.ScalarInput, Value: scalar(t, value)}
			}
			line.Workload.Inputs.Set(name, in)
		}
		path := filepath.Join(dir, "workloads", op, def+".jsonl")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(f, "%s\n", line.JSON(trace.Compact))
		f.Close()
	}
	return dir
}

func scalar(t *testing.T, text string) trace.Scalar {
	t.Helper()
	if n, err := strconv.Atoi(text); err == nil {
		return trace.Scalar{Kind: trace.IntScalar, Int: int64(n)}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return trace.Scalar{Kind: trace.FloatScalar, Float: f}
}

// The contest sets have the axes and scalars of the official workloads, in their order, and declare the same inputs
// random.
func TestContestSets(t *testing.T) {
	own, _ := open(t)
	official, err := Open(officialDataset(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for def, set := range map[string]string{decode: "contest54", prefill: "contest", moe: "contest", attention: "contest",
		indexer: "contest"} {
		want, err := official.Workloads(def, "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := own.Workloads(def, set)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%s: got %d workloads, %v, want %d", def, len(got), err, len(want))
		}
		for i, w := range want {
			if !maps.Equal(maps.Collect(got[i].Axes.All()), maps.Collect(w.Axes.All())) {
				t.Errorf("%s %d: other axes than the contest's", def, i)
			}
			if got[i].UUID == w.UUID {
				t.Errorf("%s %d: the uuid is the contest's", def, i)
			}
			for name, theirs := range w.Inputs.All() {
				if ours, _ := got[i].Inputs.Get(name); ours.Kind != theirs.Kind || ours.Value != theirs.Value {
					t.Errorf("%s %d: input %s: got %v %v, want %v %v", def, i, name, ours.Kind, ours.Value, theirs.Kind, theirs.Value)
				}
			}
		}
	}
}

// The contest's loader takes every .jsonl file below workloads/, so each must belong to exactly one default set.
func TestRepositoryIsADatasetRoot(t *testing.T) {
	d, err := Open("..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	own, _ := open(t)
	var want []string
	for _, name := range own.Definitions() {
		def, err := own.Definition(name)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, def.OpType+"/"+name+".jsonl")
		sets, err := own.Sets(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range sets {
			embedded, _ := own.Workloads(name, set)
			if ws, err := d.Workloads(name, set); err != nil || len(ws) != len(embedded) {
				t.Errorf("%s %s: got %d workloads, %v, want %d", name, set, len(ws), err, len(embedded))
			}
		}
	}
	slices.Sort(want)
	if _, files, err := (&Dataset{embedded: true}).list(os.DirFS("."), "", ".jsonl"); err != nil || !slices.Equal(files, want) {
		t.Errorf(".jsonl files: got %v, %v, want %v", files, err, want)
	}
}

func open(t testing.TB) (*Dataset, *trace.Definition) {
	t.Helper()
	d, err := Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	def, err := d.Definition(decode)
	if err != nil {
		t.Fatal(err)
	}
	return d, def
}

func setProcs(t *testing.T, n int) {
	old := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}
