package trace

import "strings"

// Track returns the definitions of a contest track, in any spelling used by the contest's texts and configurations, or
// nil.
func Track(name string) []string {
	switch strings.ReplaceAll(strings.ToLower(name), "-", "_") {
	case "moe", "fused_moe":
		return []string{"moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"}
	case "dsa", "dsa_paged", "sparse_attention", "deepseek_sparse_attention":
		return []string{"dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64", "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64"}
	case "gdn", "gated_delta_net", "gated_deltanet":
		return []string{"gdn_decode_qk4_v8_d128_k_last", "gdn_prefill_qk4_v8_d128_k_last"}
	}
	return nil
}
