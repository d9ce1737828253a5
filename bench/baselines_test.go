package bench

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/devicetest"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/workloads"
)

// Every folder of solution/baselines is a valid submission that the contest's collector does not find. Those in
// Python pass on the CPU.
func TestBaselines(t *testing.T) {
	found, err := config.Discover("..")
	want := []string{"../config.toml", "../solution-prefill/config.toml"}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("the collector finds %q, %v; want %q", found, err, want)
	}
	configs, err := filepath.Glob(filepath.Join("..", "solution", "baselines", "*", config.Name))
	if err != nil || len(configs) < 4 {
		t.Fatalf("got %q, %v; want four baselines at least", configs, err)
	}
	data, err := workloads.Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range configs {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			cfg, err := config.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			def, err := data.Definition(cfg.Solution.Definition)
			if err != nil {
				t.Fatal(err)
			}
			if err := config.Check(cfg, def); err != nil {
				t.Error(err)
			}
			sol, _, err := pack.Solution(cfg, cfg.SourceDir())
			if err != nil {
				t.Fatal(err)
			}
			if !pyworker.Runs(&sol.Spec) {
				return
			}
			reference := map[string]string{"torch-reference": "main.py",
				"torch-compile": "reference.py"}[filepath.Base(cfg.Root())]
			for _, s := range sol.Sources {
				if s.Path == reference && s.Content != def.Reference {
					t.Errorf("%s is not the definition's reference", s.Path)
				}
			}
			needPython(t)
			testBaseline(t, data, def, sol)
		})
	}
}

func testBaseline(t *testing.T, data *workloads.Dataset, def *trace.Definition, sol *trace.Solution) {
	ws, err := data.Workloads(def.Name, "")
	if err != nil {
		t.Fatal(err)
	}
	profile, err := NewProfile("quick", def)
	if err != nil {
		t.Fatal(err)
	}
	profile.Timeout = 2 * time.Minute // torch.compile calls a C++ compiler
	result, err := Run(t.Context(), Shared{Definition: def, Workloads: ws[:1], Profile: profile, Load: data.Load,
		DeviceKind: "emu", Device: device.Options{CacheDir: devicetest.Cache(t)}},
		Entry{Solution: sol, Run: &event.Run{Schema: event.Schema},
			Events: event.NewStream(func(e event.Event) error {
				if e.Evaluated != nil && !e.Evaluated.Passed() {
					t.Errorf("got %s, log %s", e.Evaluated.Status(), e.Evaluated.Log())
				}
				return nil
			})})
	var we *worker.Error
	if errors.As(err, &we) && we.Code == "no-dependency" {
		t.Skip(err)
	}
	if err != nil || result.Passed != 1 {
		t.Errorf("got %+v, %v; want one passed", result, err)
	}
}
