package workloads

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"fisub/internal/trace"
)

var update = flag.Bool("update", false, "write the embedded workload files")

const decode = "gdn_decode_qk4_v8_d128_k_last"

// batches are the batch sizes of the embedded sets, in order.
var batches = map[string][]int{
	DefaultSet:  repeat(1, 20),
	"contest54": append(repeat(1, 10), append(repeat(4, 8), append(repeat(8, 7), append(repeat(16, 7), append(repeat(32, 7), append(repeat(48, 7), repeat(64, 8)...)...)...)...)...)...),
}

func repeat(batch, n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = batch
	}
	return list
}

// uuid5 is RFC 9562's version 5 in the URL namespace.
func uuid5(name string) string {
	space, _ := hex.DecodeString("6ba7b8119dad11d180b400c04fd430c8")
	sum := sha1.Sum(append(space, name...))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// lines are the workloads of a set in the contest's line format, keys in the order of its dataset.
func lines(def, set string, inputs []string) []byte {
	var b bytes.Buffer
	for i, batch := range batches[set] {
		uuid := uuid5(fmt.Sprintf("fisub/%s/%s/%d", def, set, i))
		var list []string
		for _, name := range inputs {
			spec := fmt.Sprintf(`{"type":"safetensors","path":"./blob/workloads/gdn/%s/%s_%s.safetensors","tensor_key":"%s"}`, def, def, uuid, name)
			if name == "scale" {
				spec = `{"type":"scalar","value":0.08838834764831843}` // 1 / sqrt(128), as the contest's own lines have it
			}
			list = append(list, fmt.Sprintf("%q:%s", name, spec))
		}
		fmt.Fprintf(&b, `{"definition":%q,"solution":null,"workload":{"uuid":%q,"axes":{"batch_size":%d},"inputs":{%s}},"evaluation":null}`+"\n",
			def, uuid, batch, strings.Join(list, ","))
	}
	return b.Bytes()
}

func TestEmbeddedFiles(t *testing.T) {
	inputs := strings.Fields("q k v state A_log a dt_bias b scale")
	for set := range batches {
		file := decode + ".jsonl"
		if set != DefaultSet {
			file = decode + "." + set + ".ndjson"
		}
		file = filepath.Join("gdn", file)
		want := lines(decode, set, inputs)
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: not what the recipe gives; run go test ./workloads -run TestEmbeddedFiles -update", file)
		}
	}
}

func TestEmbeddedDataset(t *testing.T) {
	d, def := open(t)
	sets, err := d.Sets(decode)
	if err != nil || fmt.Sprint(sets) != "[default contest54]" {
		t.Errorf("sets: got %v, %v, want default and contest54", sets, err)
	}
	seen := map[string]bool{}
	for _, set := range sets {
		ws, err := d.Workloads(decode, set)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, w := range ws {
			n, _ := w.Axes.Get("batch_size")
			got = append(got, n)
			if seen[w.UUID] {
				t.Errorf("uuid %s comes twice", w.UUID)
			}
			seen[w.UUID] = true
		}
		if fmt.Sprint(got) != fmt.Sprint(batches[set]) {
			t.Errorf("%s: batch sizes: got %v, want %v", set, got, batches[set])
		}
		reports, err := d.Verify(t.Context(), def, ws)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reports {
			if len(r.Faults) > 0 || r.Files != 1 || r.Absent != 1 {
				t.Errorf("%s %s: got %+v, want one absent file and no fault", set, r.UUID, r)
			}
		}
	}
	if w := d.Warnings(); len(w) > 0 {
		t.Errorf("warnings: %v", w)
	}
}

// The contest's loader takes every .jsonl file below workloads/, so each must belong to a default set, once.
func TestRepositoryIsADatasetRoot(t *testing.T) {
	d, err := Open("..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Workloads(decode, "")
	if err != nil || len(ws) != 20 {
		t.Errorf("default set: got %d workloads, %v, want 20", len(ws), err)
	}
	if ws, err := d.Workloads(decode, "contest54"); err != nil || len(ws) != 54 {
		t.Errorf("contest54: got %d workloads, %v, want 54", len(ws), err)
	}
	files, err := list(os.DirFS("."), ".jsonl")
	if err != nil || fmt.Sprint(files) != "[gdn/"+decode+".jsonl]" {
		t.Errorf(".jsonl files: got %v, %v", files, err)
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
