package workloads

import (
	"errors"
	"fmt"
	"slices"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads/random"
)

// maxEntry bounds the indices of cache entries: fills use float32, which is exact for integers up to here.
const maxEntry = 1 << 24

// pagedFill returns the fill of an input that indexes a paged cache.
func pagedFill(def *trace.Definition, axes map[string]int, name string, shape []int) (fill, error) {
	extent := func(axis string) int {
		if a, ok := def.Axes.Get(axis); ok && a.Const {
			return a.Value
		}
		return axes[axis]
	}
	pages, page, topk := extent("num_pages"), extent("page_size"), extent("topk")
	if pages < 1 || page < 1 || topk < 1 || pages > maxEntry/page {
		return nil, fmt.Errorf("no valid entries in %d pages of %d entries", pages, page)
	}
	switch width := shape[len(shape)-1]; name {
	case "sparse_indices":
		if len(shape) == 2 && width >= page && pages > 1+shape[0]*ownPages(width, page) {
			return served(width, page), nil
		}
		return func(s random.Stream, dst []float32, first int) {
			for ; len(dst) > 0; dst, first = dst[width:], first+width {
				row := dst[:width]
				n := min(width, pages*page)
				if s.Intn(first, 4) == 0 {
					n = 1 + s.Intn(first+1, n)
				}
				choose(random.New("entries", fmt.Sprint(uint64(s)), fmt.Sprint(first)), row[:n], pages*page)
				for i := n; i < width; i++ {
					row[i] = -1
				}
			}
		}, nil
	case "seq_lens":
		limit := min(extent("max_num_pages"), pages)
		if limit < 1 {
			return nil, fmt.Errorf("axis max_num_pages is 0; a sequence needs a page")
		}
		return each(func(s random.Stream, i int) float64 {
			switch s.Intn(2*i, 4) {
			case 0:
				return float64(page * (1 + s.Intn(2*i+1, limit)))
			case 1:
				return float64(1 + s.Intn(2*i+1, min(topk, limit*page)))
			}
			return float64(1 + s.Intn(2*i+1, limit*page))
		}), nil
	default: // block_table
		return func(s random.Stream, dst []float32, first int) {
			for ; len(dst) > 0; dst, first = dst[width:], first+width {
				choose(random.New("pages", fmt.Sprint(uint64(s)), fmt.Sprint(first)), dst[:min(width, pages)], pages)
				clear(dst[min(width, pages):width])
			}
		}, nil
	}
}

// census is the distribution of row lengths in the contest's workloads: of 120 rows, so many have between least and
// most entries. Source: the histogram and the quantiles in findings.md of
// github.com/luongthecong123/flashinfer-bench-starter-kit (b588c03). The assignment of rows to workloads is not public.
var census = []struct{ rows, least, most int }{{18, 1, 9}, {12, 10, 16}, {30, 17, 33}, {7, 34, 49}, {12, 50, 99},
	{10, 100, 199}, {1, 200, 225}, {14, 226, 499}, {1, 500, 999}, {4, 1000, 1499}, {5, 1500, 1987}, {2, 1988, 2047},
	{4, 2048, 2048}}

// ownPages returns how many pages a row of served with n entries takes, including its random start.
func ownPages(n, page int) int { return (page/8+n+3*(n/8))/page + 1 }

// served fills the entries of tokens in decoding, as a server lays them out. Each token has its own pages, one after
// the other from page 1 on. Entries ascend, with seven of eight steps to the very next one; about every sixteenth row
// is in random order. The number of entries is drawn from the census.
func served(width, page int) fill {
	return func(s random.Stream, dst []float32, first int) {
		begin := 1 // first page of the row
		for row := 0; len(dst) > 0; row++ {
			n := min(entries(s, row), width)
			if row*width < first {
				begin += ownPages(n, page)
				continue
			}
			steps := random.New("steps", fmt.Sprint(uint64(s)), fmt.Sprint(row))
			at := begin*page + steps.Intn(2*width, page/8+1)
			for i := range width {
				if dst[i] = -1; i >= n {
					continue
				}
				dst[i] = float32(at)
				if at++; i%8 == 7 {
					at += 1 + steps.Intn(i, 3)
				}
			}
			if s.Intn(2*row+1, 16) == 0 {
				shuffle(steps, dst[:n])
			}
			begin += ownPages(n, page)
			dst = dst[width:]
		}
	}
}

func entries(s random.Stream, row int) int {
	at := s.Intn(2*row, 120)
	for _, c := range census {
		if at -= c.rows; at < 0 {
			return c.least + random.New("entries", fmt.Sprint(uint64(s))).Intn(row, c.most-c.least+1)
		}
	}
	panic("the census has 120 rows")
}

func shuffle(s random.Stream, dst []float32) {
	order, old := make([]float32, len(dst)), slices.Clone(dst)
	choose(s, order, len(dst))
	for i, from := range order {
		dst[i] = old[int(from)]
	}
}

// choose sets dst to distinct numbers below n in random order, by the first steps of a shuffle of all n. n must be at
// least len(dst).
func choose(s random.Stream, dst []float32, n int) {
	moved := map[int]int{}
	at := func(i int) int {
		if j, ok := moved[i]; ok {
			return j
		}
		return i
	}
	for i := range dst {
		j := i + s.Intn(i, n-i)
		dst[i] = float32(at(j))
		moved[j] = at(i)
	}
}

// slots returns the fill of an input with the state pool's slot for each row to read or to write. No slot occurs twice
// in the inputs of a workload; the first row reads the last slot. About every fourth row except the first reads slot
// -1, unless the definition stores states by row. About every eighth written state goes to slot -1.
func slots(def *trace.Definition, axes map[string]int, pool trace.TensorSpec, s random.Stream,
	name string, shape []int) (fill, error) {
	extents, err := def.Shape(pool, axes)
	if err != nil {
		return nil, err
	}
	n, ok := tensor.Elements(shape)
	if !ok || len(shape) == 0 || len(extents) == 0 {
		return nil, errors.New("no pool, or no rows")
	}
	rows, size := shape[0], extents[0]
	begin := 0 // offset of this input's slots in order
	if name != "initial_state_indices" {
		begin = rows
	}
	if n > size-begin || size > maxEntry {
		return nil, errors.New("the pool has too few slots")
	}
	order := make([]float32, size)
	choose(s, order, size)
	for i, slot := range order {
		if slot == float32(size-1) {
			order[0], order[i] = order[i], order[0]
		}
	}
	_, states := def.Outputs.Get("intermediate_states")
	_, buffer := def.Inputs.Get("intermediate_states_buffer")
	return func(s random.Stream, dst []float32, first int) {
		for i := range dst {
			at := first + i
			dst[i] = order[begin+at]
			switch {
			case begin == 0 && !states && !buffer && at > 0 && s.Intn(at, 4) == 0, begin > 0 && s.Intn(at, 8) == 0:
				dst[i] = -1
			}
		}
	}, nil
}
