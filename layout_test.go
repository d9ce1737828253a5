package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// layers lists the packages from the bottom up. A package may import only packages of earlier rows.
var layers = [][]string{
	{"internal/hint", "internal/retry"},
	{"internal/memfile"},
	{"internal/longtest", "internal/ledger", "internal/sandbox", "internal/cache", "internal/plain", "internal/tensor",
		"definitions", "solution/baselines", "runs/stats", "docs", "device/vgpu/ptx", "device/vgpu/exec",
		"device/vgpu/vgputest"},
	{"workloads/random", "device/sass", "remote/modal/modaltest", "internal/git", "remote/servertest"},
	{"internal/trace"},
	{"internal/event"},
	{"internal/event/eventtest", "internal/config", "internal/safetensors", "device", "project/preflight/source",
		"internal/usage"},
	{"workloads", "remote"}, {"workloads/tasks"},
	{"device/activity", "device/counters", "internal/ui", "bench/bound"},
	{"pack", "device/nvcc", "device/cuda/tvmffi", "device/cuda/cupti", "device/cuda/stamp", "runs",
		"device/devicetest", "remote/agent", "remote/ssh/sshdtest", "remote/slurm/slurmtest",
		"remote/kubernetes/kubernetestest"},
	{"remote/host", "remote/follow"},
	{"remote/work"},
	{"remote/aws/mailbox", "app/scaffold"},
	{"device/cuda", "device/vgpu", "remote/loopback", "remote/ssh", "remote/aws", "remote/modal",
		"remote/kubernetes", "remote/remotetest"},
	{"device/vgpu/shared", "device/vgpu/cublas", "solution/solutiontest", "bench/reference", "bench/worker", "runs/compare", "remote/dispatch",
		"remote/bundle", "remote/slurm", "app/submit"},
	{"remote/providers", "remote/faultstest"},
	{"bench/pyworker"},
	{"bench", "report", "project"},
	{"project/preflight"},
	{"project/machine"},
	{"project/setup", "app/doctor"},
	{"project/tools", "app/mcp"},
	{"app/outcome"},
	{"app/flags"},
	{"app"},
	{"."},
}

// folders lists the folders of the root from the bottom up. Their packages may import only packages of their own folder
// and of earlier rows.
var folders = [][]string{
	{"internal", "definitions", "docs"},
	{"device", "pack", "runs", "workloads"},
	{"bench", "report", "solution"},
	{"remote", "project"},
	{"app"},
	{"."},
}

// only maps modules outside this one to the packages that may import them. A package's fake, in NAMEtest below it, may
// too.
var only = map[string]string{
	"gorgonia.org/cu":                    "device/cuda",
	"github.com/urfave/cli/v2":           "app app/flags",
	"github.com/schollz/progressbar/v3":  "internal/ui",
	"github.com/pelletier/go-toml/v2":    "internal/config",
	"github.com/go-json-experiment/json": "internal/trace internal/safetensors",
	"golang.org/x/perf":                  "runs/stats",
	"github.com/aws/aws-sdk-go-v2":       "remote/aws",
	"github.com/aws/smithy-go":           "remote/aws",
	"github.com/moby/spdystream":         "remote/kubernetes",
	"github.com/klauspost/compress":      "device/vgpu",

	"github.com/modelcontextprotocol/go-sdk": "app/mcp",

	"github.com/modal-labs/modal-client/go": "remote/modal",
	"google.golang.org/grpc":                "remote/modal",
}

// never lists forbidden imports that the layers would allow.
var never = map[string][]string{
	"bench":           {"device/cuda", "device/vgpu", "device/nvcc"},
	"runs/compare":    {"device", "workloads", "pack"},
	"project/machine": {"project", "workloads", "pack"},
	"runs":            {"device", "workloads", "pack"},
	"bench/worker":    {"device/cuda", "device/vgpu", "device/nvcc", "workloads"},
	"bench/pyworker":  {"device", "workloads"},
	"device/cuda":     {"internal/event", "workloads", "pack"},
	"device/vgpu":     {"internal/event", "workloads", "pack", "device/cuda"},
	"pack":            {"device", "workloads"},
	"report":          {"device", "workloads", "pack"},
	"remote":          {"internal/event", "device", "workloads"},
	"remote/agent":    {"internal/event", "device", "workloads"},
	"remote/aws":      {"device", "workloads"},
	"remote/dispatch": {"device", "workloads", "remote/aws", "remote/loopback", "remote/modal", "remote/slurm",
		"remote/ssh", "remote/kubernetes"},
	"remote/kubernetes": {"device", "workloads"},
	"remote/loopback":   {"device", "workloads"},
	"remote/modal":      {"device", "workloads"},
	"remote/slurm":      {"device", "workloads"},
	"remote/ssh":        {"device", "workloads"},
}

// ranks returns the number of the row of each name.
func ranks(rows [][]string) map[string]int {
	rank := map[string]int{}
	for i, row := range rows {
		for _, name := range row {
			rank[name] = i
		}
	}
	return rank
}

func TestImportDirections(t *testing.T) {
	rank, floor := ranks(layers), ranks(folders)
	seen := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." ||
			slices.Contains([]string{"testdata", "dist", "scripts"}, d.Name())) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		seen++
		from := path.Dir(filepath.ToSlash(name))
		at, ok := rank[from]
		if !ok {
			t.Errorf("%s: package %s has no place in the layers", name, from)
			return nil
		}
		for _, spec := range f.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			for module, homes := range only {
				if (imported == module || strings.HasPrefix(imported, module+"/")) &&
					!slices.ContainsFunc(strings.Fields(homes), func(home string) bool {
						return from == home || from == path.Join(home, path.Base(home)+"test")
					}) {
					t.Errorf("%s: %s belongs in %s only", name, imported, homes)
				}
			}
			to, local := strings.CutPrefix(imported, "fisub/")
			if !local {
				continue
			}
			below, ok := rank[to]
			if !ok {
				t.Errorf("%s: package %s has no place in the layers", name, to)
			} else if below >= at {
				t.Errorf("%s: %s must not import %s: imports point down the layers only", name, from, to)
			}
			in, _, _ := strings.Cut(from, "/")
			of, _, _ := strings.Cut(to, "/")
			if high, ok := floor[in]; !ok {
				t.Errorf("%s: folder %s has no place among the folders", name, in)
			} else if low, ok := floor[of]; in != of && (!ok || low >= high) {
				t.Errorf("%s: folder %s must not import folder %s: imports point down the folders only", name, in, of)
			}
			if slices.Contains(never[from], to) {
				t.Errorf("%s: %s must not import %s", name, from, to)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 20 {
		t.Errorf("files seen: got %d, want the whole tree", seen)
	}
}

// Only function literals in constructors of commands take the context of the flag library. No line of production code
// has more than 120 characters.
func TestSizes(t *testing.T) {
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || strings.HasSuffix(d.Name(), "test") ||
			slices.Contains([]string{"testdata", "dist"}, d.Name())) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil || strings.Contains(string(data), "// Code generated ") {
			return err
		}
		n := 0
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "func ") && strings.Contains(line, "*cli.Context") {
				t.Errorf("%s:%d: a function takes a context of the flag library", name, n+1)
			}
			if n++; utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 120 {
				t.Errorf("%s:%d: more than 120 characters", name, n)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
