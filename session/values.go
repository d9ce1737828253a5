package session

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/bench/runs"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/remote"
	"fisub/workloads"
)

// A Value may be given on the command line. What says what it is.
type Value struct{ Word, What string }

// Words are values that say for themselves what they are.
func Words(words ...string) []Value {
	found := make([]Value, len(words))
	for i, w := range words {
		found[i].Word = w
	}
	return found
}

// Values finds what a project has that may be given. Of what cannot be read it gives nothing.
type Values struct {
	*Project
	Definition, Solution string // from the words before, or ""
}

// definition is the one that the line, its packed solution or its config names; "" where none does.
func (v *Values) definition() string {
	if name := v.Definition; name != "" {
		return name
	}
	if file := v.Solution; file != "" {
		if sol, _, err := trace.ReadSolution(v.Path(file)); err == nil {
			return sol.Definition
		}
		return ""
	}
	cfg, err := config.Load(v.ConfigPath())
	if err != nil {
		return ""
	}
	return cfg.Solution.Definition
}

func (v *Values) Definitions() []Value {
	data, err := v.OpenDataset()
	if err != nil {
		return nil
	}
	return Words(data.Definitions()...)
}

// sets are those of the definition, or of all where none is named.
func (v *Values) Sets() (found []Value) {
	data, err := v.OpenDataset()
	if err != nil {
		return nil
	}
	names := data.Definitions()
	if name := v.definition(); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		sets, _ := data.Sets(name)
		for _, set := range sets {
			if !slices.ContainsFunc(found, func(c Value) bool { return c.Word == set }) {
				found = append(found, Value{set, "of " + name})
			}
		}
	}
	return found
}

// Baselines are those of the definition, or all where none is named.
func (v *Values) Baselines() []Value {
	return Words(append(BaselineNames(v.Root(), v.definition()), NoBaseline)...)
}

// Runs are those of the folder, the newest first.
func (v *Values) Runs() (found []Value) {
	ids, err := runs.IDs(v.Root())
	if err != nil || len(ids) == 0 {
		return nil
	}
	slices.Reverse(ids)
	found = []Value{{"last", "the newest run"}}
	if len(ids) > 1 {
		found = append(found, Value{"last~1", "the run before it"})
	}
	for i, id := range ids {
		what := ""
		if i < 50 { // each is a file to read
			if run, err := runs.Header(filepath.Join(v.Root(), runs.Dir, id)); err == nil {
				what = fmt.Sprintf("%s %s, %s on %s", run.Solution, plain.Short(run.ContentHash), plain.Count(len(run.Workloads),
					"workload"), run.Device.Name)
			}
		}
		found = append(found, Value{id, what})
	}
	return found
}

func (v *Values) Tables() (found []Value) {
	tables, _ := v.Project.Tables()
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		found = append(found, Value{name, "a table of the config, of kind " + remote.Kind(tables[name])})
	}
	if tables["loopback"] == nil {
		found = append(found, Value{"loopback", "this machine, the whole way"})
	}
	return found
}

func (v *Values) GitRemotes() []Value {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	repo, err := git.Open(ctx, v.Root())
	if err != nil {
		return nil
	}
	names, _ := repo.Remotes(ctx)
	return Words(names...)
}

// devices are those that the driver has made files for; to open one would take too long.
func Devices() []Value {
	found := []Value{{"auto", "the first GPU, else the emulator"}, {"emu", "the emulator: no times"}, {"cuda",
		"the first GPU"}}
	nodes, _ := fs.Glob(os.DirFS("/dev"), "nvidia[0-9]*")
	for _, node := range nodes {
		found = append(found, Value{"cuda:" + strings.TrimPrefix(node, "nvidia"), "a GPU"})
	}
	return found
}

// AxesText gives the axes of a workload in a line.
func AxesText(w *trace.Workload) string {
	text := ""
	for name, n := range w.Axes.All() {
		text += fmt.Sprintf("  %s=%d", name, n)
	}
	return text
}

// Narrow says what the default set leaves out of the contest's mix; "" where run ran another set, or there is none.
func Narrow(s *Submission, run *event.Run) string {
	mix, err := s.Data.Workloads(s.Definition.Name, workloads.ContestSet)
	if err != nil || run.Set != workloads.DefaultSet {
		return ""
	}
	var fixed []string
	for _, axis := range slices.Sorted(maps.Keys(run.Workloads[0].Axes)) {
		same := true
		for _, w := range run.Workloads {
			same = same && w.Axes[axis] == run.Workloads[0].Axes[axis]
		}
		least, most := math.MaxInt, 0
		for _, w := range mix {
			n, _ := w.Axes.Get(axis)
			least, most = min(least, n), max(most, n)
		}
		if same && most > least {
			fixed = append(fixed, fmt.Sprintf("%s %d only, the contest's mix %d to %d", axis, run.Workloads[0].Axes[axis], least,
				most))
		}
	}
	text := "set default is a small one"
	if len(fixed) > 0 {
		text = "set default has " + strings.Join(fixed, "; ")
	}
	return fmt.Sprintf("%s; fisub local --set %s runs all %d", text, workloads.ContestSet, len(mix))
}
