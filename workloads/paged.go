package workloads

import (
	"fmt"

	"fisub/internal/trace"
	"fisub/workloads/random"
)

// maxEntry bounds the numbers of cache entries that are generated: fills are in float32, which holds integers up to it.
const maxEntry = 1 << 24

// pagedFill fills the inputs that say where in a paged cache something lies.
func pagedFill(def *trace.Definition, axes map[string]int, name string, shape []int) (fill, error) {
	extent := func(axis string) int {
		if a, ok := def.Axes.Get(axis); ok && a.Const {
			return a.Value
		}
		return axes[axis]
	}
	pages, page, topk := extent("num_pages"), extent("page_size"), extent("topk")
	if pages < 1 || page < 1 || topk < 1 || pages > maxEntry/page {
		return nil, fmt.Errorf("no entries can be chosen from %d pages of %d entries", pages, page)
	}
	switch width := shape[len(shape)-1]; name {
	case "sparse_indices":
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
			return nil, fmt.Errorf("no sequence has a page")
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

// choose sets dst to different numbers below n, which is at least its length, in random order: the first steps of a
// shuffle of all n.
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
