package workloads

import (
	"cmp"
	"math"
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

// every calls f for every workload of the default set of an embedded definition, with its inputs.
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

// The entries of a token are distinct, and padding comes last. Each token has one, since the contest's evaluator
// rejects an infinite lse. Some rows are short, some full.
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

// The rows of the contest's attention workloads resemble the public census in length and layout: of 120 rows, a quarter
// has up to 16 entries, half up to 33, three quarters up to 225, and four are full. Each row has its own consecutive
// pages, from page 1 on.
func TestServedIndices(t *testing.T) {
	d, _ := open(t)
	def, err := d.Definition(attention)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Workloads(attention, "contest")
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := d.blobsOf(def, ws)
	if err != nil {
		t.Fatal(err)
	}
	var lengths []int
	ascending, next, steps := 0, 0, 0
	for _, b := range blobs {
		x, err := b.tensors[0].make(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		page := 0 // last page of the rows before
		for token, row := range slices.Collect(slices.Chunk(ints(x), 2048)) {
			n := slices.Index(row, -1)
			if n < 0 {
				n = len(row)
			}
			if n == 0 || slices.Max(append(row[n:], -1)) != -1 {
				t.Fatalf("%s: token %d has %d entries, and more behind the padding", b.path, token, n)
			}
			lengths = append(lengths, n)
			if slices.IsSorted(row[:n]) {
				ascending++
			}
			sorted := slices.Sorted(slices.Values(row[:n]))
			if len(slices.Compact(slices.Clone(sorted))) != n || sorted[0]/64 <= page || sorted[0]/64 > page+14 ||
				sorted[n-1]/64 >= 8462 {
				t.Errorf("%s: token %d has entries from %d to %d behind page %d", b.path, token, sorted[0], sorted[n-1], page)
			}
			page = sorted[n-1] / 64
			for i := 1; i < n; i++ {
				if steps++; sorted[i] == sorted[i-1]+1 {
					next++
				}
			}
		}
	}
	slices.Sort(lengths)
	if len(lengths) != 120 {
		t.Fatalf("got %d rows, want 120", len(lengths))
	}
	for at, within := range map[int][2]int{29: {8, 25}, 59: {25, 45}, 89: {120, 350}, 119: {2048, 2048}} {
		if n := lengths[at]; n < within[0] || n > within[1] {
			t.Errorf("row %d by length has %d entries, want %v", at+1, n, within)
		}
	}
	sum := 0
	for _, n := range lengths {
		sum += n
	}
	if mean := sum / 120; mean < 200 || mean > 380 {
		t.Errorf("mean: got %d entries, want about 289", mean)
	}
	if ascending < 105 || ascending == 120 || next*100 < 76*steps || next*100 > 95*steps {
		t.Errorf("got %d rows in order and %d of %d steps to the next entry, want about 113 rows and 76 to 95 %%", ascending,
			next, steps)
	}
}

// A part of the rows equals the same rows generated with all others.
func TestServedInParts(t *testing.T) {
	f, s := served(128, 64), random.New("served")
	whole, parts := make([]float32, 10*128), make([]float32, 10*128)
	f(s, whole, 0)
	f(s, parts[3*128:], 3*128)
	f(s, parts[:3*128], 0)
	if !slices.Equal(whole, parts) {
		t.Errorf("got %v, want %v", parts, whole)
	}
}

// The pages of a sequence are distinct, and its length fits them. All of these occur: fewer tokens than topk, more,
// whole pages, and a partial page.
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

// With fewer pages than columns, the sequences fit the available pages, and the rest of a row is zero.
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

// Each number is equally likely, and none occurs twice.
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

// Logits and biases have the range of a router's, both decide which experts a token chooses, and most tokens choose one
// of this rank's experts: the output of others is zero.
func TestRouterInputs(t *testing.T) {
	d, _ := open(t)
	def, err := d.Definition(moe)
	if err != nil {
		t.Fatal(err)
	}
	rows, empty, local, changed := 0, 0, 0, 0
	for _, set := range []string{"", "contest", "batches"} {
		ws, err := d.Workloads(moe, set)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range ws {
			if tokens, _ := w.Axes.Get("seq_len"); tokens > 128 {
				continue
			}
			blobs, err := d.blobsOf(def, []*trace.Workload{w})
			if err != nil {
				t.Fatal(err)
			}
			values := map[string][]float32{}
			for _, s := range blobs[0].tensors {
				x, err := s.make(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				values[s.key] = float32s(x)
			}
			for key, most := range map[string]float32{"routing_logits": 7, "routing_bias": 0.35} {
				if high, low := slices.Max(values[key]), slices.Min(values[key]); high > most || low > -most/5 || low < -most {
					t.Errorf("%s of %d values: from %v to %v", key, len(values[key]), low, high)
				}
			}
			offset, _ := w.Inputs.Get("local_expert_offset")
			first := int(offset.Value.Int)
			for row := range len(values["routing_logits"]) / 256 {
				logits := values["routing_logits"][row*256 : (row+1)*256]
				chosen, n := routed(logits, values["routing_bias"]), 0
				for _, e := range chosen {
					if e >= first && e < first+32 {
						n++
					}
				}
				rows, local = rows+1, local+n
				if n == 0 {
					empty++
				}
				if n == 0 && row == 0 {
					t.Errorf("%s: the first row is empty", w.UUID)
				}
				if !slices.Equal(chosen, routed(logits, make([]float32, 256))) {
					changed++
				}
			}
		}
	}
	if rows < 500 || empty*4 > rows || empty*20 < rows || local > 3*rows || changed*2 < rows {
		t.Errorf("of %d rows %d are empty, and %d depend on the bias; %d choices of a local expert", rows, empty, changed, local)
	}
}

// routed returns the eight experts of a token, in ascending order, by the definition's rule.
func routed(logits, bias []float32) []int {
	score := func(e int) float64 { return 1/(1+math.Exp(-float64(logits[e]))) + float64(bias[e]) }
	descending := func(f func(int) float64) func(a, b int) int {
		return func(a, b int) int { return cmp.Compare(f(b), f(a)) }
	}
	var groups []int
	members := make([][]int, 8)
	for g := range members {
		groups = append(groups, g)
		for e := range 32 {
			members[g] = append(members[g], 32*g+e)
		}
		slices.SortFunc(members[g], descending(score))
	}
	slices.SortFunc(groups, descending(func(g int) float64 { return score(members[g][0]) + score(members[g][1]) }))
	var kept []int
	for _, g := range groups[:4] {
		kept = append(kept, members[g]...)
	}
	slices.SortFunc(kept, descending(score))
	return slices.Sorted(slices.Values(kept[:8]))
}

func float32s(t *tensor.Tensor) []float32 {
	dst := make([]float32, t.Len())
	t.ReadFloat32s(dst, 0)
	return dst
}
