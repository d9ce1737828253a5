package workloads

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// loadEdge loads the inputs of a case by name; they are closed with the test.
func loadEdge(t *testing.T, d *Dataset, name, tests string) (*trace.Workload, map[string]Input) {
	t.Helper()
	def, err := d.Definition(name)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Workloads(name, EdgeSet)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(ws, func(w *trace.Workload) bool { return Tests(name, w.UUID) == tests })
	if i < 0 {
		t.Fatalf("%s: no case %q", name, tests)
	}
	in, err := d.Load(t.Context(), def, ws[i], 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	values := map[string]Input{}
	for _, v := range in.Values {
		values[v.Name] = v
	}
	return ws[i], values
}

func numbers(in Input) []float64 {
	x := make([]float64, in.Tensor.Len())
	in.Tensor.ReadFloat64s(x, 0)
	return x
}

func TestEdgeSets(t *testing.T) {
	d, _ := open(t)
	seen := map[string]string{}
	for _, name := range d.Definitions() {
		def, _ := d.Definition(name)
		ws, err := d.Workloads(name, EdgeSet)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		reports, err := d.Verify(t.Context(), def, ws)
		if err != nil {
			t.Fatal(err)
		}
		var tests []string
		for i, r := range reports {
			if len(r.Faults) > 0 || r.Files != 1 || r.Absent != 1 {
				t.Errorf("%s %s: got %+v, want one absent file and no fault", name, r.UUID, r)
			}
			if before := seen[r.UUID]; before != "" {
				t.Errorf("%s: uuid %s is that of %s too", name, r.UUID, before)
			}
			seen[r.UUID] = name
			tests = append(tests, Tests(name, ws[i].UUID))
			line := (&trace.Trace{Definition: name, Workload: *ws[i]}).JSON(trace.Compact)
			if _, _, err := trace.DecodeTrace(line); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
		want := []string{"scale 0", "state 0", "fast decay", "softplus of more than 88", "sigmoid of -100 and 100",
			"zero and tiny q and k", "outputs above 65504"}
		switch {
		case strings.HasPrefix(name, "gdn_prefill"):
			want = slices.Insert(want, 1, "empty sequences", "a sequence of 2075 tokens")
		case strings.HasPrefix(name, "gdn_"):
			want = slices.Insert(want, 1, "batch 3")
		case name == attention:
			want = []string{"-1 before and between entries", "an entry several times", "q of 0",
				"logits of more than 88 and less than -88", "outputs above 65504"}
		case name == indexer:
			want = []string{"lengths of 0, 1, 2047, 2048 and 2049", "equal scores", "scores of 0",
				"scores above, at and below 0", "negative scores", "scores above 65504",
				"shared pages, and one again behind the end"}
		default:
			want = []string{"ties", "biases of -2 and scores of 0", "one expert takes all tokens", "no local expert",
				"blocks of zeros"}
		}
		if !slices.Equal(tests, want) {
			t.Errorf("%s: got %q, want %q", name, tests, want)
		}
	}
}

// The inputs of each case have the property in its name.
func TestEdgeInputs(t *testing.T) {
	d, _ := open(t)
	if _, in := loadEdge(t, d, decode, "scale 0"); in["scale"].Scalar.Float != 0 {
		t.Errorf("scale: got %v", in["scale"].Scalar)
	}
	if w, _ := loadEdge(t, d, decode, "batch 3"); w.UUID != batch3 {
		t.Errorf("the uuid of batch 3 has changed: got %s, want %s", w.UUID, batch3)
	}
	_, in := loadEdge(t, d, prefill, "empty sequences")
	if got, want := in["cu_seqlens"].Tensor.Ints(), []int{0, 0, 37, 37, 37, 103, 103}; !slices.Equal(got, want) {
		t.Errorf("cu_seqlens: got %v, want %v", got, want)
	}
	for _, name := range []string{decode, prefill, "gdn_mtp_verify_bf16_state_qk4_v8_d128_k_last"} {
		_, in := loadEdge(t, d, name, "softplus of more than 88")
		a, bias := numbers(in["a"]), numbers(in["dt_bias"])
		above, below := 0, 0
		for i, x := range a {
			if x += bias[i%len(bias)]; x > 88 {
				above++
			} else if x < -88 {
				below++
			}
		}
		if above == 0 || below == 0 || above+below < len(a) {
			t.Errorf("%s: %d gates above 88, %d below -88 of %d", name, above, below, len(a))
		}

		_, in = loadEdge(t, d, name, "fast decay")
		rate := math.Exp(numbers(in["A_log"])[0])
		gone, kept := 0, 0
		for _, x := range numbers(in["a"]) {
			switch decay := math.Exp(-rate * math.Log1p(math.Exp(x+1))); {
			case float32(decay) == 0:
				gone++
			case decay > 0.99:
				kept++
			}
		}
		if gone == 0 || kept == 0 {
			t.Errorf("%s: %d gates of 0, %d near 1", name, gone, kept)
		}

		_, in = loadEdge(t, d, name, "zero and tiny q and k")
		for _, key := range []string{"q", "k"} {
			lengths := map[string]int{}
			for row := range slices.Chunk(numbers(in[key]), 128) {
				sum := 0.0
				for _, x := range row {
					sum += x * x
				}
				switch length := math.Sqrt(sum); {
				case length == 0:
					lengths["zero"]++
				case length < 1e-6:
					lengths["tiny"]++
				case length < 0.1:
					lengths["short"]++
				default:
					lengths["usual"]++
				}
			}
			if len(lengths) != 4 {
				t.Errorf("%s %s: got rows %v", name, key, lengths)
			}
		}
	}
}

func TestSparseEdgeInputs(t *testing.T) {
	d, _ := open(t)
	_, in := loadEdge(t, d, attention, "-1 before and between entries")
	counts := []int{}
	for row := range slices.Chunk(numbers(in["sparse_indices"]), 2048) {
		present := slices.DeleteFunc(slices.Clone(row), func(x float64) bool { return x == -1 })
		counts = append(counts, len(present))
		if slices.Sort(present); len(slices.Compact(present)) != counts[len(counts)-1] || present[0] < 0 ||
			present[len(present)-1] >= 4096 {
			t.Errorf("row %d: got duplicates, or entries outside of the cache", len(counts)-1)
		}
	}
	if want := []int{1, 1024, 682, 1024, 2048, 1}; !slices.Equal(counts, want) {
		t.Errorf("got rows of %v entries, want %v", counts, want)
	}
	_, in = loadEdge(t, d, attention, "outputs above 65504")
	if x := numbers(in["ckv_cache"]); slices.Min(x) < 65504 {
		t.Errorf("got an entry with %v", slices.Min(x))
	}

	// Scores of the first sequence, by the definition.
	scores := func(tests string) (all []float64) {
		_, in := loadEdge(t, d, indexer, tests)
		q, w := numbers(in["q_index_fp8"]), numbers(in["weights"])
		pages, cache := numbers(in["block_table"]), in["k_index_cache_fp8"].Tensor
		for i := range int(numbers(in["seq_lens"])[0]) {
			page := cache.Data[int(pages[i/64])*64*132:]
			key := numbers(Input{Tensor: &tensor.Tensor{DType: tensor.Float8E4M3FN, Shape: []int{128},
				Data: page[i%64*128:][:128]}})
			scale := (&tensor.Tensor{DType: tensor.Float32, Shape: []int{64}, Data: page[64*128:][:64*4]}).Float64(i % 64)
			score := 0.0
			for h := range 64 {
				dot := 0.0
				for c, x := range key {
					dot += q[h*128+c] * x
				}
				score += w[h] * max(dot*scale, 0)
			}
			all = append(all, score)
		}
		slices.Sort(all)
		slices.Reverse(all)
		return all
	}
	for tests, right := range map[string]func(s []float64) bool{
		"equal scores": func(s []float64) bool { return s[0] == s[len(s)-1] && s[0] != 0 },
		"scores of 0":  func(s []float64) bool { return s[0] == 0 && s[len(s)-1] == 0 },
		"scores above, at and below 0": func(s []float64) bool {
			return s[0] > 0 && s[2047] == 0 && s[2048] == 0 && s[len(s)-1] < 0
		},
		"negative scores":    func(s []float64) bool { return s[0] < 0 },
		"scores above 65504": func(s []float64) bool { return s[2048] > 65504 },
	} {
		if s := scores(tests); len(s) <= 2049 || !right(s) {
			t.Errorf("%s: got %d scores: %v ... %v, %v ... %v", tests, len(s), s[0], s[2047], s[2048], s[len(s)-1])
		}
	}
}

// The choice of local experts, by the definition's rule, is the one that the case is about, and no tie affects it.
func TestMixtureEdgeInputs(t *testing.T) {
	d, _ := open(t)
	for tests, want := range map[string][]int{
		"ties": {2, 2, 2, 2}, "biases of -2 and scores of 0": {1, -1, 1, -1, 1, -1},
		"one expert takes all tokens": slices.Repeat([]int{1}, 65), "no local expert": {0, 0, 0, 0, 0},
		"blocks of zeros": {1, 1, 1, 1},
	} {
		def, _ := d.Definition(moe)
		ws, _ := d.Workloads(moe, EdgeSet)
		i := slices.IndexFunc(ws, func(w *trace.Workload) bool { return Tests(moe, w.UUID) == tests })
		inputs := map[string][]float64{}
		blobs, err := d.blobsOf(def, ws[i:i+1])
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range blobs[0].tensors {
			x, err := s.make(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			inputs[s.key] = numbers(Input{Tensor: x})
		}
		token := 0
		for logits := range slices.Chunk(inputs["routing_logits"], 256) {
			if want[token] >= 0 {
				least, most := chosenLocal(logits, inputs["routing_bias"])
				if least != want[token] || most != want[token] {
					t.Errorf("%s: token %d: got %d to %d local experts, want %d", tests, token, least, most, want[token])
				}
			}
			token++
		}
	}
}

// chosenLocal returns how many local experts a token chooses if ties favour other ranks, and if they favour this one.
func chosenLocal(logits, bias []float64) (least, most int) {
	count := func(favour float64) (n int) {
		biased, groups := make([]float64, 256), make([]float64, 8)
		for e, x := range logits {
			biased[e] = 1/(1+math.Exp(-x)) + bias[e]
			if e/32 == 1 {
				biased[e] += favour
			}
		}
		for g := range groups {
			members := slices.Sorted(slices.Values(biased[g*32 : g*32+32]))
			groups[g] = members[30] + members[31]
		}
		worst := slices.Sorted(slices.Values(groups))[4]
		candidates := []float64{}
		for e, x := range biased {
			if groups[e/32] >= worst {
				candidates = append(candidates, x)
			}
		}
		slices.Sort(candidates)
		for _, x := range biased[32:64] {
			if groups[1] >= worst && x >= candidates[len(candidates)-8] {
				n++
			}
		}
		return n
	}
	return count(-1e-9), count(1e-9)
}

// batch3 is the uuid of a case: uuids must not change.
const batch3 = "1ba86a63-2dce-5b1a-bedf-6971187a36bd"

// A folder has the set too; its inputs are generated in the cache.
func TestEdgeOfAFolder(t *testing.T) {
	text, err := os.ReadFile("../definitions/gdn/" + decode + ".json")
	if err != nil {
		t.Fatal(err)
	}
	folder := root(t, map[string]string{"definitions/gdn/d.json": string(text)})
	d, err := Open(folder, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, in := loadEdge(t, d, decode, "state 0")
	if !d.Makes(decode, w) || slices.ContainsFunc(numbers(in["state"]), func(x float64) bool { return x != 0 }) {
		t.Errorf("got another state than 0 at %s", in["state"].Path)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 1 {
		t.Errorf("the folder has %v", entries)
	}

	// The folder's own file takes precedence.
	own := "workloads/" + decode + ".edge.ndjson"
	line := (&trace.Trace{Definition: decode, Workload: *w}).JSON(trace.Compact)
	if d, err = Open(root(t, map[string]string{"definitions/gdn/d.json": string(text), own: string(line) + "\n"}),
		t.TempDir()); err != nil {
		t.Fatal(err)
	}
	ws, err := d.Workloads(decode, EdgeSet)
	if err != nil || len(ws) != 1 || d.Makes(decode, ws[0]) {
		t.Errorf("got %d workloads, %v, want the one of the file", len(ws), err)
	}
}

// A seed changes only values, and the usual values do not depend on it.
func TestSeeded(t *testing.T) {
	d, def := open(t)
	def, err := d.Definition(prefill)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Workloads(prefill, "")
	if err != nil {
		t.Fatal(err)
	}
	load := func(d *Dataset, i int) map[string][]byte {
		in, err := d.Load(t.Context(), def, ws[i], 0)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		found := map[string][]byte{}
		for _, v := range in.Values {
			if v.Tensor != nil {
				found[v.Name] = bytes.Clone(v.Tensor.Data)
			}
		}
		return found
	}
	const of7 = 6 // of 13 sequences
	usual := load(d, of7)
	for _, same := range []*Dataset{d, d.Seeded(7).Seeded(0)} {
		for name, data := range load(same, of7) {
			if !bytes.Equal(data, usual[name]) {
				t.Errorf("%s: other bytes without a seed", name)
			}
		}
	}
	seven, eight := load(d.Seeded(7), of7), load(d.Seeded(8), of7)
	for name, data := range seven {
		if got, want := bytes.Equal(data, usual[name]) || bytes.Equal(data, eight[name]), name == "cu_seqlens"; got != want {
			t.Errorf("%s: equal is %v, want %v", name, got, want)
		}
	}
	elsewhere, err := Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range load(elsewhere.Seeded(7), of7) {
		if !bytes.Equal(data, seven[name]) {
			t.Errorf("%s: other bytes on another machine", name)
		}
	}
	if entries, _ := filepath.Glob(filepath.Join(d.Root(), "seed-*")); len(entries) != 2 {
		t.Errorf("got %v, want a folder for each seed", entries)
	}

	toy, toyDef, w := toyRoot(t, `"x":{"type":"random"},"y":{"type":"random"},"s":{"type":"random"}`)
	text := ""
	for _, seed := range []uint64{0, 1, 2, 1} {
		in, err := toy.Seeded(seed).Load(t.Context(), toyDef, w, 1)
		if err != nil {
			t.Fatal(err)
		}
		text += string(in.Values[0].Tensor.Data) + "|"
		in.Close()
	}
	if parts := strings.Split(text, "|"); parts[0] == parts[1] || parts[1] == parts[2] || parts[1] != parts[3] {
		t.Errorf("random inputs do not follow the seed: %q", parts)
	}
}
