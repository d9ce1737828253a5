package app

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fisub/internal/longtest"
	"fisub/workloads"
)

// Set edge finds kernels that are wrong only for inputs that the default set lacks. Each is a kernel of init with one
// change, without which it passes the set.
func TestEdgeFinds(t *testing.T) {
	t.Parallel()
	longtest.CI(t, "runs each kernel")
	cache := newCache(t)
	const (
		attention = "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64"
		indexer   = "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64"
		moe       = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
	)
	for _, tc := range []struct {
		name, definition string
		old, changed     string
		cases            []string // that do not pass
	}{
		{"right attention", attention, "", "", nil},
		{"the first -1 ends a row", attention, "if (e >= 0) {\n      const float2",
			"if (e < 0) break;\n    {\n      const float2",
			[]string{"-1 before and between entries"}},
		{"an entry twice in a row counts once", attention, "if (e >= 0) {\n      logit",
			"if (e >= 0 && (j == 0 || e != indices[t * kTopK + j - 1])) {\n      logit", []string{"an entry several times"}},
		{"a logit of 0 is no entry", attention, "entry[j] >= 0 ?", "entry[j] >= 0 && weight[j] != 0.0f ?",
			[]string{"q of 0"}},
		{"exponentials without a maximum", attention, "= block_reduce<true>(largest)", "= 0.0f",
			[]string{"logits of more than 88 and less than -88"}},
		{"outputs in half", attention, "acc.x * inverse,", "__half2float(__float2half(acc.x * inverse)),",
			[]string{"outputs above 65504"}},

		{"right indexer", indexer, "", "", nil},
		{"no empty sequence", indexer, "cast<int64_t>(seq_lens[b])", "cast<int64_t>(max(seq_lens[b], 1))",
			[]string{"lengths of 0, 1, 2047, 2048 and 2049"}},
		{"2049 tokens are all chosen", indexer, "if (length <= kTopK) {", "if (length <= kTopK + 1) {",
			[]string{"lengths of 0, 1, 2047, 2048 and 2049"}},
		{"one of several equal scores", indexer, "if (i < missing)", "if (i < 1)",
			[]string{"equal scores", "scores of 0", "scores above, at and below 0"}},
		{"scores in half", indexer, "+ token] = score;", "+ token] = __half2float(__float2half(score));",
			[]string{"scores above 65504"}},

		{"right mixture of experts", moe, "", "", nil},
		{"equal scores share a rank", moe, "(biased[i] == mine && i < e);\n  }\n  const bool", "false;\n  }\n  const bool",
			[]string{"ties"}},
		{"experts of dropped groups score 0", moe, "-FLT_MAX", "0.0f", []string{"biases of -2 and scores of 0"}},
		{"a sum of 0", moe, "1e-20f", "0.0f", []string{"biases of -2 and scores of 0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			runHere(t, cache, dir, "init", "--definition", tc.definition, "--language", "cuda", "--author", "Ada",
				"--name", "k", "a")
			local := []string{"local", "-C", "a", "--device", "emu", "--strict", "--keep-going"}
			if tc.cases == nil {
				runHere(t, cache, dir, append(local, "--set", workloads.EdgeSet)...)
				return
			}
			file := filepath.Join(dir, "a", "solution", "cuda", "kernel.cu")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), tc.old); n != 1 {
				t.Fatalf("%q is %d times in the kernel", tc.old, n)
			}
			text = []byte(strings.Replace(string(text), tc.old, tc.changed, 1))
			if err := os.WriteFile(file, text, 0o666); err != nil {
				t.Fatal(err)
			}
			data, err := workloads.Open("", cache)
			if err != nil {
				t.Fatal(err)
			}
			hard, err := data.Workloads(tc.definition, workloads.EdgeSet)
			if err != nil {
				t.Fatal(err)
			}
			usual, edge := []string{}, []string{"--set", workloads.EdgeSet}
			if tc.definition == moe { // its workloads take long
				usual = []string{"--limit", "1"}
				for _, w := range hard {
					if slices.Contains(tc.cases, workloads.Tests(moe, w.UUID)) {
						edge = append(edge, "--workload", w.UUID)
					}
				}
			}
			runHere(t, cache, dir, append(slices.Clone(local), usual...)...)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self, append(slices.Clone(local), edge...)...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "FISUB_CACHE="+cache, "FIB_DATASET_PATH=")
			out, err := cmd.CombinedOutput()
			var failed []string
			for _, m := range regexp.MustCompile(`(?m)^ +edge: (.+)$`).FindAllStringSubmatch(string(out), -1) {
				failed = append(failed, m[1])
			}
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 3 || !slices.Equal(failed, tc.cases) {
				t.Errorf("got failures of %q, %v, want %q\n%s", failed, err, tc.cases, out)
			}
		})
	}
}
