package workloads

import (
	"math"

	"fisub/workloads/random"
)

// pageSize is the number of entries in a page of the cache.
const pageSize = 64

// entryCount is the number of entries in the cache of attentionEdges.
const entryCount = 64 * pageSize

// attentionEdges are for sparse attention. They lack tokens without entries: the lse must be -inf by the definition,
// and the contest's evaluator rejects any infinite output.
var attentionEdges = []edge{
	{name: "-1 before and between entries", tokens: 6, pages: entryCount / pageSize, values: map[string]value{
		"sparse_indices": indices(func(row, i int) int {
			switch {
			case row == 0 && i == 2047:
				return 0
			case row == 1 && i >= 1024, row == 2 && i%3 == 2, row == 3 && i/64%2 == 1, row == 4:
				return mixed(i)
			case row == 5 && i == 700:
				return entryCount - 1
			}
			return -1
		}),
	}},
	{name: "an entry several times", tokens: 3, pages: entryCount / pageSize, values: map[string]value{
		"sparse_indices": indices(func(row, i int) int { return mixed([]int{9, i / 2, i % 1500}[row]) }),
	}},
	{name: "q of 0", tokens: 2, pages: entryCount / pageSize,
		values: map[string]value{"q_nope": constant(0), "q_pe": constant(math.Copysign(0, -1))}},
	// The first channel adds 138 to all logits of a head, or subtracts it.
	{name: "logits of more than 88 and less than -88", tokens: 2, pages: entryCount / pageSize, values: map[string]value{
		"q_pe":      first(func(row int) float64 { return math.Copysign(1024, float64(row%2)-0.5) }),
		"kpe_cache": first(func(int) float64 { return 1 }),
	}},
	{name: "outputs above 65504", tokens: 2, pages: entryCount / pageSize,
		values: map[string]value{"q_nope": constant(0), "ckv_cache": positive(1e6)}},
}

// indices sets sparse_indices; of returns the entry in slot i of a row, or -1.
func indices(of func(row, i int) int) value {
	return func(_ random.Stream, i, width int, _ float64) float64 { return float64(of(i/width, i%width)) }
}

// mixed returns entry i of the cache in an order that mixes the pages.
func mixed(i int) int { return i * 1031 & (entryCount - 1) }

// first changes the first element of each row.
func first(of func(row int) float64) value {
	return func(_ random.Stream, i, width int, usual float64) float64 {
		if i%width == 0 {
			return of(i / width)
		}
		return usual
	}
}

// indexerEdges are for the top-k indexer. They lack pages that a sequence uses twice: the contest's evaluator rejects
// duplicate tokens. They also lack NaN.
var indexerEdges = []edge{
	{name: "lengths of 0, 1, 2047, 2048 and 2049", batch: 6, pages: 64, columns: 33,
		values: map[string]value{"seq_lens": lengths(0, 2049, 1, 2048, 0, 2047)}},
	{name: "equal scores", batch: 2, pages: 80, columns: 71, values: map[string]value{
		"seq_lens":          lengths(4500, 2049),
		"k_index_cache_fp8": keys(func(_, channel int, _ byte) byte { return byte(0x30 + channel%16) }),
	}},
	{name: "scores of 0", batch: 2, pages: 80, columns: 71, values: map[string]value{
		"seq_lens":          lengths(4500, 2100),
		"q_index_fp8":       positive(1),
		"k_index_cache_fp8": keys(func(_, _ int, usual byte) byte { return usual | sign }),
	}},
	// Scores of a token are positive if only its first half of channels is, negative if only the second half is, and
	// zero without positive channels.
	{name: "scores above, at and below 0", batch: 2, pages: 80, columns: 71, values: map[string]value{
		"seq_lens": lengths(4500, 2500),
		"q_index_fp8": func(_ random.Stream, i, width int, usual float64) float64 {
			if i%width/(width/2) != i/width%2 {
				return 0
			}
			return math.Abs(usual)
		},
		"weights": func(_ random.Stream, i, _ int, usual float64) float64 {
			return math.Copysign(usual, 0.5-float64(i%2))
		},
		"k_index_cache_fp8": keys(func(token, channel int, usual byte) byte {
			if channel/(keyChannels/2) == token%3 {
				return usual &^ sign
			}
			return usual | sign
		}),
	}},
	{name: "negative scores", batch: 3, pages: 64, columns: 50, values: map[string]value{
		"seq_lens": lengths(3000, 2500, 700),
		"weights":  func(_ random.Stream, _, _ int, usual float64) float64 { return -math.Abs(usual) },
	}},
	{name: "scores above 65504", batch: 2, pages: 64, columns: 50,
		values: map[string]value{"seq_lens": lengths(3000, 2500), "weights": positive(1e5)}},
	{name: "shared pages, and one again behind the end", batch: 3, pages: 64, columns: 50, values: map[string]value{
		"seq_lens": lengths(2500, 2400, 100),
		"block_table": func(_ random.Stream, i, width int, _ float64) float64 {
			if i %= width; i > 2500/pageSize {
				i = 0
			}
			return float64((5*i + 3) % 64)
		},
	}},
}

// lengths sets seq_lens.
func lengths(of ...float64) value {
	return func(_ random.Stream, i, _ int, _ float64) float64 { return of[i] }
}

const (
	keyChannels = 128
	sign        = 0x80 // bit of a float8
)

// keys sets the float8 codes of the packed key cache, and all scales to 1/256.
func keys(of func(token, channel int, usual byte) byte) value {
	return func(_ random.Stream, i, width int, usual float64) float64 {
		at := i % (pageSize * width)
		if at >= pageSize*keyChannels {
			return float64(int8([]byte{0, 0, 0x80, 0x3b}[at%4]))
		}
		return float64(int8(of(at/keyChannels, at%keyChannels, byte(int8(usual)))))
	}
}

const (
	groupSize  = 32 // experts in a group
	localGroup = 1  // group of the rank's experts
)

// moeEdges are for mixtures of experts. Ties are between experts of other ranks with equal scores, so the choice among
// them does not affect the output.
var moeEdges = []edge{
	{name: "ties", tokens: 4, values: map[string]value{
		"routing_bias": constant(0),
		"routing_logits": func(_ random.Stream, i, width int, _ float64) float64 {
			token, expert := i/width, i%width
			switch {
			case expert/groupSize != localGroup:
				return -1
			case expert%groupSize == token+3 || expert%groupSize == token+20:
				return 2
			}
			return -3
		},
	}},
	{name: "biases of -2 and scores of 0", tokens: 6, values: map[string]value{
		"routing_bias": func(_ random.Stream, _, _ int, usual float64) float64 { return usual - 2 },
		"routing_logits": func(s random.Stream, i, width int, usual float64) float64 {
			if i/width%2 == 1 {
				return -100
			}
			return taken(func(int) int { return 6 })(s, i, width, usual)
		},
	}},
	{name: "one expert takes all tokens", tokens: 65,
		values: map[string]value{"routing_logits": taken(func(int) int { return 5 })}},
	{name: "no local expert", tokens: 5, values: map[string]value{"routing_logits": taken(func(int) int { return -1 })}},
	{name: "blocks of zeros", tokens: 4, values: map[string]value{
		"routing_logits": taken(func(token int) int { return 3 + token%2 }),
		"hidden_states": func(_ random.Stream, i, width int, usual float64) float64 {
			if i/width == 0 {
				return 0
			}
			return usual
		},
		// no scale of token 1, and half of the scales of token 2
		"hidden_states_scale": func(_ random.Stream, i, width int, usual float64) float64 {
			if token, block := i%width, i/width; token == 1 || token == 2 && block%2 == 0 {
				return 0
			}
			return usual
		},
		"gemm1_weights_scale": func(_ random.Stream, i, width int, usual float64) float64 {
			if i/width%16 == 7 {
				return 0
			}
			return usual
		},
		"gemm2_weights_scale": func(_ random.Stream, i, width int, usual float64) float64 {
			if i/width%8 == 3 || i%width == 2 {
				return 0
			}
			return usual
		},
	}},
}

// taken sets routing_logits so that each token chooses one local expert at most, which expert returns, or -1. The other
// chosen experts belong to other ranks.
func taken(expert func(token int) int) value {
	return func(_ random.Stream, i, width int, usual float64) float64 {
		switch at := i % width; {
		case at == localGroup*groupSize+expert(i/width):
			return 3
		case at/groupSize == localGroup:
			return -10
		}
		return usual/2 - 1 // closer together than usual, so that the token's group is kept, or dropped without an expert
	}
}
