package workloads

import (
	"bytes"
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"flag"
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

var update = flag.Bool("update", false, "write the embedded workload files")

const (
	decode    = "gdn_decode_qk4_v8_d128_k_last"
	decode8   = "gdn_decode_qk8_v16_d128_k_last"
	decode16  = "gdn_decode_qk16_v32_d128_k_last"
	prefill   = "gdn_prefill_qk4_v8_d128_k_last"
	prefill8  = "gdn_prefill_qk8_v16_d128_k_last"
	prefill16 = "gdn_prefill_qk16_v32_d128_k_last"
	moe       = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
	attention = "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64"
	indexer   = "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64"
)

// An embeddedSet is the recipe of one file of workloads.
type embeddedSet struct {
	op, def, set string
	axes         string // of the rows' first columns, in order
	// NAME lies in a file, NAME=random is random, NAME=VALUE a scalar; a value of # is the row's next column
	inputs string
	rows   [][]int
}

const (
	// 1 / sqrt(128) and 1 / sqrt(192), the former as the contest's own lines have it.
	decodeInputs  = "q k v state A_log a dt_bias b scale=0.08838834764831843"
	prefillInputs = "q k v state A_log a dt_bias b cu_seqlens scale=0.08838834764831843"
	mtpInputs     = "q k v initial_state initial_state_indices A_log a dt_bias b scale=0.08838834764831843"
	splitInputs   = "q k v initial_state initial_state_indices output_state_indices A_log a dt_bias b scale=0.08838834764831843"
	scatterInputs = "q k v initial_state initial_state_indices ssm_state_indices A_log a dt_bias b scale=0.08838834764831843"
	moeInputs     = "routing_logits routing_bias hidden_states=random hidden_states_scale=random " +
		"gemm1_weights=random gemm1_weights_scale=random gemm2_weights=random gemm2_weights_scale=random " +
		"local_expert_offset=# routed_scaling_factor=2.5"
	attentionInputs = "q_nope=random q_pe=random ckv_cache=random kpe_cache=random sparse_indices " +
		"sm_scale=0.07216878364870322"
	// 1 / sqrt(192) times the square of YaRN's 1.3689
	officialAttentionInputs = "q_nope=random q_pe=random ckv_cache=random kpe_cache=random sparse_indices " +
		"sm_scale=0.1352337788608801"
	indexerInputs = "q_index_fp8=random k_index_cache_fp8=random weights=random seq_lens block_table"
)

var batches = [][]int{{1}, {2}, {4}, {8}, {16}, {32}, {48}, {64}, {128}, {256}}

const poolAxes = "batch_size seq_len pool_size"

var (
	few       = [][]int{{1, 2, 2}, {3, 4, 5}, {5, 3, 16}, {2, 8, 6}, {2, 1, 4}}
	fewSplit  = [][]int{{1, 2, 2}, {3, 4, 7}, {5, 3, 16}, {2, 8, 6}, {2, 1, 4}}
	fewTokens = [][]int{{1, 2, 3}, {3, 4, 16}, {5, 3, 23}, {2, 8, 18}, {2, 1, 4}}
	fewDense  = [][]int{{1, 2}, {3, 4}, {5, 3}, {2, 8}, {2, 1}}
	served16  = pools(1, 1, 1, 4, 4, 2, 4, 4, 4, 8, 16, 2, 16, 4, 16, 8)
	served64  = append(served16[:len(served16):len(served16)], pools(64, 1, 64, 2, 64, 4, 64, 8)...)
	served256 = append(served64[:len(served64):len(served64)], pools(256, 1, 256, 4)...)
)

// apart gives each sequence a slot to read and one for each token.
func apart(rows [][]int) (all [][]int) {
	for _, row := range rows {
		all = append(all, []int{row[0], row[1], row[0] * max(3, row[1]+1)})
	}
	return all
}

// pools makes rows from pairs: batch and tokens of each sequence.
func pools(pairs ...int) (rows [][]int) {
	for p := range slices.Chunk(pairs, 2) {
		rows = append(rows, []int{p[0], p[1], 3 * p[0]})
	}
	return rows
}

// embeddedSets are all sets. What is called contest has the axes and scalars of the official workloads, one by one;
// batches has one of each size, along the axis that varies in those.
var embeddedSets = []embeddedSet{
	{"gdn", decode, DefaultSet, "batch_size", decodeInputs, repeat(1, 20)},
	{"gdn", decode, "batches", "batch_size", decodeInputs, batches},
	{"gdn", decode, "contest", "batch_size", decodeInputs,
		slices.Concat(repeat(1, 10), repeat(4, 8), repeat(8, 7), repeat(16, 7), repeat(32, 7), repeat(48, 7), repeat(64, 8))},
	// One token; a token each; tails of a block of 16, 64 and 128; many short sequences and few long ones; one of more than 2,000 tokens.
	{"gdn", prefill, DefaultSet, "total_seq_len num_seqs len_cu_seqlens", prefillInputs,
		sequences(1, 1, 7, 7, 6, 1, 35, 2, 64, 1, 129, 3, 202, 13, 300, 2, 2075, 1)},
	{"gdn", prefill, "contest", "total_seq_len num_seqs len_cu_seqlens", prefillInputs, sequences(
		6, 1, 134, 1, 134, 1, 8192, 32, 8192, 34, 8192, 34, 4124, 15, 8192, 32, 8192, 25, 8192, 48, 8192, 38, 8192, 38,
		8192, 20, 8192, 56, 8192, 37, 8192, 35, 8192, 43, 8192, 43, 8192, 57, 8192, 39, 3999, 13, 32, 2, 16, 1, 16, 1,
		40, 2, 49, 1, 1377, 1, 3271, 2, 983, 2, 983, 2, 46, 2, 202, 3, 239, 3, 294, 3, 91, 2, 91, 2, 132, 2, 341, 2,
		2107, 1, 1592, 3, 139, 3, 139, 3, 116, 1, 185, 2, 81, 2, 82, 3, 1800, 3, 1800, 3, 35, 2, 3028, 5, 61, 1,
		16, 1, 35, 1, 35, 1, 461, 2, 832, 4, 2857, 3, 30, 1, 114, 2, 114, 2, 35, 2, 31, 1, 255, 3, 24, 1, 97, 1,
		97, 1, 574, 2, 92, 1, 85, 2, 79, 1, 30, 1, 30, 1, 401, 4, 12, 1, 18, 1, 1796, 3, 973, 3, 973, 3, 248, 2,
		2040, 2, 48, 1, 118, 2, 76, 2, 76, 2, 67, 1, 68, 1, 13, 1, 525, 1, 49, 1, 49, 1, 5709, 2, 14, 1, 661, 3,
		76, 2, 959, 4, 959, 4, 28, 2, 42, 2, 2284, 3, 23, 1,
	)},
	// The same layer on two GPUs and on one. The contest has no workloads for these.
	{"gdn", decode8, DefaultSet, "batch_size", decodeInputs, [][]int{{1}, {1}, {2}, {4}}},
	{"gdn", decode8, "batches", "batch_size", decodeInputs, batches},
	{"gdn", decode16, DefaultSet, "batch_size", decodeInputs, [][]int{{1}, {1}, {2}, {4}}},
	{"gdn", decode16, "batches", "batch_size", decodeInputs, batches},
	{"gdn", prefill8, DefaultSet, "total_seq_len num_seqs len_cu_seqlens", prefillInputs,
		sequences(1, 1, 7, 7, 35, 2, 64, 1, 129, 3)},
	{"gdn", prefill16, DefaultSet, "total_seq_len num_seqs len_cu_seqlens", prefillInputs,
		sequences(1, 1, 7, 7, 35, 2, 64, 1, 129, 3)},
	// What engines call. Default sets are small, and their pools ragged; served has the batches of a server, with a pool three
	// times as large as the batch.
	{"gdn", "gdn_decode_qk4_v8_d128_v_last", DefaultSet, "batch_size", decodeInputs, [][]int{{1}, {2}, {5}}},
	{"gdn", "gdn_decode_qk4_v8_d128_v_last", "batches", "batch_size", decodeInputs, batches},
	{"gdn", "gdn_decode_l2norm_qk4_v8_d128_k_last", DefaultSet, "batch_size", decodeInputs, [][]int{{1}, {2}, {5}}},
	{"gdn", "gdn_decode_l2norm_qk4_v8_d128_k_last", "batches", "batch_size", decodeInputs, batches},
	{"gdn", "gdn_decode_bf16_state_qk4_v8_d128_k_last", DefaultSet, "batch_size", decodeInputs, [][]int{{1}, {2}, {5}}},
	{"gdn", "gdn_decode_bf16_state_qk4_v8_d128_k_last", "batches", "batch_size", decodeInputs, batches},
	{"gdn", "gdn_mtp_verify_qk4_v8_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_verify_qk4_v8_d128_k_last", "served", poolAxes, mtpInputs, served64},
	{"gdn", "gdn_mtp_verify_bf16_state_qk4_v8_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_verify_bf16_state_qk4_v8_d128_k_last", "served", poolAxes, mtpInputs, served256},
	{"gdn", "gdn_mtp_verify_qk8_v16_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_verify_qk8_v16_d128_k_last", "served", poolAxes, mtpInputs, served64},
	{"gdn", "gdn_mtp_verify_qk16_v32_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_verify_qk16_v32_d128_k_last", "served", poolAxes, mtpInputs, served16},
	{"gdn", "gdn_mtp_output_qk4_v8_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_output_qk4_v8_d128_k_last", "served", poolAxes, mtpInputs, served256},
	{"gdn", "gdn_mtp_pool_qk4_v8_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_pool_qk4_v8_d128_k_last", "served", poolAxes, mtpInputs, served64},
	{"gdn", "gdn_mtp_pool_qk8_v16_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_pool_qk8_v16_d128_k_last", "served", poolAxes, mtpInputs, served64},
	{"gdn", "gdn_mtp_pool_qk16_v32_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_pool_qk16_v32_d128_k_last", "served", poolAxes, mtpInputs, served16},
	{"gdn", "gdn_mtp_pool_bf16_state_qk4_v8_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_pool_bf16_state_qk4_v8_d128_k_last", "served", poolAxes, mtpInputs, served256},
	{"gdn", "gdn_mtp_pool_bf16_state_qk8_v16_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_pool_bf16_state_qk8_v16_d128_k_last", "served", poolAxes, mtpInputs, served64},
	{"gdn", "gdn_mtp_pool_bf16_state_qk16_v32_d128_k_last", DefaultSet, poolAxes, mtpInputs, few},
	{"gdn", "gdn_mtp_pool_bf16_state_qk16_v32_d128_k_last", "served", poolAxes, mtpInputs, served64},
	{"gdn", "gdn_mtp_split_qk4_v8_d128_k_last", DefaultSet, poolAxes, splitInputs, fewSplit},
	{"gdn", "gdn_mtp_split_qk4_v8_d128_k_last", "served", poolAxes, splitInputs, served64},
	{"gdn", "gdn_mtp_split_qk8_v16_d128_k_last", DefaultSet, poolAxes, splitInputs, fewSplit},
	{"gdn", "gdn_mtp_split_qk8_v16_d128_k_last", "served", poolAxes, splitInputs, served64},
	{"gdn", "gdn_mtp_split_qk16_v32_d128_k_last", DefaultSet, poolAxes, splitInputs, fewSplit},
	{"gdn", "gdn_mtp_split_qk16_v32_d128_k_last", "served", poolAxes, splitInputs, served16},
	{"gdn", "gdn_mtp_split_bf16_state_qk4_v8_d128_k_last", DefaultSet, poolAxes, splitInputs, fewSplit},
	{"gdn", "gdn_mtp_split_bf16_state_qk4_v8_d128_k_last", "served", poolAxes, splitInputs, served256},
	{"gdn", "gdn_mtp_scatter_qk4_v8_d128_k_last", DefaultSet, poolAxes, scatterInputs, fewTokens},
	{"gdn", "gdn_mtp_scatter_qk4_v8_d128_k_last", "served", poolAxes, scatterInputs, apart(served64)},
	{"gdn", "gdn_mtp_scatter_qk8_v16_d128_k_last", DefaultSet, poolAxes, scatterInputs, fewTokens},
	{"gdn", "gdn_mtp_scatter_qk8_v16_d128_k_last", "served", poolAxes, scatterInputs, apart(served64)},
	{"gdn", "gdn_mtp_scatter_qk16_v32_d128_k_last", DefaultSet, poolAxes, scatterInputs, fewTokens},
	{"gdn", "gdn_mtp_scatter_qk16_v32_d128_k_last", "served", poolAxes, scatterInputs, apart(served16)},
	{"gdn", "gdn_mtp_scatter_bf16_state_qk4_v8_d128_k_last", DefaultSet, poolAxes, scatterInputs, fewTokens},
	{"gdn", "gdn_mtp_scatter_bf16_state_qk4_v8_d128_k_last", "served", poolAxes, scatterInputs, apart(served64)},
	{"gdn", "gdn_mtp_l2norm_qk4_v8_d128_k_last", DefaultSet, "batch_size seq_len", decodeInputs, fewDense},
	{"gdn", "gdn_mtp_l2norm_qk4_v8_d128_k_last", "served", "batch_size seq_len", decodeInputs, served256},
	{"gdn", "gdn_mtp_l2norm_bf16_state_qk4_v8_d128_k_last", DefaultSet, "batch_size seq_len", decodeInputs, fewDense},
	{"gdn", "gdn_mtp_l2norm_bf16_state_qk4_v8_d128_k_last", "served", "batch_size seq_len", decodeInputs, served256},
	{"gdn", "gdn_mtp_l2norm_qk8_v16_d128_k_last", DefaultSet, "batch_size seq_len", decodeInputs, fewDense},
	{"gdn", "gdn_mtp_l2norm_qk8_v16_d128_k_last", "served", "batch_size seq_len", decodeInputs, served256},
	{"gdn", "gdn_mtp_l2norm_bf16_state_qk8_v16_d128_k_last", DefaultSet, "batch_size seq_len", decodeInputs, fewDense},
	{"gdn", "gdn_mtp_l2norm_bf16_state_qk8_v16_d128_k_last", "served", "batch_size seq_len", decodeInputs, served256},
	{"gdn", "gdn_mtp_l2norm_qk16_v32_d128_k_last", DefaultSet, "batch_size seq_len", decodeInputs, fewDense},
	{"gdn", "gdn_mtp_l2norm_qk16_v32_d128_k_last", "served", "batch_size seq_len", decodeInputs, served64},
	{"gdn", "gdn_mtp_l2norm_bf16_state_qk16_v32_d128_k_last", DefaultSet, "batch_size seq_len", decodeInputs, fewDense},
	{"gdn", "gdn_mtp_l2norm_bf16_state_qk16_v32_d128_k_last", "served", "batch_size seq_len", decodeInputs, served64},
	{"moe", moe, DefaultSet, "seq_len", moeInputs, [][]int{{1, 32}, {11, 0}}},
	{"moe", moe, "batches", "seq_len", moeInputs, [][]int{{1, 32}, {2, 32}, {4, 32}, {8, 32}, {16, 32}, {32, 32}, {64, 32},
		{128, 32}, {256, 32}, {512, 32}, {1024, 32}, {2048, 32}, {4096, 32}}},
	{"moe", moe, "contest", "seq_len", moeInputs, [][]int{
		{7, 192}, {1, 32}, {32, 32}, {80, 96}, {901, 96}, {16, 224}, {15, 32}, {14, 0}, {14107, 32}, {11948, 128},
		{62, 96}, {59, 160}, {58, 64}, {57, 96}, {56, 64}, {55, 128}, {54, 128}, {53, 32}, {52, 160},
	}},
	{"dsa_paged", attention, DefaultSet, "num_tokens num_pages", attentionInputs,
		[][]int{{1, 1}, {1, 33}, {2, 32}, {3, 31}, {8, 70}}},
	{"dsa_paged", attention, "batches", "num_tokens num_pages", officialAttentionInputs,
		[][]int{{1, 8462}, {2, 8462}, {4, 8462}, {8, 8462}, {16, 8462}, {32, 8462}, {64, 8462}}},
	{"dsa_paged", attention, "contest", "num_tokens num_pages", officialAttentionInputs,
		[][]int{{1, 8462}, {2, 8462}, {2, 8462}, {2, 8462}, {2, 8462}, {2, 8462}, {2, 8462}, {2, 8462}, {2, 8462},
			{8, 8462}, {8, 8462}, {7, 8462}, {8, 8462}, {6, 8462}, {8, 8462}, {6, 8462}, {8, 8462}, {7, 8462},
			{8, 8462}, {8, 8462}, {8, 8462}, {6, 8462}, {7, 8462}}},
	{"dsa_paged", indexer, DefaultSet, "batch_size max_num_pages num_pages", indexerInputs,
		[][]int{{1, 32, 32}, {1, 40, 50}, {3, 96, 128}, {6, 70, 300}}},
	{"dsa_paged", indexer, "contest", "batch_size max_num_pages num_pages", indexerInputs,
		[][]int{{1, 1, 11923}, {1, 2, 11923}, {1, 3, 11923}, {2, 2, 11923}, {2, 1, 11923}, {2, 6, 11923},
			{2, 5, 11923}, {2, 3, 11923}, {2, 7, 11923}, {2, 4, 11923}, {2, 8, 11923}, {4, 17, 11923},
			{3, 2, 11923}, {4, 34, 11923}, {4, 43, 11923}, {4, 16, 11923}, {4, 18, 11923}, {4, 1, 11923},
			{4, 2, 11923}, {4, 30, 11923}, {4, 35, 11923}, {4, 31, 11923}, {4, 3, 11923}, {4, 44, 11923},
			{4, 36, 11923}, {4, 32, 11923}, {4, 19, 11923}, {4, 4, 11923}, {4, 45, 11923}, {8, 34, 11923},
			{8, 16, 11923}, {8, 17, 11923}, {7, 18, 11923}, {7, 34, 11923}, {6, 1, 11923}, {8, 43, 11923},
			{6, 26, 11923}, {8, 38, 11923}, {8, 1, 11923}, {8, 30, 11923}, {8, 18, 11923}, {8, 26, 11923},
			{8, 32, 11923}, {8, 35, 11923}, {8, 27, 11923}, {8, 2, 11923}, {8, 31, 11923}, {8, 44, 11923},
			{8, 19, 11923}, {8, 36, 11923}, {8, 28, 11923}, {8, 3, 11923}, {8, 8, 11923}, {8, 9, 11923},
			{8, 45, 11923}, {6, 28, 11923}, {7, 32, 11923}, {6, 32, 11923}, {15, 18, 11923}, {16, 34, 11923},
			{15, 34, 11923}, {16, 43, 11923}, {15, 43, 11923}, {12, 82, 11923}, {16, 38, 11923}, {16, 33, 11923},
			{15, 82, 11923}, {15, 38, 11923}, {15, 30, 11923}, {15, 89, 11923}, {15, 35, 11923}, {15, 90, 11923},
			{15, 39, 11923}, {15, 31, 11923}, {15, 83, 11923}, {15, 44, 11923}, {15, 19, 11923}, {15, 36, 11923},
			{15, 91, 11923}, {15, 40, 11923}, {15, 32, 11923}, {15, 84, 11923}, {15, 45, 11923}, {15, 1, 11923},
			{14, 84, 11923}, {14, 32, 11923}, {14, 1, 11923}, {14, 91, 11923}, {14, 40, 11923}, {14, 35, 11923},
			{11, 32, 11923}, {31, 26, 11923}, {29, 18, 11923}, {30, 34, 11923}, {27, 82, 11923}, {29, 30, 11923},
			{29, 89, 11923}, {30, 30, 11923}, {31, 43, 11923}, {30, 89, 11923}, {30, 82, 11923}, {30, 18, 11923},
			{30, 43, 11923}, {30, 33, 11923}, {30, 35, 11923}, {30, 90, 11923}, {30, 28, 11923}, {30, 31, 11923},
			{30, 29, 11923}, {30, 83, 11923}, {30, 19, 11923}, {30, 44, 11923}, {30, 36, 11923}, {30, 91, 11923},
			{30, 32, 11923}, {29, 32, 11923}, {29, 91, 11923}, {29, 19, 11923}, {29, 83, 11923}, {29, 44, 11923},
			{29, 36, 11923}, {29, 84, 11923}, {29, 1, 11923}, {29, 45, 11923}, {26, 30, 11923}, {27, 32, 11923},
			{27, 91, 11923}, {25, 30, 11923}}},
}

// keys stand for the set in the uuids where the set has, or another one had, another name.
var keys = map[string]string{decode + "contest": "contest54", attention + "contest": "contest23",
	indexer + "contest": "contest128"}

// repeat makes rows of one column.
func repeat(batch, n int) [][]int {
	list := make([][]int, n)
	for i := range list {
		list[i] = []int{batch}
	}
	return list
}

// sequences makes rows from pairs: tokens, sequences.
func sequences(pairs ...int) (rows [][]int) {
	for p := range slices.Chunk(pairs, 2) {
		rows = append(rows, []int{p[0], p[1], p[1] + 1})
	}
	return rows
}

// uuid5 is RFC 9562's version 5 in the URL namespace.
func uuid5(name string) string {
	space, _ := hex.DecodeString("6ba7b8119dad11d180b400c04fd430c8")
	sum := sha1.Sum(append(space, name...))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// lines are the workloads of the set in the contest's line format, keys in the order of its dataset.
func (s *embeddedSet) lines() []byte {
	var b bytes.Buffer
	for i, row := range s.rows {
		uuid := uuid5(fmt.Sprintf("fisub/%s/%s/%d", s.def, cmp.Or(keys[s.def+s.set], s.set), i))
		var axes, inputs []string
		for _, axis := range strings.Fields(s.axes) {
			axes = append(axes, fmt.Sprintf("%q:%d", axis, row[0]))
			row = row[1:]
		}
		for _, input := range strings.Fields(s.inputs) {
			name, value, _ := strings.Cut(input, "=")
			spec := fmt.Sprintf(`{"type":"scalar","value":%s}`, value)
			switch value {
			case "":
				spec = fmt.Sprintf(`{"type":"safetensors","path":"./blob/workloads/%s/%s/%s_%s.safetensors","tensor_key":"%s"}`,
					s.op, s.def, s.def, uuid, name)
			case "random":
				spec = `{"type":"random"}`
			case "#":
				spec = fmt.Sprintf(`{"type":"scalar","value":%d}`, row[0])
			}
			inputs = append(inputs, fmt.Sprintf("%q:%s", name, spec))
		}
		fmt.Fprintf(&b,
			`{"definition":%q,"solution":null,"workload":{"uuid":%q,"axes":{%s},"inputs":{%s}},"evaluation":null}`+"\n",
			s.def, uuid, strings.Join(axes, ","), strings.Join(inputs, ","))
	}
	return b.Bytes()
}

func (s *embeddedSet) file() string {
	if s.set == DefaultSet {
		return filepath.Join(s.op, s.def+".jsonl")
	}
	return filepath.Join(s.op, s.def+"."+s.set+".ndjson")
}

func TestEmbeddedFiles(t *testing.T) {
	for _, s := range embeddedSets {
		want := s.lines()
		if *update {
			if err := os.MkdirAll(s.op, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.file(), want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(s.file())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: not what the recipe gives; run go test ./workloads -run TestEmbeddedFiles -update", s.file())
		}
	}
}

func TestEmbeddedDataset(t *testing.T) {
	d, _ := open(t)
	seen := map[string]bool{}
	want := map[string][]string{}
	for _, s := range embeddedSets {
		want[s.def] = append(want[s.def], s.set)
		def, err := d.Definition(s.def)
		if err != nil {
			t.Fatal(err)
		}
		ws, err := d.Workloads(s.def, s.set)
		if err != nil {
			t.Fatal(err)
		}
		if len(ws) != len(s.rows) {
			t.Errorf("%s %s: got %d workloads, want %d", s.def, s.set, len(ws), len(s.rows))
		}
		for i, w := range ws {
			for j, axis := range strings.Fields(s.axes) {
				if n, _ := w.Axes.Get(axis); n != s.rows[i][j] {
					t.Errorf("%s %s %s: got %s %d, want %d", s.def, s.set, w.UUID, axis, n, s.rows[i][j])
				}
			}
			if seen[w.UUID] {
				t.Errorf("uuid %s comes twice", w.UUID)
			}
			seen[w.UUID] = true
		}
		reports, err := d.Verify(t.Context(), def, ws)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reports {
			if len(r.Faults) > 0 || r.Files != 1 || r.Absent != 1 {
				t.Errorf("%s %s %s: got %+v, want one absent file and no fault", s.def, s.set, r.UUID, r)
			}
		}
	}
	for _, name := range d.Definitions() {
		if strings.HasPrefix(name, "gdn_") {
			i, _ := slices.BinarySearch(want[name][1:], EdgeSet)
			want[name] = slices.Insert(want[name], 1+i, EdgeSet)
		}
		if sets, err := d.Sets(name); err != nil || !slices.Equal(sets, want[name]) {
			t.Errorf("%s: got sets %v, %v, want %v", name, sets, err, want[name])
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

// Indices lead to different slots of the pool, the last one among them; padding is where the definition says what it gives.
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

// officialDataset makes a dataset of the contest's definitions, and workloads with the axes and inputs of the official
// ones.
func officialDataset(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const source = "../testdata/contest"
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

// The sets called contest have the axes and scalars of the official workloads, in their order, and declare random what
// those do.
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

// The contest's loader takes every .jsonl file below workloads/, so each must belong to a default set, once.
func TestRepositoryIsADatasetRoot(t *testing.T) {
	d, err := Open("..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range embeddedSets {
		ws, err := d.Workloads(s.def, s.set)
		if err != nil || len(ws) != len(s.rows) {
			t.Errorf("%s %s: got %d workloads, %v, want %d", s.def, s.set, len(ws), err, len(s.rows))
		}
		if s.set == DefaultSet {
			want = append(want, filepath.ToSlash(s.file()))
		}
	}
	slices.Sort(want)
	if files, err := list(os.DirFS("."), ".jsonl"); err != nil || !slices.Equal(files, want) {
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
