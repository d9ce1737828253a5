package app

import (
	"bytes"
	"cmp"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fisub/app/scaffold"
	"fisub/bench/pyworker"
	"fisub/definitions"
	"fisub/device/vgpu/vgputest"
	"fisub/internal/config"
	"fisub/internal/longtest"
	"fisub/internal/trace"
)

// For each definition and language, a new project is sound and passes its workloads on this machine. The contest's
// projects are created twice and pack to the same bytes.
func TestInitProjects(t *testing.T) {
	t.Parallel()
	longtest.CI(t, "runs each project")
	cache := newCache(t)
	noPython := emulated(t, cache)
	limits := map[string]string{ // number of workloads, if all of them would take long
		"dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64":          "3",
		"gdn_decode_qk4_v8_d128_k_last":                                "2",
		"gdn_prefill_qk4_v8_d128_k_last":                               "7",
		"moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048": "1",
		"dsa_topk_indexer_fp8_h64_d128_topk2048_ps64":                  "4",
	}
	run := map[string]bool{ // one definition for each branch of the template that the families share
		"gdn_decode_qk4_v8_d128_v_last":                 true,
		"gdn_mtp_l2norm_bf16_state_qk4_v8_d128_k_last":  true,
		"gdn_mtp_output_qk4_v8_d128_k_last":             true,
		"gdn_mtp_pool_qk8_v16_d128_k_last":              true,
		"gdn_mtp_scatter_bf16_state_qk4_v8_d128_k_last": true,
		"gdn_mtp_split_qk4_v8_d128_k_last":              true,
		"gdn_mtp_verify_qk4_v8_d128_k_last":             true,
		"gdn_prefill_qk16_v32_d128_k_last":              true,
	}
	files, err := fs.Glob(definitions.FS, "*/*.json")
	if err != nil || len(files) < 37 {
		t.Fatalf("got %q, %v", files, err)
	}
	for _, file := range files {
		definition := strings.TrimSuffix(path.Base(file), ".json")
		limit, contest := limits[definition]
		limit = cmp.Or(limit, "2")
		for _, language := range scaffold.Languages {
			t.Run(definition+"/"+string(language), func(t *testing.T) {
				dir := t.TempDir()
				flags := []string{"init", "--definition", definition, "--language", string(language), "--author", "Ada", "--name",
					"first"}
				runHere(t, cache, dir, append(flags, "a")...)
				check := []string{"check", "-C", "a"}
				if !contest {
					check = append(check, "--arch", "none") // local compiles too
				}
				if out := runHere(t, cache, dir, check...); !strings.HasSuffix(out, "\nsound\n") {
					t.Errorf("check: got %q, want it to end with sound", out)
				}
				runHere(t, cache, dir, "pack", "-C", "a")
				if contest {
					runHere(t, cache, dir, append(flags, "b")...)
					runHere(t, cache, dir, "pack", "-C", "b")
					a, err := os.ReadFile(filepath.Join(dir, "a", "solution.json"))
					if err != nil {
						t.Fatal(err)
					}
					b, err := os.ReadFile(filepath.Join(dir, "b", "solution.json"))
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(a, b) {
						t.Error("the same flags made projects that pack to different bytes")
					}
				}
				if !contest && (!run[definition] || language != trace.CUDA && !strings.Contains(definition, "_qk4_")) {
					return // other cases run the common parts
				}
				if language != trace.CUDA && noPython != nil {
					longtest.Missing(t, "python", noPython)
				}
				if language == trace.Triton && strings.HasPrefix(definition, "moe") &&
					!longtest.Required("python") {
					t.Skip("not run: it takes a minute; FISUB_TEST_REQUIRE=python runs it")
				}
				out := runHere(t, cache, dir, "local", "-C", "a", "--device", "emu", "--strict", "--limit", limit)
				if !regexp.MustCompile(`(?m)^` + limit + ` of ` + limit + ` PASSED on emu`).MatchString(out) {
					t.Errorf("local: got\n%s\nwant %s workloads that pass", out, limit)
				}
				// The weights of moe, 1.4 GB generated for each workload, are deleted.
				_ = filepath.WalkDir(filepath.Join(cache, "dataset"), func(name string, _ fs.DirEntry, _ error) error {
					if st, err := os.Stat(name); err == nil && st.Size() > 60<<20 {
						t.Errorf("left: %s of %d bytes", name, st.Size())
					}
					return nil
				})
			})
		}
	}
}

// The submissions in solution pass on the virtual GPU: the family, which shares one build, and the baselines,
// except those that call a library that needs a GPU.
func TestSubmissions(t *testing.T) {
	t.Parallel()
	longtest.CI(t, "runs each submission")
	cache := newCache(t)
	noPython := emulated(t, cache)
	configs, err := filepath.Glob("../solution/*/*/" + config.Name)
	if err != nil || len(configs) < 40 {
		t.Fatalf("got %q, %v; want forty submissions at least", configs, err)
	}
	for _, path := range configs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("\ndependencies = ")) {
			continue
		}
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			if !bytes.Contains(text, []byte(`language = "cuda"`)) && noPython != nil {
				longtest.Missing(t, "python", noPython)
			}
			out := runHere(t, cache, dir, "local", "--device", "emu", "--strict", "--limit", "1")
			if !strings.Contains(out, "\n1 of 1 PASSED on emu") {
				t.Errorf("got\n%s\nwant 1 workload that passes", out)
			}
		})
	}
}

// The adapters call FlashInfer's functions with valid arguments, as checked by a stand-in with the same signatures.
// With bfloat16 states in a pool FlashInfer treats padding differently, so only the first workload, which has no
// padding, is run.
func TestFlashInfer(t *testing.T) {
	t.Parallel()
	longtest.CI(t, "runs each submission")
	cache := newCache(t)
	if noPython := emulated(t, cache); noPython != nil {
		longtest.Missing(t, "python", noPython)
	}
	stand, err := filepath.Abs("../solution/flashinfer/testdata")
	if err != nil {
		t.Fatal(err)
	}
	configs, err := filepath.Glob("../solution/flashinfer/gdn_*_qk4_*/" + config.Name)
	if err != nil || len(configs) < 12 {
		t.Fatalf("got %q, %v; want twelve submissions at least", configs, err)
	}
	for _, path := range configs {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			flags := []string{"local", "--device", "emu", "--strict"}
			if pooled, _ := regexp.MatchString("_(pool|split)_bf16", dir); pooled {
				flags = append(flags, "--limit", "1")
			}
			out := runWith(t, []string{"PYTHONPATH=" + stand}, cache, dir, flags...) // fails if a workload does not pass
			t.Logf("%s", out)
		})
	}
}

// runHere runs this program in a folder and returns its standard output.
func runHere(t *testing.T, cache, dir string, args ...string) string {
	t.Helper()
	return runWith(t, nil, cache, dir, args...)
}

// runWith is runHere with additional environment variables.
func runWith(t *testing.T, env []string, cache, dir string, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &stderr
	cmd.Env = append(append(os.Environ(), env...), "FISUB_CACHE="+cache, "FIB_DATASET_PATH=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("fisub %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// emulated prepares the virtual GPU for submissions in Python. It returns the reason if there is no suitable Python.
func emulated(t *testing.T, cache string) error {
	t.Helper()
	_, noPython := pyworker.Command(t.Context(), cache)
	if noPython == nil {
		if err := vgputest.Library(); err != nil {
			t.Fatal(err)
		}
	}
	return noPython
}

func TestVersion(t *testing.T) {
	defer func() { commit = "" }()
	const hash = "0123456789abcdef0123456789abcdef01234567"
	for built, want := range map[string][2]string{
		"":              {Version, "v" + Version},
		hash:            {Version + " (0123456789ab)", hash},
		hash + "-dirty": {Version + " (0123456789ab-dirty)", hash},
	} {
		commit = built
		if text, rev := versionText(), revision(); text != want[0] || rev != want[1] {
			t.Errorf("%q: got %q and %q, want %q", built, text, rev, want)
		}
	}
}
