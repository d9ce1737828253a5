package workloads

import (
	"slices"
	"testing"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads/random"
)

func ints(x *tensor.Tensor) []int {
	var all []int
	for _, v := range float32s(x) {
		all = append(all, int(v))
	}
	return all
}

// load opens the inputs of a workload of the embedded dataset by name.
func load(t *testing.T, d *Dataset, def *trace.Definition, w *trace.Workload) map[string]*tensor.Tensor {
	t.Helper()
	in, err := d.Load(t.Context(), def, w, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	byName := map[string]*tensor.Tensor{}
	for _, v := range in.Values {
		byName[v.Name] = v.Tensor
	}
	return byName
}

// every workload of the default set, with its inputs, of a definition of the embedded dataset.
func every(t *testing.T, name string, f func(w *trace.Workload, in map[string]*tensor.Tensor)) {
	t.Helper()
	d, _ := open(t)
	def, err := d.Definition(name)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Workloads(name, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ws {
		f(w, load(t, d, def, w))
	}
}

// The entries of a token are different ones of the cache, and padding comes last. Each token has one, since the
// contest's evaluator takes no infinite lse; some have fewer than there is room for, and some none too few.
func TestSparseIndices(t *testing.T) {
	short, full, single := 0, 0, 0
	every(t, attention, func(w *trace.Workload, in map[string]*tensor.Tensor) {
		entries := in["ckv_cache"].Shape[0] * 64
		for token, row := range slices.Collect(slices.Chunk(ints(in["sparse_indices"]), 2048)) {
			n := slices.Index(row, -1)
			if n < 0 {
				n = len(row)
			}
			chosen := slices.Clone(row[:n])
			slices.Sort(chosen)
			switch {
			case n == 0:
				t.Errorf("%s: token %d has no entry", w.UUID, token)
				continue
			case len(slices.Compact(slices.Clone(chosen))) != n:
				t.Errorf("%s: token %d has an entry twice", w.UUID, token)
			case chosen[0] < 0 || chosen[n-1] >= entries:
				t.Errorf("%s: token %d has entries from %d to %d of %d", w.UUID, token, chosen[0], chosen[n-1], entries)
			case slices.Max(append(slices.Clone(row[n:]), -1)) != -1:
				t.Errorf("%s: token %d has entries behind the padding", w.UUID, token)
			case n > 64 && slices.IsSorted(row[:n]):
				t.Errorf("%s: the entries of token %d are in order", w.UUID, token)
			}
			switch {
			case n == 2048:
				full++
			case n <= 64:
				single++
				fallthrough
			default:
				short++
			}
		}
	})
	if short < 2 || full < 2 || single < 1 {
		t.Errorf("got %d full rows and %d short ones, %d of a page or less; want all of them", full, short, single)
	}
}

// The pages of a sequence are different ones, and its length fits them. All of these occur: fewer tokens than are
// chosen, more, whole pages, and a part of a page.
func TestPages(t *testing.T) {
	fewer, more, whole, part := 0, 0, 0, 0
	every(t, indexer, func(w *trace.Workload, in map[string]*tensor.Tensor) {
		lengths, columns, pages := ints(in["seq_lens"]), in["block_table"].Shape[1], in["k_index_cache_fp8"].Shape[0]
		for b, row := range slices.Collect(slices.Chunk(ints(in["block_table"]), columns)) {
			n := lengths[b]
			if n < 1 || n > columns*64 {
				t.Errorf("%s: sequence %d has %d tokens with room for %d", w.UUID, b, n, columns*64)
			}
			sorted := slices.Sorted(slices.Values(row))
			if sorted[0] < 0 || sorted[columns-1] >= pages || len(slices.Compact(sorted)) != columns {
				t.Errorf("%s: sequence %d has pages %v of %d", w.UUID, b, row, pages)
			}
			for count, yes := range map[*int]bool{&fewer: n < 2048, &more: n > 2048, &whole: n%64 == 0, &part: n%64 != 0} {
				if yes {
					*count++
				}
			}
		}
	})
	if fewer == 0 || more == 0 || whole == 0 || part == 0 {
		t.Errorf("sequences: %d shorter than topk, %d longer, %d of whole pages, %d with a part of one; want all of them",
			fewer, more, whole, part)
	}
}

// Without as many pages as columns, the sequences have room in what there is, and the rest of a row is zero.
func TestFewPages(t *testing.T) {
	d, _ := open(t)
	def, err := d.Definition(indexer)
	if err != nil {
		t.Fatal(err)
	}
	axes := map[string]int{"batch_size": 40, "max_num_pages": 5, "num_pages": 3}
	made := func(name string, shape ...int) []int {
		f, err := synthFill(def, axes, name, shape)
		if err != nil {
			t.Fatal(err)
		}
		s := synthetic{dtype: tensor.Int32, shape: shape, stream: random.New(name), fill: f}
		x, err := s.make(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return ints(x)
	}
	if longest := slices.Max(made("seq_lens", 40)); longest > 3*64 || longest < 2*64 {
		t.Errorf("longest sequence: got %d tokens, want up to %d", longest, 3*64)
	}
	for row := range slices.Chunk(made("block_table", 40, 5), 5) {
		if used := slices.Sorted(slices.Values(row[:3])); !slices.Equal(used, []int{0, 1, 2}) || row[3] != 0 || row[4] != 0 {
			t.Errorf("block table: got %v, want the pages 0 to 2 and zeros", row)
		}
	}
	axes["num_pages"] = maxEntry
	if _, err := synthFill(def, axes, "block_table", []int{40, 5}); err == nil {
		t.Error("more entries than a float32 can number: no error")
	}
}

// Each number is chosen as often as another, and none twice.
func TestChoose(t *testing.T) {
	seen := map[float32]int{}
	for i := range 2000 {
		var dst [3]float32
		choose(random.New("choose", string(rune(i))), dst[:], 5)
		for _, x := range dst {
			seen[x]++
		}
		if dst[0] == dst[1] || dst[1] == dst[2] || dst[0] == dst[2] {
			t.Fatalf("got %v", dst)
		}
	}
	for i := range 5 {
		x := float32(i)
		if n := seen[x]; n < 1100 || n > 1300 {
			t.Errorf("%v: chosen %d times of 2000, want about 1200", x, n)
		}
	}
}

// Logits and biases are of the size of a trained router's.
func TestRouterInputs(t *testing.T) {
	d, _ := open(t)
	def, err := d.Definition(moe)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Workloads(moe, "")
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blobsOf(def, ws)
	if err != nil {
		t.Fatal(err)
	}
	if len(blobs) != len(ws) {
		t.Fatalf("got %d files for %d workloads", len(blobs), len(ws))
	}
	for _, b := range blobs {
		for _, s := range b.tensors {
			x, err := s.make(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]float32{"routing_logits": 14, "routing_bias": 0.35}[s.key]
			if values := float32s(x); slices.Max(values) > want || slices.Max(values) < want/5 || slices.Min(values) > -want/5 {
				t.Errorf("%s %s: from %v to %v", b.path, s.key, slices.Min(values), slices.Max(values))
			}
		}
	}
}

// float32s reads all elements.
func float32s(t *tensor.Tensor) []float32 {
	dst := make([]float32, t.Len())
	t.ReadFloat32s(dst, 0)
	return dst
}
